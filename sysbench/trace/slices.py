"""Divides a recording into slices of time, each of which can be attributed on its own.

A slice ends where no operator is open on any thread, and device work belongs to the slice in which it was launched,
however late it runs. Links between slices are resolved beforehand: ranges, which are few; the call that launched each
piece of work; and the module whose gradient a backward operator computes. A recording without any such moment is one
slice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from sysbench.trace import gradients, range_tree
from sysbench.trace.grouping import distinct
from sysbench.trace.packed import DURATION, START, Recording, Table
from sysbench.trace.range_tree import RangeTree
from sysbench.trace.recording import NONE, DeviceWork, Integers, Launches, Operators, Ranges, place

ROWS: Final = 400_000
"""Operators and pieces of work that are attributed at a time: tens of megabytes."""
_CANDIDATES: Final = 8192
"""Number of moments that are examined as ends of slices."""
_ALWAYS: Final = (-(2**63), 2**63 - 1)


@dataclass(frozen=True)
class Launched(DeviceWork):
    """Device work with its launch."""

    launch: Integers
    """Index into the recording's launches; NONE if not recorded."""
    thread: Integers
    """Thread that launched it; NONE if not recorded."""
    at_ns: Integers
    """Time of the launch; without a launch, time of the start."""
    launch_ns: Integers
    """Duration of the launching call; 0 without one."""


@dataclass(frozen=True)
class Slice:
    """A stretch of time."""

    work: Launched | None
    """Device work; None if the whole recording has none."""
    operators: Operators
    gradient_of: Integers
    """For each operator the module whose gradient it computes, as position in `RangeTree.modules`; NONE for others."""


_AT: Final = place(Launched, "at_ns")


@dataclass(frozen=True)
class Slices:
    """A recording as a sequence of slices."""

    recording: Recording
    cuts: Sequence[int]
    on_device: bool

    def __len__(self) -> int:
        """Number of slices."""
        return len(self.cuts) + 1

    def __iter__(self) -> Iterator[Slice]:
        """Yield slices in order of time."""
        first, beyond = _ALWAYS
        for begin, end in pairwise([first, *self.cuts, beyond]):
            _, (*operators, gradient_of) = self.recording.operators.between(START, begin, end)
            work = Launched(*self.recording.work.between(_AT, begin, end)[1]) if self.on_device else None
            yield Slice(work, Operators(*operators), gradient_of)


def sliced(recording: Recording) -> tuple[RangeTree, Slices]:
    """Return the ranges, and everything else slice by slice. The recording cannot be used afterwards."""
    ranges = range_tree.read(Ranges(*recording.ranges.columns()), recording.names)
    gradients.add_modules(recording.operators, recording.names, ranges)
    on_device = len(recording.work) > 0
    if on_device:
        _lead_back(recording.work, recording.launches)
        recording.launches.clear()
    return ranges, Slices(recording, _cuts(recording.operators, recording.work), on_device)


def _lead_back(work: Table, launches: Table) -> None:
    """Append to each piece of work its launch: the first with its correlation number."""
    correlation = launches.column(place(Launches, "correlation"))
    order = np.argsort(correlation, kind="stable").astype(np.int32)
    correlation = correlation[order]
    start_ns, duration_ns = launches.column(START), launches.column(DURATION)
    thread = launches.column(place(Launches, "thread")).astype(np.int32)

    def launched(_: Integers, own_start_ns: Integers, wanted: Integers) -> Sequence[Integers]:
        if not len(order):
            none = np.full(len(wanted), NONE, np.int64)
            return none, none, own_start_ns, np.zeros(len(wanted), np.int64)
        place = np.minimum(np.searchsorted(correlation, wanted), len(order) - 1)
        unknown = (wanted == NONE) | (correlation[place] != wanted)
        launch = order[place].astype(np.int64)
        return (
            np.where(unknown, NONE, launch),
            np.where(unknown, NONE, thread[launch]),
            np.where(unknown, own_start_ns, start_ns[launch]),
            np.where(unknown, 0, duration_ns[launch]),
        )

    work.append(4, launched, START, place(DeviceWork, "correlation"))


def _cuts(operators: Table, work: Table) -> list[int]:
    """Return a minimum of moments at which no operator is open, with at least ROWS rows between two of them."""
    tables = [(operators, START), *([(work, _AT)] if len(work) else [])]
    if sum(len(table) for table, _ in tables) <= ROWS:
        return []
    sample = []
    for table, at in tables:
        step = max(1, len(table) // _CANDIDATES)
        sample += [column[:: min(step, len(column))] for (column,) in table.stretches(at)]
    candidates = distinct(np.concatenate(sample))
    rows, open_ = np.zeros((2, len(candidates) + 1), np.int64)
    for table, at in tables:
        for (begin,) in table.stretches(at):
            rows += np.bincount(np.searchsorted(candidates, begin, side="right"), minlength=len(rows))
    for begin, lasting in operators.stretches(START, DURATION):
        first = np.searchsorted(candidates, begin, side="right")
        # An operator of zero duration ends at its start, not before.
        over = np.maximum(np.searchsorted(candidates, begin + lasting, side="left"), first)
        open_ += np.bincount(first, minlength=len(open_)) - np.bincount(over, minlength=len(open_))
    # For every candidate, both counts now cover the time since the previous candidate.
    possible = np.flatnonzero(np.cumsum(open_)[:-1] == 0)
    moments, rows_before = candidates[possible], np.cumsum(rows)[possible]
    chosen, done = [], 0
    while (next_ := int(np.searchsorted(rows_before, done + ROWS))) < len(moments):
        chosen.append(int(moments[next_]))
        done = int(rows_before[next_])
    return chosen
