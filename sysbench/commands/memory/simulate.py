"""Simulate the memory of a cell for a GPU that need not be present, and report allocations as events."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import asdict
from pathlib import Path

from sysbench import units
from sysbench.commands.memory.breakdown import code_lines, result_events, write_snapshot
from sysbench.commands.memory.record import (
    AllocationGroup,
    CandidateTried,
    LargestFound,
    PhasePeakRecord,
    VerdictReached,
)
from sysbench.commands.memory.spec import MemoryCell
from sysbench.errors import DoesNotFitError
from sysbench.lab.compilation import stage_entered
from sysbench.log.events import Event, Source
from sysbench.log.outcomes import stage_phrase
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.simulate.gpu import Gpu, refuse_fp8
from sysbench.simulate.memory import SimulatedMemory, simulate
from sysbench.simulate.search import find_fewest_ranks, find_largest
from sysbench.spec import hardware
from sysbench.spec.steps import SearchAxis


def run(cell: MemoryCell, slug: str, artifact: Path | None) -> Iterator[Event]:
    """Simulate the cell or, with `find`, the variant of the cell that the search finds."""
    gpu = Gpu.of(hardware.by_name(slug)).with_nccl_memory(cell.strategy, cell.ranks)
    refuse_fp8(cell.precision, gpu)
    settings = AllocatorSettings.of(cell.allocator)
    yield gpu.simulation_event(cell.key, settings)
    if cell.find is None:
        yield stage_entered(cell.key, "compiling" if cell.is_compiled else "simulating")
        result = simulate(cell.step, cell.mode, gpu, settings)
    else:
        yield stage_entered(cell.key, "searching")
        result = yield from _search(cell, cell.find, gpu, settings)
        # Memory outside the allocator depends on the number of ranks.
        yield result.gpu.simulation_event(cell.key, settings)
    yield from result.recording.model_events(cell.key)
    yield from result.recording.compiled_events(cell.key)
    yield from recorded_events(
        cell,
        "simulated",
        result,
        reserved_peak_bytes=result.reserved_peak_bytes,
        outside_bytes=result.gpu.outside_bytes,
        alloc_retries=result.alloc_retries,
    )
    verdict = result.verdict
    yield VerdictReached(at_s=time.time(), cell=cell.key, source="simulated", **asdict(verdict))
    if artifact is not None:
        yield write_snapshot(artifact, result.snapshot(), cell.key)
    if not verdict.fits:
        raise DoesNotFitError(
            f"does not fit on {result.gpu.title}: memory runs out {stage_phrase(verdict.failed_phase)}; "
            f"{units.size(-verdict.margin_bytes)} more are needed"
        )


def _search(
    cell: MemoryCell, axis: SearchAxis, gpu: Gpu, settings: AllocatorSettings
) -> Generator[Event, None, SimulatedMemory]:
    """Search for the largest value that fits or, with the axis `ranks`, for the fewest ranks."""
    if axis == "ranks":
        search = find_fewest_ranks(cell.step, gpu, cell.mode, settings)
    else:
        search = find_largest(cell.step, axis, gpu, cell.mode, settings)
    while True:
        try:
            value, result = next(search)
        except StopIteration as stop:
            outcome = stop.value
            break
        yield CandidateTried(
            at_s=time.time(),
            cell=cell.key,
            axis=axis,
            value=value,
            fits=result.verdict.fits,
            margin_bytes=result.verdict.margin_bytes,
        )
    beyond = outcome.beyond
    yield LargestFound(
        at_s=time.time(),
        cell=cell.key,
        axis=axis,
        value=outcome.value,
        beyond=getattr(beyond.recording.cell, axis) if beyond is not None else None,
        safe=outcome.safe,
        more_is_useless=outcome.more_is_useless,
    )
    if outcome.result is not None:
        memory: SimulatedMemory = outcome.result
        return memory
    # Without stacks, as searches simulate, the largest allocations would have no source lines.
    return simulate(beyond.recording.cell, cell.mode, gpu, settings)


def phase_peaks(result: SimulatedMemory, source: Source) -> dict[str, PhasePeakRecord]:
    """Return the peak of each phase. Reserved bytes of measured peaks are None, because only tensors were tracked."""
    return {
        peak.phase: PhasePeakRecord(
            allocated_peak_bytes=peak.allocated_peak_bytes,
            reserved_peak_bytes=peak.reserved_peak_bytes if source == "simulated" else None,
            by_category=dict(peak.by_category),
        )
        for peak in result.phases
    }


def recorded_events(
    cell: MemoryCell, source: Source, result: SimulatedMemory, **process: int | None
) -> Iterator[Event]:
    """Yield the results of a recorded step; `process` are the other arguments of `result_events`."""
    groups = [
        AllocationGroup(
            count=group.count,
            size_bytes=group.size_bytes,
            category=group.category,
            modules=list(group.modules),
            phase=group.phase,
            stack=code_lines(group.stack),
        )
        for group in result.groups
    ]
    yield from result_events(cell.key, source, phase_peaks(result, source), groups, result.tree, **process)
