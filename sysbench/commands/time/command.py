"""`sysbench time`: options → spec → run → show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sysbench.commands import running
from sysbench.commands.time.spec import TimeOptions, TimeSpec
from sysbench.errors import UnavailableError, UsageError
from sysbench.spec.command_options import Given, command_options

if TYPE_CHECKING:
    from sysbench.spec.hardware import Hardware


@command_options(TimeSpec, TimeOptions)
def time(spec_given: Given, options_given: Given) -> None:
    """Time forward, backward and the optimizer step, by size, context, precision and more.

    Every numeric or list option takes an axis: 128,256 or 128-1024*2 or 10-50+10. The run is the product of all axes.
    """
    running.answer("time", spec_given, options_given)


def perform(spec: TimeSpec, options: TimeOptions) -> running.Performed:
    """Carry out the run; raises as `running.carry_out`, and UsageError for times that cannot be predicted."""
    if spec.simulate:
        refuse_unpredictable(spec, options)
        return running.Performed(running.carry_out(spec, options.model_copy(update={"no_live": True})))
    ceilings = True
    # JSON and experiments, which are reported, have every column; otherwise only a shown column needs the ceilings.
    if options.json_path is None and options.log_name is None and (options.tables or options.columns):
        from sysbench.render import declared

        ceilings = declared.shows("matmul_ceiling", options.columns, spec, options.tables, options.format)
    return running.Performed(running.carry_out(spec, options.model_copy(update={"ceilings": ceilings})))


def refuse_unpredictable(spec: TimeSpec, options: TimeOptions) -> None:
    """Raise UsageError for a GPU whose rates are unknown or belong to another GPU, a GPU that is here, and no host."""
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
    """Yield the reasons why the rates of a GPU cannot be used."""
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
