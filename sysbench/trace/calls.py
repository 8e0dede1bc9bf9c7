"""Every single piece of work that counts, packed: for what cannot be added up slice by slice, such as medians."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sysbench.trace.grouping import distinct
from sysbench.trace.kernel_time import Counted
from sysbench.trace.packed import Table
from sysbench.trace.recording import NONE, Integers
from sysbench.trace.slices import ROWS

_START, _DURATION, _DEVICE, _LAUNCHED, _NAME, _MODULE, _PHASE, _LAUNCH_SHAPE = range(8)


@dataclass(frozen=True)
class Moments:
    """When work ran, in columns of one length."""

    start_ns: Integers
    duration_ns: Integers
    device: Integers
    launched_ns: Integers
    """NONE where the launch is not known."""


@dataclass(frozen=True)
class Kinds:
    """What was called, in columns of one length."""

    duration_ns: Integers
    name: NDArray[np.int32]
    module: NDArray[np.int32]
    """Position in `RangeTree.modules`."""
    phase: NDArray[np.int32]
    """Position in COUNTED_PHASES."""
    launch_shape: NDArray[np.int32]


class Calls:
    """Grows with every slice."""

    def __init__(self) -> None:
        self._table = Table(8)

    def add(self, part: Counted) -> None:
        """Take in what counts of a slice."""
        work = part.work
        launched = np.where(work.launch == NONE, NONE, work.at_ns)
        moments = [work.start_ns, work.duration_ns, work.device, launched]
        self._table.add([*moments, work.name, part.module, part.phase, work.launch_shape])

    def in_order_of_time(self) -> Iterator[Moments]:
        """All of it, some at a time: those that start in one stretch of time, then those of the next."""
        sample = [column[:: max(1, ROWS // 64)] for (column,) in self._table.stretches(_START)]
        starts = distinct(np.concatenate(sample)) if sample else np.zeros(0, np.int64)
        every = max(1, len(starts) * ROWS // max(len(self._table), 1))
        for first, beyond in pairwise([-(2**63), *starts[every::every].tolist(), 2**63 - 1]):
            yield Moments(*self._table.between(_START, first, beyond)[1][: _LAUNCHED + 1])

    def of_kernels(self, wanted: NDArray[np.bool_]) -> Kinds:
        """The calls of some kernels, all at once; `wanted` holds for every name whether it is wanted."""
        durations, others = [], []
        for duration_ns, *rest in self._table.stretches(_DURATION, _NAME, _MODULE, _PHASE, _LAUNCH_SHAPE):
            chosen = wanted[rest[0]]
            durations.append(duration_ns[chosen])
            others.append([column[chosen].astype(np.int32) for column in rest])
        columns = (np.concatenate(parts) for parts in zip(*others, strict=True))
        return Kinds(np.concatenate(durations), *columns)

    def queues_ns(self) -> Integers:
        """How long each waited from its launch to its start, where its launch is known."""
        waits = [(start - launched)[launched != NONE] for start, launched in self._table.stretches(_START, _LAUNCHED)]
        return np.concatenate(waits) if waits else np.zeros(0, np.int64)
