"""What `sysbench time` says of its cells: its own events, and its record."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sysbench.commands.time.spec import TimeCell
from sysbench.log.events import Event
from sysbench.log.records import ModelCellRecord, RunRecord, Samples
from sysbench.spec.frozen import Frozen
from sysbench.spec.hardware import Basis
from sysbench.spec.model import Phase, Precision
from sysbench.spec.quantities import Amount, Bytes, Count, Finite, Flops, PerSecond, Seconds, Size, Unbounded


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


class PredictedTime(Frozen):
    """A time that was worked out and not measured."""

    point_s: Seconds
    low_s: Seconds
    high_s: Seconds
    """Ends of the interval that holds the time in 90 % of cases."""


class PredictedPhase(PredictedTime):
    """One phase of a predicted step."""

    name: Phase
    host_s: Seconds
    """That the host takes to issue everything."""
    device_s: Seconds
    """That the kernels take together."""
    limited_by: str
    """The host, or what most of the device's time goes into: matmul, bandwidth, indexing, latency."""
    limited_share: Amount
    """Of the phase."""
    lower_bound_s: Seconds
    """At the rates of the data sheet, without a host."""
    launches: Count


class PredictedConstant(Frozen):
    """A constant that a prediction rests on."""

    name: str
    value: PerSecond
    spread: Amount
    """Deviation of its logarithm."""
    basis: Basis
    source: str


class ThreadsTried(Event):
    """The steps of a cell scattered on a CPU, and were tried on fewer threads, to see whether threads wait."""

    event: Literal["threads_tried"] = "threads_tried"
    cell: str
    before: Size
    """Threads of the measured steps."""
    threads: Size
    """Threads of these steps."""
    wall_s: Annotated[list[Seconds], Field(min_length=1)]


class StepPredicted(Event):
    """The cell was not run: this is how long its step would take on a GPU, and how sure that is."""

    event: Literal["step_predicted"] = "step_predicted"
    cell: str
    source: Literal["predicted"] = "predicted"
    gpu: str
    """Its title."""
    host: str
    step: PredictedTime | None
    """None where it is withheld."""
    withheld: str | None
    """Why there is no time."""
    phases: list[PredictedPhase]
    limited_by: str
    limited_share: Amount
    lower_bound_s: Seconds
    peak_flops_per_s: PerSecond | None
    """The data sheet's dense rate at this precision."""
    allocated_peak_bytes: Bytes
    reserved_peak_bytes: Bytes
    unknown_operators: dict[str, Count]
    """That the model does not know, with their launches."""
    unknown_share: Amount
    """Of the device's time."""
    less_certain: bool
    """Whether a part of it is a guess: what torch.compile would fuse."""
    constants: list[PredictedConstant]
    doubts: list[str]
    """What is wrong with the constants: that they were calibrated with another torch, say."""


class PredictionRecord(Frozen):
    """What would be measured on a GPU that was not there."""

    source: Literal["predicted"] = "predicted"
    gpu: str
    host: str
    step: PredictedTime | None
    withheld: str | None
    phases: list[PredictedPhase]
    limited_by: str
    limited_share: Amount
    lower_bound_s: Seconds
    peak_flops_per_s: PerSecond | None
    allocated_peak_bytes: Bytes
    reserved_peak_bytes: Bytes
    step_flops: Flops
    flops_per_s: PerSecond | None
    tokens_per_s: PerSecond | None
    peak_share: Amount | None
    """Of the data sheet's dense rate at this precision."""
    price_per_hour: PerSecond | None
    """What the user said that the GPU costs."""
    price_per_million_tokens: PerSecond | None
    unknown_operators: dict[str, Count]
    unknown_share: Amount
    less_certain: bool
    constants: list[PredictedConstant]
    doubts: list[str]


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
    threads: Size | None = Field(default=None, exclude_if=lambda value: value is None)
    matmul_flops_per_s: PerSecond
    matmul_size: Count


class TimeRecord(RunRecord[TimeCellRecord]):
    """The final summary of `sysbench time`."""

    kind: Literal["time"] = "time"
    ceilings: list[CeilingRecord]
