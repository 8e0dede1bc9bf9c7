"""What a part does, and writes down: commands, numbers, tables, and what became of its promises."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu.evidence.commands import Ran, run
from tests.gpu.evidence.promises import Promise

ROOT = Path(__file__).parents[3]
"""Of the checkout, where the commands are run."""

LEAST_SHARE = 0.6
"""Of the time that something is expected to take, without which it is not begun: what is cut short is kept too."""

TINY = ("--d-model=32", "--d-ff=64", "--layers=1", "--heads=2", "--vocab=50", "--batch=1")
"""What a rehearsal measures."""


@dataclass(frozen=True)
class Part:
    """Something to see on a GPU."""

    name: str
    title: str
    estimate_s: float
    """What it takes on an H200: an estimate, until `took_s` of a run there says better."""
    run: Callable[[Work], None]
    promises: tuple[Promise, ...] = ()
    alone: bool = True
    """What it sees depends on nothing else being at work on the GPU, or on the host."""
    limit_s: float | None = None
    """How long it may take at the most; None is three times the estimate."""
    rehearsed_by: str | None = None
    """Another part that does the same with other options: a rehearsal makes do with that."""

    @property
    def most_s(self) -> float:
        """How long it may take at the most."""
        return self.limit_s or 3 * self.estimate_s


@dataclass
class Work:
    """One part at work. Everything is written to `path` after every command, whole, so that nothing is lost."""

    part: Part
    directory: Path
    """Of the whole run."""
    rehearsal: bool
    ends_at_s: float
    """When it has to be over, by the monotonic clock."""
    commands: list[dict[str, Any]] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    tables: list[dict[str, Any]] = field(default_factory=list)
    promises: dict[str, dict[str, Any]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for promise in self.part.promises:
            self.promises[promise.name] = promise.outcome(None, rehearsal=self.rehearsal)

    @property
    def place(self) -> Path:
        """Where this part's own files are."""
        place = self.directory / "records" / self.part.name
        place.mkdir(parents=True, exist_ok=True)
        return place

    @property
    def fixtures(self) -> Path:
        """Where files are left that tests may keep."""
        place = self.directory / "fixtures"
        place.mkdir(parents=True, exist_ok=True)
        return place

    @property
    def device(self) -> str:
        """What to measure on."""
        return "--device=cpu" if self.rehearsal else "--device=cuda"

    @property
    def left_s(self) -> float:
        """Until it has to be over."""
        return self.ends_at_s - time.monotonic()

    def has(self, what: str, takes_s: float) -> bool:
        """Whether there is time for something; what there is none for is written down."""
        if self.left_s >= (0 if self.rehearsal else LEAST_SHARE * takes_s):
            return True
        self.left_out.append(f"{what}: takes about {takes_s:.0f} s, and {max(0.0, self.left_s):.0f} s were left")
        self.save()
        return False

    def command(self, *words: str, codes: Sequence[int] = (0,)) -> Ran:
        """Run a command with what time is left, and write down how it ended."""
        number = len(self.commands) + 1
        out, err = self.place / f"{number}.out", self.place / f"{number}.err"
        # What is found is the checkout's sysbench, wherever the command is given.
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        ran = run(words, self.left_s, out, err, {"PYTHONPATH": path})
        self.commands.append({"command": ran.line, "code": ran.code, "took_s": round(ran.took_s, 2)})
        if ran.code is None:  # by the deadline: the part is run again when there is time
            self.left_out.append(f"{ran.line}: stopped after {ran.took_s:.0f} s")
        elif ran.code not in codes and ran.problem:
            self.problems.append(ran.problem)
        self.save()
        return ran

    def sysbench(self, *words: str, takes_s: float = 0.0) -> dict[str, Any] | None:
        """The record of a run, also of one that was cut short; None where there is none."""
        if not self.has(" ".join(["sysbench", *words]), takes_s):
            return None
        number = len(self.commands) + 1
        out = self.place / f"{number}"
        # 1 says that a cell was not measured, and the record which one and why.
        ran = self.command(sys.executable, "-m", "sysbench", *words, "--quiet", f"--out={out}", codes=(0, 1))
        records = sorted(out.glob("*.json"))
        if not records and ran.code == 1 and ran.problem:
            self.problems.append(ran.problem)
        found: dict[str, Any] | None = json.loads(records[-1].read_text()) if records else None
        return found

    def cells(self, *words: str, takes_s: float = 0.0, may_be_invalid: bool = False) -> list[dict[str, Any]]:
        """The cells of a run; none where it left no record. That one was not measured is a problem.

        `may_be_invalid` where it is known beforehand that some combinations do not exist everywhere.
        """
        record = self.sysbench(*words, takes_s=takes_s)
        cells: list[dict[str, Any]] = [] if record is None else record["cells"]
        wrong = ("crashed", "timeout") if may_be_invalid else ("crashed", "timeout", "invalid")
        for cell in cells:
            if cell["outcome"] in wrong:
                self.problems.append(f"sysbench {' '.join(words)}: {cell['key']} {cell['outcome']}: {cell['detail']}")
        return cells

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Whatever goes wrong inside is written down, and the part goes on."""
        try:
            yield
        except Exception:  # noqa: BLE001  what was seen so far is worth keeping, whatever the next thing raises
            last = traceback.format_exc(limit=-3)
            self.problems.append(f"{what}: {last.strip()}")
        self.save()

    def see(self, name: str, value: float | None, detail: str = "") -> None:
        """What was seen of a promise of this part."""
        (promise,) = (each for each in self.part.promises if each.name == name)
        self.promises[name] = promise.outcome(value, detail, rehearsal=self.rehearsal)
        self.save()

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Something for people."""
        texts = [["" if each is None else str(each) for each in row] for row in rows]
        self.tables.append({"title": title, "columns": list(columns), "rows": texts})
        self.save()

    @property
    def path(self) -> Path:
        """What this part has found, so far."""
        return result_path(self.directory, self.part.name)

    def save(self, outcome: str = "unfinished", took_s: float | None = None) -> None:
        """Write down everything so far."""
        content = {
            "name": self.part.name,
            "title": self.part.title,
            "outcome": outcome,
            "rehearsal": self.rehearsal,
            "estimate_s": self.part.estimate_s,
            "took_s": took_s,
            "commands": self.commands,
            "numbers": self.numbers,
            "tables": self.tables,
            "promises": list(self.promises.values()),
            "problems": self.problems,
            "left_out": self.left_out,
        }
        text = json.dumps(content, indent=1, ensure_ascii=False)
        write_whole(self.path, without_places(text, self.directory))


def without_places(text: str, directory: Path) -> str:
    """The same wherever the checkout and the directory of the run are."""
    return text.replace(str(directory), "DIRECTORY").replace(f"{ROOT}/", "")


def result_path(directory: Path, name: str) -> Path:
    """Where a part writes down what it has found."""
    return directory / "parts" / f"{name}.json"


def write_whole(path: Path, text: str) -> None:
    """Put a text in place of a file in one go: whoever reads it finds the old one or the new one, whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def carry_out(part: Part, directory: Path, seconds: float, *, rehearsal: bool) -> str:
    """Do the part's work here and now; returns its outcome."""
    began_s = time.monotonic()
    work = Work(part, directory, rehearsal, began_s + seconds)
    work.save()
    with work.attempt(part.name):
        part.run(work)
    outcome = "incomplete" if work.left_out else "failed" if work.problems else "done"
    work.save(outcome, time.monotonic() - began_s)
    return outcome
