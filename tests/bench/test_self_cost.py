"""What sysbench costs a step: arms take turns, and drift of the machine is no cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from sysbench.commands.time.spec import TimeSpec
from sysbench.log.events import DeviceInfo, Event, Reading, WorkerReady
from tests.bench.self_cost import SPEC, cost_arm, discarded_dashboard, measure, measure_alternating
from tests.engine.fakes import ScriptedLauncher


def test_arms_take_turns_in_opposite_orders() -> None:
    order: list[str] = []

    def arm(name: str) -> Any:
        return lambda: order.append(name) or float(len(order))

    told: list[tuple[int, int]] = []
    measured = measure_alternating({name: arm(name) for name in "ABC"}, 3, lambda done, of: told.append((done, of)))
    assert "".join(order) == "ABCCBAABC"
    assert measured == {"A": [1.0, 6.0, 7.0], "B": [2.0, 5.0, 8.0], "C": [3.0, 4.0, 9.0]}
    assert told == [(number, 9) for number in range(9)]


def test_a_machine_that_gets_slower_costs_nothing() -> None:
    """Ratios are taken within a round: a drift of 10% a round does not show."""
    without_s = [0.01 * 1.1**number for number in range(8)]
    found = cost_arm("sampler", [value * 1.002 for value in without_s], without_s)
    assert found.ratio == pytest.approx(1.002)
    assert found.ratio_low == pytest.approx(1.002)
    assert found.ratio_high == pytest.approx(1.002)


def test_too_few_rounds_have_no_interval() -> None:
    found = cost_arm("dashboard", [1.0] * 2, [1.0] * 2)
    assert (found.ratio, found.ratio_low, found.ratio_high) == (1.0, None, None)


CPU = DeviceInfo(name="Made-up CPU", type="cpu")
MINUTE = TimeSpec(
    size="tiny",  # type: ignore[arg-type]
    d_model=32,  # type: ignore[arg-type]
    layers=1,  # type: ignore[arg-type]
    ctx=16,  # type: ignore[arg-type]
)


class Watching:
    """Counts who is shown what."""

    def __init__(self) -> None:
        self.seen: list[list[Event]] = []

    @contextmanager
    def dashboard(self) -> Iterator[Watching]:
        self.seen.append([])
        yield self

    def show(self, event: Event) -> None:
        self.seen[-1].append(event)


def test_every_arm_has_workers_of_its_own_and_only_its_own_part() -> None:
    watching = Watching()
    cost = measure(CPU, 2, watching.dashboard, lambda done, of: None, MINUTE, ScriptedLauncher())
    assert {arm.part: (arm.with_s, arm.without_s) for arm in cost.arms} == {
        "dashboard": ([0.001, 0.001], [0.001, 0.001]),
        "sampler": ([0.001, 0.001], [0.001, 0.001]),
    }
    assert set(cost.not_measured) == {"history"}
    assert cost.workload == "a train step of 1.00 ms"
    workers = [[event.pid for event in seen if isinstance(event, WorkerReady)] for seen in watching.seen]
    assert len(workers) == 2  # the dashboard's arm alone is drawn, once a round
    assert len({pid for pids in workers for pid in pids}) == 2
    # What the dashboard draws has no sampler's readings in it.
    readings = [event for seen in watching.seen for event in seen if isinstance(event, Reading)]
    assert all(reading.host_rss_bytes is None for reading in readings)


def test_a_step_that_cannot_be_measured_is_told_and_ends_nothing() -> None:
    cost = measure(CPU, 2, Watching().dashboard, lambda done, of: None, MINUTE, ScriptedLauncher({16: "crashed"}))
    assert cost.arms == []
    assert set(cost.not_measured) == {"dashboard", "sampler", "history"}
    assert "crashed" in cost.not_measured["dashboard"]


@pytest.mark.slow
def test_what_sysbench_costs_is_measured_with_real_steps_and_a_real_dashboard() -> None:
    few = SPEC.model_copy(update={"mode": ("forward",), "steps": (20,), "warmup": (2,)})
    told: list[tuple[int, int]] = []
    cpu = DeviceInfo(name="this CPU", type="cpu")
    cost = measure(cpu, 1, discarded_dashboard, lambda done, of: told.append((done, of)), few)
    assert told == [(0, 3), (1, 3), (2, 3)]
    assert {arm.part for arm in cost.arms} == {"dashboard", "sampler"}
    assert set(cost.not_measured) == {"history"}
    for arm in cost.arms:
        assert len(arm.with_s) == len(arm.without_s) == 1
        assert all(value > 0 for value in (*arm.with_s, *arm.without_s))
        assert (arm.ratio_low, arm.ratio_high) == (None, None)
