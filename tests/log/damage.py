"""Records and logs that were edited or damaged, and what the command line answers about them.

The saved runs of `tests/fixtures/runs` are damaged, each time at one place, and `--from`, `report`, `compare` and
`--resume` read what comes of it. Whatever stands in the file, the answer is a result, or one line with exit code 2; it
never is a defect.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import subprocess
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from sysbench.cli import main as sysbench
from sysbench.command import kinds
from sysbench.frames import owner_here
from sysbench.log.runs import kind_at
from sysbench.package import source_digest

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"

_RAW = "raw number: "
_NUMBERS: tuple[Any, ...] = (
    float("nan"), float("inf"), float("-inf"), 0, 0.0, -1, 1, 0.5, 1.5, 2, 3, 10**6, 10**18, 2**63, 10**30, -(10**30),
    1e-300, 5e-324, 1e18, 1e100, 1e200, 1e308, -1e308, f"{_RAW}1e999", f"{_RAW}{'9' * 400}", f"{_RAW}-0.0",
)  # fmt: skip
_OTHERS: tuple[Any, ...] = (
    None, True, False, "", "x", "nan", "inf", "1", "0", "a\nb", "\x1b[31m", "\ud800", "é" * 300, [], {},
    [None], [[]], [0], {"a": 1}, {"": None}, [1, 2, 3], ["x", "x"],
)  # fmt: skip
_TIMES: tuple[Any, ...] = (
    1e18, -1e18, 253402300800, 253402300799.9, -62135596801, 1e308, "0000-00-00T00:00:00Z", "9999-99-99T99:99:99Z",
    "yesterday", "2026-02-30T00:00:00Z", "-2026-01-01T00:00:00Z", "2026-01-01", "12026-01-01T00:00:00Z",
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A saved run, damaged at one place."""

    original: Path
    change: str
    content: bytes

    @property
    def kind(self) -> str:
        """The command that it was of."""
        return str(kind_at(self.original))

    @property
    def is_log(self) -> bool:
        return self.original.suffix == ".jsonl"


def originals(largest_bytes: int) -> list[Path]:
    """The saved runs that are whole, up to this size."""
    found = [path for path in sorted(RUNS.rglob("*.json*")) if path.stat().st_size <= largest_bytes]
    return [path for path in found if path.parent.name != "broken" and kind_at(path) in kinds()]


def mutants(seed: int, count: int, files: Sequence[Path]) -> Iterator[Mutant]:
    """So many of them, the same for the same seed."""
    chance = random.Random(seed)
    texts = {path: _of_this_code(path) for path in files}
    for number in range(count):
        path = files[number % len(files)]
        lines = texts[path] if path.suffix == ".jsonl" else ["".join(texts[path])]
        yield Mutant(path, *_damaged(lines, chance))


def _of_this_code(path: Path) -> list[str]:
    """The lines of a saved run as if this very code had made it: only then is a log continued at all."""
    text = path.read_text(encoding="utf-8")
    beginning = text.partition('"source_digest":')[2].partition('"')[2].partition('"')[0]
    return text.replace(beginning, source_digest()).splitlines(keepends=True)


def _damaged(lines: Sequence[str], chance: random.Random) -> tuple[str, bytes]:
    number = chance.randrange(sum(line.endswith("\n") for line in lines) or 1)  # the last line may be torn
    if len(lines) > 1 and chance.random() < 0.1:
        return _lines_changed(list(lines), number, chance)
    top = json.loads(lines[number])
    change = _changed(top, chance)
    text = json.dumps(top)
    for value in _NUMBERS:
        if isinstance(value, str):
            text = text.replace(f'"{value}"', value.removeprefix(_RAW))
    content = "".join([*lines[:number], text + "\n", *lines[number + 1 :]]).encode(errors="surrogatepass")
    return f"line {number + 1}: {change}", content


def _lines_changed(lines: list[str], number: int, chance: random.Random) -> tuple[str, bytes]:
    """A line that is gone, there twice, at another place, or cut off."""
    other = chance.randrange(len(lines))
    how = chance.choice(("dropped", "repeated", "moved", "cut", "cut file"))
    if how == "dropped":
        del lines[number]
    elif how == "repeated":
        lines.insert(other, lines[number])
    elif how == "moved":
        lines.insert(other, lines.pop(number))
    elif how == "cut":
        lines[number] = lines[number][: chance.randrange(len(lines[number]))] + "\n"
    else:
        del lines[number + 1 :]
    return f"line {number + 1} {how} ({other + 1})", "".join(lines).encode()


def _changed(top: Any, chance: random.Random) -> str:
    """Change one place; every kind of place is as likely, however often there is one of its kind."""
    places: dict[str, list[tuple[Any, Any, str]]] = {}
    for container, key, path in _places(top, ""):
        kind = ".".join("*" if part.isdigit() else part for part in path.split("."))
        places.setdefault(kind, []).append((container, key, path))
    container, key, path = chance.choice(places[chance.choice(list(places))])
    value = container[key]
    how, now = chance.choice(_ways(value, key))(chance)
    if how == "drop":
        del container[key]
    elif how == "twice":
        container.insert(key, value) if isinstance(container, list) else container.update({f"{key}2": value})
    else:
        container[key] = now
        how = f"{json.dumps(value)[:60]} -> {json.dumps(now)[:60]}"
    return f"{path.removeprefix('.')}: {how}"


def _places(value: Any, path: str) -> Iterator[tuple[Any, Any, str]]:
    pairs = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, inner in pairs:
        yield value, key, f"{path}.{key}"
        yield from _places(inner, f"{path}.{key}")


Way = Callable[[random.Random], tuple[str, Any]]


def _ways(value: Any, key: Any) -> list[Way]:
    ways: list[Way] = [
        lambda _: ("drop", None),
        lambda _: ("twice", None),
        lambda chance: ("", chance.choice(_OTHERS)),
        lambda chance: ("", chance.choice(_NUMBERS)),
    ]
    if isinstance(value, int | float) and not isinstance(value, bool):
        near = (
            -value,
            value + 1,
            value - 1,
            value * 1000,
            value / 2,
            value + 0.5,
            float(value),
            int(value),
            value * 10**9,
        )
        ways += [lambda chance: ("", chance.choice(_NUMBERS))] * 3 + [lambda chance: ("", chance.choice(near))] * 2
    if isinstance(value, list) and value:
        ways += [
            lambda _: ("", value[:-1]),
            lambda _: ("", value[1:]),
            lambda _: ("", [*value, value[0]]),
            lambda _: ("", []),
            lambda chance: ("", value[: chance.randrange(len(value))]),
        ]
    if str(key).endswith("_at") or key == "at_s":
        ways += [lambda chance: ("", chance.choice(_TIMES))] * 4
    return ways


@dataclass(frozen=True)
class Answer:
    """What one command line said."""

    command: str
    code: int
    err: str
    where: str = ""
    """Where it went wrong, of a defect."""

    @property
    def acceptable(self) -> bool:
        """A result, or one line that says why there is none."""
        lines = self.err.splitlines()
        if self.command == "resume" and self.code in (0, 1, 130):
            # How the cells ended that the log has, or that no worker was there for what is missing.
            return not lines or (len(lines) == 1 and _NO_PROCESS in self.err)
        return self.code == 0 or (self.code == 2 and len(lines) == 1 and "defect" not in self.err)


_NO_PROCESS = "no process is started here"


def _refuse_process(*arguments: object, **options: object) -> None:
    raise OSError(None, _NO_PROCESS)


def answers(mutant: Mutant, place: Path, commands: Sequence[str]) -> Iterator[Answer]:
    """What these commands answer about it: `from`, `report`, `page`, `compare`, `resume`."""
    path = place / f"mutant{mutant.original.suffix}"
    beside = ["compare", str(path), str(mutant.original)]
    words = {
        "from": [mutant.kind, *([] if mutant.kind == "loop" else ["--from"]), str(path)],
        "report": ["report", str(path)],
        "page": ["report", str(path), "-o", str(place / "report.html")],
        "compare": beside if len(mutant.content) % 2 else [beside[0], beside[2], beside[1]],
        "resume": [mutant.kind, "--resume", str(path), "--quiet"],
    }
    for command in commands:
        if command != "resume" or mutant.is_log:
            path.write_bytes(mutant.content)
            yield _answer(command, words[command], place)


def _answer(command: str, words: list[str], place: Path) -> Answer:
    out, err = io.StringIO(), io.StringIO()
    code: object = 0
    with (
        mock.patch.object(subprocess.Popen, "__init__", _refuse_process),
        mock.patch.dict(
            os.environ, {"COLUMNS": "80", "TERM": "dumb", "XDG_CONFIG_HOME": str(place)}
        ),  # rates are saved
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        try:
            sysbench(words)
        except SystemExit as end:
            code = end.code
        if "defect" in err.getvalue():
            with contextlib.suppress(SystemExit):
                try:
                    sysbench([*words, "--debug"])
                except Exception as error:  # noqa: BLE001
                    return Answer(command, 1, err.getvalue(), _where(error))
    return Answer(command, int(str(code or 0)), err.getvalue())


def _where(error: BaseException) -> str:
    calls = ((owner_here(each.filename), each.lineno) for each in traceback.extract_tb(error.__traceback__))
    own = [(file.path, line) for file, line in calls if not file.is_library]
    names = [f"{'/'.join(path[-3:])}:{line}" for path, line in own[-2:]]
    return f"{' > '.join(names)} {type(error).__name__}: {str(error).splitlines()[0][:90] if str(error) else ''}"
