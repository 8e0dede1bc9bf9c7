"""`sysbench loop`: show a record. This command runs nothing."""

from __future__ import annotations

from sysbench.commands import refusals, showing
from sysbench.commands.loop.spec import LoopOptions
from sysbench.spec.command_options import Given, command_options, validated


@command_options(LoopOptions)
def loop(given: Given) -> None:
    """Show what sysbench.measure or sysbench.record measured in a program of your own.

    The program itself measures: with sysbench.record("run.json"): …
    """
    options = validated(LoopOptions, given)
    refusals.refuse_unknown_tables("loop", options)
    from sysbench.commands import saved

    path = saved.find(options.record_path, options.runs, "loop")
    showing.show_saved(saved.record(path, "loop"), options)
