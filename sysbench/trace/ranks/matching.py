"""Match collectives across ranks, align the ranks' clocks, and compute waiting times."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from sysbench.trace.ranks.reading import Collective, Group, RankReading
from sysbench.trace.ranks.summary import ENDS_TOGETHER, Kind
from sysbench.trace.recording import NONE, Integers

MIN_RANKS: Final = 2
"""Minimum number of traced ranks in a group for its collectives to be compared."""


@dataclass(frozen=True)
class MatchedCollective:
    """A collective that was found in the traces of all traced ranks of its group."""

    kind: Kind
    bytes: int | None
    group: Group
    step: str
    ranks: tuple[int, ...]
    events: tuple[Collective, ...]
    """One event for each of `ranks`."""
    is_complete: bool
    """Whether all ranks of the group have traces."""

    @property
    def start_ns(self) -> Integers:
        """Return the collective's start on each rank, by that rank's clock."""
        return np.array([each.start_ns for each in self.events], np.int64)

    @property
    def end_ns(self) -> Integers:
        """Return the collective's end on each rank, by that rank's clock."""
        return np.array([each.end_ns for each in self.events], np.int64)


@dataclass(frozen=True)
class WaitTimes:
    """Transfer time of one collective, and each rank's waiting time."""

    matched: MatchedCollective
    transfer_ns: int
    waiting_ns: Integers
    """Waiting time of each of the collective's ranks."""
    last: int
    """The rank that arrives last."""


Key = tuple[Group, str, int]
"""Group, step, and the collective's number within them; the step is empty if collectives are numbered per group."""


def match_collectives(readings: Mapping[int, RankReading], steps: Sequence[str]) -> tuple[list[MatchedCollective], int]:
    """Match collectives across ranks by process group and number; also return how many could not be matched.

    If no numbers were recorded, the collectives of a group are counted from the start of each step in `steps`.
    Point-to-point messages are not matched.
    """
    found: dict[Key, dict[int, Collective]] = defaultdict(dict)
    for rank, reading in readings.items():
        counted = Counter[tuple[Group, str]]()
        for each in reading.collectives:
            if each.step == NONE or each.kind == "send_recv" or (step := reading.steps[each.step]) not in steps:
                continue
            if each.sequence != NONE:
                found[each.group, "", each.sequence][rank] = each
            else:
                counted[each.group, step] += 1
                found[each.group, step, counted[each.group, step]][rank] = each
    traced_ranks: dict[Group, set[int]] = defaultdict(set)
    for (group, *_), events in found.items():
        traced_ranks[group] |= events.keys()
    matched = []
    unmatched = 0
    for (group, *_), events in found.items():
        ranks = sorted(events)
        expected = len(traced_ranks[group]) if group.ranks is None else len(set(group.ranks) & readings.keys())
        size = group.size or len(readings)
        if expected < MIN_RANKS:
            continue
        if len(ranks) < expected or expected > size or len({each.kind for each in events.values()}) > 1:
            unmatched += 1
            continue
        first = events[ranks[0]]
        sizes = [each.bytes for each in events.values() if each.bytes is not None]
        step = readings[ranks[0]].steps[first.step]
        ordered_events = tuple(events[rank] for rank in ranks)
        matched.append(
            MatchedCollective(
                first.kind, max(sizes, default=None), group, step, tuple(ranks), ordered_events, expected == size
            )
        )
    return matched, unmatched


@dataclass(frozen=True)
class Alignment:
    """Offset of each rank's clock, and the residual error.

    The error is how far apart the ends of the same collective on different ranks are after alignment.
    """

    offset_ns: Mapping[int, int]
    collectives: int
    residual_ns: int

    def aligned(self, ranks: Sequence[int], times_ns: Integers) -> Integers:
        """Convert times on these ranks' own clocks to the clock of the first rank."""
        return times_ns - np.array([self.offset_ns[rank] for rank in ranks], np.int64)


def align(readings: Mapping[int, RankReading], matched: Sequence[MatchedCollective]) -> Alignment:
    """Align the ranks' clocks by the collectives that end at the same time on all ranks.

    The offset between two ranks is the median difference between these end times. Each rank is compared with the lowest
    rank of the collective. Ranks that share no collective need no alignment. CPU traces from one host share a clock, so
    their offset is 0. In such traces a thread records an end only when it is next scheduled, so the end times only show
    how accurate the alignment is.
    """
    aligning = [each for each in matched if each.kind in ENDS_TOGETHER]
    differences_by_pair: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for each in aligning:
        first, *others = each.ranks
        end_differences_ns = each.end_ns[1:] - each.end_ns[0]
        for rank, difference_ns in zip(others, end_differences_ns.tolist(), strict=True):
            one, other = readings[first], readings[rank]
            if one.source == other.source == "cpu" and one.host is not None and one.host == other.host:
                difference_ns = 0
            differences_by_pair[first][rank].append(difference_ns)
            differences_by_pair[rank][first].append(-difference_ns)
    offset_ns: dict[int, int] = {}
    for start in sorted(readings):
        offset_ns.setdefault(start, 0)
        queue = [start]
        while queue:
            current = queue.pop()
            for rank, differences_ns in differences_by_pair[current].items():
                if rank not in offset_ns:
                    offset_ns[rank] = offset_ns[current] + int(np.median(differences_ns))
                    queue.append(rank)
    alignment = Alignment(offset_ns, len(aligning), 0)
    spreads = [int(np.ptp(alignment.aligned(each.ranks, each.end_ns))) for each in aligning]
    return Alignment(offset_ns, len(aligning), int(np.median(spreads)) if spreads else 0)


def wait_times(matched: Sequence[MatchedCollective], alignment: Alignment) -> list[WaitTimes]:
    """Return the transfer and waiting times of the collectives that end at the same time on all ranks.

    The transfer time is the shortest duration over ranks. The rest of a rank's duration is waiting, but only until the
    last rank arrives.
    """
    found = []
    for each in matched:
        if each.kind not in ENDS_TOGETHER:
            continue
        duration_ns = each.end_ns - each.start_ns
        arrival_ns = alignment.aligned(each.ranks, each.start_ns)
        transfer_ns = int(duration_ns.min())
        waiting_ns = np.minimum(duration_ns - transfer_ns, arrival_ns.max() - arrival_ns)
        found.append(WaitTimes(each, transfer_ns, waiting_ns, each.ranks[int(arrival_ns.argmax())]))
    return found
