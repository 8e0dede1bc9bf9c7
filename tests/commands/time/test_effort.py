"""Within a time limit, a cell takes the steps that fit; without one, and where they were given, all of them."""

from __future__ import annotations

import pytest

from sysbench.commands.time.effort import StepBudget
from sysbench.commands.time.spec import TimeCell, TimeSpec
from sysbench.errors import SpecError
from sysbench.log.events import Ending
from sysbench.spec.quantities import time_limit_word

BUILD_S = 5.0


def the_cell(**given: object) -> TimeCell:
    (cell,) = TimeSpec(size="tiny", ctx=64, **given).cells()
    return cell


def taken(cell: TimeCell, step_s: float, *, first_s: float | None = None) -> tuple[int, int, Ending, Ending, float]:
    """Numbers of warm-ups and steps on a CPU where each step takes `step_s`, why they ended, and the whole time."""
    spent_s = [BUILD_S]
    budget = StepBudget(cell, cell.limit_s("cpu"), lambda: sum(spent_s))
    warmup_s: list[float] = []
    steps_s: list[float] = []
    while budget.wants_warmup(warmup_s):
        warmup_s.append(first_s if first_s is not None and not warmup_s else step_s)
        spent_s.append(warmup_s[-1])
        if budget.is_last_step(warmup_s):
            steps_s.append(warmup_s.pop())
            break
    while budget.wants_step(steps_s):
        steps_s.append(step_s)
        spent_s.append(step_s)
    return len(warmup_s), len(steps_s), budget.warmup_end, budget.steps_end, sum(spent_s)


@pytest.mark.parametrize(
    ("step_s", "counts"),
    [(0.1, (5, 10)), (11.0, (5, 10)), (15.0, (2, 9)), (40.0, (1, 3)), (70.0, (1, 1)), (138.0, (0, 1)), (300.0, (0, 1))],
)
def test_on_a_cpu_a_cell_takes_what_fits_into_three_minutes_and_at_least_one_step(
    step_s: float, counts: tuple[int, int]
) -> None:
    warmups, steps, _, _, whole_s = taken(the_cell(), step_s)
    assert (warmups, steps) == counts
    assert whole_s <= max(180.0, BUILD_S + step_s)


def test_numbers_that_were_given_are_obeyed_unless_a_limit_is_given_too() -> None:
    assert taken(the_cell(warmup=2, steps=4), 138.0)[:2] == (2, 4)
    assert taken(the_cell(steps=4), 138.0)[:2] == (1, 4)
    assert taken(the_cell(warmup=2), 138.0)[:2] == (2, 1)
    assert taken(the_cell(warmup=2, steps=4, max_time="5m"), 138.0)[:2] == (1, 1)
    assert taken(the_cell(max_time="none"), 138.0)[:2] == (5, 10)
    assert taken(the_cell(until="1%", max_time="1m"), 2.0)[1] >= 10
    assert taken(the_cell(until="1%", max_time="1m"), 20.0)[1] == 1


def test_a_slow_first_step_is_no_reason_to_end_the_warm_up() -> None:
    assert taken(the_cell(), 12.0, first_s=30.0)[:2] == (3, 10)


def test_what_ended_the_steps_is_said() -> None:
    assert taken(the_cell(), 0.1)[2:4] == ("complete", "complete")
    assert taken(the_cell(), 15.0)[2:4] == ("steady", "time")
    assert taken(the_cell(), 138.0)[2:4] == ("time", "time")


def test_a_gpu_has_no_limit_unless_one_is_given() -> None:
    assert the_cell().limit_s("cuda") is None
    assert the_cell(max_time="90s").limit_s("cuda") == 90.0


@pytest.mark.parametrize(
    ("word", "seconds", "shortest"),
    [
        ("90s", 90.0, "90s"),
        ("90", 90.0, "90s"),
        ("3m", 180.0, "3m"),
        ("1h30m", 5400.0, "1h30m"),
        ("1.5 min", 90.0, "90s"),
    ],
)
def test_a_limit_is_read_as_people_write_it(word: str, seconds: float, shortest: str) -> None:
    spec = TimeSpec(size="tiny", max_time=word)
    assert spec.max_time == seconds
    assert time_limit_word(seconds) == shortest
    assert TimeSpec(**spec.model_dump(mode="json")) == spec


@pytest.mark.parametrize("word", ["0", "0s", "-3m", "3x", "", "m", "nan", "inf", "1e400", "3m 3h", "99999999h"])
def test_what_is_no_limit_is_refused_in_one_line_with_examples(word: str) -> None:
    with pytest.raises(SpecError, match=r"^max_time=.*90s, 3m, 1h30m, or none") as refused:
        TimeSpec(size="tiny", max_time=word)
    assert "\n" not in str(refused.value)
