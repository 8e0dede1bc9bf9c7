"""Torch's count of threads in a trace is led back to the threads that the trace knows."""

from __future__ import annotations

import numpy as np

from sysbench.trace.attribution import resolve_forward_threads
from sysbench.trace.recording import NONE, Integers, Table

FORWARD, OTHER, AUTOGRAD = 0, 1, 2


def column(*values: int) -> Integers:
    return np.array(values, np.int64)


def resolved(thread: Integers, sequence: Integers, counted: Integers) -> Integers:
    """The forward threads of operators with these columns."""
    none = np.zeros(len(thread), np.int64)
    operators = Table.of([none, none, none, thread, sequence, counted, none])
    resolve_forward_threads(operators)
    return operators.column(5)


def test_a_backward_operator_belongs_to_the_thread_with_its_number_whatever_torch_calls_it() -> None:
    found = resolved(column(FORWARD, FORWARD, AUTOGRAD, AUTOGRAD), column(40, 41, 41, 40), column(0, 0, 7, 7))
    assert found.tolist() == [NONE, NONE, FORWARD, FORWARD]


def test_threads_that_count_alike_are_told_apart_by_how_well_their_numbers_fit() -> None:
    """Both threads count from 0, and one of them has run more."""
    threads = [FORWARD] * 3 + [OTHER] * 6 + [AUTOGRAD] * 9
    sequence = [*range(3), *range(6), *range(3), *range(6)]
    counted = [0] * 9 + [5] * 3 + [1] * 6
    found = resolved(column(*threads), column(*sequence), column(*counted))
    assert found.tolist() == [NONE] * 9 + [FORWARD] * 3 + [OTHER] * 6


def test_what_cannot_be_told_is_left_open() -> None:
    """Two threads fit equally well; no thread fits; no number is recorded."""
    alike = resolved(column(FORWARD, OTHER, AUTOGRAD), column(1, 1, 1), column(0, 0, 3))
    foreign = resolved(column(FORWARD, AUTOGRAD), column(1, 9), column(0, 3))
    unnumbered = resolved(column(FORWARD, AUTOGRAD), column(NONE, NONE), column(NONE, 3))
    assert alike.tolist() == [NONE] * 3
    assert foreign.tolist() == unnumbered.tolist() == [NONE] * 2


def test_a_trace_without_operators_has_no_threads_to_find() -> None:
    assert resolved(column(), column(), column()).tolist() == []
