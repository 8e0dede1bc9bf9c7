"""Statistics of single kernels within ranges: mean and extreme times, and launch shapes.

Also selects the ranges with their own kernel tables, and the kernels in each table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sysbench.trace.grouping import distinct as different
from sysbench.trace.grouping import grouped, summed
from sysbench.trace.intervals import depths, self_time_ns
from sysbench.trace.kernels.time import WORK_PHASES, Calls, KernelTime, Kinds, StepWork, phases_present
from sysbench.trace.recording import NONE, Integers
from sysbench.trace.summary import STEP, KernelStatistics, OperatorStatistics, ancestry, folded

MOST_RANGES: Final = 80
"""Number of folded modules with their own kernel table: those with the most time."""
MOST_KERNELS: Final = 100
"""Number of kernels with statistics per range: those with the most time. `ProfileSummary.spent` has all of them."""


@dataclass(frozen=True)
class KernelRange:
    """A range: a set of modules, in one phase or in all of them."""

    name: str
    modules: NDArray[np.bool_]
    """Whether each module belongs to the range."""
    phase: int | None
    """Position in WORK_PHASES; None for all phases."""

    def holds(self, module: NDArray[np.integer[Any]], phase: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Return which rows of these columns belong to the range."""
        chosen = self.modules[module]
        return chosen if self.phase is None else np.asarray(chosen & (phase == self.phase))

    def longest(self, time: KernelTime) -> Integers:
        """Return positions in `KernelTime.kernels` of the kernels with the most time in the range, longest first."""
        here = self.holds(time.module, time.phase)
        total = summed(time.total_ns[here], time.kernel[here], len(time.kernels))
        there = np.flatnonzero(np.bincount(time.kernel[here], minlength=len(time.kernels)))
        return there[np.argsort(-total[there], kind="stable")][:MOST_KERNELS]


def kernel_ranges(time: KernelTime, asked: Sequence[str]) -> Iterator[KernelRange]:
    """Yield the step, its phases, the modules with the most time, and modules requested by name."""
    everywhere = np.ones(len(time.modules), bool)
    present = phases_present(time)
    yield KernelRange(STEP, everywhere, None)
    for phase in present:
        yield KernelRange(WORK_PHASES[phase], everywhere, phase)
    done = set()
    for name in [*_folded_by_time(time), *asked]:
        before, slash, path = name.rpartition("/")
        wanted = [WORK_PHASES.index(before)] if slash and before in WORK_PHASES else present
        candidates = (folded(module) if "*" in path else module for module in time.modules)
        modules = np.array([module == path or module.startswith(f"{path}.") for module in candidates], bool)
        if path in done or not modules.any():
            continue
        done.add(path)
        if not slash:
            yield KernelRange(path, modules, None)
        for phase in wanted:
            yield KernelRange(f"{WORK_PHASES[phase]}/{path}", modules, phase)


def _folded_by_time(time: KernelTime) -> list[str]:
    """Return folded modules by their total time including everything below them, largest first."""
    total: dict[str, int] = {}
    for path, total_ns in zip(time.modules, time.by_module_ns.tolist(), strict=True):
        for above in ancestry(folded(path)):
            total[above] = total.get(above, 0) + total_ns
    # `layers` covers the same modules as `layers.*`.
    counted = [path for path in total if f"{path}.*" not in total]
    return sorted(counted, key=lambda path: -total[path])[:MOST_RANGES]


_CALLS: Final = 400_000
"""Number of calls that are sorted at a time, unless a single kernel has more."""


def kernel_statistics(
    calls: Calls, time: KernelTime, ranges: Sequence[KernelRange], shapes: Integers, names: int
) -> list[KernelStatistics]:
    """Return a row for each of the longest kernels in each range, range by range, by total time.

    `shapes` are the recording's launch shapes, and `names` is its number of names.
    """
    wanted = np.zeros((len(ranges), len(time.kernels)), bool)
    for number, each in enumerate(ranges):
        wanted[number, each.longest(time)] = True
    found: list[list[KernelStatistics]] = [[] for _ in ranges]
    position = np.full(names, NONE, np.int32)
    position[time.kernels] = np.arange(len(time.kernels))
    chosen = np.flatnonzero(wanted.any(axis=0))
    # Kernels are processed in groups, so that the number of their calls stays limited.
    batch = np.cumsum(summed(time.calls, time.kernel, len(time.kernels))[chosen]) // _CALLS
    for part in different(batch).tolist():
        kernels = chosen[batch == part]
        named = np.zeros(names, bool)
        named[time.kernels[kernels]] = True
        ordered = _Ordered(calls.of_kernels(named), position, time, shapes)
        for number, each in enumerate(ranges):
            if wanted[number, kernels].any():
                found[number] += ordered.within(each, wanted[number])
    return [row for rows in found for row in sorted(rows, key=lambda row: -row.total_ns)]


class _Ordered:
    """Calls of kernels, sorted by kernel and then by duration."""

    def __init__(self, calls: Kinds, position: NDArray[np.int32], time: KernelTime, shapes: Integers) -> None:
        kernel = position[calls.name]
        order = np.lexsort((calls.duration_ns, kernel))
        self._kernel = kernel[order]
        self._duration_ns = calls.duration_ns[order]
        self._launch_shape = calls.launch_shape[order]
        self._module = time.module_places[calls.module[order]]
        self._phase = calls.phase[order]
        self._shapes = shapes

    def within(self, range_: KernelRange, wanted: NDArray[np.bool_]) -> Iterator[KernelStatistics]:
        """Yield statistics of the wanted kernels within a range."""
        picked = np.flatnonzero(range_.holds(self._module, self._phase) & wanted[self._kernel])
        return self._rows(range_.name, picked) if len(picked) else iter(())

    def _rows(self, range_name: str, picked: Integers) -> Iterator[KernelStatistics]:
        kernels, durations = self._kernel[picked], self._duration_ns[picked]
        first = np.flatnonzero(np.diff(kernels, prepend=kernels[0] - 1))
        calls = np.diff(first, append=len(kernels))
        totals = np.add.reduceat(durations, first)
        means = totals / calls
        squares = np.add.reduceat((durations - np.repeat(means, calls)) ** 2, first)
        deviations = np.sqrt(squares / np.maximum(calls - 1, 1))
        last = first + calls - 1
        medians = (durations[first + (calls - 1) // 2] + durations[first + calls // 2]) / 2
        shapes, distinct = self._shapes_of(picked, first)
        for number in range(len(first)):
            shape = shapes[number] if distinct[number] == 1 else None
            yield KernelStatistics(
                range=range_name,
                kernel=int(kernels[first[number]]),
                total_ns=int(totals[number]),
                calls=int(calls[number]),
                mean_ns=float(means[number]),
                median_ns=float(medians[number]),
                min_ns=int(durations[first[number]]),
                max_ns=int(durations[last[number]]),
                std_ns=float(deviations[number]),
                grid=(int(shape[0]), int(shape[1]), int(shape[2])) if shape is not None else None,
                block=(int(shape[3]), int(shape[4]), int(shape[5])) if shape is not None else None,
                launch_shapes=int(distinct[number]),
            )

    def _shapes_of(self, picked: Integers, first: Integers) -> tuple[Integers, Integers]:
        """Return one launch shape of every kernel, and how many different ones were recorded."""
        shape = self._launch_shape[picked]
        group = np.zeros(len(picked), np.int64)
        group[first[1:]] = 1
        width = len(self._shapes) + 1
        group, number = np.divmod(different(np.cumsum(group) * width + shape - NONE), width)
        known = number + NONE != NONE
        distinct = np.bincount(group[known], minlength=len(first))
        one = np.zeros(len(first), np.int64)
        one[group[known]] = number[known] + NONE
        return (self._shapes[one] if len(self._shapes) else np.zeros((len(first), 6), np.int64)), distinct


# --- operators

MOST_OPERATORS = 400
"""Number of operators that are kept, and again for operators by input shapes."""


class OperatorSums:
    """Sums over the operators in steps, and over the work that they launch, collected slice by slice."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._width = len(names) + 1
        self._by_name: list[list[Integers]] = []
        self._by_shapes: list[list[Integers]] = []

    def add(self, part: StepWork) -> None:
        """Add a slice."""
        operators, found = part.slice.operators, part.found
        parents = found.operators.parents
        self_device = np.zeros(len(operators.name), np.int64)
        if found.source == "device":
            caused = part.is_counted & (found.operator != NONE)
            self_device = summed(found.work.duration_ns[caused], found.operator[caused], len(operators.name))
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
        self._by_name.append(_added_up(nothing, [column[chosen] for column in columns]))
        keys = operators.name[shaped] * self._width + operators.shapes[shaped] - NONE
        self._by_shapes.append(_added_up(keys, [column[shaped] for column in columns]))

    def statistics(self) -> list[OperatorStatistics]:
        """Return operators by name, then by name and input shapes."""
        return [*self._rows(self._by_name), *self._rows(self._by_shapes)]

    def _rows(self, parts: list[list[Integers]]) -> list[OperatorStatistics]:
        """Return one row for each name with given shapes, longest total time first."""
        keys, *columns = (np.concatenate(pieces) for pieces in zip(*parts, strict=True))
        groups, calls, self_host, total_host, self_device, total_device = _added_up(keys, columns)
        order = np.lexsort((-self_host, -self_device))[:MOST_OPERATORS].tolist()
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


def _added_up(keys: Integers, columns: Sequence[Integers]) -> list[Integers]:
    """Return the distinct keys in order, and the sum of each column for each key."""
    groups, which = grouped(keys)
    return [groups, *(summed(column, which, len(groups)) for column in columns)]


def _with_those_within(values: Integers, parents: Integers, depth: Integers) -> Integers:
    """Add to every value the values of all enclosed operators, from the innermost outwards."""
    total = values.copy()
    order = np.argsort(-depth, kind="stable")
    levels = np.flatnonzero(np.diff(depth[order], prepend=-1, append=-1))
    for first, beyond in zip(levels[:-1].tolist(), levels[1:].tolist(), strict=True):
        here = order[first:beyond]
        here = here[parents[here] != NONE]
        np.add.at(total, parents[here], total[here])
    return total


def _within_same(name: Integers, parents: Integers) -> NDArray[np.bool_]:
    """Return whether each operator is inside another one of the same name."""
    same = np.zeros(len(name), bool)
    outer, inside = parents.copy(), np.flatnonzero(parents != NONE)
    while len(inside):
        same[inside] |= name[inside] == name[outer[inside]]
        outer[inside] = parents[outer[inside]]
        inside = inside[(outer[inside] != NONE) & ~same[inside]]
    return same
