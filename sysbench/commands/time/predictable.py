"""What has to be there before times are predicted: rates of the GPU, and a host; and no such GPU in this machine."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench.commands.time.spec import TimeOptions, TimeSpec
from sysbench.engine.sensors.nvml import present_gpus
from sysbench.errors import UnavailableError, UsageError
from sysbench.predict.rates import GpuRates, HostRates
from sysbench.spec import hardware
from sysbench.spec.hardware import Hardware


def refuse_unpredictable(spec: TimeSpec, options: TimeOptions) -> None:
    """Raise UsageError for a GPU without rates, one that was calibrated as another, one that is here, or no host."""
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
