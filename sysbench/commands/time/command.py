"""`sysbench time`: options → spec → run → show."""

from __future__ import annotations

import typer

from sysbench.commands import running
from sysbench.commands.predicting import refuse_unpredictable
from sysbench.commands.time.spec import TimeOptions, TimeSpec
from sysbench.spec.command_options import Given, command_options, validated


@command_options(TimeSpec, TimeOptions)
def time(spec_given: Given, options_given: Given) -> None:
    """Time forward, backward and the optimizer step, by size, context, precision and more.

    Every numeric or list option takes an axis: 128,256 or 128-1024*2 or 10-50+10. The run is the product of all axes.
    """
    options: TimeOptions = running.options_of("time", options_given)
    running.refuse_unknown_tables("time", options)
    if options.source is not None:
        from sysbench.commands import saved

        running.refuse_beside_source(TimeSpec, spec_given)
        running.show(saved.record(options.source, "time"), options)
        return
    spec = validated(TimeSpec, {**running.resumed("time", options.resume), **spec_given})
    if options.plan:
        running.show_plan(spec, options, None)
    else:
        raise typer.Exit(running.exit_code(perform(spec, options).record))


def perform(spec: TimeSpec, options: TimeOptions) -> running.Performed:
    """Carry the run out; raises as `running.carry_out` does, and UsageError for what cannot be predicted."""
    if spec.simulate:
        refuse_unpredictable(spec.simulate, spec.host, force=options.force)
        return running.Performed(running.carry_out(spec, options.model_copy(update={"no_live": True})))
    ceilings = _needs_ceilings(spec, options)
    return running.Performed(running.carry_out(spec, options.model_copy(update={"ceilings": ceilings})))


def refuse_wrong_files(options: TimeOptions) -> None:
    """Timing writes nothing but a log and a record."""


def _needs_ceilings(spec: TimeSpec, options: TimeOptions) -> bool:
    """Whether a table has a column for them, whatever its width; JSON and experiments, which are reported, have all."""
    if options.json_path is not None or options.log_name is not None or not (options.tables or options.columns):
        return True
    from sysbench.render import declared as column_names

    return column_names.shows("matmul_ceiling", options.columns, spec, options.tables, options.format)
