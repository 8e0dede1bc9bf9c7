"""Sources of a report: runs, traces and memory snapshots. Runs are found by path or by name."""

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
    """Runs, traces and snapshots of a report, and their experiment."""

    runs: tuple[ReportedRun[Any], ...]
    artefacts: tuple[Artefact, ...]
    title: str
    """Title of the experiment, if all runs belong to one."""
    question: str
    absent: tuple[str, ...]
    """A line for each missing run of an experiment."""


@dataclass
class _Found:
    """A run that was read, and its place in an experiment."""

    path: Path
    record: RunRecord[Any]
    entry: RunEntry | None = None
    experiment: Manifest | None = None
    order: tuple[int, str, int] = field(default=(0, "", 0))


def sources(names: Sequence[str], directory: Path = runs.RUNS) -> Sources:
    """Read every named source once.

    Runs of an experiment keep the experiment's order; other runs follow, sorted by command and time. Traces, memory
    snapshots and files written by `--from FILE --json` keep their order. Raises LogError if a name matches no run, or
    if a file cannot be read.
    """
    read = {name: artefacts.read(Path(name)) for name in names}
    named_paths = (path.resolve() for name in names if read[name] is None for path in runs.find(name, directory))
    paths = list(dict.fromkeys(named_paths))
    directories = dict.fromkeys(path.parent for path in paths)
    experiments = {each: manifest.read(each) for each in directories if manifest.is_manifest(each)}
    found = _once(_read(path, experiments) for path in paths)
    found.sort(key=lambda each: each.order)
    named = numbered([each.entry.name if each.entry else each.record.kind for each in found])
    of = {id(each.experiment): each.experiment for each in found}
    only = next(iter(of.values())) if len(of) == 1 else None
    return Sources(
        tuple(_reported(each, name) for each, name in zip(found, named, strict=True)),
        tuple(each for each in read.values() if each is not None),
        only.title if only else "",
        only.question if only else "",
        tuple(_absent(experiments, found)),
    )


def _read(path: Path, experiments: dict[Path, Manifest]) -> _Found:
    found = _Found(path, runs.load(path))
    experiment = experiments.get(path.parent)
    if experiment is not None:
        for position, entry in enumerate(experiment.runs):
            if path.name in (entry.log, entry.record):
                found.entry, found.experiment = entry, experiment
                found.order = (list(experiments).index(path.parent), "", position)
                return found
    # Runs without an experiment come last.
    found.order = (len(experiments) + how_reported(found.record.kind).position, found.record.started_at, 0)
    return found


def _once(found: Iterable[_Found]) -> list[_Found]:
    """Keep one file per run, the file with the most results: a run may have both a log and a record."""
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
    """Return a key that identifies the run of a record."""
    host = record.environment.host
    return json.dumps(
        [record.kind, record.started_at, host.hostname, record.source_digest, record.spec], sort_keys=True
    )


def _extent(record: RunRecord[Any]) -> tuple[int, str]:
    """Return a sort key for how complete a record is: a run may have been resumed after its record was written."""
    return len([cell for cell in record.cells if cell.outcome in ("ok", "oom")]), record.finished_at or ""


def _reported(found: _Found, name: str) -> ReportedRun[Any]:
    entry = found.entry
    if entry is None:
        return ReportedRun(name, found.record)
    note = f"{entry.here}: {entry.why}" if entry.here in ("changed", "simulated") else ""
    if entry.why.startswith(entry.here):
        note = entry.why
    # Files outside the manifest's own directory are ignored.
    beside = [found.path.parent / file for file in entry.files if Path(file).name == file]
    pictures = tuple(path for path in beside if path.is_file())
    return ReportedRun(name, found.record, entry.title, entry.question, note, pictures)


def _absent(experiments: dict[Path, Manifest], found: Sequence[_Found]) -> Iterator[str]:
    """Yield a line for each run that an experiment in the report lacks, with the reason."""
    for experiment in experiments.values():
        there = {each.entry.name for each in found if each.entry and each.experiment is experiment}
        for entry in experiment.runs if there else ():
            if entry.name in there:
                continue
            why = "missing"
            if entry.failure:
                why = f"failed: {entry.failure}"
            elif entry.here == "left out":
                why = f"left out: {entry.why}" if entry.why else "left out"
            yield f"{entry.name}: {why} — {entry.command_line}"
