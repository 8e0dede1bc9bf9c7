"""What the commands that run cells do alike: options → spec → cells, the record of the run, and the exit code."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sysbench import stderr
from sysbench.command import Kind
from sysbench.commands.kinds import CommandWithRuns, command_of
from sysbench.commands.refusals import (
    refuse_missing_extras,
    refuse_spec_with_source,
    refuse_unknown_columns,
    refuse_unknown_tables,
    refuse_unwritable,
)
from sysbench.commands.showing import printed_by_models, say, show, show_saved, show_sheet, tracebacks
from sysbench.commands.surroundings import ALONE, RunResult, RunSurroundings
from sysbench.log.outcomes import FAILURES
from sysbench.spec.cell import RunCell, RunSpec
from sysbench.spec.command_options import Given, option_name, validated
from sysbench.spec.run import RunOptions

if TYPE_CHECKING:
    from sysbench.engine.provisions import Provisions
    from sysbench.log.records import RunRecord

GATE_EXIT_CODE = 3
"""Exit code of a gate that found what it guards against."""

# Modules that are not needed to refuse a bad option are imported where they are used, so that mistakes are reported
# at once.


def options_of(kind: Kind, given: Given) -> RunOptions:
    """Return the validated options of a command; names of earlier runs are replaced by their files."""
    options = validated(command_of(kind).models().options, given)
    assert isinstance(options, RunOptions)
    source, resume = getattr(options, "source", None), options.resume
    if source is None and resume is None:
        return options
    from sysbench.commands import saved

    found: Given = {}
    if isinstance(source, tuple):
        found["source"] = tuple(saved.find(each, options.out, kind) for each in source)
    elif source is not None:
        found["source"] = saved.find(source, options.out, kind)
    if resume is not None:
        log = saved.find(resume, options.out, kind)
        log = log.with_suffix(".jsonl") if log.name else log  # `.` and `/` have none
        found["resume"] = log if log.is_file() else resume
    return options.model_copy(update=found)


def suited(spec: RunSpec, options: RunOptions) -> RunSpec:
    """Return the spec as the command suits it to this machine; a resumed run keeps its own."""
    if options.resume is not None:
        return spec
    refuse_unknown_columns(spec, options)  # before a worker says which devices there are
    found: RunSpec = command_of(spec.kind).launch().suited(spec, options)
    return found


def execute(command: CommandWithRuns, spec_given: Given, options_given: Given) -> None:
    """Execute a command: show a saved run or the plan, or run the cells and exit with the exit code."""
    options = options_of(command.name, options_given)
    if source := getattr(options, "source", None):
        refuse_spec_with_source(command.models().spec, spec_given)
        if show_source := command.launch().show:
            show_source(source, options)
        else:
            _show_record(command, source, options)
        return
    refuse_unknown_tables(command.name, options)
    refuse_unwritable(command.name, options)
    spec = validated(command.models().spec, {**resumed_fields(command.name, options), **spec_given})
    if options.resume is not None:
        from sysbench.log.journal import damaged_lines

        for line in damaged_lines(options.resume):
            say(f"{options.resume}: line {line} is damaged; a cell that it belongs to runs again", options)
    if unused := [option_name(type(spec), name) for name in spec.unused if name in spec_given]:
        say(f"no effect with --simulate, which measures nothing: {', '.join(unused)}", options)
    if options.plan:
        _show_plan(spec, options)
        return
    from sysbench.commands.launch import joined_ranks

    spec = suited(spec, options)
    with joined_ranks(spec, options) as surroundings:
        record = command.launch().perform(spec, options, surroundings).record
        if code := exit_code(record):
            raise typer.Exit(code)
        refuse_at_gate(record, options)
        raise typer.Exit


def _show_record(command: CommandWithRuns, source: Path, options: RunOptions) -> None:
    """Show a log or a record, and write the files that the options name."""
    from sysbench.commands import saved

    refuse_unknown_tables(command.name, options)
    refuse_unwritable(command.name, options)
    record = saved.record(source, command.name)
    show_saved(record, options)
    command.launch().write_files(record, options)
    refuse_at_gate(record, options)


def perform(spec: RunSpec, options: RunOptions, surroundings: RunSurroundings = ALONE) -> RunResult:
    """Run the cells and write the requested files."""
    refuse_unwritable(spec.kind, options)
    record = run_cells(spec, options, surroundings)
    return RunResult(record, command_of(spec.kind).launch().write_files(record, options))


def resumed_fields(kind: Kind, options: RunOptions) -> Given:
    """Return the spec's fields from the log to resume, if any; options of the command line must agree with them."""
    if options.resume is None:
        return {}
    from sysbench.commands import saved

    return saved.spec(options.resume, kind).model_dump()


def _show_plan(spec: RunSpec, options: RunOptions) -> None:
    from sysbench.engine.plan import refuse_impossible

    cells: list[RunCell] = list(spec.cells())
    refuse_impossible(cells)
    show_sheet(command_of(spec.kind).plan(cells), options, options.columns)


def run_cells(
    spec: RunSpec,
    options: RunOptions,
    surroundings: RunSurroundings = ALONE,
    provisions: Provisions | None = None,
    write_files: Callable[[Any], Iterable[str]] = lambda record: (),
) -> RunRecord:
    """Run the cells, then save and show the record.

    `write_files` writes further files from the record, and says which ones; they are named beside the record's file.
    If the run fails after its first cell has begun (a full disk), its results so far are saved and shown first.
    """
    refuse_unknown_columns(spec, options)
    refuse_missing_extras(spec, options)
    from sysbench.commands.launch import launch
    from sysbench.engine.interrupts import catch_interrupts

    # A first or second signal does not prevent saving, whether it arrives during the run or while the record is saved.
    with catch_interrupts():
        log, failure = launch(spec, options, surroundings, provisions)
        from sysbench.commands.save import RecordFile
        from sysbench.log import runs

        record: RunRecord = runs.load(log)
        if failure is not None and all(cell.outcome == "not run" for cell in record.cells):
            raise failure
        file = RecordFile(record, log, failure)
    with file:
        for line in (*printed_by_models(record), *(tracebacks(log) if options.debug else ())):
            say(line, options)
        with file.attempt():
            file.copy_to(options.json_path)
        with file.attempt():
            if surroundings.shown:
                show(record, options)
        written: list[str] = []
        with file.attempt():
            written += write_files(record)
        with file.attempt():
            file.wait()
            say(f"saved  {', '.join([str(file.path), *written])}", options)
        if record.status != "complete" and not surroundings.log_name:
            say(f"resume with: sysbench {spec.kind} --resume {shlex.quote(str(log))}", options)
    if file.failures:
        raise file.failures[0]
    return record


def refuse_at_gate(record: RunRecord, options: RunOptions) -> None:
    """Exit with GATE_EXIT_CODE, and say why, if this run fails at a gate of the command."""
    complaints = list(command_of(record.kind).launch().gate(record, options))
    for complaint in complaints:
        stderr.print_line(complaint)
    if complaints:
        raise typer.Exit(GATE_EXIT_CODE)


def exit_code(record: RunRecord) -> int:
    """Return the exit code: 130 if interrupted, 1 if a cell failed or nothing was measured, otherwise 0."""
    outcomes = {cell.outcome for cell in record.cells}
    if record.status == "interrupted":
        return 130
    return 1 if outcomes & FAILURES or not outcomes & {"ok", "oom"} else 0
