"""Operations on integer columns: grouping, sums per group, enclosing intervals, and unions of intervals.

Everything here is vectorised: traces have millions of rows, too many for a Python loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sysbench.trace.recording import NONE, Integers


def unique_with_inverse(numbers: Integers) -> tuple[Integers, Integers]:
    """Return the distinct numbers in ascending order, and for each number its position among them."""
    if not len(numbers):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    least, largest = int(numbers.min()), int(numbers.max())
    if largest == least:
        return np.array([least], np.int64), np.zeros(len(numbers), np.int64)
    if largest - least > max(4 * len(numbers), 1 << 16):
        return np.unique(numbers, return_inverse=True)
    # Numbers in a small range are used directly as positions in a table.
    offset = numbers - least
    present = np.zeros(largest - least + 1, bool)
    present[offset] = True
    position = np.cumsum(present) - 1
    return np.flatnonzero(present) + least, position[offset]


def distinct(numbers: Integers) -> Integers:
    """Return the distinct numbers in ascending order."""
    if not len(numbers):
        return numbers
    least, largest = int(numbers.min()), int(numbers.max())
    if largest - least > max(4 * len(numbers), 1 << 16):
        ordered = np.sort(numbers)
        return np.asarray(ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])])
    present = np.zeros(largest - least + 1, bool)
    present[numbers - least] = True
    return np.flatnonzero(present) + least


def first_positions(which: Integers, groups: int) -> Integers:
    """Return the position of each group's first value; `which` gives the group of each value, and no group is empty."""
    found = np.zeros(groups, np.int64)
    found[which[::-1]] = np.arange(len(which) - 1, -1, -1)
    return found


def map_distinct(function: Callable[[int], object], numbers: Integers, dtype: type = np.int64) -> NDArray[Any]:
    """Return the result of `function` for each number; the function is called once for each distinct number."""
    different, which = unique_with_inverse(numbers)
    return np.array([function(number) for number in different.tolist()], dtype)[which]


def sum_by_group(values: Integers, which: Integers, groups: int) -> Integers:
    """Return the exact sum of the values in each group; `which` gives the group of each value."""
    total = np.zeros(groups, np.int64)
    np.add.at(total, which, values)
    return total


def take_or_none(column: Integers, index: Integers) -> Integers:
    """Return `column[index]` for each index; NONE where the index is NONE."""
    if not len(column):
        return np.full(len(index), NONE, np.int64)
    return np.where(index == NONE, NONE, column[index])


def sum_by_key(keys: Integers, *columns: Integers) -> list[Integers]:
    """Return the distinct keys in ascending order, followed by the exact sums of each column per key."""
    groups, which = unique_with_inverse(keys)
    return [groups, *(sum_by_group(column, which, len(groups)) for column in columns)]


def distinct_rows(columns: Sequence[Integers]) -> tuple[Integers, Integers]:
    """Return the distinct rows of the columns, one per row of an array, and each input row's index among them.

    The index of an incomplete row, in which some value is NONE, is NONE.
    """
    complete = np.logical_and.reduce([column != NONE for column in columns])
    known = slice(None) if complete.all() else np.flatnonzero(complete)
    code = np.zeros(int(complete.sum()), np.int64)
    columns = [column[known] for column in columns]
    for column in columns:
        values, which = unique_with_inverse(column)
        if len(values) > 1:  # most columns are constant and need no further distinction
            _, code = unique_with_inverse(code * len(values) + which)
    found = np.full(len(complete), NONE, np.int64)
    found[known] = code
    rows = np.zeros((int(code.max(initial=-1)) + 1, len(columns)), np.int64)
    for at, column in enumerate(columns):
        rows[code, at] = column
    return rows, found


@dataclass(frozen=True)
class KeyIndex:
    """Rows of a table, indexed by a key; rows whose key is NONE are left out."""

    keys: Integers
    """Keys in ascending order."""
    order: NDArray[np.int32]
    """Row of each key. 32 bits halve the memory: there can be tens of millions."""

    @classmethod
    def of(cls, keys: Integers) -> KeyIndex:
        """Index the rows of a column of keys."""
        order = np.argsort(keys, kind="stable").astype(np.int32)
        order = order[keys[order] != NONE]
        return cls(keys[order], order)

    def first(self, wanted: Integers) -> Integers:
        """Return the first row with each key; NONE if there is none."""
        if not len(self.keys):
            return np.full(len(wanted), NONE, np.int64)
        position = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.where(self.keys[position] == wanted, self.order[position], np.int64(NONE))

    def nearest(self, wanted: Integers) -> Integers:
        """Return the row whose key is nearest, the lower of two equally near; NONE beyond the first or last key."""
        if not len(self.keys):
            return np.full(len(wanted), NONE, np.int64)
        above = np.clip(np.searchsorted(self.keys, wanted), 1, max(len(self.keys) - 1, 1))
        above = np.minimum(above, len(self.keys) - 1)
        below = np.maximum(above - 1, 0)
        # Differences as floats: keys of a damaged file may differ by more than 64 bits can hold.
        is_below = wanted - self.keys[below].astype(np.float64) <= self.keys[above].astype(np.float64) - wanted
        within = (wanted >= self.keys[0]) & (wanted <= self.keys[-1])
        return np.where(within, self.order[np.where(is_below, below, above)], np.int64(NONE))


@dataclass(frozen=True)
class Nesting:
    """Intervals [start, end) on threads, indexed to find the interval that encloses a given time.

    Intervals may overlap without being nested. The innermost of several open intervals is the one that started last.
    """

    thread: Integers
    """Thread of every interval, in the order of `order`."""
    start_ns: Integers
    end_ns: Integers
    enclosing: Integers
    """Position in `order` of the last earlier interval on the same thread that ends no earlier, or NONE."""
    order: Integers
    """Indices of the given intervals, sorted by thread, then by start, longer intervals first."""

    @classmethod
    def of(cls, thread: Integers, start_ns: Integers, duration_ns: Integers) -> Nesting:
        """Index the intervals. If two intervals are equal, the later one in the input is the inner one."""
        order = np.lexsort((-duration_ns, start_ns, thread)).astype(np.int64)
        ends = (start_ns + duration_ns)[order]
        return cls(thread[order], start_ns[order], ends, _enclosing(thread[order], ends), order)

    def innermost(self, thread: Integers, at_ns: Integers) -> Integers:
        """For each time on a thread, return the index of the innermost open interval; NONE if no interval is open."""
        last_started = np.full(len(at_ns), NONE, np.int64)
        for each in distinct(thread):
            first, beyond = np.searchsorted(self.thread, [each, each + 1])
            rows = np.flatnonzero(thread == each)
            position = first + np.searchsorted(self.start_ns[first:beyond], at_ns[rows], side="right") - 1
            last_started[rows] = np.where(position >= first, position, NONE)
        return self._to_input_indices(self._innermost_open(last_started, at_ns))

    @cached_property
    def parents(self) -> Integers:
        """For each interval, in input order, return the index of the innermost interval that encloses it, or NONE."""
        parents = np.full(len(self.order), NONE, np.int64)
        # An interval of zero length must not count as enclosed by one that ends at its start.
        parents[self.order] = self._to_input_indices(self._innermost_open(self.enclosing, self.start_ns))
        return parents

    def _innermost_open(self, position: Integers, at_ns: Integers) -> Integers:
        """Move outwards from each position to the first interval that ends after the given time."""
        position = position.copy()
        ended = np.flatnonzero(position != NONE)
        ended = ended[self.end_ns[position[ended]] <= at_ns[ended]]
        while len(ended):
            position[ended] = self.enclosing[position[ended]]
            ended = ended[position[ended] != NONE]
            ended = ended[self.end_ns[position[ended]] <= at_ns[ended]]
        return position

    def _to_input_indices(self, position: Integers) -> Integers:
        return np.asarray(
            np.where(position == NONE, NONE, self.order[position]) if len(self.order) else position, np.int64
        )


def _enclosing(thread: Integers, end_ns: Integers) -> Integers:
    """For each interval, return the position of the nearest preceding one on its thread that ends no sooner, or NONE.

    If a candidate ends too soon, so do all intervals between it and its own candidate: the search jumps to the latter.
    """
    count = len(end_ns)
    enclosing = np.arange(-1, count - 1, dtype=np.int64)
    firsts = np.flatnonzero(np.diff(thread, prepend=thread[0] - 1)) if count else enclosing
    for first, beyond in pairwise([*firsts.tolist(), count]):
        # An interval that ends later than all earlier ones is not enclosed by any.
        latest = np.maximum.accumulate(end_ns[first:beyond])
        enclosing[first] = NONE
        enclosing[first + 1 : beyond][end_ns[first + 1 : beyond] > latest[:-1]] = NONE
    active = np.flatnonzero(enclosing != NONE)
    active = active[end_ns[enclosing[active]] < end_ns[active]]
    while len(active):
        enclosing[active] = enclosing[enclosing[active]]
        active = active[enclosing[active] != NONE]
        active = active[end_ns[enclosing[active]] < end_ns[active]]
    return enclosing


def self_time_ns(nesting: Nesting, duration_ns: Integers) -> Integers:
    """Return the duration of each interval minus the durations of its direct children."""
    parents = nesting.parents
    has_parent = parents != NONE
    inner = sum_by_group(duration_ns[has_parent], parents[has_parent], len(duration_ns))
    return np.asarray(np.maximum(duration_ns - inner, 0), np.int64)


@dataclass(frozen=True)
class Intervals:
    """Union of time intervals, as disjoint and sorted intervals."""

    start_ns: Integers
    end_ns: Integers

    @property
    def total_ns(self) -> int:
        """Return the total duration of all intervals."""
        return int((self.end_ns - self.start_ns).sum())

    def covered_before_ns(self, at_ns: Integers) -> Integers:
        """Return the total time that the intervals cover before each given time."""
        if not len(self.start_ns):
            return np.zeros(len(at_ns), np.int64)
        ended = np.concatenate([[0], np.cumsum(self.end_ns - self.start_ns)])
        number = np.searchsorted(self.start_ns, at_ns, side="right")
        last = np.maximum(number - 1, 0)
        within = np.clip(at_ns - self.start_ns[last], 0, self.end_ns[last] - self.start_ns[last])
        return np.where(number > 0, ended[last] + within, 0)

    def overlap_ns(self, other: Intervals) -> int:
        """Return the total time that is covered by both sets of intervals."""
        return int((self.covered_before_ns(other.end_ns) - self.covered_before_ns(other.start_ns)).sum())


def union(start_ns: Integers, end_ns: Integers) -> Intervals:
    """Return the union of intervals that may overlap."""
    kept = end_ns > start_ns
    order = np.argsort(start_ns[kept], kind="stable")
    starts, ends = start_ns[kept][order], end_ns[kept][order]
    if not len(starts):
        return Intervals(starts, ends)
    latest = np.maximum.accumulate(ends)
    first = np.concatenate([[True], starts[1:] > latest[:-1]])
    last = np.concatenate([first[1:], [True]])
    return Intervals(starts[first], latest[last])


def depths(parents: Integers) -> NDArray[np.int64]:
    """Return the nesting depth of each interval: the number of intervals that enclose it."""
    depth = np.zeros(len(parents), np.int64)
    outer, inside = parents.copy(), np.flatnonzero(parents != NONE)
    while len(inside):
        depth[inside] += 1
        outer[inside] = parents[outer[inside]]
        inside = inside[outer[inside] != NONE]
    return depth
