"""One step of all ranks on one clock: when each computes, and when its collectives run and are exposed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sysbench.trace.intervals import Stretches, union
from sysbench.trace.ranks.kinds import Kind
from sysbench.trace.ranks.matching import align, match, windows
from sysbench.trace.ranks.reading import Collective, Group, RankReading
from sysbench.trace.recording import NONE

Span = tuple[float, float]
"""Start and duration in seconds from the start of the step."""


@dataclass(frozen=True)
class Lane:
    """Collectives of one kind and group."""

    kind: Kind
    group: Group


@dataclass(frozen=True)
class Bar:
    """One collective on one rank."""

    number: int
    """In order of launch in its lane, from 1."""
    bytes: int | None
    span: Span
    exposed: tuple[Span, ...]
    """The parts of it during which nothing computes."""


@dataclass(frozen=True)
class Timeline:
    """One step of several ranks."""

    step: str
    duration_s: float
    """Until the last rank has ended it."""
    compute: Mapping[int, tuple[Span, ...]]
    """By rank."""
    collectives: Mapping[int, Mapping[Lane, tuple[Bar, ...]]]
    """By rank."""


def timeline(readings: Mapping[int, RankReading], resolution: int = 2000) -> Timeline | None:
    """Return the last step that all ranks have, or None if they have none in common.

    Readings must have been made with `compute`. Pauses shorter than the step over `resolution` are closed, so that the
    result is bounded, whatever the trace.
    """
    first, *others = (reading.steps for reading in readings.values())
    common = [step for step in first if all(step in steps for steps in others)]
    if not common:
        return None
    step = common[-1]
    alignment = align(readings, match(readings, common)[0])
    of_step = windows(readings, step, alignment)
    began_ns = min(start_ns for start_ns, _ in of_step.values())
    ended_ns = max(end_ns for _, end_ns in of_step.values())
    compute: dict[int, tuple[Span, ...]] = {}
    collectives: dict[int, dict[Lane, tuple[Bar, ...]]] = {}
    for rank, reading in sorted(readings.items()):
        computing = reading.compute or union(np.zeros(0, np.int64), np.zeros(0, np.int64))
        offset_ns = began_ns + alignment.offset_ns[rank]
        start_ns, end_ns = (each + alignment.offset_ns[rank] for each in of_step[rank])
        inside = _clipped(computing, start_ns, end_ns)
        shortest_ns = (ended_ns - began_ns) // resolution
        compute[rank] = _spans(_closed(inside, shortest_ns), offset_ns)
        lanes: dict[Lane, list[Bar]] = {}
        launched = Counter[Lane]()
        for each in reading.collectives:
            if each.step == NONE or reading.steps[each.step] != step:
                continue
            lane = Lane(each.kind, each.group)
            launched[lane] += 1
            lanes.setdefault(lane, []).append(_bar(launched[lane], each, computing, shortest_ns, offset_ns))
        collectives[rank] = {lane: tuple(bars) for lane, bars in lanes.items()}
    return Timeline(step, (ended_ns - began_ns) / 1e9, compute, collectives)


def _bar(number: int, each: Collective, computing: Stretches, shortest_ns: int, offset_ns: int) -> Bar:
    inside = _clipped(computing, each.start_ns, each.end_ns)
    edges = np.concatenate([[each.start_ns], np.ravel([inside.start_ns, inside.end_ns], order="F"), [each.end_ns]])
    exposed = union(edges[::2], edges[1::2])
    span = ((each.start_ns - offset_ns) / 1e9, (each.end_ns - each.start_ns) / 1e9)
    return Bar(number, each.bytes, span, _spans(_closed(exposed, shortest_ns), offset_ns))


def _clipped(stretches: Stretches, start_ns: int, end_ns: int) -> Stretches:
    return union(np.clip(stretches.start_ns, start_ns, end_ns), np.clip(stretches.end_ns, start_ns, end_ns))


def _closed(stretches: Stretches, shortest_ns: int) -> Stretches:
    """Close pauses that are shorter than this."""
    if not len(stretches.start_ns):
        return stretches
    apart = stretches.start_ns[1:] - stretches.end_ns[:-1] > shortest_ns
    first = np.concatenate([[True], apart])
    last = np.concatenate([apart, [True]])
    return union(stretches.start_ns[first], stretches.end_ns[last])


def _spans(stretches: Stretches, offset_ns: int) -> tuple[Span, ...]:
    start_s = (stretches.start_ns - offset_ns) / 1e9
    duration_s = (stretches.end_ns - stretches.start_ns) / 1e9
    return tuple(zip(start_s.tolist(), duration_s.tolist(), strict=True))
