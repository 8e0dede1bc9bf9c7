"""The memory of a cell on a GPU that need not be here."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator
from pathlib import Path

from sysbench import hardware, units
from sysbench.errors import DoesNotFitError, UnavailableError
from sysbench.events import (
    AllocationGroup,
    CandidateTried,
    CodeLine,
    Event,
    GpuSimulated,
    LargestAllocations,
    LargestFound,
    ModuleMemory,
    ModulesMeasured,
    PeakMeasured,
    PhaseMemoryMeasured,
    StageEntered,
    VerdictReached,
)
from sysbench.experiments.snapshot_file import write
from sysbench.simulate.allocator_settings import AllocatorSettings
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.memory import AlikeAllocations, LargeAllocation, ModuleBytes, SimulatedMemory, simulate
from sysbench.simulate.search import searching
from sysbench.specs.memory import MemoryCell, SearchAxis

FRAMES = 12
"""Of a stack that are kept: those below are the same for every allocation."""


def run(cell: MemoryCell, slug: str, artifact: Path | None) -> Iterator[Event]:
    """Simulate the cell, or with `find` the largest of its kind that fits; see `sysbench.experiments.memory.run`."""
    gpu, settings = Gpu.of(hardware.named(slug)), _settings()
    yield GpuSimulated(
        at_s=time.time(),
        cell=cell.key,
        title=gpu.title,
        memory_bytes=gpu.memory_bytes,
        context_bytes=gpu.context_bytes,
        other_bytes=gpu.other_bytes,
        settings=settings.text,
    )
    if cell.find is None:
        yield StageEntered(at_s=time.time(), cell=cell.key, stage="simulating")
        result = simulate(cell.step, cell.mode, gpu, settings)
    else:
        yield StageEntered(at_s=time.time(), cell=cell.key, stage="searching")
        result = yield from _search(cell, cell.find, gpu, settings)
    yield from _findings(cell, result)
    if artifact is not None:
        yield write(artifact, result.snapshot(), cell.key)
    if not result.verdict.fits:
        raise DoesNotFitError(_why(result))


def _settings() -> AllocatorSettings:
    """PYTORCH_CUDA_ALLOC_CONF of this process, as it would be on the GPU."""
    try:
        return AllocatorSettings.from_environment(os.environ)
    except ValueError as error:
        raise UnavailableError(f"PYTORCH_CUDA_ALLOC_CONF: {error}") from error


def _search(
    cell: MemoryCell, axis: SearchAxis, gpu: Gpu, settings: AllocatorSettings
) -> Generator[Event, None, SimulatedMemory]:
    """Try values until the largest is known; returns the result of that, or of the smallest if not even that fits."""
    search = searching(cell.step, axis, gpu, cell.mode, settings)
    while True:
        try:
            value, tried = next(search)
        except StopIteration as end:
            largest = end.value
            break
        yield CandidateTried(
            at_s=time.time(),
            cell=cell.key,
            axis=axis,
            value=value,
            fits=tried.verdict.fits,
            margin_bytes=tried.verdict.margin_bytes,
        )
    beyond = largest.beyond
    yield LargestFound(
        at_s=time.time(),
        cell=cell.key,
        axis=axis,
        value=largest.value,
        beyond=getattr(beyond.cell, axis) if beyond is not None else None,
    )
    found: SimulatedMemory = largest.result if largest.result is not None else beyond
    return found


def _findings(cell: MemoryCell, result: SimulatedMemory) -> Iterator[Event]:
    for phase in result.phases:
        yield PhaseMemoryMeasured(
            at_s=time.time(),
            cell=cell.key,
            source="simulated",
            phase=phase.phase,
            allocated_peak_bytes=phase.allocated_peak_bytes,
            reserved_peak_bytes=phase.reserved_peak_bytes,
            by_category=dict(phase.by_category),
        )
    fullest = max(result.phases, key=lambda phase: phase.allocated_peak_bytes)
    yield PeakMeasured(
        at_s=time.time(),
        cell=cell.key,
        source="simulated",
        phase=fullest.phase,
        allocated_peak_bytes=result.allocated_peak_bytes,
        reserved_peak_bytes=result.reserved_peak_bytes,
        host_rss_peak_bytes=None,
        alloc_retries=result.alloc_retries,
        by_category=dict(result.by_category),
    )
    groups = [_group(group) for group in result.groups]
    yield LargestAllocations(at_s=time.time(), cell=cell.key, source="simulated", groups=groups)
    modules = list(_modules(result.tree, ()))
    yield ModulesMeasured(at_s=time.time(), cell=cell.key, source="simulated", modules=modules)
    verdict = result.verdict
    yield VerdictReached(
        at_s=time.time(),
        cell=cell.key,
        source="simulated",
        fits=verdict.fits,
        failed_phase=verdict.failed_phase,
        failed_step=verdict.failed_step,
        margin_bytes=verdict.margin_bytes,
        detail=verdict.detail,
    )


def _group(group: AlikeAllocations) -> AllocationGroup:
    first: LargeAllocation = group.first
    return AllocationGroup(
        count=group.count,
        size_bytes=first.size_bytes,
        category=first.category,
        modules=list(dict.fromkeys(each.module for each in (first, group.last) if each.module)),
        phase=first.phase,
        stack=[CodeLine(**frame._asdict()) for frame in first.stack[:FRAMES]],
    )


def _modules(module: ModuleBytes, above: tuple[str, ...]) -> Iterator[ModuleMemory]:
    path = (*above, module.name) if module.name else above
    yield ModuleMemory(
        path=".".join(path),
        total_bytes=module.total_bytes,
        own_bytes=module.own_bytes,
        by_category=dict(module.by_category),
    )
    for child in module.children:
        yield from _modules(child, path)


def _why(result: SimulatedMemory) -> str:
    verdict = result.verdict
    where = "while the model is built" if verdict.failed_phase == "build" else f"in {verdict.failed_phase}"
    return (
        f"does not fit on {result.gpu.title}: memory runs out {where}, "
        f"{units.size(-verdict.margin_bytes)} more would be needed"
    )
