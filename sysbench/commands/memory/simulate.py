"""Simulate the memory of a cell for a GPU that need not be present, and report allocations as events."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from sysbench import units
from sysbench.commands.memory.record import (
    AllocationGroup,
    CandidateTried,
    CodeLine,
    LargestAllocations,
    LargestFound,
    ModuleMemory,
    ModulesMeasured,
    PeakMeasured,
    PhaseMemoryMeasured,
    SnapshotWritten,
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
from sysbench.snapshot import CATEGORIES, snapshot
from sysbench.snapshot.timeline import ModuleNode
from sysbench.spec import hardware
from sysbench.spec.protocols import SearchAxis

MAX_FRAMES = 12
"""Number of innermost stack frames to keep; outer frames are the same for every allocation."""


def run(cell: MemoryCell, slug: str, artifact: Path | None) -> Iterator[Event]:
    """Simulate the cell or, with `find`, the variant of the cell that the search finds."""
    gpu = Gpu.of(hardware.by_name(slug)).with_nccl_memory(cell.strategy, cell.ranks)
    refuse_fp8(cell.precision, gpu)
    settings = AllocatorSettings.of(cell.allocator)
    yield gpu.simulation_event(cell.key, settings)
    if cell.find is None:
        yield stage_entered(cell.key, "simulating")
        result = simulate(cell.step, cell.mode, gpu, settings)
    else:
        yield stage_entered(cell.key, "searching")
        result = yield from _search(cell, cell.find, gpu, settings)
        # Memory outside the allocator depends on the number of ranks.
        yield result.gpu.simulation_event(cell.key, settings)
    yield from result.recording.model_events(cell.key)
    yield from phase_events(cell, result, "simulated")
    yield PeakMeasured(
        at_s=time.time(),
        cell=cell.key,
        source="simulated",
        phase=result.peak_phase.phase,
        allocated_peak_bytes=result.allocated_peak_bytes,
        reserved_peak_bytes=result.reserved_peak_bytes,
        host_rss_peak_bytes=None,
        outside_bytes=result.gpu.outside_bytes,
        alloc_retries=result.alloc_retries,
        by_category=dict(result.by_category),
    )
    yield from breakdown_events(cell, result, "simulated")
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
        found: SimulatedMemory = outcome.result
        return found
    # Without stacks, as searches simulate, the largest allocations would have no source lines.
    return simulate(beyond.recording.cell, cell.mode, gpu, settings)


# --- allocations, as events


def phase_events(cell: MemoryCell, result: SimulatedMemory, source: Source) -> Iterator[PhaseMemoryMeasured]:
    """Yield the peak of each phase. Reserved bytes of measured peaks are None, because only tensors were tracked."""
    for phase in result.phases:
        yield PhaseMemoryMeasured(
            at_s=time.time(),
            cell=cell.key,
            source=source,
            phase=phase.phase,
            allocated_peak_bytes=phase.allocated_peak_bytes,
            reserved_peak_bytes=phase.reserved_peak_bytes if source == "simulated" else None,
            by_category=dict(phase.by_category),
        )


def breakdown_events(cell: MemoryCell, result: SimulatedMemory, source: Source) -> Iterator[Event]:
    groups = [
        AllocationGroup(
            count=group.count,
            size_bytes=group.size_bytes,
            category=group.category,
            modules=list(group.modules),
            phase=group.phase,
            stack=[CodeLine(**frame._asdict()) for frame in group.stack[:MAX_FRAMES]],
        )
        for group in result.groups
    ]
    yield LargestAllocations(at_s=time.time(), cell=cell.key, source=source, groups=groups)
    yield ModulesMeasured(at_s=time.time(), cell=cell.key, source=source, modules=module_memory(result.tree))


def module_memory(tree: ModuleNode) -> list[ModuleMemory]:
    return [
        ModuleMemory(
            path=path,
            total_bytes=node.total_bytes,
            own_bytes=node.own_bytes,
            by_category={name: node.by_category[name] for name in CATEGORIES if name in node.by_category},
        )
        for path, node in tree.walk()
    ]


def write_snapshot(path: Path, content: Mapping[str, object], cell: str) -> SnapshotWritten:
    snapshot.write(path, content)
    return SnapshotWritten(at_s=time.time(), cell=cell, path=str(path), size_bytes=path.stat().st_size)
