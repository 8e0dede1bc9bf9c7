"""Readers take as many processes as there are processors for them."""

from __future__ import annotations

import os

import pytest

from sysbench.trace.readers.reading import processors


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no process to processors")
def test_a_process_that_is_bound_to_one_processor_has_one() -> None:
    every = os.sched_getaffinity(0)
    assert processors() == len(every)
    try:
        os.sched_setaffinity(0, {min(every)})
        assert processors() == 1
    finally:
        os.sched_setaffinity(0, every)


@pytest.mark.parametrize(("count", "expected"), [(8, 8), (None, 1)])
def test_where_processes_are_bound_to_none_all_count(
    monkeypatch: pytest.MonkeyPatch, count: int | None, expected: int
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert processors() == expected
