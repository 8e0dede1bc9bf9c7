"""Comparison of the ranks of one run: collectives matched across ranks, clocks, waiting times, and the straggler."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, get_args

import numpy as np

from sysbench import units
from sysbench.statistics.summary import t_quantile
from sysbench.trace.columns import Intervals, union
from sysbench.trace.ranks.reading import Collective, Group, RankReading
from sysbench.trace.ranks.summary import (
    ENDS_TOGETHER,
    STRAGGLER_SHARE,
    Cause,
    Clock,
    CollectiveStatistics,
    Kind,
    RanksSummary,
    RankStep,
    Straggler,
)
from sysbench.trace.recording import NONE, Integers

MIN_RANKS: Final = 2
"""Minimum number of traced ranks in a group for its collectives to be compared."""

MIN_OFFSET_CAUTION_NS: Final = 1_000_000
"""A clock offset above this causes a caution."""

MIN_WAITING_SHARE: Final = 0.05
"""A straggler is not reported if the waiting for it takes less than this share of a step."""

MIN_STEPS: Final = 3
"""With fewer steps, a rank that is always late cannot be distinguished from one that is late by chance."""

MIN_EXPLAINED_SHARE: Final = 0.5
"""A rank is named as the straggler only if its additional compute and idle time is at least this share of the waiting
for it. The share is below 1 because waiting ranks run ahead with compute, and later wait for compute that the late rank
has yet to finish."""

CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)

SIGNIFICANCE_LEVEL: Final = 0.01
"""Significance level: probability of naming a straggler although no rank is slower."""

MAX_LISTED: Final = 8


def summarise(readings: Mapping[int, RankReading]) -> RanksSummary:
    """Compare the readings of one or more ranks. For a single rank, waiting times are unknown."""
    ranks = sorted(readings)
    labels = [set(readings[rank].steps) for rank in ranks]
    steps = [step for step in readings[ranks[0]].steps if all(step in label for label in labels)]
    matched, unmatched = match_collectives(readings, steps)
    clock = align(readings, matched)
    waiting = wait_times(matched, clock)
    waited = _waiting_intervals(waiting)
    breakdown = [row for rank in ranks for row in _breakdown(rank, readings[rank], steps, waited)]
    world_size = next((reading.world_size for reading in readings.values() if reading.world_size is not None), None)
    return RanksSummary(
        source="device" if any(reading.source == "device" for reading in readings.values()) else "cpu",
        ranks=ranks,
        world_size=world_size,
        steps=steps,
        breakdown=breakdown,
        collectives=_statistics(readings, steps, waiting),
        clock=clock if clock.collectives else None,
        straggler=_straggler(ranks, steps, waited, breakdown)
        if all(each.matched.is_complete for each in waiting)
        else None,
        cautions=list(_cautions(readings, world_size or 0, steps, clock, unmatched)),
    )


def _breakdown(
    rank: int, reading: RankReading, steps: Sequence[str], waited: Mapping[WaitKey, Intervals]
) -> Iterator[RankStep]:
    for number, step in enumerate(reading.steps):
        if step in steps:
            durations = {name: int(column[number]) for name, column in vars(reading.breakdown).items()}
            causes = (intervals for (late, _, where), intervals in waited.items() if (late, where) == (rank, step))
            yield RankStep(rank=rank, step=step, caused_ns=sum(intervals.total_ns for intervals in causes), **durations)


Shape = tuple[Kind, int | None, int | None]
"""Kind, message size and group size."""


def _statistics(
    readings: Mapping[int, RankReading], steps: Sequence[str], waiting: Sequence[WaitTimes]
) -> list[CollectiveStatistics]:
    known = {id(event): each for each in waiting for event in each.matched.events}
    events: dict[Shape, list[Collective]] = defaultdict(list)
    for reading in readings.values():
        for event in reading.collectives:
            if event.step != NONE and reading.steps[event.step] in steps:
                found = known.get(id(event))
                size = found.matched.bytes if found else event.bytes
                events[event.kind, size, event.group.size].append(event)
    rows = []
    for (kind, size, group_size), same_shape in events.items():
        calls = {id(found): found for event in same_shape if (found := known.get(id(event)))}.values()
        unmatched = sum(id(event) not in known for event in same_shape)
        group_ranks = min(group_size or len(readings), len(readings))
        rows.append(
            CollectiveStatistics(
                kind=kind,
                bytes=size,
                group_size=group_size,
                calls=len(calls) + math.ceil(unmatched / group_ranks),
                events=len(same_shape),
                duration_ns=sum(event.end_ns - event.start_ns for event in same_shape),
                matched=len(calls),
                transfer_ns=sum(call.transfer_ns for call in calls),
                waits=sum(len(call.waiting_ns) for call in calls),
                waiting_ns=sum(int(call.waiting_ns.sum()) for call in calls),
            )
        )
    return sorted(rows, key=lambda row: -row.duration_ns)


WaitKey = tuple[int, int, str]
"""The late rank, the waiting rank, and the step."""


def _waiting_intervals(waiting: Sequence[WaitTimes]) -> dict[WaitKey, Intervals]:
    """Return the intervals in which each rank waits for each other rank; simultaneous collectives count once."""
    found: dict[WaitKey, list[tuple[int, int]]] = defaultdict(list)
    for each in waiting:
        for rank, event, waiting_ns in zip(each.matched.ranks, each.matched.events, each.waiting_ns, strict=True):
            if waiting_ns:
                # Both times are on the clock of the waiting rank.
                interval = (event.start_ns, event.start_ns + int(waiting_ns))
                found[each.last, rank, each.matched.step].append(interval)
    return {key: union(*np.array(intervals, np.int64).T) for key, intervals in found.items()}


def _straggler(
    ranks: Sequence[int], steps: Sequence[str], waited: Mapping[WaitKey, Intervals], breakdown: Sequence[RankStep]
) -> Straggler | None:
    """Return the rank that causes nearly all waiting; None if no rank does, or if the cause is unclear.

    The waiting for the straggler must take a notable share of the step. It must also significantly exceed the waiting
    for all other ranks together, by a one-sided t-test over steps that is corrected for selecting the worst of all
    ranks.
    """
    if len(steps) < MIN_STEPS or not waited:
        return None
    caused_ns = np.zeros((len(ranks), len(steps)))
    for (late, _, step), intervals in waited.items():
        caused_ns[ranks.index(late), steps.index(step)] += intervals.total_ns
    row = int(caused_ns.sum(axis=1).argmax())
    rank, by_step = ranks[row], caused_ns[row]
    share = float(by_step.sum() / caused_ns.sum())
    lead = 2 * by_step - caused_ns.sum(axis=0)
    error = lead.std(ddof=1) / math.sqrt(len(steps))
    is_insignificant = lead.mean() <= t_quantile(1 - 2 * SIGNIFICANCE_LEVEL / len(ranks), len(steps) - 1) * error
    step_ns = float(np.mean([step.window_ns for step in breakdown]))
    waiting_ns = float(by_step.mean()) / len({waiter for late, waiter, _ in waited if late == rank})
    if is_insignificant or share < STRAGGLER_SHARE or waiting_ns < MIN_WAITING_SHARE * step_ns:
        return None
    excess_ns = {cause: _excess_over_others(rank, f"{cause}_ns", breakdown) / len(steps) for cause in CAUSES}
    cause = max(CAUSES, key=lambda each: excess_ns[each])
    lost_ns = sum(max(each, 0.0) for each in excess_ns.values())
    # The cause must explain the waiting. Otherwise clocks and ends of collectives were too inaccurate.
    if lost_ns < MIN_EXPLAINED_SHARE * waiting_ns or excess_ns[cause] < STRAGGLER_SHARE * lost_ns:
        return None
    return Straggler(rank=rank, share=share, waiting_ns=waiting_ns, step_ns=step_ns, cause=cause)


def _excess_over_others(rank: int, name: str, breakdown: Sequence[RankStep]) -> float:
    totals = Counter[int]()
    for row in breakdown:
        totals[row.rank] += getattr(row, name)
    return totals[rank] - float(np.median([total for each, total in totals.items() if each != rank]))


def _cautions(
    readings: Mapping[int, RankReading], world_size: int, steps: Sequence[str], clock: Clock, unmatched: int
) -> Iterator[str]:
    missing = sorted({*range(world_size)} - readings.keys()) if len(readings) > 1 else []
    if missing:
        more = ", …" if len(missing) > MAX_LISTED else ""
        which = f"{', '.join(map(str, missing[:MAX_LISTED]))}{more}"
        yield (
            f"traces missing of {len(missing)} of {world_size} ranks ({which}): "
            "transfer and waiting times exclude them, and no straggler can be named"
        )
    others = {rank: reading for rank, reading in readings.items() if set(reading.steps) != set(steps)}
    if others:
        listed = [f"rank {rank} has {len(reading.steps)}" for rank, reading in [*others.items()][:MAX_LISTED]]
        yield f"steps do not match: {', '.join(listed)}; the {len(steps)} steps common to all ranks are compared"
    ahead = {rank: offset for rank, offset in clock.offsets_ns.items() if abs(offset) > MIN_OFFSET_CAUTION_NS}
    if ahead:
        rank = max(ahead, key=lambda rank: abs(ahead[rank]))
        where = "ahead of" if ahead[rank] > 0 else "behind"
        yield (
            f"clocks differ: the clock of rank {rank} is {units.seconds(abs(ahead[rank]) * 1e-9)} {where} that of "
            f"rank {min(clock.offsets_ns)}; collectives are used to align them"
        )
    if unmatched:
        yield f"collectives that are not the same on all ranks, so transfer and waiting are unknown: {unmatched}"


# --- matching, clocks and waiting


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
        return np.array([event.start_ns for event in self.events], np.int64)

    @property
    def end_ns(self) -> Integers:
        """Return the collective's end on each rank, by that rank's clock."""
        return np.array([event.end_ns for event in self.events], np.int64)


@dataclass(frozen=True)
class WaitTimes:
    """Transfer time of one collective, the shortest duration over ranks, and each rank's waiting time.

    The rest of a rank's duration is waiting, but only until the last rank arrives.
    """

    matched: MatchedCollective
    transfer_ns: int
    waiting_ns: Integers
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
        for collective in reading.collectives:
            if (
                collective.step == NONE
                or collective.kind == "send_recv"
                or (step := reading.steps[collective.step]) not in steps
            ):
                continue
            if collective.sequence != NONE:
                found[collective.group, "", collective.sequence][rank] = collective
            else:
                counted[collective.group, step] += 1
                found[collective.group, step, counted[collective.group, step]][rank] = collective
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
        if len(ranks) < expected or expected > size or len({event.kind for event in events.values()}) > 1:
            unmatched += 1
            continue
        first = events[ranks[0]]
        sizes = [event.bytes for event in events.values() if event.bytes is not None]
        step = readings[ranks[0]].steps[first.step]
        ordered_events = tuple(events[rank] for rank in ranks)
        matched.append(
            MatchedCollective(
                first.kind, max(sizes, default=None), group, step, tuple(ranks), ordered_events, expected == size
            )
        )
    return matched, unmatched


def align(readings: Mapping[int, RankReading], matched: Sequence[MatchedCollective]) -> Clock:
    """Align the ranks' clocks by the collectives that end at the same time on all ranks.

    The offset between two ranks is the median difference between these end times. CPU traces from one host share a
    clock, so their offset is 0: there a thread records an end only when it is next scheduled.
    """
    aligning = [collective for collective in matched if collective.kind in ENDS_TOGETHER]
    differences_by_pair: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for collective in aligning:
        first, *others = collective.ranks
        end_differences_ns = collective.end_ns[1:] - collective.end_ns[0]
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
    spreads = [int(np.ptp(_aligned(collective.end_ns, collective.ranks, offset_ns))) for collective in aligning]
    residual_ns = int(np.median(spreads)) if spreads else 0
    return Clock(collectives=len(aligning), residual_ns=residual_ns, offsets_ns=offset_ns)


def _aligned(times_ns: Integers, ranks: Sequence[int], offset_ns: Mapping[int, int]) -> Integers:
    return times_ns - np.array([offset_ns[rank] for rank in ranks], np.int64)


def wait_times(matched: Sequence[MatchedCollective], clock: Clock) -> list[WaitTimes]:
    """Return the transfer and waiting times of the collectives that end at the same time on all ranks."""
    found = []
    for collective in matched:
        if collective.kind not in ENDS_TOGETHER:
            continue
        duration_ns = collective.end_ns - collective.start_ns
        arrival_ns = _aligned(collective.start_ns, collective.ranks, clock.offsets_ns)
        transfer_ns = int(duration_ns.min())
        waiting_ns = np.minimum(duration_ns - transfer_ns, arrival_ns.max() - arrival_ns)
        found.append(WaitTimes(collective, transfer_ns, waiting_ns, collective.ranks[int(arrival_ns.argmax())]))
    return found
