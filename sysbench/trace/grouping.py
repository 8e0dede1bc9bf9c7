"""Distinct numbers and sums by group; numbers in a small range are grouped without sorting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sysbench.trace.recording import NONE, Integers


def grouped(numbers: Integers) -> tuple[Integers, Integers]:
    """Return the distinct numbers in order, and the position of each number among them."""
    if not len(numbers):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    least, largest = int(numbers.min()), int(numbers.max())
    if largest == least:
        return np.array([least], np.int64), np.zeros(len(numbers), np.int64)
    if largest - least > max(4 * len(numbers), 1 << 16):
        return np.unique(numbers, return_inverse=True)
    # Numbers in a small range are used directly as positions in a table.
    above = numbers - least
    present = np.zeros(largest - least + 1, bool)
    present[above] = True
    place = np.cumsum(present) - 1
    return np.flatnonzero(present) + least, place[above]


def distinct(numbers: Integers) -> Integers:
    """Return the distinct numbers in order."""
    if not len(numbers):
        return numbers
    least, largest = int(numbers.min()), int(numbers.max())
    if largest - least > max(4 * len(numbers), 1 << 16):
        ordered = np.sort(numbers)
        return np.asarray(ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])])
    present = np.zeros(largest - least + 1, bool)
    present[numbers - least] = True
    return np.flatnonzero(present) + least


def firsts(which: Integers, groups: int) -> Integers:
    """Return the first position of each group; `which` is the group of every value, and no group is empty."""
    found = np.zeros(groups, np.int64)
    found[which[::-1]] = np.arange(len(which) - 1, -1, -1)
    return found


def summed(values: Integers, which: Integers, groups: int) -> Integers:
    """Return the exact sum of the values of each group; `which` is the group of every value."""
    total = np.zeros(groups, np.int64)
    np.add.at(total, which, values)
    return total


def launch_shapes(shapes: Sequence[Integers]) -> tuple[Integers, Integers]:
    """Distinct rows (shapes, 6) of six columns, a grid and a block, and each row's index; NONE if a value is NONE."""
    complete = np.logical_and.reduce([column != NONE for column in shapes])
    known = slice(None) if complete.all() else np.flatnonzero(complete)
    code = np.zeros(int(complete.sum()), np.int64)
    columns = [column[known] for column in shapes]
    for column in columns:
        values, which = grouped(column)
        if len(values) > 1:  # most columns are constant and need no further distinction
            _, code = grouped(code * len(values) + which)
    found = np.full(len(complete), NONE, np.int64)
    found[known] = code
    rows = np.zeros((int(code.max(initial=-1)) + 1, len(shapes)), np.int64)
    for at, column in enumerate(columns):
        rows[code, at] = column
    return rows, found
