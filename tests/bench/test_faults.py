"""No kill loses a finished cell, and a damaged file is read or refused: a sample of `python -m tests.bench.faults`."""

import pytest

from tests.bench.faults import Book, inputs, kills

PARTS = 4
"""Each by another process, where the suite is spread over several."""


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_kill_loses_no_finished_cell(part: int) -> None:
    book = Book()
    kills(0, 60 // PARTS, 100 + part, book)
    assert not book.problems


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_a_damaged_file_is_read_or_refused(part: int) -> None:
    book = Book()
    inputs(0, 3000 // PARTS, 100 + part, book)
    assert not book.problems
