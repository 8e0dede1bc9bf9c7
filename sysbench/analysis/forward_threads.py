"""Which thread of a trace ran the forward pass that a backward operator belongs to.

Kineto gives every backward operator its `Fwd thread id`, which is torch's own count of threads and nothing that the
trace's threads are called; 0 stands for none (torch/csrc/autograd/profiler_kineto.cpp). Both sides carry autograd's
sequence numbers, which every thread counts for itself: the thread whose numbers fit best is the one.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from sysbench.analysis.grouping import distinct
from sysbench.analysis.packed import Table
from sysbench.analysis.trace import NONE, Integers, Operators, place

_THREAD, _SEQUENCE, _FORWARD_THREAD = (place(Operators, name) for name in ("thread", "sequence", "forward_thread"))


def resolve(operators: Table) -> None:
    """Put the index of its forward thread to each operator, in place of torch's count of it (0 and less for none).

    NONE where there is none, where no thread shares a sequence number with it, and where two fit equally well.
    """
    made: dict[int, list[Integers]] = defaultdict(list)
    asked: dict[int, list[Integers]] = defaultdict(list)
    for thread, sequence, counted in operators.stretches(_THREAD, _SEQUENCE, _FORWARD_THREAD):
        numbered, backward = sequence != NONE, counted > 0
        for each in distinct(thread[~backward]).tolist():
            made[each].append(distinct(sequence[numbered & ~backward & (thread == each)]))
        for each in distinct(counted[backward]).tolist():
            asked[each].append(distinct(sequence[numbered & (counted == each)]))
    by_thread = {thread: _together(parts) for thread, parts in made.items()}
    forward = {count: _best(_together(parts), by_thread) for count, parts in asked.items()}
    counts = np.array([*sorted(forward)], np.int64)
    threads = np.array([forward[each] for each in counts.tolist()], np.int64)
    operators.replace(_FORWARD_THREAD, lambda counted: _replaced(counted, counts, threads), _FORWARD_THREAD)


def _together(parts: list[Integers]) -> Integers:
    return distinct(np.concatenate(parts))


def _replaced(counted: Integers, counts: Integers, threads: Integers) -> Integers:
    found = np.full(len(counted), NONE, np.int64)
    backward = counted > 0
    found[backward] = threads[np.searchsorted(counts, counted[backward])]
    return found


def _best(asked: Integers, made: dict[int, Integers]) -> int:
    """The thread that has most numbers in common with those asked for, as a share of all in either."""
    fits = sorted(((_likeness(asked, numbers), each) for each, numbers in made.items()), reverse=True)
    if not fits or fits[0][0] == 0 or (len(fits) > 1 and fits[0][0] == fits[1][0]):
        return NONE
    return fits[0][1]


def _likeness(some: Integers, others: Integers) -> float:
    common = len(np.intersect1d(some, others, assume_unique=True))
    return common / (len(some) + len(others) - common) if common else 0.0
