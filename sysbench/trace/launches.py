"""Links from device work to the calls that launched it, and the work that was launched before the recording began.

When a recording begins, the device may still have a queue of work that the host launched earlier: kernels are recorded,
their launches are not. The device works through this backlog without a pause, on each stream before the first work
whose launch was recorded.

A launch that was lost in the middle of a recording is estimated from the correlation numbers of the others, which count
the calls of a process.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from sysbench.trace.columns import KeyIndex, distinct, distinct_rows, take_or_none
from sysbench.trace.recording import NONE, START, Integers, Launches, Table, column_index

LONGEST_PAUSE_NS: Final = 100_000
"""Longest pause between pieces of queued work. Launching queued work takes the device a few microseconds."""

_LATEST: Final = np.iinfo(np.int64).max


@dataclass(frozen=True)
class LaunchIndex:
    """The launches of a recording, to be found by the correlation numbers of device work."""

    index: KeyIndex
    start_ns: Integers
    duration_ns: Integers
    thread: Integers

    @classmethod
    def of(cls, launches: Table) -> LaunchIndex:
        """Index a table of launches."""
        correlation, thread = (column_index(Launches, each) for each in ("correlation", "thread"))
        start_ns, duration_ns = launches.column(START), launches.column(column_index(Launches, "duration_ns"))
        return cls(KeyIndex.of(launches.column(correlation)), start_ns, duration_ns, launches.column(thread))

    def launch_of(self, correlation: Integers) -> Integers:
        """Return the first launch with each correlation number; NONE if it was not recorded."""
        return self.index.first(correlation)

    def launch_time_ns(self, launch: Integers, correlation: Integers, own_start_ns: Integers) -> Integers:
        """Return the time at which work was launched, given its launch or NONE.

        Without a recorded launch, this is the time of the launch with the nearest number; the start of the work itself
        if its number is beyond the recorded ones, or if that launch came after it.
        """
        at_ns = take_or_none(self.start_ns, launch)
        lost = np.flatnonzero(launch == NONE)
        nearest = self.index.nearest(correlation[lost])
        nearest_ns, own_ns = take_or_none(self.start_ns, nearest), own_start_ns[lost]
        at_ns[lost] = np.where((nearest != NONE) & (nearest_ns <= own_ns), nearest_ns, own_ns)
        return at_ns


@dataclass
class Backlog:
    """Finds the device work that was launched before the recording began, in work that is added piece by piece."""

    _first_linked_ns: dict[tuple[int, int], int] = field(default_factory=dict)
    """Start of the first work with a recorded launch, by device and stream."""
    _unlinked: list[list[Integers]] = field(default_factory=list)
    """Row, start, end, device and stream of work without a recorded launch."""

    def add(
        self, rows: Integers, start_ns: Integers, end_ns: Integers, device: Integers, stream: Integers, linked: Integers
    ) -> None:
        """Add work; `linked` says whether its launch was recorded."""
        here = np.flatnonzero(linked)
        places, which = distinct_rows([device[here], stream[here]])
        first_ns = np.full(len(places) + 1, _LATEST, np.int64)  # the last entry is for work without a device or stream
        np.minimum.at(first_ns, which, start_ns[here])
        for (number, stream_number), first in zip(places.tolist(), first_ns.tolist(), strict=False):
            place = (number, stream_number)
            self._first_linked_ns[place] = min(first, self._first_linked_ns.get(place, first))
        others = np.flatnonzero(~linked)
        if len(others):
            self._unlinked.append([column[others] for column in (rows, start_ns, end_ns, device, stream)])

    def rows(self) -> Integers:
        """Return the rows of the work that was launched before the recording began, in ascending order."""
        if not self._unlinked or not self._first_linked_ns:
            return np.zeros(0, np.int64)
        rows, start_ns, end_ns, device, stream = map(np.concatenate, zip(*self._unlinked, strict=True))
        found = []
        for number in distinct(device).tolist():
            streams = {key[1]: first for key, first in self._first_linked_ns.items() if key[0] == number}
            if not streams:
                continue
            first_ns = min(streams.values())
            mine = np.flatnonzero(device == number)
            limit_ns = np.full(len(mine), first_ns, np.int64)
            for each in distinct(stream[mine]).tolist():
                limit_ns[stream[mine] == each] = streams.get(each, first_ns)
            mine = mine[start_ns[mine] < limit_ns]
            mine = mine[np.argsort(start_ns[mine], kind="stable")]
            # Work that begins after a pause was not in the queue.
            until_ns = np.maximum.accumulate(np.concatenate([[first_ns], end_ns[mine] + LONGEST_PAUSE_NS]))[:-1]
            queued = int(np.argmin(np.append(start_ns[mine] < until_ns, False)))
            found.append(rows[mine[:queued]])
        return np.sort(np.concatenate(found)) if found else np.zeros(0, np.int64)
