"""`sysbench attention`: options → spec → run → show, and draw figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sysbench.commands import running, showing
from sysbench.commands.attention.spec import AttentionOptions, AttentionSpec
from sysbench.commands.prediction_checks import refuse_present_gpus
from sysbench.commands.surroundings import ALONE, RunSurroundings
from sysbench.spec.command_options import Given, command_options

if TYPE_CHECKING:
    from sysbench.commands.attention.record import AttentionRecord


@command_options(AttentionSpec, AttentionOptions)
def attention(spec_given: Given, options_given: Given) -> None:
    """Sweep attention by head dimension, sequence length and implementation; see where it breaks.

    Every numeric or list option takes an axis: 128,256 or 128-1024*2 or 10-50+10. The run is the product of all axes.
    """
    running.execute_command("attention", spec_given, options_given)


def perform(spec: AttentionSpec, options: AttentionOptions, surroundings: RunSurroundings = ALONE) -> running.RunResult:
    """Run all cells, draw the requested figures, and return the result."""
    refuse_present_gpus(spec.simulate, force=options.force)
    return running.perform(spec, options, surroundings)


def refuse_unwritable(options: AttentionOptions) -> None:
    paths = [path for path in (options.figure, options.heat_map) if path is not None]
    if not paths:
        return
    from sysbench.errors import UsageError
    from sysbench.log import storage
    from sysbench.render.plots import FORMATS

    for path in paths:
        if path.suffix.lower().removeprefix(".") not in FORMATS:
            raise UsageError(f"{path}: unknown figure format; the name must end in .png, .svg or .pdf")
        storage.refuse_unwritable(path)


def draw(record: AttentionRecord, options: AttentionOptions) -> tuple[Path, ...]:
    if options.figure is None and options.heat_map is None:
        return ()
    from sysbench.commands.attention import figures

    written = figures.write(record, options.figure, options.heat_map)
    return showing.report_saved(map(showing.Saved, written), options)
