"""Worker side of what `sysbench fit` says beyond the answer: memory over a step, and other batches and contexts."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from sysbench.commands.fit.record import MemoryDrawn, PhaseMemory, StepMemory, StepSurveyed, Trial
from sysbench.commands.fit.search.changes import changes_of
from sysbench.commands.fit.search.processes import Processes, Task
from sysbench.commands.fit.search.trials import REFERENCE, simulated_with
from sysbench.commands.fit.spec import FitCell
from sysbench.commands.fit.suggestions import best_trial, worth_showing
from sysbench.errors import SysbenchError
from sysbench.log.events import Event
from sysbench.predict.simulated_step import UNLIMITED_BYTES, SimulatedStep
from sysbench.simulate.gpu import Gpu
from sysbench.spec import hardware

POINTS = 96
"""About the number of points of the memory over a step."""

SCALES = {"batch": (0.5, 1, 2, 4), "ctx": (0.5, 1, 2)}
"""Batches and contexts on a page, as multiples of those of the question."""

MAX_SETS = 5
"""Largest number of sets of changes on a page, besides the step as asked."""


def run(cell: FitCell, trials: Sequence[Trial], processes: Processes) -> Iterator[Event]:
    """Yield what the question wants beyond the answer; `trials` are those of the search."""
    tasks: list[Task] = []
    if cell.explain:
        best = (best_trial(trials, gpu, faster=cell.faster) for gpu in cell.on)
        tasks += [
            Task(partial(_drawn, cell, changes, trial.gpu))
            for trial in best
            if trial
            for changes in ({}, trial.changes)
        ]
    if cell.explore:
        steps = itertools.product(explored(cell, trials), cell.on)
        tasks += [Task(partial(_surveyed, cell, changes, gpu)) for changes, gpu in steps]
    yield from filter(None, processes.results(tasks))


def _drawn(cell: FitCell, changes: Mapping[str, Any], gpu: str) -> MemoryDrawn:
    return MemoryDrawn(at_s=time.time(), cell=cell.key, **memory_over_step(cell, changes, gpu).model_dump())


def _surveyed(cell: FitCell, changes: Mapping[str, Any], gpu: str) -> StepSurveyed | None:
    """Return a step on a page; None if it cannot be simulated: the user's model may refuse another context."""
    try:
        trial = simulated_with(cell, changes, gpu)
    except SysbenchError:
        return None
    if trial is None:
        return None
    return StepSurveyed(at_s=time.time(), cell=cell.key, trial=trial, memory=memory_over_step(cell, changes, gpu))


def explored(cell: FitCell, trials: Sequence[Trial]) -> Iterator[dict[str, Any]]:
    """Yield the changes of every step on a page: each set of changes with each batch and each context."""
    shown = [trial.changes for _, _, part in worth_showing(trials, cell.on, faster=True) for trial in part]
    single = [dict(change.fields) for change in changes_of(cell) if not (change.relearns or change.replays)]
    sets: list[dict[str, Any]] = [{}]
    for changes in (*shown, *single):
        if changes not in sets and not {"batch", "ranks"} & changes.keys():
            sets.append(changes)
    for changes in sets[: MAX_SETS + 1]:
        for values in itertools.product(*(_scaled(getattr(cell, axis), axis) for axis in SCALES)):
            sizes = {axis: value for axis, value in zip(SCALES, values, strict=True) if value != getattr(cell, axis)}
            yield {**changes, **sizes}


def _scaled(value: int, axis: str) -> list[int]:
    return sorted({max(1, int(value * scale)) for scale in SCALES[axis]})


def memory_over_step(question: FitCell, changes: Mapping[str, Any], gpu: str) -> StepMemory:
    """Return the allocated bytes over the step, on a GPU like this one with enough memory.

    Phases take their predicted times. Within a phase, requests to the allocator are evenly spaced.
    """
    step = question.model_copy(update=dict(changes)).step
    card = hardware.by_name(gpu)
    timed = gpu if card.rates else REFERENCE
    simulated = SimulatedStep(step, gpu, with_modules=not changes, memory_bytes=UNLIMITED_BYTES)
    replay, _ = simulated.memory
    durations_s = {
        phase.name: phase.time.point_s
        for phase in SimulatedStep(
            step, timed, with_modules=not changes, host_link=question.host_link
        ).prediction.phases
    }
    spans = replay.recording.measured
    occurrences = Counter(span.name for span in spans)
    total = max(1, sum(span.end - span.first for span in spans))
    allocated = list(replay.recording.live_bytes(replay.sizes))
    outside_bytes = Gpu.of(card).with_nccl_memory(step.strategy, step.ranks).outside_bytes
    return StepMemory(
        gpu=gpu,
        changes=dict(changes),
        usable_bytes=question.allowed_bytes(card.memory_bytes) - outside_bytes,
        phases=[
            PhaseMemory(
                name=span.name,
                duration_s=durations_s.get(span.name, 0.0) / occurrences[span.name],
                allocated_bytes=_highest(
                    allocated[span.first : span.end], round(POINTS * (span.end - span.first) / total)
                ),
            )
            for span in spans
        ],
        recomputed_flops=simulated.recording.recomputed_flops * step.grad_accum,
    )


def _highest(values: Sequence[int], buckets: int) -> list[int]:
    """Return the highest value of each bucket of successive values."""
    parts = np.array_split(values, max(1, min(buckets, len(values)))) if len(values) else []
    return [int(part.max()) for part in parts]
