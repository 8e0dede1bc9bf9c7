"""Worker side of `sysbench fit`: one combination of changes on one GPU, simulated or estimated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sysbench.commands.fit.record import Trial
from sysbench.commands.fit.search.changes import Change, Combination, changed
from sysbench.commands.fit.search.estimates import Depths, extrapolated
from sysbench.commands.fit.spec import FitCell
from sysbench.errors import UnavailableError
from sysbench.log.cautions import margin_uncertainty_bytes
from sysbench.log.predictions import PredictedTime
from sysbench.predict.simulated_step import UNLIMITED_BYTES, SimulatedStep
from sysbench.simulate.memory import by_category
from sysbench.simulate.replay import Replay, SpanPeak
from sysbench.spec import hardware
from sysbench.spec.model import ModelCell

REFERENCE = "a100-80gb"
"""GPU whose times stand for those of a GPU of which only the memory is known."""

STATE = ("parameters", "gradients", "optimizer state")
"""Categories that a training step keeps, or needs all at once in the optimizer."""


def simulated(question: FitCell, combination: Combination, gpu: str) -> Trial | None:
    """Simulate the whole step with a combination on a GPU; return None if that is not possible.

    Raises UnavailableError if the step as asked cannot be simulated.
    """
    step = changed(question, combination)
    if step.problem("cuda") is not None:
        return None
    try:
        return _simulated(question, step.step, combination, gpu)
    except UnavailableError:
        if not combination:
            raise
        return None


def simulated_with(question: FitCell, changes: Mapping[str, Any], gpu: str) -> Trial | None:
    """Simulate the whole step with changed fields on a GPU; return None if that is not possible."""
    return simulated(question, (Change("all", tuple(changes.items())),) if changes else (), gpu)


def estimated(smaller: Sequence[FitCell], depths: Depths, combination: Combination, gpu: str) -> Trial | None:
    """Estimate a step from the question about the same model with few layers; None if that is not possible."""
    small, large = (simulated(each, combination, gpu) for each in smaller)
    return extrapolated(small, large, depths) if small is not None and large is not None else None


def _simulated(question: FitCell, step: ModelCell, combination: Combination, gpu: str) -> Trial:
    card = hardware.by_name(gpu)
    gpu_bytes = question.allowed_bytes(card.memory_bytes)
    is_asked = not combination  # its trace has modules already, for the explanation
    link = question.host_link
    simulated = SimulatedStep(step, gpu, with_modules=is_asked, memory_bytes=gpu_bytes, host_link=link)
    _, verdict = simulated.memory
    replay = unlimited_replay(step, gpu, with_modules=is_asked)
    timed = simulated if card.rates else SimulatedStep(step, REFERENCE, with_modules=is_asked, host_link=link)
    prediction = timed.prediction
    peaks = {peak.span.name: peak for peak in sorted(replay.peaks_of_last_step(), key=allocated_bytes)}
    highest = max(peaks.values(), key=allocated_bytes)
    at_peak, in_optimizer = (
        by_category(replay.recording, replay.sizes, each.position)
        for each in (highest, peaks.get("optimizer", highest))
    )
    is_known = card.rates and prediction.withheld is None
    estimate = prediction.time
    return Trial(
        gpu=gpu,
        gpu_bytes=gpu_bytes,
        changes={name: value for change in combination for name, value in change.fields},
        relearns=any(change.relearns for change in combination),
        ranks=step.ranks,
        fits=verdict.fits,
        phase=verdict.failed_phase or highest.span.name,
        margin_bytes=verdict.margin_bytes,
        allocated_peak_bytes=highest.allocated_bytes,
        by_category=dict(at_peak),
        state_bytes=sum(size_bytes for name, size_bytes in in_optimizer.items() if name in STATE),
        step=PredictedTime(point_s=estimate.point_s, low_s=estimate.low_s, high_s=estimate.high_s)
        if is_known
        else None,
        relative_s=estimate.point_s,
        tokens=step.tokens * step.batches,
        uncertainty_bytes=margin_uncertainty_bytes(gpu_bytes),
    )


def unlimited_replay(step: ModelCell, gpu: str, *, with_modules: bool = False) -> Replay:
    replay, _ = SimulatedStep(step, gpu, with_modules=with_modules, memory_bytes=UNLIMITED_BYTES).memory
    return replay


def allocated_bytes(peak: SpanPeak) -> int:
    return peak.allocated_bytes
