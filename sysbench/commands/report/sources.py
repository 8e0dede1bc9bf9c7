"""Sources of a report: runs, traces and memory snapshots. Runs are found by path or by name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sysbench.commands import saved
from sysbench.commands.artefacts import Artefact
from sysbench.commands.kinds import command_of
from sysbench.commands.report.assemble import number_duplicates
from sysbench.commands.report.document import ReportedRun
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
    directory: Path
    record: RunRecord
    entry: RunEntry | None
    """The run's entry in the manifest of its directory, if it belongs to an experiment."""


def read_sources(names: Sequence[str]) -> Sources:
    """Read every named source once: runs in an experiment's order, then others by command and time, then artefacts."""
    artefact_by_name = {name: saved.artefact(Path(name)) for name in names}
    named_paths = (path.resolve() for name in names if artefact_by_name[name] is None for path in runs.find(name))
    paths = list(dict.fromkeys(named_paths))
    directories = dict.fromkeys(path.parent for path in paths)
    experiments = {directory: manifest.read(directory) for directory in directories if manifest.is_manifest(directory)}
    loaded = _load(paths, experiments)
    loaded.sort(key=lambda each: _order(each, experiments))
    _complete_together(loaded)
    run_names = number_duplicates([run.entry.name if run.entry else run.record.kind for run in loaded])
    origins = {run.directory if run.entry else None for run in loaded}
    single_experiment = next((experiments[origin] for origin in origins if origin and len(origins) == 1), None)
    return Sources(
        tuple(_reported_run(run, name) for run, name in zip(loaded, run_names, strict=True)),
        tuple(artefact for artefact in artefact_by_name.values() if artefact is not None),
        single_experiment.title if single_experiment else "",
        single_experiment.question if single_experiment else "",
        tuple(_missing_runs(experiments, loaded)),
    )


def _complete_together(loaded: Sequence[_LoadedRun]) -> None:
    for kind in {run.record.kind for run in loaded}:
        of_kind = [run for run in loaded if run.record.kind == kind]
        records = command_of(kind).results().completed_together([run.record for run in of_kind])
        for run, record in zip(of_kind, records, strict=True):
            run.record = record


def _load(paths: Iterable[Path], experiments: Mapping[Path, Manifest]) -> list[_LoadedRun]:
    """Load one record per run, the one with the most results: a run may have both a log and a record."""
    loaded: dict[str, _LoadedRun] = {}
    for path in paths:
        record = runs.load(path)
        entries = experiments[path.parent].runs if path.parent in experiments else ()
        entry = next((entry for entry in entries if path.name in (entry.log, entry.record)), None)
        run = loaded.setdefault(_run_identity(record), _LoadedRun(path.parent, record, entry))
        if _completeness(record) > _completeness(run.record):
            run.record = record
        if run.entry is None:
            run.directory, run.entry = path.parent, entry
    return list(loaded.values())


def _order(run: _LoadedRun, experiments: Mapping[Path, Manifest]) -> tuple[int, str, int]:
    """Return the sort key of a run; those without an experiment come last."""
    if run.entry is not None:
        experiment = experiments[run.directory]
        return list(experiments).index(run.directory), "", experiment.runs.index(run.entry)
    return len(experiments) + command_of(run.record.kind).report.position, run.record.started_at, 0


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
    saved_files = [loaded.directory / file for file in entry.files if Path(file).name == file]
    pictures = tuple(path for path in saved_files if path.is_file())
    return ReportedRun(name, loaded.record, entry.title, entry.question, note, pictures)


def _missing_runs(experiments: dict[Path, Manifest], loaded_runs: Sequence[_LoadedRun]) -> Iterator[str]:
    for directory, experiment in experiments.items():
        reported = [run.entry for run in loaded_runs if run.entry and run.directory == directory]
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
