"""Events and record of `sysbench calibrate`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sysbench.commands.calibrate.spec import CalibrateCell
from sysbench.log.events import Event
from sysbench.log.records import CellRecord, RunRecord
from sysbench.predict.rates import GpuRate, HostRate
from sysbench.spec.frozen import Frozen
from sysbench.spec.hardware import Rate, Slug
from sysbench.spec.quantities import Amount, PerSecond, PositiveSeconds

RateName = GpuRate | HostRate

PER_SECOND: dict[str, Literal["flops_per_s", "bytes_per_s", "elements_per_s"]] = {
    **dict.fromkeys(("matmul_fp32", "matmul_tf32", "matmul_half", "matmul_fp8"), "flops_per_s"),
    **dict.fromkeys(("attention_forward", "attention_backward"), "flops_per_s"),
    **dict.fromkeys(("stream", "reduce", "device_to_host", "host_to_device", "update", "new_memory"), "bytes_per_s"),
    **dict.fromkeys(("indexed", "transpose"), "elements_per_s"),
}
"""Units of rates that are work over time; all other rates are in seconds per piece of work."""


class RatesKnown(Event):
    """Rates that predictions have used so far: from the user's own file for this device, or from the built-in data."""

    event: Literal["rates_known"] = "rates_known"
    cell: str
    slug: Slug
    """Name of the device for `--simulate`."""
    rates: dict[str, Rate]


class TimedWork(Frozen):
    """A piece of work, timed repeatedly after the device's clocks had settled."""

    rate: RateName
    """The rate that the work determines."""
    case: str
    """The work: `bf16 TN 4096 × 4096 × 4096`."""
    work: PerSecond
    """FLOPs, bytes or elements; for a rate in seconds, the number of operators or kernels."""
    samples_s: list[PositiveSeconds]
    """Seconds of each repetition, in order."""


class WorkTimed(TimedWork, Event):
    """A piece of work was timed."""

    event: Literal["work_timed"] = "work_timed"
    cell: str


class CaseRecord(TimedWork):
    """A timed piece of work, and the rate computed from its times."""

    value: PerSecond
    """The rate: work divided by the median time or, for a rate in seconds, the median time divided by the work."""
    spread: Amount
    """Standard deviation of the logarithm of the samples."""


class RateRecord(Frozen):
    """A measured rate, with its previous value."""

    name: RateName
    value: PerSecond
    spread: Amount
    """Standard deviation of the rate's logarithm, over samples and cases."""
    sheet: PerSecond | None
    """The data sheet's value, if there is one."""
    before: PerSecond | None
    """The value that predictions used before, if any."""
    before_source: str | None


class CalibrateCellRecord(CellRecord):
    """Record of one cell of `sysbench calibrate`."""

    cell: CalibrateCell = Field(alias="axes")
    cases: list[CaseRecord]


class CalibrateRecord(RunRecord[CalibrateCellRecord]):
    """Record of a run of `sysbench calibrate`."""

    kind: Literal["calibrate"] = "calibrate"
    slug: Slug | None
    """Name of the device for `--simulate`; None if nothing was measured."""
    rates: list[RateRecord]
