"""Comparison of the ranks of one run: time breakdown, collectives, and the straggler."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, get_args

import numpy as np

from sysbench import units
from sysbench.statistics.summary import t_quantile
from sysbench.trace.columns import Intervals, union
from sysbench.trace.ranks.matching import Alignment, WaitTimes, align, match_collectives, wait_times
from sysbench.trace.ranks.reading import Breakdown, Collective, RankReading
from sysbench.trace.ranks.summary import (
    STRAGGLER_SHARE,
    Cause,
    Clock,
    CollectiveStatistics,
    Kind,
    RanksSummary,
    RankStep,
    Straggler,
)
from sysbench.trace.recording import NONE

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
    steps = [step for step in readings[ranks[0]].steps if all(step in each for each in labels)]
    matched, unmatched = match_collectives(readings, steps)
    alignment = align(readings, matched)
    waiting = wait_times(matched, alignment)
    waited = _waiting_intervals(waiting)
    breakdown = [row for rank in ranks for row in _breakdown(rank, readings[rank], steps)]
    world_size = next((reading.world_size for reading in readings.values() if reading.world_size is not None), None)
    return RanksSummary(
        source="device" if any(reading.source == "device" for reading in readings.values()) else "cpu",
        ranks=ranks,
        world_size=world_size,
        steps=steps,
        breakdown=breakdown,
        collectives=_statistics(readings, steps, waiting),
        clock=Clock(
            collectives=alignment.collectives,
            residual_ns=alignment.residual_ns,
            offsets_ns=dict(alignment.offset_ns),
        )
        if alignment.collectives
        else None,
        straggler=_straggler(ranks, steps, waited, breakdown)
        if all(each.matched.is_complete for each in waiting)
        else None,
        cautions=list(_cautions(readings, world_size or 0, steps, alignment, unmatched)),
    )


def _breakdown(rank: int, reading: RankReading, steps: Sequence[str]) -> Iterator[RankStep]:
    rows = zip(*(getattr(reading.breakdown, name).tolist() for name in Breakdown.__annotations__), strict=True)
    for step, row in zip(reading.steps, rows, strict=True):
        if step in steps:
            yield RankStep(rank=rank, step=step, **dict(zip(Breakdown.__annotations__, row, strict=True)))


Shape = tuple[Kind, int | None, int | None]
"""Kind, message size and group size."""


def _statistics(
    readings: Mapping[int, RankReading], steps: Sequence[str], waiting: Sequence[WaitTimes]
) -> list[CollectiveStatistics]:
    """Return one row per kind, message size and group size; longest total time first."""
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
                transfer_ns=sum(each.transfer_ns for each in calls),
                waits=sum(len(each.waiting_ns) for each in calls),
                waiting_ns=sum(int(each.waiting_ns.sum()) for each in calls),
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
    step_ns = float(np.mean([each.window_ns for each in breakdown]))
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
    readings: Mapping[int, RankReading], world_size: int, steps: Sequence[str], alignment: Alignment, unmatched: int
) -> Iterator[str]:
    missing = sorted({*range(world_size)} - readings.keys()) if len(readings) > 1 else []
    if missing:
        more = f" and {len(missing) - MAX_LISTED} more" if len(missing) > MAX_LISTED else ""
        which = f"rank{'' if len(missing) == 1 else 's'} {', '.join(map(str, missing[:MAX_LISTED]))}{more}"
        verb, them = ("is", "it") if len(missing) == 1 else ("are", "them")
        yield (
            f"{which} of {len(missing) + len(readings)} {verb} missing: transfer and waiting times exclude {them}, "
            "and no straggler can be named"
        )
    others = {rank: reading for rank, reading in readings.items() if set(reading.steps) != set(steps)}
    if others:
        listed = [f"rank {rank} has {len(each.steps)}" for rank, each in [*others.items()][:MAX_LISTED]]
        yield f"steps do not match: {', '.join(listed)}; the {len(steps)} steps common to all ranks are compared"
    ahead = {rank: offset for rank, offset in alignment.offset_ns.items() if abs(offset) > MIN_OFFSET_CAUTION_NS}
    if ahead:
        rank = max(ahead, key=lambda rank: abs(ahead[rank]))
        where = "ahead of" if ahead[rank] > 0 else "behind"
        yield (
            f"clocks differ: the clock of rank {rank} is {units.seconds(abs(ahead[rank]) * 1e-9)} {where} that of "
            f"rank {min(alignment.offset_ns)}; collectives are used to align them"
        )
    if unmatched:
        which = "1 collective is" if unmatched == 1 else f"{unmatched} collectives are"
        yield f"{which} not the same on all ranks of the group: transfer and waiting times are unknown"
