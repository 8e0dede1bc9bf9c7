"""Statistics of kernels by name within ranges: one ordering for all ranges, and sums over stretches of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sysbench.analysis.grouping import distinct as different
from sysbench.analysis.trace import NONE, Integers
from sysbench.profile_summary import KernelStatistics


@dataclass(frozen=True)
class Calls:
    """Calls of kernels, ordered by name and then by duration."""

    place: Integers
    """Of what was given, in this order."""
    name: Integers
    duration_ns: Integers
    launch_shape: Integers
    """A number that is the same for the same grid and block; NONE where they were not recorded."""
    shapes: NDArray[np.int64]
    """(shapes, 6): grid and block of each number."""

    @classmethod
    def of(cls, name: Integers, duration_ns: Integers, launch_shape: Integers, shapes: Integers) -> Calls:
        """Order calls by name and duration."""
        place = np.lexsort((duration_ns, name)).astype(np.int64, copy=False)
        return cls(place, name[place], duration_ns[place], launch_shape[place], shapes)

    def within(self, range_name: str, chosen: NDArray[np.bool_]) -> list[KernelStatistics]:
        """Statistics of the calls that are chosen, given in the order of `place`; the longest in total first."""
        picked = np.flatnonzero(chosen)
        rows = list(self._rows(range_name, picked)) if len(picked) else []
        return sorted(rows, key=lambda row: -row.total_ns)

    def _rows(self, range_name: str, picked: Integers) -> Iterator[KernelStatistics]:
        names, durations = self.name[picked], self.duration_ns[picked]
        first = np.flatnonzero(np.diff(names, prepend=names[0] - 1))
        calls = np.diff(first, append=len(names))
        totals = np.add.reduceat(durations, first)
        means = totals / calls
        squares = np.add.reduceat((durations - np.repeat(means, calls)) ** 2, first)
        deviations = np.sqrt(squares / np.maximum(calls - 1, 1))
        last = first + calls - 1
        medians = (durations[first + (calls - 1) // 2] + durations[first + calls // 2]) / 2
        shapes, distinct = self._shapes(picked, first)
        for number in range(len(first)):
            shape = shapes[number] if distinct[number] == 1 else None
            yield KernelStatistics(
                range=range_name,
                kernel=int(names[first[number]]),
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

    def _shapes(self, picked: Integers, first: Integers) -> tuple[Integers, Integers]:
        """For every name, one of its shapes, and how many different ones were recorded."""
        shape = self.launch_shape[picked]
        group = np.zeros(len(picked), np.int64)
        group[first[1:]] = 1
        width = len(self.shapes) + 1
        group, number = np.divmod(different(np.cumsum(group) * width + shape - NONE), width)
        known = number + NONE != NONE
        distinct = np.bincount(group[known], minlength=len(first))
        one = np.zeros(len(first), np.int64)
        one[group[known]] = number[known] + NONE
        return (self.shapes[one] if len(self.shapes) else np.zeros((len(first), 6), np.int64)), distinct
