"""`sysbench accum`: options → spec → run → show, and draw figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sysbench.commands import refusals, running, showing
from sysbench.commands.accum.spec import AccumOptions, AccumSpec
from sysbench.spec.command_options import Given, command_options

if TYPE_CHECKING:
    from sysbench.commands.accum.record import AccumRecord


@command_options(AccumSpec, AccumOptions)
def accum(spec_given: Given, options_given: Given) -> None:
    """See what rounding does: to sums, under autocast, in layer norm, to gradients and in matrix products.

    Without an experiment: 0.01 added to itself a thousand times, in every format and order.
    """
    running.execute_command("accum", spec_given, options_given)


def refuse_unwritable(options: AccumOptions) -> None:
    if options.figure is None:
        return
    from sysbench.log import storage

    refusals.refuse_unsupported_figure(options.figure)
    storage.refuse_unwritable(options.figure)


def draw(record: AccumRecord, options: AccumOptions) -> tuple[Path, ...]:
    if options.figure is None:
        return ()
    from sysbench.commands.accum import figures

    if not (written := showing.report_saved(map(showing.Saved, figures.write(options.figure, record)), options)):
        showing.say(f"{options.figure} is not written: there is nothing to draw; dtypes are in their table", options)
    return written
