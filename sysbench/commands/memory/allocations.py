"""Says in events what is known of the allocations of a run.

Leaves a memory snapshot where it was asked for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sysbench.commands.memory.record import (
    AllocationGroup,
    CodeLine,
    LargestAllocations,
    ModuleMemory,
    ModulesMeasured,
    PeakMeasured,
    PhaseMemoryMeasured,
    SnapshotWritten,
)
from sysbench.commands.memory.spec import MemoryCell
from sysbench.log.events import Event, Source
from sysbench.simulate.memory import AlikeAllocations, LargeAllocation, ModuleBytes, SimulatedMemory
from sysbench.snapshot import snapshot

FRAMES = 12
"""Of a stack that are kept: those below are the same for every allocation."""


def findings(cell: MemoryCell, result: SimulatedMemory) -> Iterator[Event]:
    """Peaks by phase, the peak, what is largest then, and for which modules: of a GPU that was simulated."""
    yield from phases(cell, result, "simulated")
    yield PeakMeasured(
        at_s=time.time(),
        cell=cell.key,
        source="simulated",
        phase=fullest(result),
        allocated_peak_bytes=result.allocated_peak_bytes,
        reserved_peak_bytes=result.reserved_peak_bytes,
        host_rss_peak_bytes=None,
        outside_bytes=result.context_bytes + result.other_bytes,
        alloc_retries=result.alloc_retries,
        by_category=dict(result.by_category),
    )
    yield from details(cell, result, "simulated")


def fullest(result: SimulatedMemory) -> str:
    """The phase in which the peak is reached first."""
    return max(result.phases, key=lambda phase: phase.allocated_peak_bytes).phase


def phases(cell: MemoryCell, result: SimulatedMemory, source: Source) -> Iterator[Event]:
    """The peak of every phase; what was measured has no allocator that reserves anything."""
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


def details(cell: MemoryCell, result: SimulatedMemory, source: Source) -> Iterator[Event]:
    """What is largest at the peak, and for which modules it is."""
    groups = [_group(group) for group in result.groups]
    yield LargestAllocations(at_s=time.time(), cell=cell.key, source=source, groups=groups)
    modules = list(_modules(result.tree, ()))
    yield ModulesMeasured(at_s=time.time(), cell=cell.key, source=source, modules=modules)


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


def write(path: Path, content: Mapping[str, Any], cell: str) -> SnapshotWritten:
    """Write the snapshot of a cell, known by its key; raises OutputError."""
    snapshot.write(path, content)
    return SnapshotWritten(at_s=time.time(), cell=cell, path=str(path), size_bytes=path.stat().st_size)
