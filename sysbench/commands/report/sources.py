"""Sources of a report: runs, traces and memory snapshots. Runs are found by path or by name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sysbench.command import command_of
from sysbench.commands import artefacts
from sysbench.commands.artefacts import Artefact
from sysbench.commands.report.assemble import number_duplicates
from sysbench.commands.report.document import ReportedRun, report_layout
from sysbench.log import manifest, runs
from sysbench.log.manifest import Manifest, RunEntry
from sysbench.log.records import RunRecord


@dataclass(frozen=True)
class Sources:
    """Runs, traces and snapshots of a report, and their experiment."""

    runs: tuple[ReportedRun, ...]
    artefacts: tuple[Artefact, ...]
    title: str
    """Title of the experiment, if all runs belong to one."""
    question: str
    missing_runs: tuple[str, ...]
    """A line for each missing run of an experiment."""


@dataclass
class _LoadedRun:
    path: Path
    record: RunRecord
    entry: RunEntry | None = None
    experiment: Manifest | None = None
    sort_key: tuple[int, str, int] = field(default=(0, "", 0))


def read_sources(names: Sequence[str]) -> Sources:
    """Read every named source once: runs in an experiment's order, then others by command and time, then artefacts."""
    artefact_by_name = {name: artefacts.read(Path(name)) for name in names}
    named_paths = (path.resolve() for name in names if artefact_by_name[name] is None for path in runs.find(name))
    paths = list(dict.fromkeys(named_paths))
    directories = dict.fromkeys(path.parent for path in paths)
    experiments = {each: manifest.read(each) for each in directories if manifest.is_manifest(each)}
    loaded = _deduplicate(_read_run(path, experiments) for path in paths)
    loaded.sort(key=lambda each: each.sort_key)
    _complete_together(loaded)
    run_names = number_duplicates([each.entry.name if each.entry else each.record.kind for each in loaded])
    experiment_by_id = {id(each.experiment): each.experiment for each in loaded}
    single_experiment = next(iter(experiment_by_id.values())) if len(experiment_by_id) == 1 else None
    return Sources(
        tuple(_reported_run(each, name) for each, name in zip(loaded, run_names, strict=True)),
        tuple(each for each in artefact_by_name.values() if each is not None),
        single_experiment.title if single_experiment else "",
        single_experiment.question if single_experiment else "",
        tuple(_missing_runs(experiments, loaded)),
    )


def _complete_together(loaded: Sequence[_LoadedRun]) -> None:
    for kind in {each.record.kind for each in loaded}:
        if command_of(kind).completed_together:
            of_kind = [each for each in loaded if each.record.kind == kind]
            records = command_of(kind).part("completed_together")([each.record for each in of_kind])
            for each, record in zip(of_kind, records, strict=True):
                each.record = record


def _read_run(path: Path, experiments: dict[Path, Manifest]) -> _LoadedRun:
    loaded = _LoadedRun(path, runs.load(path))
    experiment = experiments.get(path.parent)
    if experiment is not None:
        for position, entry in enumerate(experiment.runs):
            if path.name in (entry.log, entry.record):
                loaded.entry, loaded.experiment = entry, experiment
                loaded.sort_key = (list(experiments).index(path.parent), "", position)
                return loaded
    # Runs without an experiment come last.
    loaded.sort_key = (len(experiments) + report_layout(loaded.record.kind).position, loaded.record.started_at, 0)
    return loaded


def _deduplicate(loaded_runs: Iterable[_LoadedRun]) -> list[_LoadedRun]:
    """Keep one file per run, the file with the most results: a run may have both a log and a record."""
    best: dict[str, _LoadedRun] = {}
    for each in loaded_runs:
        identity = _run_identity(each.record)
        other = best.get(identity)
        if other is None or _completeness(each.record) > _completeness(other.record):
            best[identity] = each if other is None or each.entry else _with_entry_of(each, other)
        elif other.entry is None and each.entry is not None:
            best[identity] = _with_entry_of(other, each)
    return list(best.values())


def _with_entry_of(content: _LoadedRun, entry_source: _LoadedRun) -> _LoadedRun:
    return _LoadedRun(content.path, content.record, entry_source.entry, entry_source.experiment, entry_source.sort_key)


def _run_identity(record: RunRecord) -> str:
    host = record.environment.host
    return json.dumps(
        [record.kind, record.started_at, host.hostname, record.source_digest, record.spec], sort_keys=True
    )


def _completeness(record: RunRecord) -> tuple[int, str]:
    """Return a sort key for how complete a record is: a run may have been resumed after its record was written."""
    return len([cell for cell in record.cells if cell.outcome in ("ok", "oom")]), record.finished_at or ""


def _reported_run(loaded: _LoadedRun, name: str) -> ReportedRun:
    entry = loaded.entry
    if entry is None:
        return ReportedRun(name, loaded.record)
    note = f"{entry.here}: {entry.why}" if entry.here in ("changed", "simulated") else ""
    if entry.why.startswith(entry.here):
        note = entry.why
    # Files outside the manifest's own directory are ignored.
    saved_files = [loaded.path.parent / file for file in entry.files if Path(file).name == file]
    pictures = tuple(path for path in saved_files if path.is_file())
    return ReportedRun(name, loaded.record, entry.title, entry.question, note, pictures)


def _missing_runs(experiments: dict[Path, Manifest], loaded_runs: Sequence[_LoadedRun]) -> Iterator[str]:
    for directory, experiment in experiments.items():
        reported = [each.entry for each in loaded_runs if each.entry and each.experiment is experiment]
        file_names = (name for entry in experiment.runs for name in (entry.log, entry.record))
        absent = experiment.runs_without(name for name in file_names if runs.kind_at(directory / name))
        if not reported or len(reported) + len(absent) < len(experiment.runs):
            continue
        for entry in absent:
            reason = "missing"
            if entry.failure:
                reason = f"failed: {entry.failure}"
            elif entry.here == "left out":
                reason = f"left out: {entry.why}" if entry.why else "left out"
            yield f"{entry.name}: {reason} — {entry.command_line}"
