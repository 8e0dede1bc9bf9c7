"""`sysbench memory`: options → spec → run → show, draw."""

from __future__ import annotations

import typer

from sysbench.cli import running
from sysbench.cli.options import Given, command_options, validated
from sysbench.specs.memory import MemorySpec
from sysbench.specs.run import MemoryOptions


@command_options(MemorySpec, MemoryOptions)
def memory(spec_given: Given, options_given: Given) -> None:
    """See where the memory of a step goes and whether it fits, on a GPU or without one.

    Every numeric or list option takes an axis: 128,256 or 128-1024*2 or 10-50+10. The run is the product of all axes.
    --from also takes a memory snapshot that any program has written.
    """
    options = validated(MemoryOptions, options_given)
    if options.source is not None:
        from sysbench.cli import memory_source

        running.refuse_beside_source(MemorySpec, spec_given)
        memory_source.show(options.source, options)
        return
    running.refuse_unknown_tables("memory", options)
    spec = validated(MemorySpec, {**running.resumed("memory", options.resume), **spec_given})
    if options.plan:
        running.show_plan(spec, options, None)
        return
    raise typer.Exit(running.exit_code(perform(spec, options).record))


def perform(spec: MemorySpec, options: MemoryOptions) -> running.Performed:
    """Carry the run out and draw what is wanted of it; raises as `running.carry_out` does, and for a wrong file."""
    from sysbench.cli.memory_files import Files
    from sysbench.engine.provisions import Provisions

    with Files.prepared(spec, options) as files:
        record = running.carry_out(spec, options, Provisions(files.snapshots))
        return running.Performed(record, running.said_to_be_saved(map(running.Saved, files.draw(record)), options))


def refuse_wrong_files(options: MemoryOptions) -> None:
    """Raise UsageError for a picture in a format that there is not."""
    from sysbench.cli.memory_files import refuse_other_pictures

    refuse_other_pictures(options.figure)
