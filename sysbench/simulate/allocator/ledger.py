"""An allocator's counters with their peaks, its events, and its state in the format of torch's memory snapshots.

Sources: THCPModule_memorySnapshot in torch/csrc/cuda/Module.cpp, and DeviceCachingAllocator::snapshot.
torch/cuda/memory.py describes the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from sysbench.simulate.allocator.blocks import Block, Frames
from sysbench.simulate.allocator.settings import AllocatorSettings

Action = Literal[
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap", "oom"
]

_DEFAULT_POOL = (0, 0)


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


class AllocatorStatistics(NamedTuple):
    """Some of torch.cuda.memory_stats(): bytes in blocks in use, bytes reserved from the device, and their peaks."""

    allocated_bytes: int
    allocated_peak_bytes: int
    reserved_bytes: int
    reserved_peak_bytes: int
    alloc_retries: int


class Annotation(NamedTuple):
    """Start or end of a named phase, and the number of events before it."""

    events: int
    name: str
    stage: Literal["START", "END"]


class Ledger:
    """The counters and events of one allocator; `events`, the oldest first, is None if they are not recorded."""

    def __init__(self, record: bool) -> None:
        self.events: list[AllocatorEvent] | None = [] if record else None
        self.allocated = Counter()
        self.reserved = Counter()
        self.alloc_retries = 0

    def record(self, action: Action, address: int, size: int, stream: int, frames: Frames | None) -> None:
        """Append an event, if events are recorded."""
        if self.events is not None:
            self.events.append(AllocatorEvent(action, address, size, stream, frames))

    def reset_peaks(self) -> None:
        """Reset every peak to the current value."""
        for counter in (self.allocated, self.reserved):
            counter.peak = counter.current

    def statistics(self) -> AllocatorStatistics:
        """Return the current values and the peaks of all counters."""
        allocated, reserved = self.allocated, self.reserved
        return AllocatorStatistics(
            allocated.current, allocated.peak, reserved.current, reserved.peak, self.alloc_retries
        )


def build_snapshot(
    blocks: Iterable[Block],
    events: Sequence[AllocatorEvent],
    annotations: Iterable[Annotation],
    settings: AllocatorSettings,
) -> dict[str, Any]:
    """Build a snapshot from an allocator's blocks, events and annotations."""
    heads = (block for block in blocks if block.previous is None or not block.previous.mapped)
    return {
        "segments": sorted((_segment(head) for head in heads), key=lambda segment: int(segment["address"])),
        "device_traces": [[_entry(event, index) for index, event in enumerate(events)]],
        "allocator_settings": settings.for_snapshot(),
        "external_annotations": [
            {"name": name, "stage": stage, "device": 0, "time_us": events_so_far}
            for events_so_far, name, stage in annotations
        ],
    }


def _segment(head: Block) -> dict[str, object]:
    chain = [head]
    while (following := chain[-1].next) is not None and following.mapped:
        chain.append(following)
    used = [block for block in chain if block.allocated]
    used_bytes = sum(block.size for block in used)
    return {
        "device": 0,
        "address": head.address,
        "total_size": sum(block.size for block in chain),
        "allocated_size": used_bytes,
        "active_size": used_bytes,
        "requested_size": sum(block.requested for block in used),
        "stream": head.stream,
        "segment_type": "small" if head.pool.is_small else "large",
        "segment_pool_id": _DEFAULT_POOL,
        "is_expandable": head.virtual_segment is not None,
        "frames": head.segment_frames or [],
        "blocks": [
            {
                "address": block.address,
                "size": block.size,
                "requested_size": block.requested,
                "state": "active_allocated" if block.allocated else "inactive",
                "frames": block.frames or [],
            }
            for block in chain
        ],
    }


def _entry(event: AllocatorEvent, index: int) -> dict[str, object]:
    return {
        "action": event.action,
        "device_free" if event.action == "oom" else "addr": event.address,
        "size": event.size,
        "stream": event.stream,
        "time_us": index,
        "compile_context": "N/A",
        "user_metadata": "",
        "pool_id": _DEFAULT_POOL,
        "frames": event.frames or [],
    }
