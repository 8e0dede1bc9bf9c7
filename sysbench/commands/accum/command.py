"""`sysbench accum`: options → spec → run → show."""

from __future__ import annotations

from sysbench.commands import running
from sysbench.commands.accum.spec import AccumSpec
from sysbench.spec.command_options import Given, command_options
from sysbench.spec.run import SavedOptions


@command_options(AccumSpec, SavedOptions)
def accum(spec_given: Given, options_given: Given) -> None:
    """See what rounding does: to sums, under autocast, in layer norm, to gradients and in matrix products.

    Without an experiment: 0.01 added to itself a thousand times, in every format and order.
    """
    running.execute_command("accum", spec_given, options_given)
