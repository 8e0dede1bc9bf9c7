"""A window of time in a trace, and the events that belong to it.

The extracted rows are packed like the recording, and stretches that lie wholly within the window are shared with it, so
the recording can be summarised and released before the slice is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sysbench.errors import UsageError, nearest
from sysbench.trace.grouping import distinct
from sysbench.trace.packed import DURATION, NAME, START, Recording, Table
from sysbench.trace.recording import NONE, DeviceWork, Integers, Launches, place

Truths = NDArray[np.bool_]

_WORK_CORRELATION: Final = place(DeviceWork, "correlation")
_LAUNCH_CORRELATION: Final = place(Launches, "correlation")


@dataclass(frozen=True)
class Window:
    """A window of time in a trace."""

    start_ns: int
    end_ns: int
    range: str | None
    """Name of the range that defines it; None for the whole trace."""

    def holds(self, start_ns: Integers) -> Truths:
        """Return which events start in the window; earlier ones would be shown without their beginning."""
        return (start_ns >= self.start_ns) & (start_ns <= self.end_ns)


@dataclass(frozen=True)
class Cut:
    """The rows that belong to a window."""

    window: Window
    recording: Recording
    """The rows of the window alone; if there are too many to write, those that start first."""
    last_ns: int
    """Latest start of any row; work launched in the window may start after its end."""
    devices: tuple[int, ...]
    """Numbers of all devices in the trace."""

    @property
    def is_empty(self) -> bool:
        """Whether the window contains nothing but ranges."""
        here = self.recording
        return not (len(here.operators) or len(here.launches) or len(here.work))


def find(recording: Recording, wanted: str | None) -> Window:
    """Find the first range named `wanted`, or whose path ends with it; by default the first step, or the whole trace.

    Raises UsageError, with the nearest name, if there is none.
    """
    start_ns, duration_ns, name = (recording.ranges.column(at) for at in (START, DURATION, NAME))
    here = {each: recording.names[each] for each in distinct(name).tolist()}
    tail = (wanted or "step").rpartition("/")[2]
    called = [each for each, text in here.items() if text == tail]
    called = called or [each for each, text in here.items() if text.endswith(f".{tail}")]
    if called:
        rows = np.flatnonzero(np.isin(name, called))
        first = rows[np.argmin(start_ns[rows])]
        begin_ns = int(start_ns[first])
        return Window(begin_ns, begin_ns + int(duration_ns[first]), recording.names[name[first]])
    if wanted is not None:
        guess = nearest(wanted, set(here.values()))
        raise UsageError(f"--range {wanted} is not in this trace" + (f". Did you mean {guess}?" if guess else ""))
    ends = [
        int((begin + lasting).max())
        for table in recording.tables
        for begin, lasting in table.stretches(START, DURATION)
    ]
    return Window(0, max(ends, default=0), None)


def cut(recording: Recording, window: Window, most_rows: int) -> Cut:
    """Extract the rows that start in the window, and the work that was launched in it, whenever it runs.

    If there are more than `most_rows`, those that start first are kept, including ties with the last of them. Besides
    the rows, this takes memory for one number per launch of the recording.
    """
    chosen = replace(
        recording,
        work=recording.work.where(_launched_in(window, recording.launches), START, _WORK_CORRELATION),
        launches=recording.launches.where(window.holds, START),
        operators=recording.operators.where(window.holds, START),
        ranges=recording.ranges.where(window.holds, START),
    )
    bounds = [found for table in chosen.tables if (found := table.bounds(START))]
    devices = [distinct(numbers) for (numbers,) in recording.work.stretches(place(DeviceWork, "device"))]
    return Cut(
        window=window,
        recording=_first(most_rows, chosen),
        last_ns=max((last for _, last in bounds), default=window.start_ns),
        devices=tuple(distinct(np.concatenate(devices)).tolist()) if devices else (),
    )


def _launched_in(window: Window, launches: Table) -> Callable[[Integers, Integers], Truths]:
    """Return a predicate for work launched in the window; work without a known launch counts if it starts in it."""
    anywhere = distinct(launches.column(_LAUNCH_CORRELATION))
    parts = [
        correlation[window.holds(start_ns)] for start_ns, correlation in launches.stretches(START, _LAUNCH_CORRELATION)
    ]
    here = distinct(np.concatenate(parts)) if parts else anywhere

    def launched(start_ns: Integers, correlation: Integers) -> Truths:
        numbered = correlation != NONE
        linked, from_here = (numbered & _among(each, correlation) for each in (anywhere, here))
        found: Truths = from_here | (window.holds(start_ns) & ~linked)
        return found

    return launched


def _among(ordered: Integers, numbers: Integers) -> Truths:
    """Return which numbers occur in the sorted array `ordered`."""
    if not len(ordered):
        return np.zeros(len(numbers), bool)
    found: Truths = ordered[np.minimum(np.searchsorted(ordered, numbers), len(ordered) - 1)] == numbers
    return found


def _first(rows: int, recording: Recording) -> Recording:
    """Keep the first `rows` rows of all tables together, including ties with the last of them."""
    if sum(map(len, recording.tables)) <= rows:
        return recording
    latest_ns = _start_of(rows, recording.tables)

    def early(start_ns: Integers) -> Truths:
        return start_ns <= latest_ns

    work, launches, operators, ranges = (table.where(early, START) for table in recording.tables)
    return replace(recording, work=work, launches=launches, operators=operators, ranges=ranges)


def _start_of(row: int, tables: Iterable[Table]) -> int:
    """Return the start of the `row`-th row of all tables in order of time, without loading all rows at once."""
    first: list[Integers] = []
    for (start_ns,) in chain.from_iterable(table.stretches(START) for table in tables):
        first.append(start_ns)
        if sum(map(len, first)) > 2 * row:
            first = [np.partition(np.concatenate(first), row)[:row]]
    return int(np.partition(np.concatenate(first), row - 1)[row - 1])
