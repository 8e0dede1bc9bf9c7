"""The composition of a peak as records and events, alike for measured and simulated steps and for snapshots."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sysbench.commands.memory.record import (
    AllocationGroup,
    CodeLine,
    LargestAllocations,
    ModuleMemory,
    ModulesMeasured,
    PeakMeasured,
    PhaseMemoryMeasured,
    PhasePeakRecord,
    SnapshotWritten,
)
from sysbench.log.events import Event, Source
from sysbench.snapshot import CATEGORIES, snapshot
from sysbench.snapshot.layout import Frame
from sysbench.snapshot.timeline import ModuleNode, Timeline

MAX_FRAMES = 12
"""Number of innermost stack frames to keep; outer frames are the same for every allocation."""


def code_lines(stack: Sequence[Frame], most: int | None = MAX_FRAMES) -> list[CodeLine]:
    return [CodeLine(filename=frame.filename, line=frame.line, name=frame.name) for frame in stack[:most]]


def allocation_groups(
    timeline: Timeline, state: int, most: int, max_frames: int | None = MAX_FRAMES
) -> list[AllocationGroup]:
    """Return the groups of similar allocations with the largest totals in a state of a timeline."""
    groups = []
    for group in timeline.groups(state)[:most]:
        paths = [".".join(module) for module in group.modules]
        groups.append(
            AllocationGroup(
                count=group.count,
                size_bytes=group.size_bytes,
                category=group.category,
                modules=list(dict.fromkeys([*paths[:1], *paths[-1:]])),
                phase=None,
                stack=code_lines(timeline.stacks.of(group.stack), max_frames),
            )
        )
    return groups


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


def phase_event(cell: str, source: Source, phase: str, peak: PhasePeakRecord) -> PhaseMemoryMeasured:
    return PhaseMemoryMeasured(at_s=time.time(), cell=cell, source=source, phase=phase, **dict(peak))


def result_events(
    cell: str,
    source: Source,
    phases: Mapping[str, PhasePeakRecord],
    groups: list[AllocationGroup],
    tree: ModuleNode,
    *,
    reserved_peak_bytes: int | None,
    host_rss_peak_bytes: int | None = None,
    outside_bytes: int | None = None,
    alloc_retries: int | None = None,
) -> Iterator[Event]:
    """Yield the peak of each phase, the peak of the step, and the largest allocations and the modules at this peak."""
    for name, peak in phases.items():
        yield phase_event(cell, source, name, peak)
    highest = max(phases, key=lambda name: phases[name].allocated_peak_bytes)
    yield PeakMeasured(
        at_s=time.time(),
        cell=cell,
        source=source,
        phase=highest,
        allocated_peak_bytes=phases[highest].allocated_peak_bytes,
        reserved_peak_bytes=reserved_peak_bytes,
        host_rss_peak_bytes=host_rss_peak_bytes,
        outside_bytes=outside_bytes,
        alloc_retries=alloc_retries,
        by_category=phases[highest].by_category,
    )
    yield LargestAllocations(at_s=time.time(), cell=cell, source=source, groups=groups)
    yield ModulesMeasured(at_s=time.time(), cell=cell, source=source, modules=module_memory(tree))


def write_snapshot(path: Path, content: Mapping[str, object], cell: str) -> SnapshotWritten:
    snapshot.write(path, content)
    return SnapshotWritten(at_s=time.time(), cell=cell, path=str(path), size_bytes=path.stat().st_size)
