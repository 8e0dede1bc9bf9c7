"""Runs command lines in this process, as a user would in a directory of their own, and writes down what comes out."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import matplotlib.font_manager  # noqa: F401  starts fc-list where its cache is empty, which no command line may

from sysbench.cli import main
from tests.compatibility.lines import Line
from tests.compatibility.shortening import file_content, shortened

SOURCE = Path(__file__).parents[2]
FIXTURES = SOURCE / "tests" / "fixtures"

_KEPT = ("PATH", "LANG", "TMPDIR", "SYSTEMROOT", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
"""Variables that a command may need to run at all; no other reaches it, so that no terminal or setting shows."""

_MASKS = [
    (re.compile(r"\bsysbench \d+\.\d+\.\d+(\.?(a|b|rc|dev|post)\d+)*"), "sysbench VERSION"),
    (re.compile(r'("kind": "(?:comparison|traces)",\s*"sysbench_version": )"[^"]*"'), r'\1"VERSION"'),
    (re.compile(r"\b[\w.]+ \(\w{8}\) here"), "VERSION (CODE) here"),
]
"""What changes with every version of the code."""

_MEASURED = [
    (re.compile(r"\b20\d\d-\d\d-\d\dT\d\d-\d\d-\d\d(?=-)"), "DATE"),
    (re.compile(r"\btorch \d\S+"), "torch VERSION"),
    (re.compile(r"(?<=\.py):\d+"), ":LINE"),
]
"""What changes with every run, or with every version of torch."""


class Answering:
    """A place in which command lines are answered, one after another."""

    def __init__(self, root: Path) -> None:
        """Copy the saved runs below `root`, an empty directory."""
        self._root = root.resolve()
        self._saved = self._root / "saved"
        _copy(FIXTURES / "runs", self._saved)
        _copy(FIXTURES / "snapshots", self._saved / "snapshots")
        self._before = _listing(self._saved)

    def answer(self, line: Line, *, whole: bool = False) -> str:
        """Exit code, stdout, stderr and every file that was written or changed; what is long only when `whole`."""
        there = self._root / "there"
        shutil.rmtree(there, ignore_errors=True)
        there.mkdir()
        if line.changes_saved:
            _copy(self._saved, there / "saved")
        else:
            (there / "saved").symlink_to(self._saved)
        before = _listing(there) if line.changes_saved else {}
        code, out, err = _ran(line, there)
        sections = {"stdout": out, "stderr": err}
        for name, state in _listing(there).items():
            if before.get(name) != state:
                sections[name] = "" if line.measures else file_content(there / name)
        parts = [f"exit {code}"]
        for name, content in sections.items():
            text = self._masked(content, line)
            parts.append(_section(self._masked(name, line), text if whole else shortened(text)))
        return "\n".join(parts) + "\n"

    def refuse_changes(self) -> None:
        """Raise RuntimeError if a command line changed a saved run, which others read."""
        now = _listing(self._saved)
        changed = [name for name in {**self._before, **now} if self._before.get(name) != now.get(name)]
        if changed:
            raise RuntimeError(f"a command line changed saved runs: {', '.join(changed)}")

    def _masked(self, text: str, line: Line) -> str:
        text = text.replace(str(self._root), "ROOT").replace(str(SOURCE), "SOURCE").replace("\x1b", "␛")
        for pattern, name in _MASKS + (_MEASURED if line.measures else []):
            text = pattern.sub(name, text)
        return text


@contextlib.contextmanager
def answering() -> Iterator[Answering]:
    """An Answering in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="sysbench-compatibility-") as root:
        place = Answering(Path(root))
        yield place
        place.refuse_changes()


def _ran(line: Line, there: Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a command line in a directory; raises what `main` does not answer."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    path = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    settings = {"COLUMNS": "80", "LINES": "24", "TERM": "dumb", "PYTHONPATH": path, "HOME": str(there)}
    encoding = line.environment.get("PYTHONIOENCODING", "utf-8")
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
    code: object = 0
    with (
        mock.patch.dict(os.environ, {**kept, **settings, "OMP_NUM_THREADS": "1", **line.environment}, clear=True),
        mock.patch.object(sys, "stdin", io.StringIO()),
        contextlib.nullcontext() if line.measures else mock.patch.object(subprocess.Popen, "__init__", _no_process),
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
    return int(str(code or 0)), _content(out), _content(err)


def _no_process(*arguments: object, **options: object) -> None:
    raise AssertionError(f"a process would be started; is a ~ missing in front? {arguments}")


def _content(stream: io.TextIOWrapper) -> str:
    stream.flush()
    content: bytes = stream.buffer.getvalue()  # type: ignore[attr-defined]
    return content.decode(stream.encoding)


def _section(name: str, content: str) -> str:
    """A heading and the content under it; with a mark for a last line without an end."""
    if not content:
        return f"--- {name}"
    return f"--- {name}\n" + (content[:-1] if content.endswith("\n") else f"{content}<no end of line>")


def _copy(source: Path, target: Path) -> None:
    """Copy a directory; all files are of one age, as which is newer decides between a log and its record."""
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    for path in target.rglob("*"):
        os.utime(path, ns=(10**18, 10**18))


def _listing(directory: Path) -> dict[str, tuple[int, int]]:
    """Size and age of every file by its name in the directory."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    states = ((path.relative_to(directory).as_posix(), path.stat()) for path in files)
    return {name: (state.st_size, state.st_mtime_ns) for name, state in states}
