"""Links from device work to the calls that launched it, and the work that was launched before the recording began.

When a recording begins, the device may still have a queue of work that the host launched earlier: kernels are recorded,
their launches are not. Work without a recorded launch belongs to this backlog if it runs before all work of its device
that has one. Streams have queues of their own: it also belongs to the backlog if it runs only before such work of its
own stream, unless its correlation number lies between those of recorded calls. Correlation numbers count the calls of
a process, so the launch of such work was lost in the middle of the recording.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sysbench.trace.columns import KeyIndex, distinct, distinct_rows, take_or_none
from sysbench.trace.recording import NONE, START, Integers, Launches, Table, column_index

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

    def spans(self, correlation: Integers) -> NDArray[np.bool_]:
        """Return whether each correlation number lies between those of recorded calls."""
        spanned: NDArray[np.bool_] = self.index.nearest(correlation) != NONE
        return spanned

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
    """Finds the work that was launched before the recording began, in work that is added piece by piece."""

    launches: LaunchIndex
    _first_linked_ns: dict[tuple[int, int], int] = field(default_factory=dict)
    """Start of the first work with a recorded launch, by device and stream."""
    _unlinked: list[list[Integers]] = field(default_factory=list)
    """Row, start, device and stream of work without a recorded launch, and whether its launch may have been lost."""

    def add(
        self, rows: Integers, start_ns: Integers, device: Integers, stream: Integers, correlation: Integers
    ) -> None:
        """Add work."""
        linked = self.launches.launch_of(correlation) != NONE
        here, others = np.flatnonzero(linked), np.flatnonzero(~linked)
        places, which = distinct_rows([device[here], stream[here]])
        first_ns = np.full(len(places) + 1, _LATEST, np.int64)  # the last entry is for work without a device or stream
        np.minimum.at(first_ns, which, start_ns[here])
        for (number, stream_number), first in zip(places.tolist(), first_ns.tolist(), strict=False):
            place = (number, stream_number)
            self._first_linked_ns[place] = min(first, self._first_linked_ns.get(place, first))
        if len(others):
            is_lost = self.launches.spans(correlation[others]).astype(np.int64)
            self._unlinked.append([*(column[others] for column in (rows, start_ns, device, stream)), is_lost])

    def rows(self) -> Integers:
        """Return the rows of the work that was launched before the recording began, in ascending order."""
        if not self._unlinked or not self._first_linked_ns:
            return np.zeros(0, np.int64)
        rows, start_ns, device, stream, is_lost = map(np.concatenate, zip(*self._unlinked, strict=True))
        until_ns = np.full(len(rows), np.iinfo(np.int64).min, np.int64)
        for number in distinct(device).tolist():
            streams = {place[1]: first for place, first in self._first_linked_ns.items() if place[0] == number}
            if not streams:
                continue
            until_ns[device == number] = min(streams.values())
            for each, first_ns in streams.items():
                until_ns[(device == number) & (stream == each) & (is_lost == 0)] = first_ns
        return np.sort(rows[start_ns < until_ns])
