"""What is known about allocations, as events: of a simulation, and of tensors followed on a device of this machine."""

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
    PhaseMemoryMeasured,
    SnapshotWritten,
)
from sysbench.commands.memory.spec import MemoryCell
from sysbench.log.events import Event, Source
from sysbench.simulate.memory import SimulatedMemory
from sysbench.snapshot import snapshot
from sysbench.snapshot.timeline import CATEGORIES, ModuleNode

FRAMES = 12
"""The innermost frames of a stack, which are kept: those below are the same for every allocation."""


def phases(cell: MemoryCell, result: SimulatedMemory, source: Source) -> Iterator[PhaseMemoryMeasured]:
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
    """The largest allocations at the peak, and the bytes by module."""
    groups = [
        AllocationGroup(
            count=group.count,
            size_bytes=group.size_bytes,
            category=group.category,
            modules=list(group.modules),
            phase=group.phase,
            stack=[CodeLine(**frame._asdict()) for frame in group.stack[:FRAMES]],
        )
        for group in result.groups
    ]
    yield LargestAllocations(at_s=time.time(), cell=cell.key, source=source, groups=groups)
    yield ModulesMeasured(at_s=time.time(), cell=cell.key, source=source, modules=modules(result.tree))


def modules(tree: ModuleNode) -> list[ModuleMemory]:
    """Every module of a tree with its bytes, those above before those below."""
    return [
        ModuleMemory(
            path=path,
            total_bytes=node.total_bytes,
            own_bytes=node.own_bytes,
            by_category={name: node.by_category[name] for name in CATEGORIES if name in node.by_category},
        )
        for path, node in tree.walk()
    ]


def write(path: Path, content: Mapping[str, Any], cell: str) -> SnapshotWritten:
    """Write the snapshot of a cell, known by its key; raises OutputError."""
    snapshot.write(path, content)
    return SnapshotWritten(at_s=time.time(), cell=cell, path=str(path), size_bytes=path.stat().st_size)
