"""Which thread of a trace ran the forward pass that a backward operator belongs to.

Kineto gives every backward operator its `Fwd thread id`, which is torch's own count of threads and nothing that the
trace's threads are called; 0 stands for none (torch/csrc/autograd/profiler_kineto.cpp). Both sides carry autograd's
sequence numbers, which every thread counts for itself: the thread whose numbers fit best is the one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sysbench.analysis.grouping import distinct
from sysbench.analysis.trace import NONE, Integers


def resolved(thread: Integers, sequence: Integers, counted: Integers) -> Integers:
    """For each operator the index of its forward thread, from torch's count of it (`counted`, ≤ 0 for none).

    NONE where there is none, where no thread shares a sequence number with it, and where two fit equally well.
    """
    forward = np.full(len(thread), NONE, np.int64)
    numbered, backward = sequence != NONE, counted > 0
    made = {each: _distinct(sequence, numbered & ~backward & (thread == each)) for each in _values(thread, ~backward)}
    for each in _values(counted, backward):
        asked = _distinct(sequence, numbered & (counted == each))
        forward[counted == each] = _best(asked, made)
    return forward


def _best(asked: Integers, made: dict[int, Integers]) -> int:
    """The thread that has most numbers in common with those asked for, as a share of all in either."""
    fits = sorted(((_likeness(asked, numbers), each) for each, numbers in made.items()), reverse=True)
    if not fits or fits[0][0] == 0 or (len(fits) > 1 and fits[0][0] == fits[1][0]):
        return NONE
    return fits[0][1]


def _likeness(some: Integers, others: Integers) -> float:
    common = len(np.intersect1d(some, others, assume_unique=True))
    return common / (len(some) + len(others) - common) if common else 0.0


def _values(column: Integers, chosen: NDArray[np.bool_]) -> list[int]:
    found: list[int] = distinct(column[chosen]).tolist()
    return found


def _distinct(column: Integers, chosen: NDArray[np.bool_]) -> Integers:
    return distinct(column[chosen])
