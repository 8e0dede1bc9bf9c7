"""An allocator's counters with their peaks, and its events in chronological order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from sysbench.simulate.allocator.blocks import Frames

Action = Literal[
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom"
]


class AllocatorEvent(NamedTuple):
    """One entry of the trace; its fields mean the same as in PyTorch's TraceEntry (c10/core/CachingDeviceAllocator.h).

    address  address of the block or segment; for `oom`, the free bytes of the device
    size     requested size for `alloc` and `free_*`, rounded request for `oom`, otherwise the size of the segment
    """

    action: Action
    address: int
    size: int
    stream: int
    frames: Frames | None


class Counter:
    """A quantity and its maximum since the last reset of the peaks (c10 Stat)."""

    __slots__ = ("current", "peak")

    def __init__(self) -> None:
        self.current = 0
        self.peak = 0

    def add(self, amount: int) -> None:
        """Change the quantity by `amount`, which may be negative."""
        self.current += amount
        if self.current > self.peak:
            self.peak = self.current


@dataclass(frozen=True)
class AllocatorStatistics:
    """Values of the counters at one moment, equivalent to those of `torch.cuda.memory_stats()`.

    allocated    bytes in blocks in use: `torch.cuda.memory_allocated`
    requested    bytes that were requested for these blocks
    reserved     bytes reserved from the device: `torch.cuda.memory_reserved`
    segments     segments from cudaMalloc; expandable segments are not counted, as in PyTorch
    allocations  number of blocks in use
    """

    allocated_bytes: int
    allocated_peak_bytes: int
    requested_bytes: int
    requested_peak_bytes: int
    reserved_bytes: int
    reserved_peak_bytes: int
    segments: int
    segments_peak: int
    allocations: int
    allocations_peak: int
    alloc_retries: int
    ooms: int


class Ledger:
    """The counters and events of one allocator.

    events  oldest first; None if events are not recorded
    """

    def __init__(self, record: bool) -> None:
        self.events: list[AllocatorEvent] | None = [] if record else None
        self.allocated = Counter()
        self.requested = Counter()
        self.reserved = Counter()
        self.segments = Counter()
        self.allocations = Counter()
        self.alloc_retries = 0
        self.ooms = 0

    def record(self, action: Action, address: int, size: int, stream: int, frames: Frames | None) -> None:
        """Append an event, if events are recorded."""
        if self.events is not None:
            self.events.append(AllocatorEvent(action, address, size, stream, frames))

    def occupied(self, size: int, requested: int) -> None:
        """Count a block that is now in use."""
        self.allocated.add(size)
        self.requested.add(requested)
        self.allocations.add(1)

    def freed(self, size: int, requested: int) -> None:
        """Count a block that is no longer in use. The counters only decrease, so their peaks do not change."""
        self.allocated.current -= size
        self.requested.current -= requested
        self.allocations.current -= 1

    def reset_peaks(self) -> None:
        """Reset every peak to the current value."""
        for counter in (self.allocated, self.requested, self.reserved, self.segments, self.allocations):
            counter.peak = counter.current

    def statistics(self) -> AllocatorStatistics:
        """Return the current values and the peaks of all counters."""
        return AllocatorStatistics(
            allocated_bytes=self.allocated.current,
            allocated_peak_bytes=self.allocated.peak,
            requested_bytes=self.requested.current,
            requested_peak_bytes=self.requested.peak,
            reserved_bytes=self.reserved.current,
            reserved_peak_bytes=self.reserved.peak,
            segments=self.segments.current,
            segments_peak=self.segments.peak,
            allocations=self.allocations.current,
            allocations_peak=self.allocations.peak,
            alloc_retries=self.alloc_retries,
            ooms=self.ooms,
        )
