"""Execution of experiments: their runs take place in sequence, in one directory from which they can be resumed."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sysbench.command import Kind
from sysbench.commands import refusals, running, saved, showing
from sysbench.commands.kinds import command_of
from sysbench.commands.run import directory as experiment_directory
from sysbench.commands.run import experiment_file, prediction
from sysbench.commands.run import tables as experiment_tables
from sysbench.commands.run.directory import ExperimentDirectory
from sysbench.commands.run.experiment import PlannedRun, refuse_code_in_manifest
from sysbench.commands.run.experiment_file import WrittenExperiment
from sysbench.commands.run.spec import ExperimentOptions
from sysbench.commands.run.tables import FinishedRun
from sysbench.commands.surroundings import RunSurroundings
from sysbench.engine.interrupts import catch_interrupts
from sysbench.errors import LogError, SysbenchError, UsageError
from sysbench.log import storage
from sysbench.log.durations import Durations
from sysbench.log.manifest import Manifest, RunEntry
from sysbench.log.outcomes import LASTING
from sysbench.log.records import RunRecord
from sysbench.log.runs import find_experiment
from sysbench.log.storage import make_directory, write_atomically
from sysbench.package import VERSION
from sysbench.render import output as summary
from sysbench.render import theme
from sysbench.render.dashboard.experiment_progress import ExperimentProgress
from sysbench.render.output import results
from sysbench.render.table import Sheet
from sysbench.spec import hardware
from sysbench.spec.command_options import keys_of
from sysbench.spec.run import RunOptions

INTERRUPTED_EXIT_CODE = 130

SHARED_OPTIONS = ("format", "no_live", "quiet", "debug", "timeout_s")
"""Options of the experiment that apply to every run."""

Planner = Callable[[WrittenExperiment, dict[str, str], str | None], tuple[Sequence[PlannedRun], Durations]]


def run_experiment(
    experiment: WrittenExperiment,
    planned: Sequence[PlannedRun],
    options: ExperimentOptions,
    overrides: Mapping[str, str],
    earlier: Durations,
) -> int:
    make_directory(options.out)
    for run in planned:
        _refuse_wrong_results(run, options)
    name = options.experiment or experiment.name
    content = Manifest(
        sysbench_version=VERSION,
        experiment=name if name in experiment_file.names() else str(experiment.path.resolve()),
        title=experiment.title,
        question=experiment.question,
        overrides=dict(overrides),
        started_at=time.time(),
        plan_for=options.plan_for,
        runs=tuple(run.entry for run in planned),
    )
    with experiment_directory.create_directory(options.out, experiment.name, content) as directory:
        return _run_all(directory, planned, options, earlier)


def resume_experiment(path: Path, options: ExperimentOptions, overrides: Mapping[str, str], planner: Planner) -> int:
    """Run the missing and failed cells of an experiment; raises UsageError if its runs have changed."""
    path = find_experiment(str(path), options.out)
    with experiment_directory.open_directory(path) as directory:
        saved_manifest = directory.manifest
        name = options.experiment or saved_manifest.experiment
        experiment = experiment_file.load(name)
        if experiment.path.resolve() != experiment_file.find_file(saved_manifest.experiment).resolve():
            raise UsageError(
                f"--resume {path}: this is a directory of the experiment {saved_manifest.experiment}, not of {name}"
            )
        if not options.allow_code:
            refuse_code_in_manifest(
                path, {name: text for name, text in saved_manifest.overrides.items() if name not in overrides}
            )
        planned, earlier = planner(
            experiment, {**saved_manifest.overrides, **overrides}, options.plan_for or saved_manifest.plan_for
        )
        _refuse_changed_runs(path, saved_manifest.runs, [run.entry for run in planned])
        if options.plan:
            show_plan(experiment, planned, earlier, options)
            return 0
        return _run_all(directory, planned, options, earlier)


def show_plan(
    experiment: WrittenExperiment, planned: Sequence[PlannedRun], earlier: Durations, options: ExperimentOptions
) -> None:
    gpu = hardware.by_name(options.plan_for) if options.plan_for is not None else None
    showing.show_sheet(experiment_tables.plan(experiment.title, planned, earlier, gpu), options)


def _refuse_wrong_results(planned: PlannedRun, options: ExperimentOptions) -> None:
    """Raise UsageError if the run cannot produce a requested table or file, before hours are spent on measuring."""
    run_options = _run_options(planned, options.out, None, options)
    try:
        storage.refuse_unwritable(options.out / planned.entry.log)
        refusals.refuse_invalid_output(planned.spec, run_options)
    except UsageError as error:
        raise UsageError(f"{planned.entry.name}: {error}") from None


def _refuse_changed_runs(path: Path, saved_runs: Sequence[RunEntry], planned_runs: Sequence[RunEntry]) -> None:
    if [run.name for run in saved_runs] != [run.name for run in planned_runs]:
        missing = sorted({run.name for run in saved_runs} ^ {run.name for run in planned_runs}) or ["their order"]
        raise UsageError(f"--resume {path}: the runs of the experiment have changed ({', '.join(missing)})")
    for runs in zip(saved_runs, planned_runs, strict=True):
        former, now = (
            {
                "run": f"{run.here} ({run.command})",
                **{f"--{name}": word or "given" for name, word in run.options.items()},
            }
            for run in runs
        )
        for name in {**former, **now}:
            there, here = former.get(name, "not given"), now.get(name, "not given")
            if there != here:
                raise UsageError(
                    f"--resume {path}: {runs[0].name} was made differently: {name} {there} there, {here} here"
                )


# --- in sequence


def _run_all(
    directory: ExperimentDirectory, planned: Sequence[PlannedRun], options: ExperimentOptions, earlier: Durations
) -> int:
    run_results: list[FinishedRun] = []
    overall = prediction.initial_progress(planned, earlier)
    try:
        with catch_interrupts() as interrupts:
            for number, run in enumerate(planned, start=1):
                overall.start_run(number, run.entry.name)
                run_results.append(_run_one(directory, run, overall, options))
                overall.drop_run(run.entry.name)
                if interrupts.requested:
                    break
        _show(experiment_tables.outcome(directory.manifest.title, run_results), options)
        _write_json(directory.manifest, run_results, options)
    finally:
        # Even after an error, such as a full disk, print where the results are and how to continue.
        _say(f"saved  {directory.path}", options)
        _say(f"→ sysbench report {directory.path} -o report.html writes a report", options)
        stopped = len(run_results) < len(planned) or any(map(_was_interrupted, run_results))
        if stopped:
            _say(f"resume with: sysbench run --resume {shlex.quote(str(directory.path))}", options)
    if stopped:
        return INTERRUPTED_EXIT_CODE
    codes = [running.exit_code(result.record) for result in run_results if result.record is not None]
    return 1 if any(result.error for result in run_results) or any(codes) or not codes else 0


def _was_interrupted(run_result: FinishedRun) -> bool:
    record = run_result.record
    return run_result.error is None and record is not None and record.status == "interrupted"


def _write_json(saved_manifest: Manifest, run_results: Sequence[FinishedRun], options: ExperimentOptions) -> None:
    if options.json_path is None:
        return
    records = {
        result.entry.name: result.record.model_dump(mode="json") for result in run_results if result.record is not None
    }
    text = json.dumps({"experiment": saved_manifest.model_dump(mode="json"), "records": records}, indent=1)
    if options.json_path != "-":
        write_atomically(Path(options.json_path), text.encode() + b"\n")
        return
    with results():
        summary.print_json(text)


def _say(text: str, options: ExperimentOptions) -> None:
    """Print a line to stderr; control characters, which may come from a file, are replaced by spaces."""
    showing.say(theme.terminal_line(text, sys.stderr.encoding or "ascii"), options)


def _show(sheet: Sheet, options: ExperimentOptions, first: bool = False) -> None:
    if options.json_path == "-":
        return
    with results() as console:
        if not first:
            console.line()
        if sheet.tables or options.format in ("terminal", "markdown"):
            summary.show_sheet(sheet, console, options.format)
        if options.format == "markdown":
            console.line()


def _run_one(
    directory: ExperimentDirectory, planned: PlannedRun, overall: ExperimentProgress, options: ExperimentOptions
) -> FinishedRun:
    entry = directory.entry(planned.entry.name)
    label = f"run {overall.number} of {overall.count}  {entry.name}"
    if entry.here == "left out":
        _say(f"{label}: skipped, {entry.why}", options)
        return FinishedRun(entry, None)
    try:
        log = directory.log_of(entry)
        finished_record = _finished_record(log, entry.command)
        if finished_record is not None:
            _say(f"{label}: already finished", options)
            return FinishedRun(entry, finished_record)
        if not sys.stdout.isatty():  # a terminal shows the heading
            _say(f"{label}: {entry.title}", options)
        heading = experiment_tables.heading(entry, overall.number, overall.count)
        _show(heading, options, first=overall.number == 1)
        own = _run_options(planned, directory.path, log, options)
        surroundings = RunSurroundings(
            log_name=entry.name, in_experiment=True, overall=overall, shown=options.json_path != "-"
        )
        performed = command_of(entry.command).launch().perform(planned.spec, own, surroundings)
    except SysbenchError as error:
        # The other runs are still carried out.
        _say(f"{label} failed: {error}", options)
        started_log = directory.log_of(entry)
        entry = entry.model_copy(update={"failure": None if started_log else str(error)})
        directory.update_entry(entry)
        return FinishedRun(entry, _record_from_log(started_log, entry.command), str(error))
    names = dict.fromkeys([*entry.files, *(path.name for path in performed.files)])
    entry = entry.model_copy(update={"files": tuple(names), "failure": None})
    directory.update_entry(entry)
    return FinishedRun(entry, performed.record)


def _finished_record(log: Path | None, kind: Kind) -> RunRecord | None:
    """Return the record of a run if the run is complete, otherwise None; skipped cells count as complete."""
    record = _record_from_log(log, kind)
    if log is None or record is None or not log.with_suffix(".json").is_file():
        return None
    all_final = all(cell.outcome in LASTING or cell.outcome == "skipped" for cell in record.cells)
    return record if record.status == "complete" and all_final else None


def _record_from_log(log: Path | None, kind: Kind) -> RunRecord | None:
    """Return the record folded from a log; None if the log is missing or unreadable (resuming the run reports why)."""
    try:
        return saved.record(log, kind) if log is not None else None
    except LogError:
        return None


def _run_options(planned: PlannedRun, directory: Path, log: Path | None, options: ExperimentOptions) -> RunOptions:
    entry = planned.entry
    files = {key.field for key in keys_of(entry.command).values() if key.is_file}
    run_values = {
        field: directory / f"{entry.name}-{value}" if field in files else value
        for field, value in planned.options.items()
    }
    shared = {field: getattr(options, field) for field in SHARED_OPTIONS}
    forced = {"force": True} if options.force else {}
    values = {**shared, **run_values, **forced, "out": directory, "resume": log}
    own = command_of(entry.command).models().options(**values)
    assert isinstance(own, RunOptions)
    return own
