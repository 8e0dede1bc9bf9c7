"""One combination of changes on one GPU, simulated whole, or bounded from below by the same model with few layers.

All layers of a Transformer are alike. So time grows linearly with their number, and so do the tensors that are live at
each point of a step; the most that are live in a phase grow at least linearly. The lines through two shallow models
cost a fraction of a whole simulation. They only steer the search: what is reported is always simulated whole. The
allocator's cache does not follow a line, so what a whole step needs may be more, by up to a sixth.

For 62 combinations of changes of xl, such times were within 0.03% of those of whole steps, and such tensors within
0.8% (tests/commands/fit/test_estimates.py).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from sysbench.commands.fit.record import Trial
from sysbench.commands.fit.search.changes import Combination, changed
from sysbench.commands.fit.search.rules import Outcome
from sysbench.commands.fit.spec import FitCell
from sysbench.errors import UnavailableError
from sysbench.log.cautions import margin_uncertainty_bytes
from sysbench.log.predictions import PredictedTime
from sysbench.predict import collectives
from sysbench.predict.simulated_step import UNLIMITED_BYTES, SimulatedStep
from sysbench.simulate.depths import Depths
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.memory import by_category
from sysbench.simulate.recording import StepRecording
from sysbench.simulate.replay import Replay, SpanPeak
from sysbench.spec import hardware
from sysbench.spec.model import ModelCell

REFERENCE = "a100-80gb"
"""GPU whose times stand for those of a GPU of which only the memory is known."""

STATE = ("parameters", "gradients", "optimizer state")
"""Categories that a training step keeps, or needs all at once in the optimizer."""

TIME_ERROR_SHARE = 0.001
MEMORY_ERROR_SHARE = 0.01
"""Largest errors of the lines, by which the bounds lie below them."""


def simulated(question: FitCell, combination: Combination, gpu: str) -> Trial | None:
    """Simulate the whole step with a combination on a GPU; return None if that is not possible."""
    step = changed(question, combination)
    if step.problem("cuda") is not None:
        return None
    try:
        return _simulated(question, step.step, combination, gpu)
    except UnavailableError:
        if not combination:
            raise
        return None


def simulated_on(question: FitCell, combination: Combination, gpus: Sequence[str]) -> dict[str, Trial | None]:
    return {gpu: simulated(question, combination, gpu) for gpu in gpus}


def _simulated(question: FitCell, step: ModelCell, combination: Combination, gpu: str) -> Trial:
    card = hardware.by_name(gpu)
    gpu_bytes = question.allowed_bytes(card.memory_bytes)
    is_asked = not combination  # its trace has modules already, for the explanation
    link = question.host_link
    began_s = time.process_time()
    simulated = SimulatedStep(step, gpu, with_modules=is_asked, memory_bytes=gpu_bytes, host_link=link)
    _, verdict = simulated.memory
    replay = unlimited_replay(step, gpu, with_modules=is_asked)
    simulate_s = time.process_time() - began_s
    is_timed = card.rates and (step.ranks == 1 or has_links(gpu))
    timed = simulated if is_timed else SimulatedStep(step, REFERENCE, with_modules=is_asked, host_link=link)
    prediction = timed.prediction
    highest = max(replay.peaks_of_last_step(), key=allocated_bytes)
    at_peak = by_category(replay.recording, replay.sizes, highest.position)
    outside = Gpu.of(card)
    is_known = is_timed and prediction.withheld is None
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
        state_bytes=_state_bytes(replay),
        step=PredictedTime(**vars(estimate)) if is_known else None,
        relative_s=estimate.point_s,
        tokens=step.tokens * step.batches,
        uncertainty_bytes=margin_uncertainty_bytes(gpu_bytes),
        context_uncertainty_bytes=outside.context_bytes - outside.least_context_bytes,
        recomputed_flops=simulated.recording.recomputed_flops * step.grad_accum,
        compile_s=simulate_s * _layers_per_compiled_layer(simulated.recording) if step.is_compiled else None,
    )


def _layers_per_compiled_layer(recording: StepRecording) -> float:
    """Return the ratio of the step's layers to those that were compiled to simulate it."""
    depths = recording.depths
    return depths.whole / (depths.small + depths.large) if depths is not None else 1.0


def has_links(gpu: str) -> bool:
    """Return whether the time of ranks is known: for GPUs whose links were measured, or that a reference stands for."""
    try:
        collectives.refuse_unknown_links(hardware.by_name(gpu))
    except UnavailableError:
        return not hardware.by_name(gpu).rates
    return True


def _state_bytes(replay: Replay) -> int:
    peaks = {peak.span.name: peak for peak in sorted(replay.peaks_of_last_step(), key=allocated_bytes)}
    position = peaks.get("optimizer", max(peaks.values(), key=allocated_bytes)).position
    sizes = by_category(replay.recording, replay.sizes, position)
    return sum(size_bytes for name, size_bytes in sizes.items() if name in STATE)


def outcome_of(trial: Trial) -> Outcome:
    """Return what the search must know of a step that was simulated whole."""
    return Outcome(trial.needed_bytes, trial.allocated_peak_bytes, trial.state_bytes, trial.relative_s, True)


def unlimited_replay(step: ModelCell, gpu: str, *, with_modules: bool = False) -> Replay:
    replay, _ = SimulatedStep(step, gpu, with_modules=with_modules, memory_bytes=UNLIMITED_BYTES).memory
    return replay


def allocated_bytes(peak: SpanPeak) -> int:
    return peak.allocated_bytes


def bounds(
    smaller: Sequence[FitCell], depths: Depths, combination: Combination, gpus: Sequence[str]
) -> dict[str, Outcome]:
    """Return what the whole step needs at least on each GPU, by those of two smaller models; not if that is unknown."""
    found = {}
    for gpu in gpus:
        shallow = [_shallow(cell, combination, gpu) for cell in smaller]
        if (small := shallow[0]) is None or (large := shallow[1]) is None or len(small.peaks) != len(large.peaks):
            continue
        distance = (depths.whole - depths.small) / (depths.large - depths.small)
        step_s, state_bytes, *peaks = (
            low + distance * (high - low)
            for low, high in zip((*small[:2], *small.peaks), (*large[:2], *large.peaks), strict=True)
        )
        least_bytes, state_bytes = (
            round(small.outside_bytes + each * (1 - MEMORY_ERROR_SHARE)) for each in (max(peaks), state_bytes)
        )
        found[gpu] = Outcome(least_bytes, least_bytes, state_bytes, step_s * (1 - TIME_ERROR_SHARE), False)
    return found


class _Shallow(NamedTuple):
    step_s: float
    state_bytes: int
    peaks: list[int]
    """Highest allocated bytes of each span."""
    outside_bytes: int


def _shallow(cell: FitCell, combination: Combination, gpu: str) -> _Shallow | None:
    question = changed(cell, combination)
    if question.problem("cuda") is not None:
        return None
    step, card = question.step, hardware.by_name(gpu)
    try:
        replay = unlimited_replay(step, gpu)
        timed = SimulatedStep(step, gpu if card.rates else REFERENCE, host_link=question.host_link)
        step_s = timed.prediction.time.point_s
    except UnavailableError:
        return None
    outside_bytes = Gpu.of(card).with_nccl_memory(step.strategy, step.ranks).outside_bytes
    return _Shallow(step_s, _state_bytes(replay), [peak.allocated_bytes for peak in replay.peaks], outside_bytes)
