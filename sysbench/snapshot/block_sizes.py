"""Sizes of blocks. A trace records requested sizes, but `torch.cuda.memory_allocated` counts blocks.

A block can be larger than its request for two reasons. The request is rounded up, and a remainder that is too small (up
to 1 MiB in the large pool) is not split off. Addresses show this remainder: an allocation takes the front of a free
block, and free neighbours are always merged, so the free block ends at the next block in use or at the end of the
segment. Source: `round_size`, `should_split` and `alloc_found_block` in c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from typing import Final

import numpy as np

from sysbench.snapshot.layout import ACTION_CODE, NONE, STATES, Column, Snapshot
from sysbench.snapshot.lifetimes import Lifetimes

MIN_BLOCK_BYTES: Final = 512
"""Block sizes in the allocator are multiples of this (kMinBlockSize)."""
SMALL_BYTES: Final = 1 << 20
"""The small pool serves requests up to this size; the large pool splits off only larger remainders (kSmallSize)."""

_FIRST_INTERVAL_BITS: Final = 20
"""The first interval of `roundup_power2_divisions` ends at 2 MiB, so it begins at 2**20 bytes."""

_ALLOC = ACTION_CODE["alloc"]
_FREE_REQUESTED = ACTION_CODE["free_requested"]
_FREE_COMPLETED = ACTION_CODE["free_completed"]
_SEGMENT_ALLOC = ACTION_CODE["segment_alloc"]
_SEGMENT_FREE = ACTION_CODE["segment_free"]
_SEGMENT_MAP = ACTION_CODE["segment_map"]
_INACTIVE = STATES.index("inactive")


def rounded_bytes(requested_bytes: int, power2_divisions: tuple[int, ...] = ()) -> int:
    """Return the size of a request in whole blocks (`round_size`).

    The size is a multiple of 512 bytes or, with `roundup_power2_divisions`, a step between two powers of two.
    `power2_divisions` has the number of steps in each interval between powers of two from 1 MiB; 0 and 1 mean none.
    """
    multiple = MIN_BLOCK_BYTES
    if power2_divisions:
        floor_bits = requested_bytes.bit_length() - 1
        interval = min(max(floor_bits - _FIRST_INTERVAL_BITS, 0), len(power2_divisions) - 1)
        divisions = power2_divisions[interval]
        if divisions > 1 and requested_bytes > MIN_BLOCK_BYTES * divisions:
            multiple = (1 << floor_bits) // divisions
    return (requested_bytes + multiple - 1) // multiple * multiple


def rounded_requests(requested_bytes: Column, settings: Mapping[str, object]) -> Column:
    """Return requested sizes rounded up by the `allocator_settings` of a snapshot; at least one unit each."""
    recorded = settings.get("roundup_power2_divisions")
    divisions = tuple(recorded[key] for key in sorted(recorded, key=int)) if isinstance(recorded, dict) else ()
    different, position = np.unique(requested_bytes, return_inverse=True)
    sizes = [rounded_bytes(max(int(size), 1), divisions) for size in different]
    return np.array(sizes, np.int64)[position.reshape(-1)]


def block_bytes(snapshot: Snapshot, device: int, lives: Lifetimes, rounded: Column, address: Column) -> Column:
    """Return the size of the block of each allocation on one device.

    rounded  requested sizes, rounded up
    address  of each allocation

    Blocks that exist at the end have their recorded size. Sizes of allocations in the trace are exact if the trace
    records addresses and segments. For an allocation that predates the trace and is freed in it, the size is the
    smallest that agrees with what is known.
    """
    recorded = np.append(snapshot.blocks.size_bytes, 0)[lives.block]
    known = lives.block != NONE
    if _splits_off_everything(snapshot, device):
        return np.where(known, recorded, rounded)
    walk = _Walk(snapshot, device, lives, rounded, address)
    walk.follow()
    return np.where(known, recorded, np.array(walk.sizes, np.int64))


def _splits_off_everything(snapshot: Snapshot, device: int) -> bool:
    """Return whether blocks are only as large as their rounded requests, as in expandable segments."""
    segments, trace = snapshot.segments, snapshot.trace
    return bool(
        snapshot.settings.get("expandable_segments")
        or segments.expandable[segments.device == device].any()
        or (trace.action[trace.device == device] == _SEGMENT_MAP).any()
    )


class _Segments:
    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}

    def add(self, start: int, size_bytes: int) -> None:
        if start not in self._ends:
            insort(self._starts, start)
        self._ends[start] = start + size_bytes

    def remove(self, start: int) -> None:
        if self._ends.pop(start, None) is not None:
            del self._starts[bisect_left(self._starts, start)]

    def end_of(self, address: int) -> int | None:
        place = bisect_right(self._starts, address) - 1
        if place < 0:
            return None
        end = self._ends[self._starts[place]]
        return end if address < end else None


class _Walk:
    """A walk through the trace that keeps what is in use in the large pool.

    sizes  size of the block of each allocation, by position; the rounded request where nothing else is known
    """

    def __init__(self, snapshot: Snapshot, device: int, lives: Lifetimes, rounded: Column, address: Column) -> None:
        trace = snapshot.trace
        limit = snapshot.settings.get("max_split_size", -1)
        self._max_split_bytes = limit if isinstance(limit, int) and limit > 0 else None
        self.sizes: list[int] = rounded.tolist()
        rows = np.flatnonzero(trace.device == device)
        completes = (trace.action[rows] == _FREE_COMPLETED).any()
        self._ends_use = _FREE_COMPLETED if completes else _FREE_REQUESTED
        wanted = (_ALLOC, self._ends_use, _SEGMENT_ALLOC, _SEGMENT_FREE)
        # The small pool splits off everything, and has segments of its own.
        self._rows = rows[np.isin(trace.action[rows], wanted) & (trace.size_bytes[rows] > SMALL_BYTES)]
        self._trace = trace
        in_trace = np.flatnonzero(lives.row != NONE)
        allocation_of_row = np.full(len(trace), NONE, np.int64)
        allocation_of_row[lives.row[in_trace]] = in_trace
        self._allocation = allocation_of_row[self._rows]
        self._segments = _first_segments(snapshot, device, self._rows)
        self._used = self._first_used(snapshot, device)
        """Addresses of the blocks in use, sorted."""
        older = np.flatnonzero((lives.row == NONE) & (lives.block == NONE))
        self._older = dict(zip(address[older].tolist(), older.tolist(), strict=True))
        """Allocations that predate the trace and are freed in it, by address."""
        for at, allocation in self._older.items():
            self.sizes[allocation] = self._size_of(at, self.sizes[allocation], bisect_right(self._used, at))

    def _first_used(self, snapshot: Snapshot, device: int) -> list[int]:
        blocks, trace = snapshot.blocks, self._trace
        rows = self._rows[np.isin(trace.action[self._rows], (_ALLOC, self._ends_use))]
        address, first = np.unique(trace.address[rows], return_index=True)
        freed = address[trace.action[rows[first]] == self._ends_use]
        last = (blocks.state != _INACTIVE) & (snapshot.segments.device[blocks.segment] == device)
        kept = np.setdiff1d(blocks.address[last], address)
        return [int(at) for at in np.union1d(freed, kept)]

    def follow(self) -> None:
        trace, rows, used = self._trace, self._rows, self._used
        columns = (trace.action[rows], trace.address[rows], trace.size_bytes[rows], self._allocation)
        for action, at, size_bytes, allocation in zip(*(column.tolist() for column in columns), strict=True):
            if action == _ALLOC:
                self._allocate(at, allocation)
            elif action == self._ends_use:
                place = bisect_left(used, at)
                if place < len(used) and used[place] == at:
                    del used[place]
                self._older.pop(at, None)
            elif action == _SEGMENT_ALLOC:
                self._segments.add(at, size_bytes)
            else:
                self._segments.remove(at)

    def _allocate(self, at: int, allocation: int) -> None:
        used = self._used
        place = bisect_left(used, at)
        if place == len(used) or used[place] != at:
            used.insert(place, at)
        self.sizes[allocation] = self._size_of(at, self.sizes[allocation], place + 1)
        older = self._older.get(used[place - 1]) if self._older and place else None
        if older is not None and 0 < at - used[place - 1] - self.sizes[older] <= SMALL_BYTES:
            # No free block is that small, so the older block reaches to this one.
            self.sizes[older] = at - used[place - 1]

    def _size_of(self, at: int, rounded_bytes: int, following: int) -> int:
        segment_end = self._segments.end_of(at)
        if rounded_bytes <= SMALL_BYTES or segment_end is None:
            return rounded_bytes
        free_end = min(segment_end, self._used[following]) if following < len(self._used) else segment_end
        left_bytes = free_end - at - rounded_bytes
        whole = self._max_split_bytes is not None and rounded_bytes >= self._max_split_bytes
        return free_end - at if left_bytes > 0 and (whole or left_bytes <= SMALL_BYTES) else rounded_bytes


def _first_segments(snapshot: Snapshot, device: int, rows: Column) -> _Segments:
    """Return the segments before the first event: those at the end, with all changes undone."""
    segments, trace = snapshot.segments, snapshot.trace
    found = _Segments()
    on_device = segments.device == device
    for start, size_bytes in zip(
        segments.address[on_device].tolist(), segments.total_bytes[on_device].tolist(), strict=True
    ):
        found.add(start, size_bytes)
    changes = rows[np.isin(trace.action[rows], (_SEGMENT_ALLOC, _SEGMENT_FREE))][::-1]
    columns = (trace.action[changes], trace.address[changes], trace.size_bytes[changes])
    for action, start, size_bytes in zip(*(column.tolist() for column in columns), strict=True):
        if action == _SEGMENT_ALLOC:
            found.remove(start)
        else:
            found.add(start, size_bytes)
    return found
