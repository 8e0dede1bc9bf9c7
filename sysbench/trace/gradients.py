"""Which forward operator, and thereby which module, a backward operator computes a gradient for.

Autograd gives every node of its graph a number, and both sides carry it. Forward and backward may lie far apart, so
they are looked for in all of a trace; numbers are taken some at a time, so that memory does not grow with it.

Which thread of a trace ran the forward pass that a backward operator belongs to.

Kineto gives every backward operator its `Fwd thread id`, which is torch's own count of threads and nothing that the
trace's threads are called; 0 stands for none (torch/csrc/autograd/profiler_kineto.cpp). Both sides carry autograd's
sequence numbers, which every thread counts for itself: the thread whose numbers fit best is the one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sysbench.trace.grouping import distinct, grouped
from sysbench.trace.packed import Table
from sysbench.trace.range_tree import RangeTree
from sysbench.trace.recording import NONE, Integers, Operators, place

_BACKWARD_OPERATOR: Final = re.compile(r"autograd::engine::evaluate_function: .*|.*Backward\d*(, .*)?", re.DOTALL)
_SEQUENCE: Final = place(Operators, "sequence")
AT_A_TIME: Final = 400_000
"""Operators that are looked at together."""


def is_backward(name: Integers, names: Sequence[str]) -> NDArray[np.bool_]:
    """Which operators autograd's engine runs, by their names."""
    different, which = grouped(name)
    known = np.array([_BACKWARD_OPERATOR.fullmatch(names[each]) is not None for each in different.tolist()], bool)
    return known[which] if len(known) else np.zeros(0, bool)


def add_modules(operators: Table, names: Sequence[str], ranges: RangeTree) -> None:
    """Append a column to a table of operators: the module whose gradient each computes, or NONE."""
    module = np.full(len(operators), NONE, np.int32)
    for first, beyond in _numbers(operators):
        rows, columns = operators.between(_SEQUENCE, first, beyond)
        found = Operators(*columns)
        forward = _forward_of(found, is_backward(found.name, names))
        linked = np.flatnonzero(forward != NONE)
        made = forward[linked]
        module[rows[linked]] = ranges.module_at(found.thread[made], found.start_ns[made])
    operators.append(1, lambda rows: [module[rows].astype(np.int64)])


def _numbers(operators: Table) -> Iterator[tuple[int, int]]:
    """Stretches of sequence numbers that together hold them all, few enough at a time."""
    bounds = operators.bounds(_SEQUENCE)
    if bounds is None or bounds == (NONE, NONE):
        return
    first, last = bounds
    step = (last - first) // -(-len(operators) // AT_A_TIME) + 1
    for each in range(first, last + 1, step):
        yield each, each + step


def _forward_of(operators: Operators, backward_: NDArray[np.bool_]) -> Integers:
    """For each backward operator, the forward operator of the same sequence number; NONE for all others.

    Operators that call others carry the number that the next node of the graph will get, and so does whatever comes
    before that node: the one that made it is the last of them (torch/csrc/autograd/function.h, `sequence_number`).
    Numbers count up in every thread for itself.
    """
    forward = np.full(len(operators.name), NONE, np.int64)
    backward = np.flatnonzero(backward_ & (operators.sequence != NONE))
    makers = np.flatnonzero(~backward_ & (operators.sequence != NONE))
    by_thread = operators.forward_thread[backward] != NONE
    for asked, threads in ((backward[by_thread], True), (backward[~by_thread], False)):
        forward[asked] = _last_maker(operators, makers, asked, threads)
    return forward


def _last_maker(operators: Operators, makers: Integers, asked: Integers, threads: bool) -> Integers:
    """The last maker of the same number that started before, in the forward thread or in any."""
    if not len(makers) or not len(asked):
        return np.full(len(asked), NONE, np.int64)
    none = np.zeros(len(makers), np.int64)
    thread = operators.thread[makers] if threads else none
    sequence, start = operators.sequence[makers], operators.start_ns[makers]
    wanted_thread = operators.forward_thread[asked] if threads else np.zeros(len(asked), np.int64)
    # Makers and those that ask for them are put in one order; each then looks back to the last maker before it.
    order = np.lexsort(
        (
            np.concatenate([start, operators.start_ns[asked]]),
            np.concatenate([sequence, operators.sequence[asked]]),
            np.concatenate([thread, wanted_thread]),
        )
    )
    is_maker = order < len(makers)
    last = np.maximum.accumulate(np.where(is_maker, np.arange(len(order)), NONE))
    candidate = np.where(last == NONE, NONE, order[np.maximum(last, 0)])
    found = np.full(len(asked), NONE, np.int64)
    found[order[~is_maker] - len(makers)] = candidate[~is_maker]
    known = found != NONE
    same = np.zeros(len(asked), bool)
    same[known] = (sequence[found[known]] == operators.sequence[asked[known]]) & (
        thread[found[known]] == wanted_thread[known]
    )
    return np.where(same, makers[np.maximum(found, 0)], NONE)


_THREAD, _FORWARD_THREADS_SEQUENCE, _FORWARD_THREAD = (
    place(Operators, name) for name in ("thread", "sequence", "forward_thread")
)


def resolve(operators: Table) -> None:
    """Put the index of its forward thread to each operator, in place of torch's count of it (0 and less for none).

    NONE where there is none, where no thread shares a sequence number with it, and where two fit equally well.
    """
    made: dict[int, list[Integers]] = defaultdict(list)
    asked: dict[int, list[Integers]] = defaultdict(list)
    for thread, sequence, counted in operators.stretches(_THREAD, _FORWARD_THREADS_SEQUENCE, _FORWARD_THREAD):
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
