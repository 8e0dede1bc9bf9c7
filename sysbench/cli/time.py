"""`sysbench time`: options → spec → run → show."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from sysbench.cli.options import Given, command_options, validated
from sysbench.errors import UsageError
from sysbench.specs.run import RunOptions
from sysbench.specs.time import TimeSpec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rich.console import Console

    from sysbench.records import TimeRecord
    from sysbench.views.progress import Progress

# Everything that a bad option does not need is imported where it is used, so that mistakes are answered at once.


@command_options(TimeSpec, RunOptions)
def time(spec_given: Given, options_given: Given) -> None:
    """Time forward, backward and the optimizer step, by size, context, precision and more.

    Every numeric or list option takes an axis: 128,256 or 128-1024*2 or 10-50+10. The run is the product of all axes.
    """
    options = validated(RunOptions, options_given)
    if options.source is not None:
        _show(_saved(options.source), options)
        return
    spec = validated(TimeSpec, {**_resumed(options.resume), **spec_given})
    _refuse_impossible(spec)
    if options.plan:
        _show_plan(spec, options)
    elif options.simulate is not None:
        raise UsageError(
            "--simulate: step times are measured, never simulated. What is: the memory that each cell needs; "
            f"--plan --simulate {options.simulate} holds it against that GPU"
        )
    else:
        raise typer.Exit(_measure(spec, options))
