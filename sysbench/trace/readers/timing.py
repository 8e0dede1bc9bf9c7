"""Omission of events whose recorded times cannot be right.

Profilers convert the clocks of devices to that of the host, and some files have a few events, most often the first of a
device, that lie hours away from all others, begin long before they were launched, or end before they begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sysbench import units
from sysbench.errors import LogError
from sysbench.trace.columns import take_or_none
from sysbench.trace.launches import LaunchIndex
from sysbench.trace.recording import (
    DURATION,
    NONE,
    START,
    Collectives,
    DeviceWork,
    Integers,
    Recording,
    Table,
    column_index,
    shift_to_zero,
)

MIN_DISTANCE_NS: Final = 600 * 10**9
"""Minimum distance of an event with a wrong time from all other events. Compilation can take minutes without events."""
MIN_LEAD_NS: Final = 10**9
"""Minimum time by which work with a wrong time precedes its launch. Clocks of devices are wrong by milliseconds."""
MIN_SHARE: Final = 0.8
"""Minimum share of events that lie together. If fewer do, no group of events can be called wrong."""
_SAMPLE_ROWS: Final = 65_536

Booleans = NDArray[np.bool_]


def with_consistent_times(recording: Recording) -> Recording:
    """Return the recording without events whose times cannot be right, and with its earliest start shifted to zero.

    Raises LogError if no event remains.
    """
    span = _span_of_most_events(recording.tables)
    on_host, on_device = _holds(span, is_on_host=True), _holds(span, is_on_host=False)
    launches = recording.launches.filter(on_host, START, DURATION)
    follows_launch = _follows_launch(recording.work, launches)

    def is_possible(start_ns: Integers, duration_ns: Integers, correlation: Integers) -> Booleans:
        return on_device(start_ns, duration_ns) & follows_launch(start_ns, correlation)

    columns = (START, DURATION, column_index(DeviceWork, "correlation"))
    kept = replace(
        recording,
        work=recording.work.filter(is_possible, *columns),
        launches=launches,
        operators=recording.operators.filter(on_host, START, DURATION),
        ranges=recording.ranges.filter(on_host, START, DURATION),
        collectives=recording.collectives.filter(
            is_possible, START, DURATION, column_index(Collectives, "correlation")
        ),
    )
    omitted = sum(map(len, recording.tables)) - sum(map(len, kept.tables))
    if not any(map(len, kept.tables)):
        raise LogError(f"{recording.title} has no events with a possible duration")
    origin_ns = shift_to_zero((*kept.tables, kept.collectives))
    if not omitted:
        return replace(kept, origin_ns=origin_ns)
    lost = recording.work.filter(lambda *event: ~is_possible(*event), *columns).column(columns[-1])
    index = LaunchIndex.of(launches)
    launch = index.launch_of(lost)
    return replace(
        kept,
        origin_ns=origin_ns,
        lost_launches_ns=tuple(index.start_ns[launch[launch != NONE]].tolist()),
        remarks=(*recording.remarks, f"{units.count(omitted)} events with impossible times were omitted"),
    )


@dataclass(frozen=True)
class _Span:
    """Time in which most events lie."""

    first_ns: float
    last_ns: float

    @property
    def margin_ns(self) -> float:
        return max(MIN_DISTANCE_NS, self.last_ns - self.first_ns)


def _span_of_most_events(tables: tuple[Table, ...]) -> _Span | None:
    """Return the time in which most events lie; None if no event can be far from the others."""
    bounds = [
        (*starts, *durations)
        for table in tables
        if (starts := table.bounds(START)) and (durations := table.bounds(DURATION))
    ]
    first_ns = min((first for first, *_ in bounds), default=0)
    if max((last + longest for _, last, _, longest in bounds), default=0) <= first_ns + MIN_DISTANCE_NS:
        return None
    step = sum(map(len, tables)) // _SAMPLE_ROWS + 1
    points = np.sort(np.concatenate([*_times(tables, step)]).astype(np.float64))
    edges = np.concatenate([[0], np.flatnonzero(np.diff(points) > MIN_DISTANCE_NS) + 1, [len(points)]])
    largest = int(np.argmax(np.diff(edges)))
    group = points[edges[largest] : edges[largest + 1]]
    return _Span(float(group[0]), float(group[-1])) if len(group) >= MIN_SHARE * len(points) else None


def _times(tables: tuple[Table, ...], step: int) -> Iterator[Integers]:
    for table in tables:
        for start_ns, duration_ns in table.chunks(START, DURATION):
            yield start_ns[::step]
            yield (start_ns + duration_ns)[::step]


def _holds(span: _Span | None, *, is_on_host: bool) -> Callable[[Integers, Integers], Booleans]:
    """Return a predicate of start and duration: whether the times of an event can be right."""

    def holds(start_ns: Integers, duration_ns: Integers) -> Booleans:
        possible: Booleans = duration_ns >= 0
        if span is None:
            return possible
        end_ns = start_ns + duration_ns
        begins_in = start_ns >= span.first_ns - span.margin_ns
        if is_on_host:  # a call may take longer than all that was recorded besides
            begins_in |= end_ns >= span.first_ns
        return possible & begins_in & (end_ns <= span.last_ns + span.margin_ns)

    return holds


def _follows_launch(work: Table, launches: Table) -> Callable[[Integers, Integers], Booleans]:
    """Return a predicate of start and correlation number: whether work does not begin long before its launch."""
    first_work, first_launch = work.bounds(START), launches.bounds(START)
    if first_work is None or first_launch is None or first_work[0] >= first_launch[0] - MIN_LEAD_NS:
        return lambda start_ns, _: np.ones(len(start_ns), bool)
    index = LaunchIndex.of(launches)

    def follows_launch(start_ns: Integers, correlation: Integers) -> Booleans:
        launch = index.launch_of(correlation)
        possible: Booleans = (launch == NONE) | (start_ns >= take_or_none(index.start_ns, launch) - MIN_LEAD_NS)
        return possible

    return follows_launch
