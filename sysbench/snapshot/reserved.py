"""Reserved memory over time: segments that the allocator takes from the device and returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sysbench.snapshot.layout import Column

Ranges = list[tuple[int, int]]
"""Addresses (start, end)."""


@dataclass(frozen=True, eq=False)
class Reserved:
    """Reserved bytes in every state, and their addresses."""

    bytes: Column
    """int64, one per state."""
    history: SegmentHistory | None = None
    """None without addresses."""


@dataclass(frozen=True, eq=False)
class SegmentHistory:
    """Address ranges that are reserved at the end, and the earlier changes."""

    final: Ranges
    state: Column
    """int64, the state that each change leads to, ascending."""
    grows: Column
    """bool, whether memory is added or returned."""
    address: Column
    """uint64"""
    size_bytes: Column
    """int64"""
    joins: bool
    """Adjacent ranges count as one (expandable segments); otherwise an allocation never spans two."""

    def ranges_at(self, state: int) -> Ranges:
        """Return the reserved ranges in a state, by undoing all later changes to the final ones."""
        ranges = list(self.final)
        for change in range(len(self.state) - 1, -1, -1):
            if self.state[change] <= state:
                break
            start = int(self.address[change])
            changed = (start, start + int(self.size_bytes[change]))
            ranges = _without(ranges, changed) if self.grows[change] else [*ranges, changed]
        return _joined(ranges) if self.joins else sorted(ranges)

    def largest_gap(self, state: int, address: npt.NDArray[np.uint64], size_bytes: npt.NDArray[np.int64]) -> int:
        """Return the largest reserved gap between the given allocations."""
        order = np.argsort(address)
        starts = address[order].astype(np.int64)
        ends = starts + size_bytes[order]
        largest = 0
        for start, end in self.ranges_at(state):
            inside = slice(np.searchsorted(starts, start), np.searchsorted(starts, end))
            # Gaps lie between the end of one allocation and the start of the next, and at both ends of the range.
            gaps = np.concatenate([starts[inside], [end]]) - np.concatenate([[start], ends[inside]])
            largest = max(largest, int(gaps.max()))
        return largest


def _without(ranges: Ranges, taken: tuple[int, int]) -> Ranges:
    left: Ranges = []
    for start, end in ranges:
        if end <= taken[0] or taken[1] <= start:
            left.append((start, end))
            continue
        if start < taken[0]:
            left.append((start, taken[0]))
        if taken[1] < end:
            left.append((taken[1], end))
    return left


def _joined(ranges: Ranges) -> Ranges:
    joined: Ranges = []
    for start, end in sorted(ranges):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined
