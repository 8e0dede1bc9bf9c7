"""Operators of PyTorch: the time they take on the host and cause on the device, alone and with what they call."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sysbench.analysis.attribution import Attribution
from sysbench.analysis.grouping import grouped, summed
from sysbench.analysis.intervals import depths, self_time_ns
from sysbench.analysis.trace import NONE, Integers, Trace
from sysbench.profile_summary import OperatorStatistics

MOST = 400
"""Operators that are kept, and as many again by the shapes of their inputs."""


def operator_statistics(
    trace: Trace, found: Attribution, chosen: NDArray[np.bool_], work: NDArray[np.bool_]
) -> list[OperatorStatistics]:
    """Of the operators that are chosen and of the work that is: by name, then by name and shapes of the inputs."""
    operators = trace.operators
    parents = found.operators.parents()
    self_device = _self_device(found, work, len(operators.name))
    outermost = ~_within_same(operators.name, parents)
    columns = (
        np.ones(len(operators.name), np.int64),
        self_time_ns(found.operators, operators.duration_ns),
        np.where(outermost, operators.duration_ns, 0),
        self_device,
        np.where(outermost, _with_those_within(self_device, parents, depths(parents)), 0),
    )
    no_shapes = np.full(len(operators.name), NONE, np.int64)
    return [
        *_by_group(trace, np.flatnonzero(chosen), no_shapes, columns),
        *_by_group(trace, np.flatnonzero(chosen & (operators.shapes != NONE)), operators.shapes, columns),
    ]


def _by_group(
    trace: Trace, asked: Integers, shapes: Integers, columns: tuple[Integers, ...]
) -> list[OperatorStatistics]:
    """One row for each name with each shapes, those that take most first."""
    width = len(trace.names) + 1
    keys = trace.operators.name[asked] * width + shapes[asked] - NONE
    groups, which = grouped(keys)
    sums = [summed(column[asked], which, len(groups)) for column in columns]
    calls, self_host, total_host, self_device, total_device = sums
    order = np.lexsort((-self_host, -self_device))[:MOST].tolist()
    return [
        OperatorStatistics(
            name=trace.names[groups[row] // width],
            shapes=trace.names[shape] if (shape := int(groups[row] % width) + NONE) != NONE else None,
            calls=int(calls[row]),
            self_host_ns=int(self_host[row]),
            total_host_ns=int(total_host[row]),
            self_device_ns=int(self_device[row]),
            total_device_ns=int(total_device[row]),
        )
        for row in order
    ]


def _self_device(found: Attribution, work: NDArray[np.bool_], count: int) -> Integers:
    if found.work.source != "device":
        return np.zeros(count, np.int64)
    caused = work & (found.operator != NONE)
    return summed(found.work.duration_ns[caused], found.operator[caused], count)


def _with_those_within(values: Integers, parents: Integers, depth: Integers) -> Integers:
    """Every value with those of all operators within, from the innermost outwards."""
    total = values.copy()
    order = np.argsort(-depth, kind="stable")
    levels = np.flatnonzero(np.diff(depth[order], prepend=-1, append=-1))
    for first, beyond in zip(levels[:-1].tolist(), levels[1:].tolist(), strict=True):
        here = order[first:beyond]
        here = here[parents[here] != NONE]
        np.add.at(total, parents[here], total[here])
    return total


def _within_same(name: Integers, parents: Integers) -> NDArray[np.bool_]:
    """Whether an operator lies within another one of the same name."""
    same = np.zeros(len(name), bool)
    outer, inside = parents.copy(), np.flatnonzero(parents != NONE)
    while len(inside):
        same[inside] |= name[inside] == name[outer[inside]]
        outer[inside] = parents[outer[inside]]
        inside = inside[(outer[inside] != NONE) & ~same[inside]]
    return same
