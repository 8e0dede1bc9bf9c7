"""Columns of whole numbers come out of packing as they went in, and what is different among them is what numpy says."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench.analysis import grouping, packed
from sysbench.analysis.packed import Stretch, Table
from sysbench.analysis.trace import NONE, Integers

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
        patch.setattr(packed, "_ROWS", 7)
        table, second = Table(2), Table(2)
        for number, piece in enumerate(pieces):
            (second if other and number > 2 else table).add([column([*each]) for each in zip(*piece, strict=True)])
        stretches = msgspec.msgpack.decode(msgspec.msgpack.encode(second.packed()), type=list[Stretch])
        assert [row for part in packed.unpacked(stretches) for row in zip(*part, strict=True)] == [
            row for piece in pieces[3:] for row in piece if other
        ]
        table.join(stretches)
        assert bool(table) == bool(pieces)
        rows = [row for piece in pieces for row in piece]
        assert [each.tolist() for each in table.take()] == [[row[at] for row in rows] for at in range(2)]
        assert not table


@given(st.lists(numbers, max_size=30), st.integers(0, 3))
def test_distinct_numbers_are_those_of_numpy(values: list[int], repeated: int) -> None:
    given_ = column(values * (repeated + 1))
    expected, which = np.unique(given_, return_inverse=True)
    found, places = grouping.grouped(given_)
    assert (found.tolist(), places.tolist()) == (expected.tolist(), which.tolist())
    assert grouping.distinct(given_).tolist() == expected.tolist()


def test_sums_are_exact_where_floats_are_not() -> None:
    assert grouping.summed(column([2**53, 1, 5]), column([1, 1, 0]), 3).tolist() == [5, 2**53 + 1, 0]


@given(st.lists(st.tuples(*[st.integers(-1, 2)] * 6), max_size=20))
def test_launch_shapes_are_told_apart(rows: list[tuple[int, ...]]) -> None:
    shapes, which = grouping.launch_shapes([column([row[at] for row in rows]) for at in range(6)])
    assert [None if each == NONE else tuple(shapes[each].tolist()) for each in which] == [
        None if NONE in row else row for row in rows
    ]
    assert len({tuple(row) for row in shapes.tolist()}) == len(shapes) == len({row for row in rows if NONE not in row})
