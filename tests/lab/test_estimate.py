"""The estimate of a step before the first one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from sysbench.commands.time.spec import TimeSpec
from sysbench.lab import estimate


def clock(*steps_s: float) -> Iterator[float]:
    """Yield what a clock shows before and after steps of these durations."""
    now_s = 0.0
    for step_s in steps_s:
        yield now_s
        now_s += step_s
        yield now_s


def test_a_first_step_that_loads_for_seconds_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    (cell,) = TimeSpec(size="small", ctx=512, batch=4, mode="train", device="cpu").cells()
    found = []
    for steps_s in ((3.0, 0.1), (0.2, 0.1), (0.1, 0.3)):
        ticks = clock(*steps_s)
        monkeypatch.setattr(estimate, "thread_time", lambda ticks=ticks: next(ticks))
        found.append(estimate.estimated_step_s(cell))
    assert found[0] == pytest.approx(found[1])
    assert found[2] == pytest.approx(found[1])


def test_a_step_is_divided_among_the_threads_which_stay_as_many(monkeypatch: pytest.MonkeyPatch) -> None:
    (cell,) = TimeSpec(size="small", ctx=512, batch=4, mode="train", device="cpu").cells()
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            ticks = clock(0.1, 0.1)
            monkeypatch.setattr(estimate, "thread_time", lambda ticks=ticks: next(ticks))
            found.append(estimate.estimated_step_s(cell) or 0.0)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert found[0] == pytest.approx(2 * found[1])
