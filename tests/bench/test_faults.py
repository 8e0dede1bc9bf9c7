"""No kill loses a finished cell, and a damaged file is read or refused: a sample of `python -m tests.bench.faults`."""

import pytest

from tests.bench.faults import Book, inputs, kills


@pytest.mark.slow
def test_a_kill_loses_no_finished_cell() -> None:
    book = Book()
    kills(0, 8, 1, book, ("time", "run"))
    assert not book.problems


@pytest.mark.slow
def test_a_damaged_file_is_read_or_refused() -> None:
    book = Book()
    inputs(0, 120, 1, book)
    assert not book.problems
