"""`sysbench profile`: options → spec → run → show, draw."""

from __future__ import annotations

import typer

from sysbench.cli import running
from sysbench.cli.options import Given, command_options, validated
from sysbench.specs.profile import ProfileSpec
from sysbench.specs.run import ProfileOptions


@command_options(ProfileSpec, ProfileOptions)
def profile(spec_given: Given, options_given: Given) -> None:
    """See which kernels take the time, by the part of the model that launched them.

    Every numeric or list option takes an axis: 128,256 or 128-1024*2 or 10-50+10. The run is the product of all axes.
    --from takes traces that any program has recorded with torch.profiler or nsys.
    """
    options = validated(ProfileOptions, options_given)
    running.refuse_unknown_tables("profile", options)
    if options.source:
        from sysbench.cli import profile_source

        running.refuse_beside_source(ProfileSpec, spec_given)
        profile_source.show(options.source, options)
        return
    spec = validated(ProfileSpec, {**running.resumed("profile", options.resume), **spec_given})
    if options.plan:
        running.show_plan(spec, options, None)
        return
    raise typer.Exit(running.exit_code(perform(spec, options).record))


def perform(spec: ProfileSpec, options: ProfileOptions) -> running.Performed:
    """Carry the run out and draw what is wanted of it; raises as `running.carry_out` does, and for a wrong file."""
    from sysbench.cli.profile_files import Files

    with Files.prepared(spec, options) as files:
        record = running.carry_out(spec, options, files.provisions)
        return running.Performed(record, running.said_to_be_saved(files.draw(record), options))


def refuse_wrong_files(options: ProfileOptions) -> None:
    """Raise UsageError for files in a format that there is not."""
    from sysbench.cli.profile_files import refuse_other_endings

    refuse_other_endings(options)
