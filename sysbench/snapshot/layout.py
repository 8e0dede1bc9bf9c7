"""A memory snapshot as columns; stacks and names are stored as positions in tables of distinct values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Column: TypeAlias = npt.NDArray[Any]

ACTIONS: Final = (
    "unknown",
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
)
"""Actions of trace entries; `Trace.action` holds positions in this tuple."""

ACTION_CODE: Final[Mapping[str, int]] = {name: code for code, name in enumerate(ACTIONS)}

STATES: Final = ("inactive", "active_allocated", "active_pending_free")
"""States of blocks; `Blocks.state` holds positions in this tuple."""

NONE: Final = -1
"""Missing position in columns of stacks, categories or labels."""


class Frame(NamedTuple):
    """One line of a stack."""

    filename: str
    line: int
    name: str


@dataclass(frozen=True, eq=False)
class Stacks:
    """Distinct stacks, innermost frame first.

    Stack `i` is `frame[start[i]:start[i + 1]]`, whose values are positions in `frames`.
    """

    frames: tuple[Frame, ...]
    frame: Column  # uint32, all stacks concatenated
    start: Column  # int64, one more than the number of stacks

    def __len__(self) -> int:
        return len(self.start) - 1

    def of(self, stack: int) -> tuple[Frame, ...]:
        """Return the frames of a stack, innermost first; empty for NONE."""
        if stack == NONE:
            return ()
        return tuple(self.frames[index] for index in self.frame[self.start[stack] : self.start[stack + 1]])


@dataclass(frozen=True, eq=False)
class Trace:
    """Allocator events as columns of equal length, one device after another, each in chronological order."""

    device: Column  # int32
    action: Column  # uint8, positions in ACTIONS
    address: Column  # uint64; for `oom`, the free bytes that the device reported
    size_bytes: Column  # int64, requested size, not rounded up
    stream: Column  # int64
    time_us: Column  # int64, microseconds since the epoch; 0 if the file has no times
    stack: Column  # int32, positions in `Snapshot.stacks`, or NONE
    category: Column  # int32, positions in `Snapshot.categories`, or NONE
    label: Column  # int32, positions in `Snapshot.labels`, or NONE

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, eq=False)
class Segments:
    """Memory segments of the allocator at the time of the snapshot."""

    device: Column  # int32
    address: Column  # uint64
    total_bytes: Column  # int64
    stream: Column  # int64
    expandable: Column  # bool
    first_block: Column  # int64: segment `i` has the blocks `first_block[i]:first_block[i + 1]`

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, eq=False)
class Blocks:
    """Blocks of all segments at the time of the snapshot, in the order of the segments."""

    segment: Column  # int64, positions in `Snapshot.segments`
    address: Column  # uint64
    size_bytes: Column  # int64, size as the allocator counts it
    requested_bytes: Column  # int64
    state: Column  # uint8, positions in STATES
    stack: Column  # int32, or NONE
    category: Column  # int32, or NONE
    label: Column  # int32, or NONE

    def __len__(self) -> int:
        return len(self.address)


class Annotation(NamedTuple):
    """A timestamp set by user code: the START or END of a named range."""

    name: str
    stage: str
    time_us: int
    device: int


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A memory snapshot as columns."""

    trace: Trace
    segments: Segments
    blocks: Blocks
    stacks: Stacks
    categories: tuple[str, ...]
    labels: tuple[str, ...]
    annotations: tuple[Annotation, ...]
    settings: Mapping[str, object]
    """`allocator_settings`; empty if the file has none."""
    metadata: Mapping[str, object]
    """sysbench's own metadata; empty for snapshots from other programs."""

    @property
    def source(self) -> Literal["measured", "simulated"]:
        """Whether the snapshot was measured on a device or simulated."""
        return "simulated" if self.metadata.get("source") == "simulated" else "measured"

    @property
    def has_allocator(self) -> bool:
        """Return whether the snapshot is from a caching allocator. If not, single tensors were tracked."""
        return self.metadata.get("allocator", "cuda") is not None

    @property
    def devices(self) -> tuple[int, ...]:
        """Return the devices with trace entries or segments."""
        present = np.union1d(self.trace.device, self.segments.device)
        return tuple(int(device) for device in present)
