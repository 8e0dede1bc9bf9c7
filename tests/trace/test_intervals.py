"""Intervals of time are nested, united and measured as slow definitions of the same do it."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sysbench.trace.columns import Intervals, Nesting, depths, self_time_ns, union
from sysbench.trace.recording import NONE
from tests.trace.reference_attribution import Stretch, ancestry, innermost, parent
from tests.trace.synthetic_traces import column

STRETCHES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 15), st.integers(0, 9)), max_size=14)


def nesting_of(rows: list[tuple[int, int, int]]) -> tuple[Nesting, list[Stretch]]:
    columns = [column([row[place] for row in rows]) for place in range(3)]
    slow = [Stretch(index, thread, start, start + length, "") for index, (thread, start, length) in enumerate(rows)]
    return Nesting.of(*columns), slow


@given(STRETCHES)
@settings(max_examples=100, deadline=None)
def test_the_innermost_is_the_last_to_start_of_those_that_are_open_however_they_overlap(
    rows: list[tuple[int, int, int]],
) -> None:
    nesting, slow = nesting_of(rows)
    asked = [(thread, at) for thread in range(4) for at in range(-1, 27)]
    found = nesting.innermost(column([thread for thread, _ in asked]), column([at for _, at in asked]))
    expected = [innermost(slow, thread, at) for thread, at in asked]
    assert found.tolist() == [NONE if each is None else each.index for each in expected]


@given(STRETCHES)
@settings(max_examples=100, deadline=None)
def test_a_parent_encloses_all_of_what_is_within_it(rows: list[tuple[int, int, int]]) -> None:
    nesting, slow = nesting_of(rows)
    found = nesting.parents
    expected = [parent(slow, each) for each in slow]
    assert found.tolist() == [NONE if each is None else each.index for each in expected]
    assert depths(found).tolist() == [len(ancestry(slow, each)) - 1 for each in slow]


def test_a_long_row_of_neighbours_and_a_deep_nest_are_found_their_way_out_of() -> None:
    count = 5_000
    row = Nesting.of(column([0] * (count + 1)), column([0, *range(count)]), column([2 * count, *[1] * count]))
    assert row.parents.tolist() == [NONE, *[0] * count]
    deep = Nesting.of(column([0] * 400), column(list(range(400))), column([2 * (400 - each) for each in range(400)]))
    assert deep.parents.tolist() == list(range(-1, 399))
    assert deep.innermost(column([0]), column([799])).tolist() == [0]


def test_self_times_of_properly_nested_stretches_add_up_to_the_outermost() -> None:
    starts, lengths = column([0, 1, 2, 6, 20]), column([10, 4, 2, 3, 5])
    nesting = Nesting.of(column([0] * 5), starts, lengths)
    assert self_time_ns(nesting, lengths).tolist() == [10 - 4 - 3, 4 - 2, 2, 3, 5]


SPANS = st.lists(st.tuples(st.integers(0, 25), st.integers(0, 8)), max_size=12)


def moments(spans: list[tuple[int, int]]) -> set[int]:
    return {moment for start, length in spans for moment in range(start, start + length)}


def united(spans: list[tuple[int, int]]) -> Intervals:
    starts = column([start for start, _ in spans])
    return union(starts, starts + column([length for _, length in spans]))


@given(SPANS, SPANS)
@settings(max_examples=100, deadline=None)
def test_a_union_counts_every_moment_once(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    assert united(one).total_ns == len(moments(one))
    assert united(one).overlap_ns(united(other)) == len(moments(one) & moments(other))
    assert united(one).covered_before_ns(np.arange(40)).tolist() == [
        len({moment for moment in moments(one) if moment < at}) for at in range(40)
    ]
