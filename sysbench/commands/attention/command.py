"""Command line of `sysbench attention`: runs a sweep or shows a finished one, and draws it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sysbench.commands import running
from sysbench.commands.attention.spec import AttentionOptions, AttentionSpec
from sysbench.spec.command_options import Given, command_options, validated

if TYPE_CHECKING:
    from sysbench.log.records import RunRecord


@command_options(AttentionSpec, AttentionOptions)
def attention(spec_given: Given, options_given: Given) -> None:
    """Sweep attention by head dimension, sequence length and implementation; see where it breaks.

    Every numeric or list option takes an axis: 128,256 or 128-1024*2 or 10-50+10. The run is the product of all axes.
    """
    options: AttentionOptions = running.options_of("attention", options_given)
    running.refuse_unknown_tables("attention", options)
    refuse_wrong_files(options)
    if options.source is not None:
        from sysbench.commands import saved

        running.refuse_beside_source(AttentionSpec, spec_given)
        record = saved.record(options.source, "attention")
        running.show(record, options)
        _draw(record, options)
        return
    spec = validated(AttentionSpec, {**running.resumed("attention", options.resume), **spec_given})
    if options.plan:
        running.show_plan(spec, options, None)
        return
    raise typer.Exit(running.exit_code(perform(spec, options).record))


def perform(spec: AttentionSpec, options: AttentionOptions) -> running.Performed:
    """Run the sweep and draw the requested figures; raises as `running.carry_out` does, and for unwritable figures."""
    refuse_wrong_files(options)
    record = running.carry_out(spec, options)
    return running.Performed(record, _draw(record, options))


def refuse_wrong_files(options: AttentionOptions) -> None:
    """Raise UsageError for a figure in an unknown format, and OutputError for one that cannot be written."""
    paths = [path for path in (options.figure, options.heat_map) if path is not None]
    if not paths:
        return
    from sysbench.commands.attention import pictures as attention_pictures
    from sysbench.log import storage

    attention_pictures.refuse_other_formats(*paths)
    for path in paths:
        storage.refuse_unwritable(path)


def _draw(record: RunRecord[Any], options: AttentionOptions) -> tuple[Path, ...]:
    if options.figure is None and options.heat_map is None:
        return ()
    from sysbench.commands.attention import pictures as attention_pictures
    from sysbench.commands.attention.record import AttentionRecord

    assert isinstance(record, AttentionRecord)
    written = attention_pictures.write(record, options.figure, options.heat_map)
    return running.said_to_be_saved(map(running.Saved, written), options)
