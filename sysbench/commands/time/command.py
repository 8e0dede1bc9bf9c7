"""`sysbench time`: options → spec → run → show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from sysbench.commands import running
from sysbench.commands.time.spec import TimeOptions, TimeSpec
from sysbench.errors import UnavailableError, UsageError
from sysbench.spec.command_options import Given, command_options, validated

if TYPE_CHECKING:
    from sysbench.spec.hardware import Hardware


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
        refuse_unpredictable(spec, options)
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


def refuse_unpredictable(spec: TimeSpec, options: TimeOptions) -> None:
    """Raise UsageError for a GPU without rates, one that was calibrated as another, one that is here, or no host."""
    from sysbench.engine.sensors.nvml import present_gpus
    from sysbench.predict.rates import HostRates
    from sysbench.spec import hardware

    if spec.host is not None:
        try:
            HostRates.read(spec.host)
        except UsageError as error:
            raise UsageError(f"--host {error}") from None
    here = {known.slug for name, size_bytes in present_gpus() if (known := hardware.find(name, size_bytes))}
    for slug in spec.simulate:
        known = hardware.named(slug)
        for problem in _problems(known):
            raise UsageError(f"--simulate {slug}: {problem}")
        if slug in here and not options.force:
            raise UsageError(
                f"--simulate {slug}: there is one here, which can be measured by leaving --simulate out; "
                "--force predicts nevertheless"
            )


def _problems(known: Hardware) -> Iterator[str]:
    """Why the rates of a GPU cannot be used, in a line each."""
    from sysbench.predict.rates import GpuRates
    from sysbench.spec import hardware

    calibration = known.calibration
    sheet = next((each for each in hardware.known() if each.slug == known.slug), None)
    if calibration is not None and sheet is not None and hardware.find(calibration.device) not in (None, sheet):
        yield (
            f"{hardware.user_directory() / known.slug}.toml was calibrated on {calibration.device}, which is another "
            "GPU; remove or rename it"
        )
    if not known.rates:
        yield (
            "nothing is known of it but its memory, which predicts no times; "
            f"sysbench memory --simulate {known.slug} says whether a step fits"
        )
        return
    try:
        GpuRates.of(known)
    except UnavailableError as error:
        yield f"{error}; sysbench memory --simulate {known.slug} says whether it fits"
