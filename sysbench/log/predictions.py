"""Events and records of predictions, which are computed for a GPU instead of measured on it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

from sysbench.log.cautions import memory_pressure
from sysbench.log.collect import CellEvents, recomputed_flops, step_flops, step_tokens
from sysbench.log.events import Event
from sysbench.log.outcomes import Caution, NamedNumber, caution
from sysbench.spec.frozen import Frozen
from sysbench.spec.hardware import Basis
from sysbench.spec.model import ModelCell
from sysbench.spec.quantities import Amount, Bytes, Count, Flops, PerSecond, Seconds, Signed, stored_unless
from sysbench.spec.steps import Phase
from sysbench.statistics.samples import percentile

MARK = "PREDICTED, not measured"

INTERVAL = "in brackets: 90% prediction interval"


class PredictedTime(Frozen):
    """A predicted time with its 90% prediction interval."""

    point_s: Seconds
    low_s: Seconds
    high_s: Seconds
    """Ends of the 90% prediction interval."""


class PredictedPhase(PredictedTime):
    """The predicted time of one phase of a step, and its composition."""

    name: Phase
    host_s: Seconds
    """Time the host needs to issue all work of the phase."""
    device_s: Seconds
    limited_by: str
    """`host`, or what takes the largest share of the device's time: matmul, bandwidth, indexing, latency,
    communication, or host link."""
    limited_share: Amount
    """Share of the phase's time that `limited_by` takes, from 0 to 1."""
    lower_bound_s: Seconds | None
    """Time at data-sheet rates, assuming zero host time; None for a device without a data sheet."""
    launches: Count
    communication_s: Seconds = stored_unless(0.0)
    exposed_s: Seconds = stored_unless(0.0)
    """Time by which collectives lengthen the device's time."""


class PredictedConstant(Frozen):
    """A constant on which a prediction is based."""

    name: str
    value: PerSecond
    spread: Amount
    """Standard deviation of the logarithm of `value`."""
    basis: Basis
    source: str


class GpuPrediction(Frozen):
    """A prediction for a GPU: times by phase, the constants used, and reasons to doubt the prediction."""

    source: Literal["predicted"] = "predicted"
    gpu: str
    withheld: str | None
    """Reason why no times are given; None if times are given."""
    phases: list[PredictedPhase]
    unknown_operators: dict[str, Count]
    """Number of launches of each operator that the time model does not know."""
    unknown_share: Amount
    """Share of unknown operators in the device's time, FLOPs or bytes, whichever is largest, from 0 to 1."""
    constants: list[PredictedConstant]
    doubts: list[str]

    def phase(self, name: str) -> PredictedPhase | None:
        """Return the phase with this name; None if there is none, or if times are withheld."""
        return next((phase for phase in self.phases if phase.name == name), None) if self.withheld is None else None

    @property
    def times(self) -> dict[str, PredictedTime]:
        """All predicted times by quantity; empty if they are withheld."""
        return {phase.name: phase for phase in self.phases} if self.withheld is None else {}

    def cautions(self) -> Iterator[Caution]:
        """Yield reasons to doubt the prediction."""
        for doubt in self.doubts:
            yield caution("calibration-differs", "run sysbench calibrate there again", about=(doubt,))
        if self.unknown_operators:
            launches = (NamedNumber(name, count, "count") for name, count in sorted(self.unknown_operators.items()))
            yield Caution(
                code="operators-unknown",
                numbers=(NamedNumber("unknown_share", self.unknown_share, "share"), *launches),
                remedy="profile the step on such a GPU",
            )
        elif self.withheld is not None:
            yield caution(
                "not-measured", "measure the step on such a GPU; its memory is simulated", about=(self.withheld,)
            )


class PredictedStep(GpuPrediction):
    """The predicted time of a step on a GPU, and the simulated memory of the step."""

    host: str
    step: PredictedTime | None
    step_draws_s: list[Seconds] = stored_unless([])
    """Step times at randomly drawn rates, the first at nominal ones; empty if the time is withheld.
    Predictions with the same host share the draws of its rates, so the i-th draws of two GPUs belong together."""
    limited_by: str
    limited_share: Amount
    """Share of the step, with a wait for the device after each phase, that `limited_by` takes."""
    limits_s: dict[str, Seconds] = stored_unless({})
    """Seconds of the step by what can limit it: `host`, and the parts of the device's time that `limited_by` names."""
    lower_bound_s: Seconds | None
    peak_flops_per_s: PerSecond | None
    """The data sheet's dense rate at this precision."""
    allocated_peak_bytes: Bytes
    reserved_peak_bytes: Bytes
    memory_bytes: Bytes
    """Memory of the GPU."""
    margin_bytes: Signed | None = stored_unless(None)
    """Free memory of the GPU at the peak; a negative margin is the missing memory. None if it is unknown."""
    alloc_retries: Count = stored_unless(0)
    """Number of times the allocator had to release its whole cache to serve a request."""
    host_time_without: str = stored_unless("")
    """Libraries whose own Python code takes host time that the prediction leaves out: `FSDP2 and DTensor`."""

    @property
    def times(self) -> dict[str, PredictedTime]:
        """All predicted times by quantity, the whole step first; empty if they are withheld."""
        return ({"step": self.step} if self.step else {}) | super().times

    @property
    def phased_step_s(self) -> float | None:
        """Seconds of the step with a wait for the device after each phase, as `sysbench time` measures it."""
        return math.fsum(phase.point_s for phase in self.phases) if self.step else None

    def cautions(self) -> Iterator[Caution]:
        """Yield reasons to doubt the prediction, and whether the step barely fits in memory.

        Host time that the prediction leaves out matters only if the host limits a phase in which it is spent.
        """
        yield from super().cautions()
        issued_by_libraries = [phase for phase in map(self.phase, ("forward", "backward", "optimizer")) if phase]
        if self.host_time_without and any(phase.limited_by == "host" for phase in issued_by_libraries):
            yield caution(
                "host-time-missing",
                "use a larger --batch or --ctx, so that the host matters less, or measure on such GPUs",
                about=(self.host_time_without,),
            )
        if (self.margin_bytes or 0) >= 0:
            yield from memory_pressure(self.alloc_retries, self.margin_bytes, self.memory_bytes)


class PredictedRatio(NamedTuple):
    """A ratio of two predicted step times with its 90% prediction interval."""

    point: float
    low: float
    high: float


def step_ratio(first: PredictedStep, second: PredictedStep) -> PredictedRatio | None:
    """Return the ratio of the first step time to the second; None if either is withheld.

    The interval is that of the ratio of matching draws: with the same host, its unknown speed cancels where it limits
    both steps. In 90 pairs of published steps (NeuSight, the same step on two GPUs), it contained 88% of the ratios.
    Without draws, the interval reaches from the ratio of the shortest to that of the longest times.
    """
    if first.step is None or second.step is None:
        return None
    point = first.step.point_s / second.step.point_s
    if len(first.step_draws_s) != len(second.step_draws_s) or not first.step_draws_s:
        return PredictedRatio(point, first.step.low_s / second.step.high_s, first.step.high_s / second.step.low_s)
    ratios = sorted(a / b for a, b in zip(first.step_draws_s, second.step_draws_s, strict=True))
    return PredictedRatio(point, min(point, percentile(ratios, 5)), max(point, percentile(ratios, 95)))


class StepPredicted(PredictedStep, Event):
    """The step of a cell was predicted, not measured."""

    event: Literal["step_predicted"] = "step_predicted"
    cell: str


class PredictedElsewhere(Event):
    """What a step of the run is predicted to take on a GPU, on a machine that has none; no part of the results."""

    event: Literal["predicted_elsewhere"] = "predicted_elsewhere"
    gpu: str
    title: str
    """The step, in words."""
    step: PredictedTime
    tokens_per_s: PerSecond


class PredictionRecord(PredictedStep):
    """The prediction for a cell, with the rates and costs computed from it."""

    step_flops: Flops | None
    flops_per_s: PerSecond | None
    tokens_per_s: PerSecond | None
    peak_share: Amount | None
    """Share of the data sheet's dense rate at this precision, from 0 to 1."""
    recomputed_flops: Flops | None = stored_unless(None)
    """FLOPs of a step that activation checkpointing computes again; not part of `step_flops`."""
    hardware_share: Amount | None = stored_unless(None)
    """`peak_share` with the recomputed FLOPs: the share of the rate at which the GPU works."""
    price_per_hour: PerSecond | None
    price_per_million_tokens: PerSecond | None


def hardware_share(peak_share: float | None, step_flops: float | None, recomputed_flops: float | None) -> float | None:
    """Return `peak_share` with the recomputed FLOPs (HFU); None if nothing is recomputed, or a number is unknown."""
    if not (peak_share and step_flops and recomputed_flops):
        return None
    return peak_share * (1 + recomputed_flops / step_flops)


def prediction_of(cell: ModelCell, seen: CellEvents, price_per_hour: float | None = None) -> PredictionRecord | None:
    """Return the prediction for a cell, with rates and costs; None if the cell was measured."""
    predicted = seen.last(StepPredicted)
    if predicted is None:
        return None
    work, tokens, step = step_flops(cell, seen), step_tokens(cell, seen), predicted.step
    flops_per_s = work / step.point_s if step and work is not None else None
    tokens_per_s = tokens / step.point_s if step and tokens is not None else None
    peak, repeated = predicted.peak_flops_per_s, recomputed_flops(cell, seen)
    peak_share = flops_per_s / (cell.ranks * peak) if flops_per_s and peak else None
    return predicted.as_record(
        PredictionRecord,
        step_flops=work,
        flops_per_s=flops_per_s,
        tokens_per_s=tokens_per_s,
        peak_share=peak_share,
        recomputed_flops=repeated,
        hardware_share=hardware_share(peak_share, work, repeated),
        price_per_hour=price_per_hour,
        price_per_million_tokens=cell.ranks * price_per_hour / 3600 / tokens_per_s * 1e6
        if price_per_hour and tokens_per_s
        else None,
    )


class Expected(Frozen):
    """An expected amount, with the ends of its interval; they are None if it is unknown how far it may be off."""

    point: Amount
    low: Amount | None
    high: Amount | None

    def times(self, factor: float) -> Expected:
        """Return the amount, multiplied."""
        low, high = (end if end is None else factor * end for end in (self.low, self.high))
        return Expected(point=factor * self.point, low=low, high=high)


class Training(Frozen):
    """A training on a number of tokens: as many steps as that takes, each as long as the known one."""

    tokens: Count
    steps: Amount
    duration_s: Expected
    cost: Expected | None = stored_unless(None)
    """Price of all GPUs for this long, in the user's currency; None without a price."""


def training(
    step_s: Expected, tokens: int, tokens_of_step: int, gpus: int = 1, price_per_hour: float | None = None
) -> Training:
    """Return the training on `tokens`, if a step takes `step_s` on `gpus` and trains on `tokens_of_step`."""
    steps = tokens / tokens_of_step
    duration_s = step_s.times(steps)
    cost = duration_s.times(gpus * price_per_hour / 3600) if price_per_hour else None
    return Training(tokens=tokens, steps=steps, duration_s=duration_s, cost=cost)


def of_prediction(step: PredictedTime) -> Expected:
    """Return the expected seconds of a predicted step."""
    return Expected(point=step.point_s, low=step.low_s, high=step.high_s)


def of_samples(median_s: Seconds, ci95_s: tuple[Seconds, Seconds] | None) -> Expected:
    """Return the expected seconds of a measured step: its median, with the 95% interval of the median."""
    low, high = ci95_s or (None, None)
    return Expected(point=median_s, low=low, high=high)
