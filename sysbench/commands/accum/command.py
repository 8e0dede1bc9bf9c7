"""`sysbench accum`: options → spec → run → show, draw."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sysbench.commands import running
from sysbench.commands.accum.spec import AccumOptions, AccumSpec
from sysbench.spec.command_options import Given, command_options, validated

if TYPE_CHECKING:
    from sysbench.log.records import RunRecord


@command_options(AccumSpec, AccumOptions)
def accum(spec_given: Given, options_given: Given) -> None:
    """See what rounding does: to sums, under autocast, in layer norm, to gradients and in matrix products.

    Without an experiment: 0.01 added to itself a thousand times, in every format and order.
    """
    options: AccumOptions = running.options_of("accum", options_given)
    running.refuse_unknown_tables("accum", options)
    figure = _drawable(options.figure)
    if options.source is not None:
        from sysbench.commands import saved

        running.refuse_beside_source(AccumSpec, spec_given)
        record = saved.record(options.source, "accum")
        running.show(record, options)
        _draw(record, figure, options)
        return
    spec = validated(AccumSpec, {**running.resumed("accum", options.resume), **spec_given})
    if options.plan:
        running.show_plan(spec, options, None)
        return
    raise typer.Exit(running.exit_code(perform(spec, options).record))


def perform(spec: AccumSpec, options: AccumOptions) -> running.Performed:
    """Carry the run out and draw what is wanted of it; raises as `running.carry_out` does, and for a wrong picture."""
    figure = _drawable(options.figure)
    record = running.carry_out(spec, options)
    return running.Performed(record, _draw(record, figure, options))


def refuse_wrong_files(options: AccumOptions) -> None:
    """Raise UsageError or OutputError for a picture that could not be written."""
    _drawable(options.figure)


def _drawable(path: Path | None) -> Path | None:
    """Raises UsageError for a picture in a format that there is not, OutputError for one with no place to be."""
    if path is None:
        return None
    from sysbench.errors import UsageError
    from sysbench.log import storage
    from sysbench.render.plots import FORMATS

    if path.suffix.lower().removeprefix(".") not in FORMATS:
        raise UsageError(f"--figure {path} must end in {', '.join('.' + name for name in FORMATS)}")
    storage.refuse_unwritable(path)
    return path


def _draw(record: RunRecord[Any], path: Path | None, options: AccumOptions) -> tuple[Path, ...]:
    if path is None:
        return ()
    from sysbench.commands.accum import figures as accum_figure

    return running.said_to_be_saved(map(running.Saved, accum_figure.write(path, record)), options)
