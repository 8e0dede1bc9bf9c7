"""Runs command lines in this process, as a user would in a directory of their own, and writes down what comes out."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import matplotlib.font_manager  # noqa: F401  starts fc-list where its cache is empty, which no command line may

from sysbench.__main__ import main
from tests.compatibility.lines import Line
from tests.compatibility.shortening import shortened, shortened_json

FIXTURES = Path(__file__).parent.parent / "fixtures"

_KEPT = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
"""Variables that a command may need to run at all; no other reaches it, so that no terminal or setting shows."""

_MASKS = [
    (re.compile(r"\b20\d\d-\d\d-\d\dT\d\d-\d\d-\d\d(?=-)"), "DATE"),
    (re.compile(r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00)?"), "DATE"),
]


class Answering:
    """A place in which command lines are answered, one after another."""

    def __init__(self, root: Path) -> None:
        """Copy the saved runs below `root`, an empty directory."""
        self._root = root.resolve()
        self._saved = self._root / "saved"
        _copy(FIXTURES / "runs", self._saved)
        _copy(FIXTURES / "snapshots", self._saved / "snapshots")
        self._before = _listing(self._saved)

    def answer(self, line: Line) -> str:
        """Exit code, stdout, stderr and the files that were written, as text."""
        there = self._root / "there"
        shutil.rmtree(there, ignore_errors=True)
        there.mkdir()
        if line.changes_saved:
            _copy(self._saved, there / "saved")
        else:
            (there / "saved").symlink_to(self._saved)
        before = _listing(there)
        code, out, err = _ran(line, there)
        if _listing(self._saved) != self._before:
            raise RuntimeError(f"this changed the saved runs: {line.text}")
        parts = [f"exit {code}", *_section("stdout", shortened_json(out)), *_section("stderr", err)]
        for name, state in _listing(there).items():
            if before.get(name) != state:
                parts += _section(name, "" if line.measures else shortened(there / name))
        return self._masked("\n".join(parts) + "\n", line)

    def _masked(self, text: str, line: Line) -> str:
        for path, name in ((str(self._root), "ROOT"), (str(Path(__file__).parents[2]), "SOURCE")):
            text = text.replace(path, name)
        for pattern, name in _MASKS if line.measures else ():
            text = pattern.sub(name, text)
        return text


@contextlib.contextmanager
def answering() -> Iterator[Answering]:
    """An Answering in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="sysbench-compatibility-") as root:
        yield Answering(Path(root))


def _ran(line: Line, there: Path) -> tuple[int, str, str]:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    settings = {"COLUMNS": "80", "LINES": "24", "TERM": "dumb", "HOME": str(there), "OMP_NUM_THREADS": "1"}
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    code: object = 0
    with (
        mock.patch.dict(os.environ, {**kept, **settings, **line.environment}, clear=True),
        mock.patch.object(sys, "stdin", io.StringIO()),
        contextlib.nullcontext() if line.measures else mock.patch("subprocess.Popen", _no_process),
        contextlib.chdir(there),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main(line.arguments)
        except SystemExit as end:
            code = end.code
        finally:
            gc.enable()  # a process that is about to end needs none
    return int(code or 0), _content(out), _content(err)  # type: ignore[call-overload]


def _no_process(*arguments: object, **options: object) -> None:
    raise AssertionError(f"a process would be started; is a ~ missing in front? {arguments}")


def _content(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode()  # type: ignore[attr-defined]


def _section(name: str, content: str) -> list[str]:
    """With a mark for a last line without an end."""
    if not content:
        return [f"--- {name}: nothing"]
    return [f"--- {name}", content.removesuffix("\n") if content.endswith("\n") else f"{content}<no end of line>"]


def _copy(source: Path, target: Path) -> None:
    """Copy a directory; all files are of one age, as which is newer decides between a log and its record."""
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    for path in target.rglob("*"):
        os.utime(path, ns=(10**18, 10**18))


def _listing(directory: Path) -> dict[str, tuple[int, int]]:
    """Size and age of every file."""
    found = {}
    for path in sorted(directory.rglob("*")):
        state = path.stat()
        if not path.is_dir():
            found[path.relative_to(directory).as_posix()] = (state.st_size, state.st_mtime_ns)
    return found
