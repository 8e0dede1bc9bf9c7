"""`sysbench time`: options → spec → run → show."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sysbench.cli.options import Given, command_options, validated
from sysbench.errors import UsageError
from sysbench.outcomes import FAILURES
from sysbench.specs.run import TimeOptions
from sysbench.specs.time import TimeSpec

if TYPE_CHECKING:
    from sysbench.records import TimeRecord
    from sysbench.views.progress import Progress

# What a bad option does not need is imported where it is used, so that mistakes are answered at once.


@command_options(TimeSpec, TimeOptions)
def time(spec_given: Given, options_given: Given) -> None:
    """Time forward, backward and the optimizer step, by size, context, precision and more.

    Every numeric or list option takes an axis: 128,256 or 128-1024*2 or 10-50+10. The run is the product of all axes.
    """
    options = validated(TimeOptions, options_given)
    _refuse_unknown_tables(options)
    if options.source is not None:
        _refuse_beside_source(spec_given)
        _show(_saved(options.source), options)
        return
    spec = validated(TimeSpec, {**_resumed(options.resume), **spec_given})
    if options.plan:
        _show_plan(spec, options)
    elif options.simulate is not None:
        raise UsageError(
            "--simulate: step times are measured, never simulated. What is: the memory that each cell needs; "
            f"--plan --simulate {options.simulate} holds it against that GPU"
        )
    else:
        raise typer.Exit(_measure(spec, options))


def _refuse_unknown_tables(options: TimeOptions) -> None:
    if not options.tables:
        return
    from sysbench.errors import unknown
    from sysbench.views.tables import TABLES

    for name in options.tables:
        if name not in TABLES:
            raise UsageError(f"--tables {unknown(name, 'a table', TABLES)}")


def _refuse_beside_source(spec_given: Given) -> None:
    """A saved run is what it is: options that describe another one would be ignored without a word."""
    from sysbench.cli.options import option_name

    if spec_given:
        names = ", ".join(option_name(TimeSpec, field) for field in spec_given)
        raise UsageError(f"--from shows a finished run; {names} would change nothing in it")


def _resumed(path: Path | None) -> Given:
    """The options that a log was made with; what is given beside `--resume` must agree with them."""
    if path is None:
        return {}
    from sysbench.cli import saved

    return saved.spec(path).model_dump()


def _saved(path: Path) -> TimeRecord:
    from sysbench.cli import saved

    return saved.record(path)


def _show_plan(spec: TimeSpec, options: TimeOptions) -> None:
    from sysbench import hardware
    from sysbench.cli.output import results
    from sysbench.engine.plan import refuse_impossible
    from sysbench.views.summary import show_plan

    try:
        device = hardware.named(options.simulate) if options.simulate else None
    except UsageError as error:
        raise UsageError(f"--simulate {error}") from None
    cells = list(spec.cells())
    refuse_impossible(cells)
    with results() as console:
        show_plan(cells, console, options.format, device)


def _measure(spec: TimeSpec, options: TimeOptions) -> int:
    """Run the spec, save its record, show it, and return the exit code."""
    from sysbench.analysis.timing import fold
    from sysbench.engine import log, session, storage

    with session.run(spec, options) as running, _progress(options) as progress:
        for event in running:
            progress.show(event)
    record = fold(log.read(running.log_path))
    saved_to = running.log_path.with_suffix(".json")
    content = record.model_dump_json(indent=1).encode() + b"\n"
    storage.write_atomically(saved_to, content)
    if options.json_path not in (None, "-"):
        storage.write_atomically(Path(options.json_path), content)
    _show(record, options)
    if not options.quiet:
        print(f"saved  {saved_to}", file=sys.stderr)  # noqa: T201
    return _exit_code(record)


def _progress(options: TimeOptions) -> Progress:
    from rich.console import Console

    from sysbench.engine import log
    from sysbench.views.live import Dashboard, can_draw_on
    from sysbench.views.plain import PlainProgress
    from sysbench.views.progress import Silent

    if options.quiet:
        return Silent()
    console = Console(stderr=True)
    earlier = log.read(options.resume) if options.resume else ()
    if options.no_live or not can_draw_on(console):
        return PlainProgress(console, earlier=earlier)
    return Dashboard(console, earlier=earlier)


def _show(record: TimeRecord, options: TimeOptions) -> None:
    """Print the result to stdout: the record itself with `--json -`, else its tables."""
    from sysbench.cli.output import results
    from sysbench.views import summary

    with results() as console:
        if options.json_path == "-":
            sys.stdout.write(record.model_dump_json(indent=1) + "\n")
            return
        try:
            summary.show(record, console, options.format, options.tables)
        except UsageError:
            # The tables that were asked for cannot be made of this run: show what can, then say so.
            summary.show(record, console, options.format)
            raise


def _exit_code(record: TimeRecord) -> int:
    outcomes = {cell.outcome for cell in record.cells}
    if record.status == "interrupted":
        return 130
    return 1 if outcomes & FAILURES or not outcomes & {"ok", "oom"} else 0
