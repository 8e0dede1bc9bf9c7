"""The memory of a cell on a GPU that need not be here."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator
from pathlib import Path

from sysbench import units
from sysbench.commands.memory.allocations import findings, write
from sysbench.commands.memory.record import CandidateTried, LargestFound, VerdictReached
from sysbench.commands.memory.spec import MemoryCell, SearchAxis
from sysbench.errors import DoesNotFitError, UnavailableError
from sysbench.log.events import Event, GpuSimulated, StageEntered
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.memory import SimulatedMemory, simulate
from sysbench.simulate.search import searching
from sysbench.spec import hardware


def run(cell: MemoryCell, slug: str, artifact: Path | None) -> Iterator[Event]:
    """Simulate the cell, or with `find` the largest of its kind that fits; see `commands.memory.measure.run`."""
    gpu, settings = Gpu.of(hardware.named(slug)), allocator_settings()
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
    yield from findings(cell, result)
    yield _verdict(cell, result)
    if artifact is not None:
        yield write(artifact, result.snapshot(), cell.key)
    if not result.verdict.fits:
        raise DoesNotFitError(_why(result))


def allocator_settings() -> AllocatorSettings:
    """PYTORCH_CUDA_ALLOC_CONF of this process, as it would be on the GPU; raises UnavailableError for a wrong one."""
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


def _why(result: SimulatedMemory) -> str:
    verdict = result.verdict
    where = "while the model is built" if verdict.failed_phase == "build" else f"in {verdict.failed_phase}"
    return (
        f"does not fit on {result.gpu.title}: memory runs out {where}, "
        f"{units.size(-verdict.margin_bytes)} more would be needed"
    )


def _verdict(cell: MemoryCell, result: SimulatedMemory) -> VerdictReached:
    verdict = result.verdict
    return VerdictReached(
        at_s=time.time(),
        cell=cell.key,
        source="simulated",
        fits=verdict.fits,
        failed_phase=verdict.failed_phase,
        failed_step=verdict.failed_step,
        margin_bytes=verdict.margin_bytes,
        detail=verdict.detail,
    )
