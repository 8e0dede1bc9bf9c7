"""Operators of PyTorch: the time they take on the host and cause on the device, alone and with what they call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sysbench.trace.attribution import Attribution
from sysbench.trace.grouping import grouped, summed
from sysbench.trace.intervals import depths, self_time_ns
from sysbench.trace.kernel_time import Counted
from sysbench.trace.recording import NONE, Integers
from sysbench.trace.summary import OperatorStatistics

MOST = 400
"""Operators that are kept, and as many again by the shapes of their inputs."""


class OperatorSums:
    """Of the operators in steps and of the work that counts. Grows with every slice."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._width = len(names) + 1
        self._by_name: list[list[Integers]] = []
        self._by_shapes: list[list[Integers]] = []

    def add(self, part: Counted) -> None:
        """Take in a slice."""
        operators, found = part.slice.operators, part.found
        parents = found.operators.parents
        self_device = _self_device(found, part.is_counted, len(operators.name))
        outermost = ~_within_same(operators.name, parents)
        columns = (
            np.ones(len(operators.name), np.int64),
            self_time_ns(found.operators, operators.duration_ns),
            np.where(outermost, operators.duration_ns, 0),
            self_device,
            np.where(outermost, _with_those_within(self_device, parents, depths(parents)), 0),
        )
        chosen = np.flatnonzero(part.operators_counted)
        shaped = np.flatnonzero(part.operators_counted & (operators.shapes != NONE))
        nothing = operators.name[chosen] * self._width
        self._by_name.append(_added(nothing, [column[chosen] for column in columns]))
        keys = operators.name[shaped] * self._width + operators.shapes[shaped] - NONE
        self._by_shapes.append(_added(keys, [column[shaped] for column in columns]))

    def statistics(self) -> list[OperatorStatistics]:
        """By name, then by name and shapes of the inputs."""
        return [*self._rows(self._by_name), *self._rows(self._by_shapes)]

    def _rows(self, parts: list[list[Integers]]) -> list[OperatorStatistics]:
        """One row for each name with each shapes, those that take most first."""
        keys, *columns = (np.concatenate(pieces) for pieces in zip(*parts, strict=True))
        groups, calls, self_host, total_host, self_device, total_device = _added(keys, columns)
        order = np.lexsort((-self_host, -self_device))[:MOST].tolist()
        return [
            OperatorStatistics(
                name=self._names[groups[row] // self._width],
                shapes=self._names[shape] if (shape := int(groups[row] % self._width) + NONE) != NONE else None,
                calls=int(calls[row]),
                self_host_ns=int(self_host[row]),
                total_host_ns=int(total_host[row]),
                self_device_ns=int(self_device[row]),
                total_device_ns=int(total_device[row]),
            )
            for row in order
        ]


def _added(keys: Integers, columns: Sequence[Integers]) -> list[Integers]:
    """The different keys in order, and the sums of each column over each of them."""
    groups, which = grouped(keys)
    return [groups, *(summed(column, which, len(groups)) for column in columns)]


def _self_device(found: Attribution, work: NDArray[np.bool_], count: int) -> Integers:
    if found.source != "device":
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
