"""One combination of changes on one GPU, simulated whole, or estimated from the same model with few layers.

All layers of a Transformer are alike, so time and memory grow linearly with their number. The lines through two
simulations cost a fraction of a whole one, and only steer the search: what is reported is always simulated whole.

For 28 combinations of changes of the 2.7b model, estimated times were within 0.06% of simulated ones. Estimated memory
was within 5%, and within 9% for FSDP2: the peak may lie elsewhere in a deep model, and the allocator's cache does not
grow linearly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sysbench.commands.fit.record import Trial
from sysbench.commands.fit.search.changes import Change, Combination, changed
from sysbench.commands.fit.spec import FitCell
from sysbench.errors import UnavailableError
from sysbench.log.cautions import margin_uncertainty_bytes
from sysbench.log.predictions import PredictedTime
from sysbench.predict.simulated_step import UNLIMITED_BYTES, SimulatedStep
from sysbench.simulate.memory import by_category
from sysbench.simulate.replay import Replay, SpanPeak
from sysbench.spec import hardware
from sysbench.spec.knobs import blocks_between_checkpoints
from sysbench.spec.model import ModelCell, ModelShape

REFERENCE = "a100-80gb"
"""GPU whose times stand for those of a GPU of which only the memory is known."""

STATE = ("parameters", "gradients", "optimizer state")
"""Categories that a training step keeps, or needs all at once in the optimizer."""

DEPTHS = (2, 4)
"""Numbers of layers that are simulated; with checkpoints every N layers, multiples of N."""

MEMORY_ERROR_SHARE = 0.05
"""Largest error of an estimated memory. The search takes all steps that may fit as steps that fit, until simulated."""

_LAYERS_OF_CONFIG = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
"""Names of the number of layers in a Hugging Face config."""


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


def simulated_with(question: FitCell, changes: Mapping[str, Any], gpu: str) -> Trial | None:
    return simulated(question, (Change("all", tuple(changes.items())),) if changes else (), gpu)


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
        by_category(replay.recording, replay.sizes, peak.position)
        for peak in (highest, peaks.get("optimizer", highest))
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
        step=PredictedTime(**vars(estimate)) if is_known else None,
        relative_s=estimate.point_s,
        tokens=step.tokens * step.batches,
        uncertainty_bytes=margin_uncertainty_bytes(gpu_bytes),
        recomputed_flops=simulated.recording.recomputed_flops * step.grad_accum,
    )


def unlimited_replay(step: ModelCell, gpu: str, *, with_modules: bool = False) -> Replay:
    replay, _ = SimulatedStep(step, gpu, with_modules=with_modules, memory_bytes=UNLIMITED_BYTES).memory
    return replay


def allocated_bytes(peak: SpanPeak) -> int:
    return peak.allocated_bytes


class Depths(NamedTuple):
    """Numbers of layers: of the two models that are simulated, and of the one that is estimated from them."""

    small: int
    large: int
    whole: int


def depths_of(question: FitCell) -> Depths | None:
    """Return the numbers of layers; None if the whole step is as cheap to simulate, or has a fixed depth."""
    period = max(1, blocks_between_checkpoints(question.checkpoint) // DEPTHS[0])
    small, large = (period * each for each in DEPTHS)
    whole = layers_of(question)
    return Depths(small, large, whole) if whole is not None and small + large <= whole // 2 else None


def layers_of(question: FitCell) -> int | None:
    """Return the number of layers; None for code of the user, in which it cannot be changed."""
    if isinstance(question.model, ModelShape):
        return question.model.layers
    return next(iter(_layers_in_config(question).values()), None)


def with_layers(question: FitCell, layers: int) -> FitCell:
    model = question.model
    if isinstance(model, ModelShape):
        return question.model_copy(update={"model": model.model_copy(update={"layers": layers})})
    (name,) = _layers_in_config(question)
    arguments = {**model.arguments, name: layers}
    return question.model_copy(update={"model": model.model_copy(update={"arguments": arguments})})


def _layers_in_config(question: FitCell) -> dict[str, int]:
    own = question.own
    if own is None or not own.is_hugging_face:
        return {}
    config = {**json.loads(own.config.read_text()), **own.arguments}
    found = [(name, config[name]) for name in _LAYERS_OF_CONFIG if isinstance(config.get(name), int)]
    return dict(found[:1])


def estimated(smaller: Sequence[FitCell], depths: Depths, combination: Combination, gpu: str) -> Trial | None:
    """Return the trial of the whole model on the lines through those of two smaller ones, without its interval."""
    small, large = (simulated(cell, combination, gpu) for cell in smaller)
    if small is None or large is None:
        return None
    distance = (depths.whole - depths.small) / (depths.large - depths.small)

    def line(name: str) -> float:
        low, high = float(getattr(small, name)), float(getattr(large, name))
        return low + distance * (high - low)

    margin_bytes = round(line("margin_bytes"))
    smallest_bytes = (small.gpu_bytes - margin_bytes) * (1 - MEMORY_ERROR_SHARE)
    return small.model_copy(
        update={
            "fits": smallest_bytes + small.uncertainty_bytes <= small.gpu_bytes,
            "margin_bytes": margin_bytes,
            "relative_s": line("relative_s"),
            **{name: max(0, round(line(name))) for name in ("allocated_peak_bytes", "state_bytes")},
        }
    )
