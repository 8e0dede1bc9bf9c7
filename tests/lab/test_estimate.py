"""The estimate of a step before the first one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sysbench.commands.time.spec import TimeSpec
from sysbench.lab import estimate


def clock(*steps_s: float) -> Iterator[float]:
    """Yield what a clock shows before and after steps of these durations."""
    now_s = 0.0
    for step_s in steps_s:
        yield now_s
        now_s += step_s
        yield now_s


def test_a_first_step_that_loads_for_seconds_on_a_busy_machine_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    (cell,) = TimeSpec(size="small", ctx=512, batch=4, mode="train", device="cpu").cells()
    found = []
    for steps_s in ((3.0, 0.1), (0.2, 0.1), (0.1, 0.3)):
        ticks = clock(*steps_s)
        monkeypatch.setattr(estimate, "perf_counter", lambda ticks=ticks: next(ticks))
        found.append(estimate.estimated_step_s(cell))
    assert found[0] == pytest.approx(found[1])
    assert found[2] == pytest.approx(found[1])
