"""Columns of whole numbers come out of packing as they went in, and what is different among them is what numpy says."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.trace import columns
from sysbench.trace import recording as trace_recording
from sysbench.trace.recording import NONE, Chunk, Integers, Table

numbers = (
    st.integers(-3, 3)
    | st.integers(0, 70_000)
    | st.integers(2**40, 2**40 + 300)
    | st.integers(-(2**63), 2**63 - 1)
    | st.sampled_from([-(2**63), 2**63 - 1, 2**32, -1])
)


def column(values: list[int]) -> Integers:
    return np.array(values, np.int64)


@given(pieces=st.lists(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8), max_size=6), other=st.booleans())
def test_what_is_packed_is_what_comes_out(pieces: list[list[tuple[int, int]]], other: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_recording, "_CHUNK_ROWS", 7)
        table, second = Table(2), Table(2)
        for number, piece in enumerate(pieces):
            (second if other and number > 2 else table).add([column([*each]) for each in zip(*piece, strict=True)])
        stretches = msgspec.msgpack.decode(msgspec.msgpack.encode(second.packed()), type=list[Chunk])
        table.extend(stretches)
        rows = [row for piece in pieces for row in piece]
        assert len(table) == len(rows)
        assert [each.tolist() for each in table.columns()] == [[row[at] for row in rows] for at in range(2)]
        assert [row for part in table.chunks() for row in zip(*part, strict=True)] == rows


@given(values=st.lists(st.tuples(numbers, numbers), max_size=30), first=numbers, beyond=numbers)
def test_rows_between_two_numbers_are_found_wherever_they_are_packed(
    values: list[tuple[int, int]], first: int, beyond: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_recording, "_CHUNK_ROWS", 7)
        table = Table.of([column([row[at] for row in values]) for at in range(2)])
        rows, columns = table.rows_between(1, first, beyond)
    expected = [(at, *row) for at, row in enumerate(values) if first <= row[1] < beyond]
    assert list(zip(rows.tolist(), *(each.tolist() for each in columns), strict=True)) == expected
    bounds = [(min(each), max(each)) if each else None for each in ([row[at] for row in values] for at in range(2))]
    assert [table.bounds(at) for at in range(2)] == bounds


@given(values=st.lists(st.tuples(numbers, numbers), max_size=30), most=numbers, size=st.sampled_from([1, 3, 100]))
def test_rows_of_which_something_holds_are_a_table_of_their_own(
    values: list[tuple[int, int]], most: int, size: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_recording, "_CHUNK_ROWS", size)
        table = Table.of([column([row[at] for row in values]) for at in range(2)])
        found = table.filter(lambda second: second <= most, 1)
        # What becomes of the one is nothing to the other, though they share what is the same in both.
        table.replace(0, lambda second: second, 1)
        table.append_columns(1, lambda rows: [rows])
        table.clear()
        assert [each.tolist() for each in found.columns()] == [
            [row[at] for row in values if row[1] <= most] for at in range(2)
        ]


def test_columns_are_computed_from_others_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_recording, "_CHUNK_ROWS", 4)
    table = Table.of([column([*range(10)]), column([5] * 10)])
    table.append_columns(2, lambda rows, first: [rows * 2, first + 1], 0)
    table.replace(1, lambda first, second: first * second, 0, 1)
    table.shift(3, -(2**40))
    assert [each.tolist() for each in table.columns()] == [
        [*range(10)],
        [5 * each for each in range(10)],
        [2 * each for each in range(10)],
        [each + 1 - 2**40 for each in range(10)],
    ]


@given(st.lists(numbers, max_size=30), st.integers(0, 3))
def test_distinct_numbers_are_those_of_numpy(values: list[int], repeated: int) -> None:
    given_ = column(values * (repeated + 1))
    expected, which = np.unique(given_, return_inverse=True)
    found, places = columns.unique_with_inverse(given_)
    assert (found.tolist(), places.tolist()) == (expected.tolist(), which.tolist())
    assert columns.distinct(given_).tolist() == expected.tolist()
    assert columns.first_positions(places, len(found)).tolist() == [[*given_].index(each) for each in expected]


def test_sums_are_exact_where_floats_are_not() -> None:
    assert columns.sum_by_group(column([2**53, 1, 5]), column([1, 1, 0]), 3).tolist() == [5, 2**53 + 1, 0]


@given(st.lists(st.tuples(*[st.integers(-1, 2)] * 6), max_size=20))
def test_launch_shapes_are_told_apart(rows: list[tuple[int, ...]]) -> None:
    shapes, which = columns.distinct_rows([column([row[at] for row in rows]) for at in range(6)])
    assert [None if each == NONE else tuple(shapes[each].tolist()) for each in which] == [
        None if NONE in row else row for row in rows
    ]
    assert len({tuple(row) for row in shapes.tolist()}) == len(shapes) == len({row for row in rows if NONE not in row})
