"""Earlier runs as they lie in a directory: what each was, how it ended, and which files are its own."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from sysbench.command import spec_of
from sysbench.errors import LogError, OutputError
from sysbench.log import manifest, round_logs, runs
from sysbench.spec.command_line import command_line


@dataclass(frozen=True)
class Earlier:
    """One run with its log and its record, or one directory of runs."""

    name: str
    path: Path
    """The directory; of a single run, its record, or its log where there is no record."""
    files: tuple[Path, ...]
    kind: str
    """Its command: `run` for an experiment, `compare` for two arms that were measured in turns, and nothing for a
    directory in which somebody keeps runs, which is never removed."""
    what: str
    """The command line that would repeat it, without the command; of an experiment its name. Empty if unreadable."""
    began_s: float
    """Seconds since 1970."""
    outcome: str
    """`complete, 11 ok, 1 oom`."""

    @property
    def removable(self) -> bool:
        """Whether sysbench made all that there is of it, and no other process is writing to it."""
        return bool(self.kind) and self.kind != "unknown" and not (self.path.is_dir() and _locked(self.path))

    @property
    def size_bytes(self) -> int:
        """What its files take."""
        return sum(path.stat().st_size for path in self.files)

    @property
    def touched_s(self) -> float:
        """When it began or was last written to, whichever is later: a run that goes on is not old."""
        return max(self.began_s, *(path.stat().st_mtime for path in self.files))

    def remove(self) -> None:
        """Remove its files, and nothing else; raises OutputError."""
        try:
            if self.path.is_dir():
                shutil.rmtree(self.path)
            else:
                for path in self.files:
                    path.unlink()
        except OSError as error:
            raise OutputError(f"cannot remove {self.path}: {error.strerror}") from error


def earlier(directory: Path) -> list[Earlier]:
    """Every run in a directory, the newest first; raises LogError for a directory that cannot be read."""
    found = [_of(directory, name, paths) for name, paths in runs.entries(directory)]
    return sorted(found, key=lambda each: each.began_s, reverse=True)


def one(name: str, directory: Path) -> Earlier:
    """The run that a name or a path stands for; raises LogError where it stands for none, or several."""
    paths = runs.find(name, directory)
    named = Path(name)
    if named.exists():
        return _of(named.absolute().parent, named.absolute().name if named.is_dir() else named.stem, paths)
    return next(_of(directory, found, every) for found, every in runs.entries(directory) if set(paths) <= set(every))


def _of(directory: Path, name: str, paths: Sequence[Path]) -> Earlier:
    """One entry of a directory: `paths` are its logs and records, one of each run."""
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
        kind, what = "run", _experiment_of(home)
    elif round_logs.parts_of(paths) and all(path.absolute().parent.parent == home.absolute() for path in paths):
        kind, what = "compare", f"two arms, {what}"
    ended = "complete" if all(each.status == "complete" for each in every) else "incomplete"
    cells = sum((each.cells for each in every), Counter[str]())
    return Earlier(name, home, files, kind, what, min(each.began_s for each in every), _counted(ended, cells))


def _experiment_of(directory: Path) -> str:
    try:
        return Path(manifest.read(directory).experiment).stem
    except LogError:
        return ""


@dataclass(frozen=True)
class _Seen:
    """As much of one log or record as a list needs."""

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
    """What a file says of its run; one that cannot be read is said to be `unreadable`, and is as old as the file."""
    kind = runs.kind_at(path) or "unknown"
    try:
        spec, began_s, status, cells = _of_log(path) if path.suffix == ".jsonl" else _of_record(path)
        words = command_line(spec_of({"kind": kind, **spec})).split(maxsplit=2)[2:]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return _Seen(kind, "", path.stat().st_mtime, "unreadable", Counter())
    return _Seen(kind, "".join(words), began_s, status, cells)


def _of_record(path: Path) -> tuple[dict[str, Any], float, str, Counter[str]]:
    top = from_json(path.read_bytes())
    began_s = datetime.fromisoformat(top["started_at"]).timestamp()
    return top["spec"], began_s, top["status"], Counter(cell["outcome"] for cell in top["cells"])


def _of_log(path: Path) -> tuple[dict[str, Any], float, str, Counter[str]]:
    """A log that does not say how it ended is of a run that was killed, or goes on."""
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
        raise ValueError("it does not begin with the start of a run")
    return spec, began_s, status, Counter(outcomes.values())


def _telling(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            # Most lines of a log are samples, which take long to parse and say nothing here.
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
