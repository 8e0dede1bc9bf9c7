"""What a report is made of: runs, found by path or name, read once each and named as in their experiment; and traces
and memory snapshots.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sysbench.commands import artefacts
from sysbench.commands.artefacts import Artefact
from sysbench.commands.report.assemble import numbered
from sysbench.commands.report.document import ReportedRun, how_reported
from sysbench.log import manifest, runs
from sysbench.log.manifest import Manifest, RunEntry
from sysbench.log.records import RunRecord


@dataclass(frozen=True)
class Sources:
    """Everything that a report is made of."""

    runs: tuple[ReportedRun[Any], ...]
    artefacts: tuple[Artefact, ...]
    title: str
    """Of the experiment, where all runs are of one."""
    question: str
    absent: tuple[str, ...]
    """A line for each run of an experiment that is not there."""


@dataclass
class _Found:
    """One run that was read, and where."""

    path: Path
    record: RunRecord[Any]
    entry: RunEntry | None = None
    experiment: Manifest | None = None
    order: tuple[int, str, int] = field(default=(0, "", 0))


def sources(names: Sequence[str], directory: Path = runs.RUNS) -> Sources:
    """Read every run that is named, each once, in the order of its experiment, or else by command and time.

    Traces, memory snapshots and what `--from FILE --json` wrote keep the order in which they are named.

    Raises LogError for a name that stands for nothing and for a file that cannot be read.
    """
    read = {name: artefacts.read(Path(name)) for name in names}
    paths = list(
        dict.fromkeys(path.resolve() for name in names if read[name] is None for path in runs.find(name, directory))
    )
    experiments = _experiments(paths)
    found = _once(_read(path, experiments) for path in paths)
    found.sort(key=lambda each: each.order)
    named = numbered([each.entry.name if each.entry else each.record.kind for each in found])
    only = _only(experiments, found)
    return Sources(
        tuple(_reported(each, name) for each, name in zip(found, named, strict=True)),
        tuple(each for each in read.values() if each is not None),
        only.title if only else "",
        only.question if only else "",
        tuple(_absent(experiments, found)),
    )


def _experiments(paths: Iterable[Path]) -> dict[Path, Manifest]:
    """The experiments whose directories hold any of these, in the order in which they are named."""
    directories = dict.fromkeys(path.parent for path in paths)
    return {each: manifest.read(each) for each in directories if manifest.is_manifest(each)}


def _read(path: Path, experiments: dict[Path, Manifest]) -> _Found:
    found = _Found(path, runs.load(path))
    experiment = experiments.get(path.parent)
    if experiment is not None:
        for position, entry in enumerate(experiment.runs):
            if path.name in (entry.log, entry.record):
                found.entry, found.experiment = entry, experiment
                found.order = (list(experiments).index(path.parent), "", position)
                return found
    # Runs of no experiment come after those of experiments.
    found.order = (len(experiments) + how_reported(found.record.kind).place, found.record.started_at, 0)
    return found


def _once(found: Iterable[_Found]) -> list[_Found]:
    """Of a log and a record of the same run, or of copies, the one that has most to say."""
    best: dict[str, _Found] = {}
    for each in found:
        identity = _identity(each.record)
        other = best.get(identity)
        if other is None or _extent(each.record) > _extent(other.record):
            best[identity] = each if other is None or each.entry else _renamed(each, other)
        elif other.entry is None and each.entry is not None:
            best[identity] = _renamed(other, each)
    return list(best.values())


def _renamed(content: _Found, named: _Found) -> _Found:
    return _Found(content.path, content.record, named.entry, named.experiment, named.order)


def _identity(record: RunRecord[Any]) -> str:
    """The same for whatever was read of one run, and for nothing else."""
    host = record.environment.host
    return json.dumps(
        [record.kind, record.started_at, host.hostname, record.source_digest, record.spec], sort_keys=True
    )


def _extent(record: RunRecord[Any]) -> tuple[int, str]:
    """How far a run had come when this was written: a log may have been continued since."""
    return len([cell for cell in record.cells if cell.outcome in ("ok", "oom")]), record.finished_at or ""


def _reported(found: _Found, name: str) -> ReportedRun[Any]:
    entry = found.entry
    if entry is None:
        return ReportedRun(name, found.record)
    note = f"{entry.here}: {entry.why}" if entry.here in ("changed", "simulated") else ""
    # A manifest names files in its own directory; another place is none of a report's business.
    beside = [found.path.parent / file for file in entry.files if Path(file).name == file]
    pictures = tuple(path for path in beside if path.is_file())
    return ReportedRun(name, found.record, entry.title, entry.question, note, pictures)


def _only(experiments: dict[Path, Manifest], found: Sequence[_Found]) -> Manifest | None:
    """The experiment that all runs are of."""
    of = {id(each.experiment): each.experiment for each in found}
    return next(iter(of.values())) if len(of) == 1 else None


def _absent(experiments: dict[Path, Manifest], found: Sequence[_Found]) -> Iterator[str]:
    """What is missing of the experiments that are reported whole, and why."""
    for experiment in experiments.values():
        there = {each.entry.name for each in found if each.entry and each.experiment is experiment}
        for entry in experiment.runs if there else ():
            if entry.name not in there:
                yield f"{entry.name}: {_why(entry)} — {entry.command_line}"


def _why(entry: RunEntry) -> str:
    if entry.failure:
        return f"failed: {entry.failure}"
    if entry.here == "left out":
        return f"left out: {entry.why}" if entry.why else "left out"
    return "not there"
