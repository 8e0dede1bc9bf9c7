"""What a memory snapshot comes down to: columns, with positions in tables of distinct stacks and names."""

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
"""In columns of positions (stack, category, label): there is none."""


class Frame(NamedTuple):
    """One line of a stack."""

    filename: str
    line: int
    name: str


@dataclass(frozen=True, eq=False)
class Stacks:
    """Distinct stacks, innermost frame first: stack `i` is `frame[start[i]:start[i + 1]]`, positions in `frames`."""

    frames: tuple[Frame, ...]
    frame: Column
    """uint32, the stacks one after the other."""
    start: Column
    """int64, one more than there are stacks."""

    def __len__(self) -> int:
        return len(self.start) - 1

    def of(self, stack: int) -> tuple[Frame, ...]:
        """The frames of a stack, innermost first; empty for NONE."""
        if stack == NONE:
            return ()
        return tuple(self.frames[index] for index in self.frame[self.start[stack] : self.start[stack + 1]])


@dataclass(frozen=True, eq=False)
class Trace:
    """What the allocator did, in order, devices one after the other. Columns of equal length."""

    device: Column
    """int32"""
    action: Column
    """uint8, positions in ACTIONS."""
    address: Column
    """uint64; for `oom`, the bytes that the device reported as free."""
    size_bytes: Column
    """int64, as requested: not rounded up."""
    stream: Column
    """int64"""
    time_us: Column
    """int64, microseconds since the epoch; 0 where the file has none."""
    stack: Column
    """int32, positions in `Snapshot.stacks`, or NONE."""
    category: Column
    """int32, positions in `Snapshot.categories`, or NONE."""
    label: Column
    """int32, positions in `Snapshot.labels`, or NONE."""

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, eq=False)
class Segments:
    """Memory that the allocator holds, at the time of the snapshot."""

    device: Column
    """int32"""
    address: Column
    """uint64"""
    total_bytes: Column
    """int64"""
    allocated_bytes: Column
    """int64"""
    active_bytes: Column
    """int64"""
    stream: Column
    """int64"""
    expandable: Column
    """bool"""
    stack: Column
    """int32, or NONE."""
    first_block: Column
    """int64, one more than there are segments: segment `i` has the blocks `first_block[i]:first_block[i + 1]`."""

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, eq=False)
class Blocks:
    """How segments are divided, at the time of the snapshot; segments one after the other."""

    segment: Column
    """int64, positions in `Snapshot.segments`."""
    address: Column
    """uint64"""
    size_bytes: Column
    """int64, as the allocator counts them."""
    requested_bytes: Column
    """int64"""
    state: Column
    """uint8, positions in STATES."""
    stack: Column
    """int32, or NONE."""
    category: Column
    """int32, or NONE."""
    label: Column
    """int32, or NONE."""

    def __len__(self) -> int:
        return len(self.address)


class Annotation(NamedTuple):
    """A mark in time that user code set: the START or the END of something named."""

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
    settings: Mapping[str, Any]
    """`allocator_settings`; empty where the file has none."""
    metadata: Mapping[str, Any]
    """What sysbench wrote about its own snapshot; empty for anyone else's."""

    @property
    def source(self) -> Literal["measured", "simulated"]:
        """Whether a device was there."""
        return "simulated" if self.metadata.get("source") == "simulated" else "measured"

    @property
    def has_allocator(self) -> bool:
        """Whether something reserved memory and kept the time; otherwise tensors were followed one by one."""
        return self.metadata.get("allocator", "cuda") is not None

    @property
    def devices(self) -> tuple[int, ...]:
        """Devices that have trace entries or segments."""
        present = np.union1d(self.trace.device, self.segments.device)
        return tuple(int(device) for device in present)
