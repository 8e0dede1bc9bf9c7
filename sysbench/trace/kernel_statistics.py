"""Statistics of single kernels within ranges: what they take on average and at worst, and how they were launched.

The ranges that have kernel tables of their own, and which kernels are in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sysbench.trace.calls import Calls, Kinds
from sysbench.trace.grouping import distinct as different
from sysbench.trace.grouping import summed
from sysbench.trace.kernel_time import COUNTED_PHASES, Spent, phases_present
from sysbench.trace.recording import NONE, Integers
from sysbench.trace.summary import KernelStatistics

MOST_RANGES: Final = 80
"""Folded modules that have kernel tables of their own: those that take most time."""
MOST_KERNELS: Final = 100
"""Kernels whose statistics are kept for each range: those that take most time in it. The time of all is in `spent`."""
STEP: Final = "step"
"""The range that is everything."""
_NUMBER: Final = re.compile(r"(^|\.)\d+(?=\.|$)")


def folded(path: str) -> str:
    """`layers.*.attention` for `layers.3.attention`: what stands for every layer."""
    return _NUMBER.sub(r"\1*", path)


@dataclass(frozen=True)
class KernelRange:
    """What a range's kernels are chosen by: modules, and a phase or all of them."""

    name: str
    modules: NDArray[np.bool_]
    """For every module, whether it belongs to it."""
    phase: int | None
    """Position in COUNTED_PHASES."""

    def holds(self, module: NDArray[np.integer[Any]], phase: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Which rows of these columns belong to it."""
        chosen = self.modules[module]
        return chosen if self.phase is None else np.asarray(chosen & (phase == self.phase))

    def longest(self, spent: Spent) -> Integers:
        """Its kernels, as positions in `Spent.kernels`: those that take most time in it, the longest first."""
        here = self.holds(spent.module, spent.phase)
        total = summed(spent.total_ns[here], spent.kernel[here], len(spent.kernels))
        there = np.flatnonzero(np.bincount(spent.kernel[here], minlength=len(spent.kernels)))
        return there[np.argsort(-total[there], kind="stable")][:MOST_KERNELS]


def kernel_ranges(spent: Spent, asked: Sequence[str]) -> Iterator[KernelRange]:
    """The step, its phases, the modules that take most time, and what is asked for by name beside them."""
    everywhere = np.ones(len(spent.modules), bool)
    present = phases_present(spent)
    yield KernelRange(STEP, everywhere, None)
    for phase in present:
        yield KernelRange(COUNTED_PHASES[phase], everywhere, phase)
    done = set()
    for name in [*_folded_by_time(spent), *asked]:
        before, slash, path = name.rpartition("/")
        wanted = [COUNTED_PHASES.index(before)] if slash and before in COUNTED_PHASES else present
        modules = _below(spent.modules, path)
        if path in done or not modules.any():
            continue
        done.add(path)
        if not slash:
            yield KernelRange(path, modules, None)
        for phase in wanted:
            yield KernelRange(f"{COUNTED_PHASES[phase]}/{path}", modules, phase)


def _below(modules: Sequence[str], path: str) -> NDArray[np.bool_]:
    """The modules at the path, folded or not, and below it."""
    candidates = (folded(module) if "*" in path else module for module in modules)
    return np.array([module == path or module.startswith(f"{path}.") for module in candidates], bool)


def _folded_by_time(spent: Spent) -> list[str]:
    """Folded modules, those that take most time together with everything below them first."""
    total: dict[str, int] = {}
    for path, total_ns in zip(spent.modules, spent.by_module_ns.tolist(), strict=True):
        parts = folded(path).split(".") if path else []
        for depth in range(1, len(parts) + 1):
            above = ".".join(parts[:depth])
            total[above] = total.get(above, 0) + total_ns
    # `layers` says the same as `layers.*`.
    counted = [path for path in total if f"{path}.*" not in total]
    return sorted(counted, key=lambda path: -total[path])[:MOST_RANGES]


_CALLS: Final = 400_000
"""That are looked at together, where they are not all of one kernel."""


def kernel_statistics(
    calls: Calls, spent: Spent, ranges: Sequence[KernelRange], shapes: Integers, names: int
) -> list[KernelStatistics]:
    """A row for every kernel that counts most in each range, range by range, the longest in total first.

    `shapes` are the recording's launch shapes, and `names` is how many names it has.
    """
    wanted = np.zeros((len(ranges), len(spent.kernels)), bool)
    for number, each in enumerate(ranges):
        wanted[number, each.longest(spent)] = True
    found: list[list[KernelStatistics]] = [[] for _ in ranges]
    position = np.full(names, NONE, np.int32)
    position[spent.kernels] = np.arange(len(spent.kernels))
    for kernels in _batches(np.flatnonzero(wanted.any(axis=0)), summed(spent.calls, spent.kernel, len(spent.kernels))):
        named = np.zeros(names, bool)
        named[spent.kernels[kernels]] = True
        ordered = _Ordered(calls.of_kernels(named), position, spent, shapes)
        for number, each in enumerate(ranges):
            if wanted[number, kernels].any():
                found[number] += ordered.within(each, wanted[number])
    return [row for rows in found for row in sorted(rows, key=lambda row: -row.total_ns)]


def _batches(kernels: Integers, calls: Integers) -> Iterator[Integers]:
    """Kernels in order, so many at a time that their calls are not too many."""
    group = np.cumsum(calls[kernels]) // _CALLS
    for first in different(group).tolist():
        yield kernels[group == first]


class _Ordered:
    """Calls of kernels, ordered by kernel and then by duration."""

    def __init__(self, calls: Kinds, position: NDArray[np.int32], spent: Spent, shapes: Integers) -> None:
        kernel = position[calls.name]
        order = np.lexsort((calls.duration_ns, kernel))
        self._kernel = kernel[order]
        self._duration_ns = calls.duration_ns[order]
        self._launch_shape = calls.launch_shape[order]
        self._module = spent.module_places[calls.module[order]]
        self._phase = calls.phase[order]
        self._shapes = shapes

    def within(self, range_: KernelRange, wanted: NDArray[np.bool_]) -> Iterator[KernelStatistics]:
        """Statistics of the kernels that are wanted, within a range."""
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
        """For every kernel, one of its shapes, and how many different ones were recorded."""
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
