"""Earlier runs in a directory: their specs, outcomes and files."""

from __future__ import annotations

import fcntl
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import from_json

from sysbench.command import runnable
from sysbench.errors import LogError
from sysbench.log import manifest, runs, storage
from sysbench.log.records import CellRecord
from sysbench.render.remarks import name_cells
from sysbench.spec.cell import spec_of
from sysbench.spec.command_options import command_line


@dataclass(frozen=True)
class EarlierRun:
    """An earlier run with its log and record, or a directory of runs."""

    name: str
    path: Path
    """The directory of runs; for a single run, its record, or its log if there is no record."""
    files: tuple[Path, ...]
    kind: str
    """Command of the run: `run` for an experiment, `compare` for an `--ab` comparison; empty for other directories."""
    what: str
    """Options that repeat the run on the command line; the call in the user's program; the name of an experiment;
    empty if unreadable.
    """
    began_s: float
    """Seconds since 1970."""
    outcome: str
    """`complete, 11 ok, 1 oom`."""

    @property
    def complete(self) -> bool:
        return self.outcome.startswith("complete")

    @property
    def in_progress(self) -> bool:
        log = self.path if self.path.is_dir() else self.path.with_suffix(".jsonl")
        return log.exists() and _locked(log)

    @property
    def resumable_log(self) -> Path | None:
        """The log of a run without all of its results, if `--resume` can continue it."""
        log = self.path.with_suffix(".jsonl")
        return log if not self.complete and self.kind in runnable() and log in self.files else None

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files)


def list_runs(directory: Path) -> list[EarlierRun]:
    """Return all runs in a directory, the newest first; raises LogError if the directory cannot be read."""
    found = [_read_run(directory, name, paths) for name, paths in runs.entries(directory)]
    return sorted(found, key=lambda each: each.began_s, reverse=True)


def find_run(name: str, directory: Path) -> EarlierRun:
    """Return the run with this name or path; raises LogError unless exactly one run matches."""
    paths = runs.find(name, directory)
    named = Path(name)
    if storage.exists(named):
        return _read_run(named.absolute().parent, named.absolute().name if named.is_dir() else named.stem, paths)
    return next(
        _read_run(directory, found, run_paths)
        for found, run_paths in runs.entries(directory)
        if set(paths) <= set(run_paths)
    )


def cells_by_outcome(run: EarlierRun) -> dict[str, str]:
    try:
        cells = runs.load(run.path).cells
    except LogError:
        return {}
    grouped: dict[str, list[CellRecord]] = {}
    for cell in cells:
        grouped.setdefault(cell.outcome, []).append(cell)
    return {outcome: name_cells(group, cells) for outcome, group in grouped.items()}


def _read_run(directory: Path, name: str, paths: Sequence[Path]) -> EarlierRun:
    run_directory = directory / name
    if not run_directory.is_dir() or paths[0].stem == name:
        candidates = dict.fromkeys((paths[0].with_suffix(".jsonl"), paths[0].with_suffix(".json"), paths[0]))
        log_and_record = tuple(candidate for candidate in candidates if candidate.is_file())
        kind, what, began_s, status, cells = _read_summary(paths[0])
        return EarlierRun(name, paths[0], log_and_record, kind, what, began_s, _outcome_text(status, cells))
    summaries = [_read_summary(path) for path in paths]
    files = tuple(sorted(path for path in run_directory.rglob("*") if path.is_file()))
    kind, what, missing = "", f"{len(paths)} run{'' if len(paths) == 1 else 's'}", 0
    if manifest.is_manifest(run_directory):
        kind, what = "run", ""
        with suppress(LogError):
            experiment = manifest.read(run_directory)
            what = Path(experiment.experiment).stem
            missing = sum(entry.here != "left out" for entry in experiment.runs_without(path.name for path in paths))
    elif runs.find_arms(paths) and all(path.absolute().parent.parent == run_directory.absolute() for path in paths):
        kind, what = "compare", f"two arms, {what}"
    status = "complete" if not missing and all(summary.status == "complete" for summary in summaries) else "incomplete"
    outcome = _outcome_text(status, sum((summary.cells for summary in summaries), Counter[str]()))
    if missing:
        outcome += f", {missing} run{'' if missing == 1 else 's'} missing"
    return EarlierRun(name, run_directory, files, kind, what, min(summary.began_s for summary in summaries), outcome)


class _Summary(NamedTuple):
    kind: str
    what: str
    began_s: float
    status: str
    cells: Counter[str]


def _outcome_text(status: str, cells: Counter[str]) -> str:
    return ", ".join([status, *(f"{count:,} {outcome}" for outcome, count in cells.most_common())])


def _read_summary(path: Path) -> _Summary:
    """Read a log or a record; on failure, the status is `unreadable` and the start is the file's modification time."""
    kind = runs.kind_at(path) or "unknown"
    try:
        if runs.is_record(path):
            top = from_json(path.read_bytes())
            spec, began_s, status = top["spec"], datetime.fromisoformat(top["started_at"]).timestamp(), top["status"]
            cells = Counter(cell["outcome"] for cell in top["cells"])
        else:
            spec, began_s, status, cells = _summary_fields_of_log(path)
        what = command_line(spec_of({"kind": kind, **spec})).removeprefix(f"sysbench {kind}").strip()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return _Summary(kind, "", path.stat().st_mtime, "unreadable", Counter())
    return _Summary(kind, what, began_s, status, cells)


def _summary_fields_of_log(path: Path) -> tuple[dict[str, Any], float, str, Counter[str]]:
    """Return the spec, start time, status and outcomes from a log; a log without an end has the status `unfinished`."""
    spec: dict[str, Any] = {}
    began_s, status, cell_count, kind = 0.0, "unfinished", 0, ""
    outcomes: dict[str, str] = {}
    timings: set[str] = set()
    for event in _run_and_cell_events(path):
        match event["event"]:
            case "run_started":
                spec, began_s, cell_count, kind = event["spec"], event["at_s"], event["cells"], event["kind"]
            case "run_resumed":
                status = "unfinished"
            case "run_finished":
                status = event["status"]
            case "cell_started":
                outcomes[event["cell"]] = "unfinished"
                if event["axes"]["kind"] != kind:
                    timings.add(event["cell"])
            case "cell_finished":
                outcomes[event["cell"]] = event["outcome"]
    if not spec:
        raise ValueError("it does not start with the start event of a run")
    # A finished timing run is a part of the cell that follows it.
    counts = Counter(each for key, each in outcomes.items() if key not in timings or each == "unfinished")
    return spec, began_s, status, counts + Counter({"not run": cell_count - counts.total()})


_RUN_OR_CELL_EVENT = re.compile(rb'"event":"(?:run_|cell_(?:started|finished)")')


def _run_and_cell_events(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            # Most lines of a log are samples, which are slow to parse and are not needed here.
            if _RUN_OR_CELL_EVENT.search(line, 0, 40) and line.endswith(b"\n"):
                yield from_json(line)


def _locked(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
