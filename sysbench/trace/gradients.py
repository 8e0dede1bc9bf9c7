"""Links backward operators to the forward operator, the module and the thread whose gradient each computes.

Autograd gives every node of its graph a sequence number, which both the forward and the backward operator have. They
can be far apart, so they are matched across the whole trace, in groups of numbers to limit memory.

Kineto records a `Fwd thread id` for every backward operator. It counts torch's threads and matches no thread id of the
trace; 0 stands for none (torch/csrc/autograd/profiler_kineto.cpp). Every thread has its own sequence numbers: the
forward thread is the one whose numbers fit best.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
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
"""Number of operators that are processed together."""


def is_backward(name: Integers, names: Sequence[str]) -> NDArray[np.bool_]:
    """Return which operators autograd's engine runs, by their names."""
    different, which = grouped(name)
    known = np.array([_BACKWARD_OPERATOR.fullmatch(names[each]) is not None for each in different.tolist()], bool)
    return known[which] if len(known) else np.zeros(0, bool)


def add_modules(operators: Table, names: Sequence[str], ranges: RangeTree) -> None:
    """Append a column to a table of operators: the module whose gradient each computes, or NONE."""
    module = np.full(len(operators), NONE, np.int32)
    first, last = operators.bounds(_SEQUENCE) or (NONE, NONE)
    step = (last - first) // -(-len(operators) // AT_A_TIME) + 1 if last != NONE else 1
    for number in range(first, last + 1, step) if last != NONE else ():
        rows, columns = operators.between(_SEQUENCE, number, number + step)
        found = Operators(*columns)
        forward = _forward_of(found, is_backward(found.name, names))
        linked = np.flatnonzero(forward != NONE)
        made = forward[linked]
        module[rows[linked]] = ranges.module_at(found.thread[made], found.start_ns[made])
    operators.append(1, lambda rows: [module[rows].astype(np.int64)])


def _forward_of(operators: Operators, backward_: NDArray[np.bool_]) -> Integers:
    """Return, for each backward operator, the forward operator with the same sequence number; NONE for all others.

    Operators that call others have the number of the next node in the graph, and so do all operators before that node
    is created: its creator is the last of them (torch/csrc/autograd/function.h, `sequence_number`). Every thread counts
    separately.
    """
    forward = np.full(len(operators.name), NONE, np.int64)
    backward = np.flatnonzero(backward_ & (operators.sequence != NONE))
    makers = np.flatnonzero(~backward_ & (operators.sequence != NONE))
    by_thread = operators.forward_thread[backward] != NONE
    for asked, threads in ((backward[by_thread], True), (backward[~by_thread], False)):
        forward[asked] = _last_maker(operators, makers, asked, threads)
    return forward


def _last_maker(operators: Operators, makers: Integers, asked: Integers, threads: bool) -> Integers:
    """Return the last earlier creator of the same number, in the forward thread or, if unknown, in any thread."""
    if not len(makers) or not len(asked):
        return np.full(len(asked), NONE, np.int64)
    none = np.zeros(len(makers), np.int64)
    thread = operators.thread[makers] if threads else none
    sequence, start = operators.sequence[makers], operators.start_ns[makers]
    wanted_thread = operators.forward_thread[asked] if threads else np.zeros(len(asked), np.int64)
    # Creators and backward operators are sorted together; each backward operator then looks back to the last creator.
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


_THREAD, _FORWARD_THREAD = place(Operators, "thread"), place(Operators, "forward_thread")


def resolve_forward_threads(operators: Table) -> None:
    """Replace torch's number of the forward thread (0 and less for none) by the trace's index of that thread.

    The result is NONE if there is none, if no thread shares a sequence number with it, and if two fit equally well.
    """
    made: dict[int, list[Integers]] = defaultdict(list)
    asked: dict[int, list[Integers]] = defaultdict(list)
    for thread, sequence, counted in operators.stretches(_THREAD, _SEQUENCE, _FORWARD_THREAD):
        numbered, backward = sequence != NONE, counted > 0
        for each in distinct(thread[~backward]).tolist():
            made[each].append(distinct(sequence[numbered & ~backward & (thread == each)]))
        for each in distinct(counted[backward]).tolist():
            asked[each].append(distinct(sequence[numbered & (counted == each)]))
    by_thread = {thread: distinct(np.concatenate(parts)) for thread, parts in made.items()}
    forward = {count: _best_fit(distinct(np.concatenate(parts)), by_thread) for count, parts in asked.items()}
    counts = np.array([*sorted(forward)], np.int64)
    threads = np.array([forward[each] for each in counts.tolist()], np.int64)

    def replaced(counted: Integers) -> Integers:
        found = np.full(len(counted), NONE, np.int64)
        backward = counted > 0
        found[backward] = threads[np.searchsorted(counts, counted[backward])]
        return found

    operators.replace(_FORWARD_THREAD, replaced, _FORWARD_THREAD)


def _best_fit(asked: Integers, made: dict[int, Integers]) -> int:
    """Return the thread that shares most numbers with `asked`, as a share of the numbers of both; NONE if none does."""
    fits = []
    for thread, numbers in made.items():
        common = len(np.intersect1d(asked, numbers, assume_unique=True))
        fits.append((common / (len(asked) + len(numbers) - common) if common else 0.0, thread))
    fits.sort(reverse=True)
    if not fits or fits[0][0] == 0 or (len(fits) > 1 and fits[0][0] == fits[1][0]):
        return NONE
    return fits[0][1]
