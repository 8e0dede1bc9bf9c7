"""Worker side of the page of `sysbench fit`: the step with other batches, contexts and changes."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from sysbench.commands.fit.record import PhaseMemory, StepSurveyed, Trial
from sysbench.commands.fit.search.changes import changes_of
from sysbench.commands.fit.search.processes import Processes, Task
from sysbench.commands.fit.search.trials import REFERENCE, simulated_with
from sysbench.commands.fit.spec import FitCell
from sysbench.commands.fit.suggestions import worth_showing
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
    steps = itertools.product(explored(cell, trials), cell.on)
    tasks = [Task(partial(_surveyed, cell, changes, gpu)) for changes, gpu in steps]
    yield from filter(None, processes.results(tasks))


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


def _surveyed(cell: FitCell, changes: Mapping[str, Any], gpu: str) -> StepSurveyed | None:
    """Return a step on a page; None if it cannot be simulated: the user's model may refuse another context."""
    try:
        trial = simulated_with(cell, changes, gpu)
    except SysbenchError:
        return None
    if trial is None:
        return None
    step, card = cell.model_copy(update=dict(changes)).step, hardware.by_name(gpu)
    outside_bytes = Gpu.of(card).with_nccl_memory(step.strategy, step.ranks).outside_bytes
    phases = SimulatedStep(
        step, gpu if card.rates else REFERENCE, with_modules=not changes, host_link=cell.host_link
    ).prediction.phases
    return StepSurveyed(
        at_s=time.time(),
        cell=cell.key,
        trial=trial,
        usable_bytes=cell.allowed_bytes(card.memory_bytes) - outside_bytes,
        phases=list(
            _memory_over_step(
                SimulatedStep(step, gpu, with_modules=not changes, memory_bytes=UNLIMITED_BYTES),
                {phase.name: phase.time.point_s for phase in phases},
            )
        ),
    )


def _memory_over_step(simulated: SimulatedStep, durations_s: Mapping[str, float]) -> Iterator[PhaseMemory]:
    """Yield the allocated bytes over each phase, in which requests to the allocator are evenly spaced."""
    replay, _ = simulated.memory
    spans = replay.recording.measured
    occurrences = Counter(span.name for span in spans)
    total = max(1, sum(span.end - span.first for span in spans))
    allocated = list(replay.recording.live_bytes(replay.sizes))
    for span in spans:
        points = round(POINTS * (span.end - span.first) / total)
        yield PhaseMemory(
            name=span.name,
            duration_s=durations_s.get(span.name, 0.0) / occurrences[span.name],
            allocated_bytes=_highest(allocated[span.first : span.end], points),
        )


def _highest(values: Sequence[int], buckets: int) -> list[int]:
    parts = np.array_split(values, max(1, min(buckets, len(values)))) if len(values) else []
    return [int(part.max()) for part in parts]
