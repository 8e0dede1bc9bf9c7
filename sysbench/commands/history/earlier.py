"""Earlier runs in a directory: their specs, outcomes and files."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from sysbench.command import spec_of
from sysbench.errors import LogError, OutputError
from sysbench.log import manifest, runs
from sysbench.spec.command_options import command_line


@dataclass(frozen=True)
class Earlier:
    """An earlier run with its log and record, or a directory of runs."""

    name: str
    path: Path
    """The directory of runs; for a single run, its record, or its log if there is no record."""
    files: tuple[Path, ...]
    kind: str
    """Command of the run: `run` for an experiment, `compare` for an `--ab` comparison; empty for a user's directory of
    runs, which is never removed.
    """
    what: str
    """Options that repeat the run on the command line; the call in the user's program; the name of an experiment;
    empty if unreadable.
    """
    began_s: float
    """Seconds since 1970."""
    outcome: str
    """`complete, 11 ok, 1 oom`."""

    @property
    def removable(self) -> bool:
        """Whether sysbench created all files of the run, and no other process is writing to them."""
        return bool(self.kind) and self.kind != "unknown" and not (self.path.is_dir() and _locked(self.path))

    @property
    def size_bytes(self) -> int:
        """Total size of the files."""
        return sum(path.stat().st_size for path in self.files)

    @property
    def touched_s(self) -> float:
        """Start time or last write, whichever is later, so that a run in progress does not count as old."""
        return max(self.began_s, *(path.stat().st_mtime for path in self.files))

    def remove(self) -> None:
        """Remove all files of the run; raises OutputError on failure."""
        try:
            if self.path.is_dir():
                shutil.rmtree(self.path)
            else:
                for path in self.files:
                    path.unlink()
        except OSError as error:
            raise OutputError(f"cannot remove {self.path}: {error.strerror}") from error


def earlier(directory: Path) -> list[Earlier]:
    """Return all runs in a directory, the newest first; raises LogError if the directory cannot be read."""
    found = [_of(directory, name, paths) for name, paths in runs.entries(directory)]
    return sorted(found, key=lambda each: each.began_s, reverse=True)


def one(name: str, directory: Path) -> Earlier:
    """Return the run with this name or path; raises LogError unless exactly one run matches."""
    paths = runs.find(name, directory)
    named = Path(name)
    if named.exists():
        return _of(named.absolute().parent, named.absolute().name if named.is_dir() else named.stem, paths)
    return next(_of(directory, found, every) for found, every in runs.entries(directory) if set(paths) <= set(every))


def _of(directory: Path, name: str, paths: Sequence[Path]) -> Earlier:
    """Return the run or directory of runs called `name`; `paths` contains the log or the record of each of its runs."""
    home = directory / name
    if not home.is_dir() or paths[0].stem == name:
        beside = tuple(
            each for each in (paths[0].with_suffix(".jsonl"), paths[0].with_suffix(".json")) if each.is_file()
        )
        seen = _seen(paths[0])
        return Earlier(name, paths[0], beside, seen.kind, seen.what, seen.began_s, seen.outcome)
    every = [_seen(path) for path in paths]
    files = tuple(sorted(path for path in home.rglob("*") if path.is_file()))
    kind, what = "", f"{len(paths)} run{'' if len(paths) == 1 else 's'}"
    if manifest.is_manifest(home):
        kind, what = "run", ""
        with suppress(LogError):
            what = Path(manifest.read(home).experiment).stem
    elif runs.find_arms(paths) and all(path.absolute().parent.parent == home.absolute() for path in paths):
        kind, what = "compare", f"two arms, {what}"
    ended = "complete" if all(each.status == "complete" for each in every) else "incomplete"
    cells = sum((each.cells for each in every), Counter[str]())
    return Earlier(name, home, files, kind, what, min(each.began_s for each in every), _counted(ended, cells))


@dataclass(frozen=True)
class _Seen:
    kind: str
    what: str
    began_s: float
    status: str
    cells: Counter[str]

    @property
    def outcome(self) -> str:
        return _counted(self.status, self.cells)


def _counted(status: str, cells: Counter[str]) -> str:
    return ", ".join([status, *(f"{count:,} {outcome}" for outcome, count in cells.most_common())])


def _seen(path: Path) -> _Seen:
    """Read a log or a record; on failure, the status is `unreadable` and the start is the file's modification time."""
    kind = runs.kind_at(path) or "unknown"
    try:
        spec, began_s, status, cells = _of_log(path) if path.suffix == ".jsonl" else _of_record(path)
        what = command_line(spec_of({"kind": kind, **spec})).removeprefix(f"sysbench {kind}").strip()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return _Seen(kind, "", path.stat().st_mtime, "unreadable", Counter())
    return _Seen(kind, what, began_s, status, cells)


def _of_record(path: Path) -> tuple[dict[str, Any], float, str, Counter[str]]:
    top = from_json(path.read_bytes())
    began_s = datetime.fromisoformat(top["started_at"]).timestamp()
    return top["spec"], began_s, top["status"], Counter(cell["outcome"] for cell in top["cells"])


def _of_log(path: Path) -> tuple[dict[str, Any], float, str, Counter[str]]:
    """Return the spec, start time, status and outcomes from a log; a log without an end has the status `unfinished`."""
    spec: dict[str, Any] = {}
    began_s, status = 0.0, "unfinished"
    outcomes: dict[str, str] = {}
    for said in _telling(path):
        match said["event"]:
            case "run_started":
                spec, began_s = said["spec"], said["at_s"]
            case "run_resumed":
                status = "unfinished"
            case "run_finished":
                status = said["status"]
            case "cell_finished":
                outcomes[said["cell"]] = said["outcome"]
    if not spec:
        raise ValueError("it does not start with the start event of a run")
    return spec, began_s, status, Counter(outcomes.values())


def _telling(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            # Most lines of a log are samples, which are slow to parse and are not needed here.
            if (b'"event":"run_' in line[:40] or b'"event":"cell_finished"' in line[:40]) and line.endswith(b"\n"):
                yield from_json(line)


def _locked(directory: Path) -> bool:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
