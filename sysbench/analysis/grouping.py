"""What is different among many numbers, and sums by it, without sorting where that is not needed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sysbench.analysis.trace import NONE, Integers


def grouped(numbers: Integers) -> tuple[Integers, Integers]:
    """The distinct numbers in order, and for each one its place among them."""
    if not len(numbers):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    least, largest = int(numbers.min()), int(numbers.max())
    if largest - least > max(4 * len(numbers), 1 << 16):
        distinct, which = np.unique(numbers, return_inverse=True)
        return distinct, which
    # Numbers in a small span are their own places in a table.
    above = numbers - least
    present = np.zeros(largest - least + 1, bool)
    present[above] = True
    place = np.cumsum(present) - 1
    return np.flatnonzero(present) + least, place[above]


def distinct(numbers: Integers) -> Integers:
    """The distinct numbers in order."""
    if not len(numbers):
        return numbers
    least, largest = int(numbers.min()), int(numbers.max())
    if largest - least > max(4 * len(numbers), 1 << 16):
        return np.unique(numbers)
    present = np.zeros(largest - least + 1, bool)
    present[numbers - least] = True
    return np.flatnonzero(present) + least


def summed(values: Integers, which: Integers, groups: int) -> Integers:
    """Exact sums of the values of each group; `which` is the group of every value."""
    total = np.zeros(groups, np.int64)
    np.add.at(total, which, values)
    return total


def launch_shapes(shapes: Sequence[Integers]) -> tuple[Integers, Integers]:
    """Distinct rows (shapes, 6) of six columns, a grid and a block, and which each row is; NONE where it holds one."""
    known = np.flatnonzero(np.logical_and.reduce([column != NONE for column in shapes]))
    code = np.zeros(len(known), np.int64)
    for column in shapes:
        values, which = grouped(column[known])
        _, code = grouped(code * len(values) + which)
    found = np.full(len(shapes[0]), NONE, np.int64)
    found[known] = code
    rows = np.zeros((int(code.max(initial=-1)) + 1, len(shapes)), np.int64)
    for at, column in enumerate(shapes):
        rows[code, at] = column[known]
    return rows, found
