"""Worker side of `sysbench fit`: simulate combinations of changes, and report each one."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sysbench.commands.fit import extents, survey, verify
from sysbench.commands.fit.changes import Change, Combination, changed, changes_of
from sysbench.commands.fit.estimates import MEMORY_ERROR_SHARE, Depths, depths_of, extrapolated, with_layers
from sysbench.commands.fit.record import Cause, CombinationEstimated, CombinationTried, PeakExplained, Trial
from sysbench.commands.fit.search import Outcome, Search
from sysbench.commands.fit.spec import FitCell
from sysbench.commands.fit.suggestions import worth_showing
from sysbench.commands.fit.survey import REFERENCE
from sysbench.errors import UnavailableError
from sysbench.lab.compilation import stage_entered
from sysbench.log.cautions import margin_uncertainty_bytes
from sysbench.log.events import DeviceInfo, Event
from sysbench.log.predictions import PredictedTime
from sysbench.predict.simulated_step import UNLIMITED_BYTES, SimulatedStep
from sysbench.simulate.memory import by_category
from sysbench.simulate.replay import Replay, SpanPeak
from sysbench.spec import hardware
from sysbench.spec.model import ModelCell, ModelShape

STATE = ("parameters", "gradients", "optimizer state")
"""Categories that a training step keeps, or needs all at once in the optimizer."""


def run(cell: FitCell, device: DeviceInfo, artifact: Path | None = None) -> Iterator[Event]:
    """Answer the question of the cell; `device` and `artifact` are not used.

    Raises UnavailableError if the step as asked cannot be simulated. A combination that cannot be simulated is left
    out.
    """
    if cell.table:
        yield stage_entered(cell.key, "searching")
        yield from extents.run(cell)
        return
    trials: list[Trial] = []
    for event in _answer(cell):
        yield event
        if isinstance(event, CombinationTried):
            trials.append(event)
    yield from survey.run(cell, trials, _trial)
    if cell.verify:
        yield from verify.run(cell, trials)


def _trial(cell: FitCell, changes: Mapping[str, Any], gpu: str) -> Trial | None:
    """Simulate the whole step with changes on a GPU; None if that is not possible."""
    combination = (Change("all", tuple(changes.items())),) if changes else ()
    return Simulations(cell).simulate(combination, gpu)


def _answer(cell: FitCell) -> Iterator[Event]:
    yield stage_entered(cell.key, "simulating")
    first = SimulatedStep(cell.step, cell.on[0], with_modules=True)
    yield from first.recording.model_events(cell.key)
    yield _explanation(cell)
    yield stage_entered(cell.key, "searching")
    yield from search_with(Simulations(cell, depths_of(cell)))


def search_with(simulations: Simulations) -> Iterator[Event]:
    """Search, and simulate whole what is worth showing, until nothing that is worth it is an estimate."""
    question = simulations.question
    is_done = False
    while not is_done:
        for _ in Search(question.on, changes_of(question), simulations.outcome, question.faster).run():
            yield from simulations.take_events()
        is_done = True
        for combination, gpu in simulations.promising():
            is_done = False
            simulations.simulate(combination, gpu)
            yield from simulations.take_events()


class Simulations:
    """The simulated and estimated combinations of a question, by combination and GPU.

    question  the question
    depths    numbers of layers of the models to estimate from; None to simulate every combination whole
    trials    what was simulated whole; None if that is not possible
    """

    def __init__(self, question: FitCell, depths: Depths | None = None) -> None:
        self.question = question
        self._depths = depths
        self._smaller = [Simulations(with_layers(question, each)) for each in depths[:2]] if depths else []
        self._estimates: dict[tuple[Combination, str], Trial] = {}
        self._new: list[tuple[Combination, str]] = []
        self.trials: dict[tuple[Combination, str], Trial | None] = {}

    def outcome(self, combination: Combination, gpu: str) -> Outcome | None:
        """Return what a combination needs on a GPU: simulated, or else estimated; None if that is not possible."""
        key = combination, gpu
        if key not in self.trials and (not self._depths or not combination):
            self.simulate(combination, gpu)
        elif key not in self.trials and key not in self._estimates:
            self._estimate(combination, gpu)
        if key in self.trials:
            trial = self.trials[key]
            return _outcome(trial, trial.is_safe) if trial is not None else None
        estimate = self._estimates[key]
        return _outcome(estimate, estimate.fits, 1 - MEMORY_ERROR_SHARE)

    def simulate(self, combination: Combination, gpu: str) -> Trial | None:
        """Simulate the whole step with a combination on a GPU; return None if that is not possible.

        Raises UnavailableError if the step as asked cannot be simulated.
        """
        step, trial = changed(self.question, combination), None
        if step.problem("cuda") is None:
            try:
                trial = self._simulate(step.step, combination, gpu)
            except UnavailableError:
                if not combination:
                    raise
        self.trials[combination, gpu] = trial
        self._new.append((combination, gpu))
        return trial

    def promising(self) -> Iterator[tuple[Combination, str]]:
        """Yield the estimated combinations that are worth simulating: those to show, or else the nearest miss.

        The GPUs of a combination follow each other, because they share a trace.
        """
        wanted = [trial for gpu in self.question.on for trial in self._to_show(gpu)]
        found = [key for key, trial in self._estimates.items() if any(trial is each for each in wanted)]
        yield from sorted(found, key=lambda key: [combination for combination, _ in found].index(key[0]))

    def take_events(self) -> Iterator[Event]:
        """Yield the combinations that were simulated or estimated since the last call."""
        new, self._new = self._new, []
        for key in new:
            if (trial := self.trials.get(key)) is not None:
                yield CombinationTried(at_s=time.time(), cell=self.question.key, **trial.model_dump())
            elif (estimate := self._estimates.get(key)) is not None:
                yield CombinationEstimated(
                    at_s=time.time(), cell=self.question.key, gpu=estimate.gpu, changes=estimate.changes
                )

    def _to_show(self, gpu: str) -> list[Trial]:
        simulated = [trial for (_, where), trial in self.trials.items() if where == gpu and trial is not None]
        estimated = [trial for key, trial in self._estimates.items() if key[1] == gpu and key not in self.trials]
        trials = [*simulated, *estimated]
        parts = worth_showing(trials, [gpu], faster=self.question.faster)
        shown = [trial for _, _, part in parts for trial in part]
        return shown or [max(trials, key=lambda trial: trial.margin_bytes)]

    def _estimate(self, combination: Combination, gpu: str) -> None:
        """Estimate a combination from the model with few layers; simulate it where that is not possible."""
        small, large = (each.simulate(combination, gpu) for each in self._smaller)
        if self._depths is None or small is None or large is None:
            self.simulate(combination, gpu)
            return
        self._estimates[combination, gpu] = extrapolated(small, large, self._depths)
        self._new.append((combination, gpu))

    def _simulate(self, step: ModelCell, combination: Combination, gpu: str) -> Trial:
        card = hardware.by_name(gpu)
        gpu_bytes = self.question.allowed_bytes(card.memory_bytes)
        is_asked = not combination  # its trace has modules already, for the explanation
        simulated = SimulatedStep(step, gpu, with_modules=is_asked, memory_bytes=gpu_bytes)
        _, verdict = simulated.memory
        replay = _unlimited(step, gpu, with_modules=is_asked)
        prediction = (simulated if card.rates else SimulatedStep(step, REFERENCE, with_modules=is_asked)).prediction
        peaks = {peak.span.name: peak for peak in sorted(replay.peaks_of_last_step(), key=_allocated_bytes)}
        highest = max(peaks.values(), key=_allocated_bytes)
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


def _outcome(trial: Trial, fits: bool, least_share: float = 1.0) -> Outcome:
    """Return what the search must know of a trial whose memory is at least this share of what it says."""
    return Outcome(
        fits=fits,
        needed_bytes=trial.needed_bytes,
        step_s=trial.relative_s,
        state_fits=trial.state_bytes * least_share <= trial.gpu_bytes,
        tensors_fit=trial.allocated_peak_bytes * least_share <= trial.gpu_bytes,
    )


def _unlimited(step: ModelCell, gpu: str, *, with_modules: bool = False) -> Replay:
    replay, _ = SimulatedStep(step, gpu, with_modules=with_modules, memory_bytes=UNLIMITED_BYTES).memory
    return replay


def _allocated_bytes(peak: SpanPeak) -> int:
    return peak.allocated_bytes


# --- causes


def _explanation(cell: FitCell) -> PeakExplained:
    replay = _unlimited(cell.step, cell.on[0], with_modules=True)
    peak = max(replay.peaks_of_last_step(), key=_allocated_bytes)
    sizes: Counter[tuple[str, str]] = Counter()
    for number in replay.recording.live_at(peak.position):
        allocation = replay.recording.allocations[number]
        cause = _cause(cell.step, allocation.category, allocation.module, allocation.size_bytes)
        sizes[cause] += replay.sizes[number]
    causes = [
        Cause(name=name, size_bytes=size_bytes, shrinks_with=remedy)
        for (name, remedy), size_bytes in sizes.most_common()
    ]
    return PeakExplained(
        at_s=time.time(),
        cell=cell.key,
        phase=peak.span.name,
        allocated_peak_bytes=peak.allocated_bytes,
        causes=causes,
        reference=REFERENCE,
    )


MODULE_DEPTH = 3
"""Parts of a module's path that tell apart causes: `layers.*.attention`."""

_NUMBER = re.compile(r"\.\d+")

_OF_STATE = {
    "parameters": ("weights", "sharding over ranks"),
    "gradients": ("gradients", "sharding over ranks"),
    "optimizer state": ("optimizer state", "sharding over ranks, another optimizer"),
}


def _cause(cell: ModelCell, category: str, module: str, size_bytes: int) -> tuple[str, str]:
    """Return the name of what an allocation is for, and what makes it smaller."""
    if category in _OF_STATE:
        return _OF_STATE[category]
    if category == "workspace":
        return "workspaces of cuBLAS", "nothing"
    if category == "communication":
        return "buffers of collectives", "smaller buckets or blocks"
    shape = cell.shape
    if shape is not None and _is_multiple(size_bytes, cell.batch * shape.heads * cell.ctx**2):
        return "attention scores", "fused attention, micro-batches, checkpointing"
    if isinstance(shape, ModelShape) and _is_multiple(size_bytes, cell.tokens * shape.vocab):
        return "logits and their gradients", "chunked cross-entropy, micro-batches"
    path = ".".join(_NUMBER.sub(".*", module).split(".")[:MODULE_DEPTH])
    return f"activations of {path or 'the step'}", "checkpointing, micro-batches"


def _is_multiple(size_bytes: int, elements: int) -> bool:
    """Return whether a block holds this many elements of 1, 2 or 4 bytes."""
    return any(size_bytes == elements * width for width in (1, 2, 4))
