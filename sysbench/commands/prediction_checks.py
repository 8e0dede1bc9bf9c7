"""Checks before a prediction: rates and prices are known, no GPU is in this machine, and the host file is valid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sysbench.errors import UnavailableError, UsageError

COST_COLUMNS = ("cost", "million_tokens", "per million tokens")
"""Names of the columns with costs."""

if TYPE_CHECKING:
    from sysbench.spec.hardware import Hardware


def refuse_unpredictable(
    slugs: Sequence[str], host: Path | None = None, *, force: bool, option: str = "--simulate"
) -> None:
    """Raise UsageError if the host file is invalid, a GPU's rates are unusable, or a GPU is in this machine.

    `force` allows GPUs in this machine; `option` is the command-line option that names the GPUs.
    """
    from sysbench.predict.rates import HostRates
    from sysbench.spec import hardware

    if host is not None:
        try:
            HostRates.read(host)
        except UsageError as error:
            raise UsageError(f"--host {error}") from None
    for slug in slugs:
        for problem in _rate_problems(hardware.by_name(slug)):
            raise UsageError(f"{option} {slug}: {problem}")
    refuse_present_gpus(slugs, force=force, option=option)


def refuse_present_gpus(slugs: Sequence[str], *, force: bool, option: str = "--simulate") -> None:
    """Raise UsageError if this machine has one of these GPUs, unless `force` is given."""
    from sysbench.engine.sensors.nvml import present_gpus
    from sysbench.spec import hardware

    present_slugs = {known.slug for name, size_bytes in present_gpus() if (known := hardware.find(name, size_bytes))}
    if not force and (slug := next((slug for slug in slugs if slug in present_slugs), None)) is not None:
        raise UsageError(
            f"{option} {slug}: this machine has this GPU; remove {option} to measure it, or add --force to predict "
            "anyway"
        )


def refuse_cost_without_price(columns: Sequence[str], prices: Mapping[str, float], slugs: Sequence[str]) -> None:
    """Raise UsageError if a column with costs is requested, but no GPU has a price."""
    if not prices and (asked := [name for name in columns if name.removeprefix("+") in COST_COLUMNS]):
        example = ",".join(f"{slug}=2.5" for slug in slugs or ("h100",))
        raise UsageError(f"--columns {asked[0]} needs the price of a GPU hour: --price {example}")


def _rate_problems(gpu: Hardware) -> Iterator[str]:
    from sysbench.predict.rates import GpuRates
    from sysbench.spec import hardware

    calibration = gpu.calibration
    sheet = next((known for known in hardware.known() if known.slug == gpu.slug), None)
    if calibration is not None and sheet is not None and hardware.find(calibration.device) not in (None, sheet):
        yield (
            f"{hardware.user_directory() / gpu.slug}.toml was calibrated on {calibration.device}, which is a "
            "different GPU; remove or rename the file"
        )
    if not gpu.rates:
        yield (
            f"its rates are unknown, so times cannot be predicted; sysbench memory --simulate {gpu.slug} shows "
            "whether a step fits"
        )
        return
    try:
        GpuRates.of(gpu)
    except UnavailableError as error:
        yield f"{error}; sysbench memory --simulate {gpu.slug} shows whether it fits"
