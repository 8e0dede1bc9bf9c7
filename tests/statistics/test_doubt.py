"""How far a median may be off: by each sign of doubt, and not at all without one."""

from __future__ import annotations

import math
import random

import pytest

from sysbench.statistics import Doubt, Estimate, Load, Signs, doubts, estimate, median_interval, ratio
from sysbench.statistics.doubt import CPU_REPEAT_SD
from sysbench.statistics.verdict import compare_processes, compare_runs

QUIET = Load(cores=2, threads=2, others_share=0.02)
SLOWER = 1.1
PAIRS = 400


def steps(dice: random.Random, count: int = 10, scatter: float = 0.01) -> list[float]:
    return [0.1 * math.exp(dice.gauss(0, scatter)) for _ in range(count)]


def causes(samples: list[float], signs: Signs) -> dict[str, tuple[float, float]]:
    return {doubt.cause: (doubt.low, doubt.high) for doubt in doubts(samples, signs)}


def test_a_quiet_run_has_the_interval_of_its_median() -> None:
    samples = steps(random.Random(1))
    signs = Signs(processor=[1.4 * each for each in samples], load=QUIET, warmup=steps(random.Random(2), 5))
    assert list(doubts(samples, signs)) == []
    assert estimate(samples).interval() == pytest.approx(median_interval(samples))


def test_a_busy_machine_may_have_taken_all_but_the_processor_time_on_all_threads() -> None:
    samples = [0.2] * 10
    load = Load(cores=2, threads=2, others_share=0.6)
    low, high = causes(samples, Signs(processor=[0.12] * 10, load=load))["host-busy"]
    assert 0.8 * 0.12 / 2 < low <= 0.12 / 2
    assert high == pytest.approx(0.2)
    # One step in three minutes of another program is no reason to distrust two thirds of the time.
    low, _ = causes(samples, Signs(processor=[0.21] * 10, load=Load(cores=2, threads=2, others_share=0.1)))["host-busy"]
    assert 0.9 * 0.2 < low < 0.2


def test_steps_that_waited_for_a_core_tell_so_without_any_reading() -> None:
    load = Load(cores=2, threads=1, others_share=None)
    assert "host-busy" in causes([0.2] * 10, Signs(processor=[0.03] * 10, load=load))
    assert causes([0.2] * 10, Signs(processor=[0.199] * 10, load=load)) == {}
    assert causes([0.2] * 10, Signs(load=load)) == {}


def test_without_processor_times_the_step_had_what_the_others_left() -> None:
    low, _ = causes([0.5] * 10, Signs(load=Load(cores=2, threads=2, others_share=0.9)))["host-busy"]
    assert low <= 0.5 * 0.1


def test_both_levels_are_in_the_interval() -> None:
    low, high = estimate(both := [1.0, 1.3] * 20, tuple(doubts(both, Signs()))).interval() or (0, 0)
    assert low <= 1.0
    assert high >= 1.3


def test_the_interval_of_a_trend_reaches_beyond_its_end() -> None:
    falling = [2 - 0.02 * number + 0.001 * (number * 7 % 5) for number in range(40)]
    low, high = estimate(falling, tuple(doubts(falling, Signs()))).interval() or (0, 0)
    assert low < falling[-1] < high


def test_three_steps_have_an_interval_and_two_have_none() -> None:
    assert estimate([1.0, 1.1]).interval() is None
    low, high = estimate([1.0, 1.1, 1.2]).interval() or (0, 0)
    # Student's t for two degrees of freedom is 4.3; the logarithms of these steps scatter by 0.09.
    assert math.log(high / low) / 2 == pytest.approx(4.303 * 0.0912 / math.sqrt(3), rel=0.02)


def test_what_a_doubt_adds_to_one_side_the_ratio_may_be_off_by() -> None:
    plain, doubtful = estimate([1.0] * 10), estimate([2.0] * 10, [Doubt("host-busy", 0.5, 2.0)])
    found = ratio(doubtful, plain)
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 0.5, 2.0))
    assert compare_processes(plain, doubtful).verdict == "AMBIGUOUS"
    assert compare_processes([1.0] * 10, [2.0] * 10).verdict == "SLOWER"
    assert compare_runs([plain] * 3, [doubtful] * 3).verdict == "AMBIGUOUS"


def test_the_same_code_is_told_apart_in_at_most_five_of_a_hundred_pairs_and_never_the_wrong_way_round() -> None:
    """Steps of 50 ms on two threads, of which other processes take up to nine tenths, in bursts longer than a run."""
    dice = random.Random(4)

    def run(work: float) -> tuple[list[float], Signs]:
        others = dice.choice([0.0, 0.3, 0.6, 0.9])
        processor = [0.07 * work * math.exp(dice.gauss(0, 0.05)) * (1 + 0.1 * others) for _ in range(10)]
        durations = [each / 1.4 / (1 - others) * (1 + others * dice.expovariate(3)) for each in processor]
        load = Load(cores=2, threads=2, others_share=max(0.0, others - 0.05) if dice.random() < 0.5 else None)
        return durations, Signs(processor=processor, load=load)

    def verdict(work: float) -> str:
        a, b = (estimate(samples, tuple(doubts(samples, signs))) for samples, signs in (run(1.0), run(work)))
        return compare_processes(a, b).verdict

    same = [verdict(1.0) for _ in range(PAIRS)]
    assert same.count("FASTER") + same.count("SLOWER") <= 0.05 * PAIRS
    assert [verdict(SLOWER) for _ in range(PAIRS)].count("FASTER") <= 0.01 * PAIRS


def test_ten_per_cent_are_found_in_quiet_runs() -> None:
    dice = random.Random(5)
    found = []
    for _ in range(PAIRS):
        a, b = steps(dice, scatter=0.02), [SLOWER * each for each in steps(dice, scatter=0.02)]
        one, other = (
            estimate(each, tuple(doubts(each, Signs(processor=[1.4 * wall for wall in each], load=QUIET))))
            for each in (a, b)
        )
        found.append(compare_processes(one, other).verdict)
    assert found.count("SLOWER") >= 0.8 * PAIRS
    assert found.count("FASTER") == 0


def test_runs_of_the_same_code_that_differ_as_they_do_on_a_cpu_seldom_have_a_verdict() -> None:
    dice = random.Random(5)

    def run(speed: float = 1.0) -> Estimate:
        level = speed * math.exp(dice.gauss(0, CPU_REPEAT_SD))
        return estimate([level * each for each in steps(dice)], repeat_sd=CPU_REPEAT_SD)

    same = [compare_processes(run(), run()).verdict for _ in range(PAIRS)]
    slower = [compare_processes(run(), run(1.7)).verdict for _ in range(PAIRS)]
    assert sum(verdict != "AMBIGUOUS" for verdict in same) <= 0.02 * PAIRS
    assert slower.count("SLOWER") >= 0.95 * PAIRS


def test_the_interval_of_one_run_holds_what_other_runs_measure() -> None:
    dice = random.Random(6)
    held = 0
    for _ in range(PAIRS):
        level = math.exp(dice.gauss(0, CPU_REPEAT_SD))
        interval = estimate([level * each for each in steps(dice)], repeat_sd=CPU_REPEAT_SD).interval()
        assert interval is not None
        held += interval[0] <= 0.1 <= interval[1]
    assert 0.9 * PAIRS <= held <= 0.99 * PAIRS


@pytest.mark.parametrize("count", [1, 2])
def test_the_interval_of_one_or_two_steps_on_a_cpu_holds_what_other_runs_measure(count: int) -> None:
    """Its only steps scatter by 5% around a level that differs from run to run."""
    dice = random.Random(count)
    held = 0
    for _ in range(PAIRS):
        level = 0.1 * math.exp(dice.gauss(0, CPU_REPEAT_SD))
        few = [level * math.exp(dice.gauss(0, 0.05)) for _ in range(count)]
        interval = estimate(few, repeat_sd=CPU_REPEAT_SD).interval()
        assert interval is not None
        held += interval[0] <= 0.1 <= interval[1]
        assert estimate(few).interval() is None  # where nothing is known of repetitions
    assert 0.9 * PAIRS <= held <= PAIRS
