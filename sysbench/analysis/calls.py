"""Every single piece of work that counts, packed: for what cannot be added up slice by slice, such as medians."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from sysbench.analysis.counted import Counted
from sysbench.analysis.packed import Table
from sysbench.analysis.slices import ROWS
from sysbench.analysis.trace import NONE, Integers

_START: Final = 0
_WIDTH: Final = 8


@dataclass(frozen=True)
class Rows:
    """Some of them, in columns of one length."""

    start_ns: Integers
    duration_ns: Integers
    device: Integers
    launched_ns: Integers
    """NONE where the launch is not known."""
    name: Integers
    module: Integers
    """Position in `RangeTree.modules`."""
    phase: Integers
    """Position in COUNTED_PHASES."""
    launch_shape: Integers


class Calls:
    """Grows with every slice."""

    def __init__(self) -> None:
        self._table = Table(_WIDTH)

    def add(self, part: Counted) -> None:
        """Take in what counts of a slice."""
        work = part.work
        launched = np.where(work.launch == NONE, NONE, work.at_ns)
        moments = [work.start_ns, work.duration_ns, work.device, launched]
        self._table.add([*moments, work.name, part.module, part.phase, work.launch_shape])

    def in_order_of_time(self) -> Iterator[Rows]:
        """All rows, some at a time: those that start in one stretch of time, then those of the next."""
        sample = [column[:: max(1, ROWS // 64)] for (column,) in self._table.stretches(_START)]
        starts = np.unique(np.concatenate(sample)) if sample else np.zeros(0, np.int64)
        every = max(1, len(starts) * ROWS // max(len(self._table), 1))
        for first, beyond in pairwise([-(2**63), *starts[every::every].tolist(), 2**63 - 1]):
            yield Rows(*self._table.between(_START, first, beyond)[1])

    def of_kernels(self, wanted: Integers) -> Rows:
        """The rows of the kernels of these names, all at once; `wanted` holds for every name whether it is wanted."""
        found = [
            [column[chosen] for column in columns]
            for columns in self._table.stretches()
            if (chosen := wanted[columns[4]]).any()
        ]
        return Rows(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
