"""Worker side of `sysbench fit --table`: the largest batch size and context length on each GPU.

GPUs with the same kernels share the traces, and most steps between two traced ones are computed from them
(`sysbench.simulate.family`). A step whose computed bounds do not decide whether it fits is traced.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial

from sysbench.commands.fit.record import ExtentFound
from sysbench.commands.fit.search.processes import Processes, Strand, Task
from sysbench.commands.fit.spec import CTX_UNIT, FitCell
from sysbench.errors import UnavailableError
from sysbench.lab.workload.imports import UserCodeError
from sysbench.log.cautions import margin_uncertainty_bytes
from sysbench.predict.simulated_step import SimulatedStep
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.simulate.family import DEGREES, RecordingFamily
from sysbench.simulate.gpu import Gpu, ScratchMemory
from sysbench.simulate.recording import Recording
from sysbench.simulate.replay import ReplayCache
from sysbench.simulate.search import MAX_VALUE, left_bytes, narrowing
from sysbench.spec import hardware
from sysbench.spec.steps import SearchAxis

UNITS: dict[SearchAxis, int] = {"batch": 1, "ctx": CTX_UNIT}
"""By axis: multiples of these numbers are tried."""

CACHED_REPLAYS = 16
"""Number of steps whose replays are kept; GPUs of similar size share them."""


def run(cell: FitCell, processes: Processes) -> Iterator[ExtentFound]:
    sharing: dict[Gpu, list[str]] = {}
    refused: dict[str, UnavailableError] = {}
    for slug in cell.on:
        try:
            sharing.setdefault(SimulatedStep(cell.step, slug).kernels, []).append(slug)
        except UnavailableError as error:
            refused[slug] = error
    if not sharing:
        raise next(iter(refused.values()))
    extents = [_event(cell, slug, axis, 0, 0, str(error)) for axis in UNITS for slug, error in refused.items()]
    searches = itertools.product(UNITS, sharing.values())
    for _ in processes.run([_searched(cell, axis, slugs, extents) for axis, slugs in searches]):
        yield from extents
        extents.clear()


def _searched(cell: FitCell, axis: SearchAxis, slugs: Sequence[str], found: list[ExtentFound]) -> Strand:
    for slug in slugs:
        found.append((yield Task(partial(_extent_found, cell, axis, slugs[0], slug), home=(axis, slugs[0]))))


def _extent_found(cell: FitCell, axis: SearchAxis, first: str, slug: str) -> ExtentFound:
    extent, gpu = _extents(cell, axis, first), card(cell, slug)
    largest = extent.largest(gpu)
    safe = extent.largest(gpu, spare_bytes=margin_uncertainty_bytes(gpu.memory_bytes)) if largest else 0
    return _event(cell, slug, axis, largest, safe, extent.refusal if largest == extent.largest_traced else None)


def card(cell: FitCell, slug: str) -> Gpu:
    """Return the GPU with the memory that the question allows."""
    gpu = Gpu.of(hardware.by_name(slug)).with_nccl_memory(cell.strategy, cell.ranks)
    return replace(gpu, memory_bytes=cell.allowed_bytes(gpu.memory_bytes))


def _event(cell: FitCell, slug: str, axis: SearchAxis, largest: int, safe: int, refusal: str | None) -> ExtentFound:
    return ExtentFound(
        at_s=time.time(),
        cell=cell.key,
        gpu=slug,
        gpu_bytes=card(cell, slug).memory_bytes,
        axis=axis,
        largest=largest,
        safe=safe,
        refusal=refusal,
    )


class Extent:
    """Search for the largest value of an axis, on GPUs with the same kernels.

    refusal  why the step cannot have a larger value than those that were traced; None if it can
    """

    def __init__(self, question: FitCell, axis: SearchAxis, slug: str) -> None:
        self._question, self._axis, self._slug, self._unit = question, axis, slug, UNITS[axis]
        self._settings = AllocatorSettings.of(question.allocator)
        self._traced: dict[int, Recording] = {}
        self._families: dict[ScratchMemory, RecordingFamily] = {}
        self._replays = lru_cache(CACHED_REPLAYS)(self._replays_of)
        self._refused: int | None = None
        self._start = max(1, getattr(question, axis) // self._unit)
        self.refusal: str | None = None

    @property
    def largest_traced(self) -> int:
        """The largest value that was traced."""
        return max(self._traced, default=0) * self._unit

    def largest(self, gpu: Gpu, spare_bytes: int = 0) -> int:
        """Return the largest value that leaves `spare_bytes` on `gpu`; 0 if there is none."""
        steps = narrowing(self._start, MAX_VALUE // self._unit)
        units = next(steps)
        while True:
            try:
                units = steps.send(self._left_bytes(units, gpu, spare_bytes))
            except StopIteration as end:
                return int(end.value) * self._unit

    def _left_bytes(self, units: int, gpu: Gpu, spare_bytes: int) -> int | None:
        if self._refused is not None and units >= self._refused:
            return None
        bounds_bytes = [
            left_bytes(replay.replay_on(gpu)[1], spare_bytes) for replay in self._replays(units, gpu.scratch)
        ]
        if bounds_bytes and (max(bounds_bytes) < 0 or min(bounds_bytes) >= 0):
            return min(bounds_bytes)
        try:
            step = self._question.step.model_copy(update={self._axis: units * self._unit})
            self._traced[units] = SimulatedStep(step, self._slug).recording
        except (UnavailableError, UserCodeError) as error:
            if not self._traced:
                raise
            self._refused, self.refusal = units, str(error)
            return None
        self._replays.cache_clear()
        return self._left_bytes(units, gpu, spare_bytes)

    def _replays_of(self, units: int, scratch: ScratchMemory) -> list[ReplayCache]:
        """Return the replays of the bounds of a step; none if it must be traced."""
        family = self._families.setdefault(scratch, RecordingFamily(DEGREES[self._axis]))
        for traced in self._traced.keys() - family.traced.keys():
            family.traced[traced] = self._traced[traced].with_scratch(scratch)
        return [ReplayCache(bound, self._settings) for bound in family.bounds(units)]


_extents = cache(Extent)
