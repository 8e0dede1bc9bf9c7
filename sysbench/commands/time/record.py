"""What `sysbench time` says of its cells: its record."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from sysbench.commands.time.spec import TimeCell
from sysbench.log.predictions import PredictionRecord
from sysbench.log.records import ModelCellRecord, RunRecord, Samples
from sysbench.spec.frozen import Frozen
from sysbench.spec.model import Precision
from sysbench.spec.quantities import Amount, Bytes, Count, Finite, Flops, PerSecond, Seconds, Unbounded


class PhaseRecord(Frozen):
    """One phase over the measured steps, by the host's clock and, where there is one, the device's."""

    wall: Samples | None
    device: Samples | None
    enqueue_median_s: Seconds | None


class PeakRecord(Frozen):
    """Peaks over the measured steps, in bytes; None where nothing was measured."""

    allocated_peak_bytes: Bytes | None
    reserved_peak_bytes: Bytes | None
    device_used_peak_bytes: Bytes | None
    """Of the whole device, other processes included."""
    host_rss_peak_bytes: Bytes | None
    """Of the worker and its children, sampled from outside during this cell."""


class RateRecord(Frozen):
    """How fast, and how far from what the hardware can do. Over the mean step, which is what tables quote."""

    step_flops: Flops
    flops_per_s: Amount
    tokens_per_s: Amount
    peak_flops_per_s: PerSecond | None
    """The data sheet's dense rate at this precision; None for hardware that is not known."""
    peak_source: str | None
    peak_share: Amount | None
    ceiling_flops_per_s: PerSecond | None
    """What a large matrix product reached here, in this run."""
    ceiling_share: Amount | None

    def over(self, step_s: float, tokens: int) -> RateRecord:
        """The same for a step of so many seconds and tokens; a ceiling that was no ceiling stays without a share."""
        achieved, peak, ceiling = self.step_flops / step_s, self.peak_flops_per_s, self.ceiling_flops_per_s
        return self.model_copy(
            update={
                "flops_per_s": achieved,
                "tokens_per_s": tokens / step_s,
                "peak_share": achieved / peak if peak else None,
                "ceiling_share": achieved / ceiling if ceiling and self.ceiling_share is not None else None,
            }
        )


class ReadingsRecord(Frozen):
    """What was seen from outside while the steps were measured: medians, except where the name says otherwise."""

    count: Count
    sm_clock_hz: Amount | None
    sm_clock_min_hz: Amount | None
    power_w: Amount | None
    temperature_max_c: Finite | None
    device_utilisation: Amount | None
    energy_j: Finite | None
    host_cpu_share: Amount | None
    throttle_reasons: list[str]
    other_processes: Count | None


class EnergyRecord(Frozen):
    """What the measured steps took from the wall, by the counter of the whole GPU; None where it is withheld."""

    step_j: Amount | None
    token_j: Amount | None
    power_w: Amount | None
    """Mean power between the first and the last reading of the counter inside the window."""
    window_s: Seconds
    """From the beginning of the first measured step to the end of the last."""
    counted_s: Seconds
    """Between those two readings."""
    uncertainty_share: Amount | None
    """What the counter's rare updates leave open: one update over `counted_s`, either way."""
    withheld: str | None
    """Why there are no joules."""
    steps_needed: Count | None
    """With about this many steps there would be."""


class TimeCellRecord(ModelCellRecord):
    """One cell of `sysbench time`."""

    cell: TimeCell = Field(alias="axes")

    build_s: Seconds | None
    compile_s: Seconds | None
    graph_breaks: Count | None
    attention_kernel: str | None
    loss: Unbounded | None
    phases: dict[str, PhaseRecord]
    """The mode's phases in order, then `step`; empty when nothing was measured."""
    warmup_samples_s: list[Seconds]
    """Wall time of the warm-up steps, in order."""
    memory: PeakRecord
    rates: RateRecord | None
    readings: ReadingsRecord | None
    energy: EnergyRecord | None = None
    """None where no counter of energy was read; records of earlier versions have none."""
    prediction: PredictionRecord | None = Field(default=None, exclude_if=lambda value: value is None)
    """None where a device was measured."""

    @property
    def source(self) -> Literal["measured", "predicted"]:
        """Where its times are from."""
        return "predicted" if self.cell.simulate else "measured"

    @model_validator(mode="after")
    def _rates_of_one_basis(self) -> Self:
        """Records of 0.1.0 hold rates over the median step, which would stand beside means in one row."""
        step = self.phases.get("step")
        if self.rates is not None and step is not None and step.wall is not None and step.wall.mean_s > 0:
            object.__setattr__(self, "rates", self.rates.over(step.wall.mean_s, self.cell.tokens))
        return self


class CeilingRecord(Frozen):
    """What a large matrix product reached on this machine during the run."""

    device: str
    precision: Precision
    matmul_flops_per_s: PerSecond
    matmul_size: Count


class TimeRecord(RunRecord[TimeCellRecord]):
    """The final summary of `sysbench time`."""

    kind: Literal["time"] = "time"
    ceilings: list[CeilingRecord]
