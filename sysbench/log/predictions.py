"""Times on GPUs that were not there: the events and records of what was worked out and not measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from sysbench import formulas, units
from sysbench.log.collect import CellEvents
from sysbench.log.events import Event
from sysbench.log.outcomes import Caution
from sysbench.spec.frozen import Frozen
from sysbench.spec.hardware import Basis
from sysbench.spec.model import ModelCell, Phase
from sysbench.spec.quantities import Amount, Bytes, Count, Flops, PerSecond, Seconds

MARK = "PREDICTED, not measured"

INTERVAL = "in brackets the interval that holds the time in 90 % of cases"


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


class Grounds(Frozen):
    """What a prediction rests on, and how far to trust it."""

    source: Literal["predicted"] = "predicted"
    gpu: str
    """Its title."""
    withheld: str | None
    """Why there is no time."""
    phases: list[PredictedPhase]
    unknown_operators: dict[str, Count]
    """That the model does not know, with their launches."""
    unknown_share: Amount
    """Of the device's time."""
    constants: list[PredictedConstant]
    doubts: list[str]
    """What is wrong with the constants: that they were calibrated with another torch, say."""

    def phase(self, name: str) -> PredictedPhase | None:
        """A phase by its name; None where its time is withheld, or there is none."""
        return next((each for each in self.phases if each.name == name), None) if self.withheld is None else None

    def cautions(self) -> Iterator[Caution]:
        """Why it should be believed less."""
        for doubt in self.doubts:
            yield Caution(code="calibration-differs", message=doubt, remedy="run sysbench calibrate again there")
        if self.unknown_operators:
            names = ", ".join(f"{name} ({count})" for name, count in sorted(self.unknown_operators.items()))
            yield Caution(
                code="operators-unknown",
                message=f"{units.share(self.unknown_share)} of the device's time goes into operators that the model "
                f"does not know and takes for elementwise: {names}",
                remedy="profile the step on such a GPU",
            )


class PredictedStep(Grounds):
    """How long a step would take on a GPU, and what memory it would need."""

    host: str
    step: PredictedTime | None
    """None where it is withheld."""
    limited_by: str
    limited_share: Amount
    lower_bound_s: Seconds
    peak_flops_per_s: PerSecond | None
    """The data sheet's dense rate at this precision."""
    allocated_peak_bytes: Bytes
    reserved_peak_bytes: Bytes
    less_certain: bool
    """Whether a part of it is a guess: what torch.compile would fuse."""


class StepPredicted(PredictedStep, Event):
    """The cell was not run: this is how long its step would take on a GPU, and how sure that is."""

    event: Literal["step_predicted"] = "step_predicted"
    cell: str


class PredictionRecord(PredictedStep):
    """What would be measured on a GPU that was not there."""

    step_flops: Flops
    flops_per_s: PerSecond | None
    tokens_per_s: PerSecond | None
    peak_share: Amount | None
    """Of the data sheet's dense rate at this precision."""
    price_per_hour: PerSecond | None
    """What the user said that the GPU costs."""
    price_per_million_tokens: PerSecond | None


def prediction_of(cell: ModelCell, seen: CellEvents, price_per_hour: float | None = None) -> PredictionRecord | None:
    """What was predicted of a cell, with what it comes to a second and a token; None where it was measured."""
    predicted = seen.last(StepPredicted)
    if predicted is None:
        return None
    step_flops, step = formulas.step_flops_of(cell), predicted.step
    flops_per_s = step_flops / step.point_s if step else None
    tokens_per_s = cell.tokens / step.point_s if step else None
    peak = predicted.peak_flops_per_s
    return PredictionRecord(
        **predicted.model_dump(exclude={"event", "at_s", "cell"}),
        step_flops=step_flops,
        flops_per_s=flops_per_s,
        tokens_per_s=tokens_per_s,
        peak_share=flops_per_s / peak if flops_per_s and peak else None,
        price_per_hour=price_per_hour,
        price_per_million_tokens=price_per_hour / 3600 / tokens_per_s * 1e6
        if price_per_hour and tokens_per_s
        else None,
    )
