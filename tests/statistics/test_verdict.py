"""Verdicts, by injection: what is put into the samples is what is found, and what is not put there is not.

Every simulation has 1,000 comparisons and a seed.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from sysbench.commands.compare.spec import CompareOptions
from sysbench.statistics.verdict import (
    MARGIN,
    MIN_RUNS,
    ComparedRatio,
    compare_processes,
    compare_rounds,
    compare_runs,
    verdict_of,
)

ROUNDS = CompareOptions(a="x").rounds
"""Rounds that `compare --ab` runs by default."""

COMPARISONS = 1000
FALSE = 0.01
"""What is promised of verdicts where there is nothing to find."""
FOUND = 0.95
"""What is promised of a difference of 3% under 1% noise."""

Values = NDArray[np.float64]


def processes(dice: np.random.Generator, count: int, steps: int = 10, noise: float = 0.01) -> Values:
    """One median for each fresh process: they differ by `noise` among themselves, and so do the steps of each."""
    level = np.exp(dice.normal(0, noise, count))
    medians: Values = 0.05 * level * np.median(np.exp(dice.normal(0, noise, (count, steps))), axis=1)
    return medians


def disturbed(dice: np.random.Generator, count: int) -> Values:
    """On a shared machine: one process in twelve meets a neighbour, and is slowed by 10% or so."""
    slowed: Values = processes(dice, count) * (1 + (dice.random(count) < 1 / 12) * dice.exponential(0.1, count))
    return slowed


def heavy_tailed(dice: np.random.Generator, count: int) -> Values:
    values: Values = 0.05 * np.exp(dice.standard_t(3, count) * 0.01 / math.sqrt(3))
    return values


def tally(compare: Callable[[np.random.Generator], ComparedRatio], seed: int) -> Counter[str]:
    dice = np.random.default_rng(seed)
    return Counter(compare(dice).verdict for _ in range(COMPARISONS))


def rounds_of(
    arm: Callable[[np.random.Generator, int], Values], change: float = 0.0, count: int = ROUNDS
) -> Callable[[np.random.Generator], ComparedRatio]:
    return lambda dice: compare_rounds(arm(dice, count), arm(dice, count) * (1 + change))


# Measured in turns


@pytest.mark.parametrize("arm", [processes, disturbed, heavy_tailed])
def test_of_two_arms_that_are_the_same_one_in_a_hundred_at_most_is_called_faster_or_slower(
    arm: Callable[[np.random.Generator, int], Values],
) -> None:
    found = tally(rounds_of(arm), seed=1)
    assert found["FASTER"] + found["SLOWER"] <= FALSE * COMPARISONS


def test_three_per_cent_under_one_per_cent_of_noise_is_found_at_the_default_number_of_rounds() -> None:
    assert tally(rounds_of(processes, 0.03), seed=2)["SLOWER"] >= FOUND * COMPARISONS
    assert tally(rounds_of(processes, -0.03), seed=3)["FASTER"] >= FOUND * COMPARISONS


def test_four_rounds_fewer_would_not_find_it() -> None:
    # The default is what it takes, not more.
    assert tally(rounds_of(processes, 0.03, ROUNDS - 4), seed=2)["SLOWER"] < FOUND * COMPARISONS


def test_one_disturbed_round_does_not_hide_a_difference() -> None:
    dice = np.random.default_rng(4)
    a, b = processes(dice, ROUNDS, noise=0.002), processes(dice, ROUNDS, noise=0.002) * 1.03
    b[5] *= 1.8
    judged = compare_rounds(a, b)
    assert judged.verdict == "SLOWER"
    assert judged.ratio == pytest.approx(1.03, abs=0.005)


def test_what_drifts_over_the_whole_comparison_falls_on_both_arms() -> None:
    slowing = np.linspace(1.0, 1.3, ROUNDS)

    def drifting(dice: np.random.Generator) -> ComparedRatio:
        return compare_rounds(processes(dice, ROUNDS) * slowing, processes(dice, ROUNDS) * slowing * 1.03)

    assert tally(drifting, seed=5)["SLOWER"] >= FOUND * COMPARISONS


def test_rounds_are_what_counts_however_many_steps_each_of_them_has() -> None:
    """Two processes of ten thousand steps each are two processes."""
    few = compare_rounds([1.0, 1.01], [1.03, 1.04])
    assert (few.verdict, few.low, few.count) == ("AMBIGUOUS", None, 2)
    assert compare_rounds([1.0] * MIN_RUNS, [1.03] * MIN_RUNS).verdict == "SLOWER"


# The same is a finding of its own


@pytest.mark.parametrize("change", [0.0, 0.005, -0.005])
def test_same_is_only_said_of_what_is_known_to_be_within_the_margin(change: float) -> None:
    quiet = tally(rounds_of(lambda dice, count: processes(dice, count, noise=0.001), change), seed=6)
    assert quiet["SAME"] >= FOUND * COMPARISONS


def test_noise_is_no_proof_that_two_are_the_same() -> None:
    noisy = tally(rounds_of(lambda dice, count: processes(dice, count, noise=0.05)), seed=7)
    assert noisy["SAME"] <= FALSE * COMPARISONS
    assert noisy["AMBIGUOUS"] >= 0.98 * COMPARISONS


@pytest.mark.parametrize("change", [1.5 * MARGIN, -1.5 * MARGIN])
def test_what_differs_by_more_than_the_margin_is_not_called_the_same(change: float) -> None:
    found = tally(rounds_of(processes, change), seed=8)
    assert found["SAME"] <= FALSE * COMPARISONS


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.90, 0.95, "FASTER"),
        (1.05, 1.10, "SLOWER"),
        (0.995, 1.008, "SAME"),
        (1.002, 1.008, "SAME"),
        (0.98, 1.02, "AMBIGUOUS"),
        (0.98, 1.0, "AMBIGUOUS"),
        (1.002, 1.02, "SLOWER"),
    ],
)
def test_an_interval_amounts_to_one_verdict(low: float, high: float, verdict: str) -> None:
    assert verdict_of(math.log(low), math.log(high), 0.01) == verdict


def test_the_margin_itself_is_still_the_same() -> None:
    margin = math.log1p(0.01)
    assert verdict_of(-margin, margin, 0.01) == "SAME"


# Two plain records: the steps of one process each


def steps(dice: np.random.Generator, count: int, memory: float = 0.0) -> Values:
    """Steps with 1% noise; each resembles the one before it with this correlation."""
    shocks = dice.normal(0, 1, count)
    for index in range(1, count):
        shocks[index] = memory * shocks[index - 1] + math.sqrt(1 - memory**2) * shocks[index]
    values: Values = 0.05 * np.exp(0.01 * shocks)
    return values


@pytest.mark.parametrize(("count", "memory"), [(10, 0.0), (20, 0.0), (100, 0.0), (100, 0.5)])
def test_steps_of_two_like_processes_are_rarely_called_faster_or_slower(count: int, memory: float) -> None:
    found = tally(lambda dice: compare_processes(steps(dice, count, memory), steps(dice, count, memory)), seed=9)
    assert found["FASTER"] + found["SLOWER"] <= FALSE * COMPARISONS


def test_three_per_cent_are_found_in_the_ten_steps_that_are_measured_by_default() -> None:
    found = tally(lambda dice: compare_processes(steps(dice, 10), steps(dice, 10) * 1.03), seed=10)
    assert found["SLOWER"] >= FOUND * COMPARISONS


def test_too_few_steps_make_no_interval_and_no_verdict() -> None:
    judged = compare_processes([1.0] * 2, [2.0] * 8)
    assert (judged.ratio, judged.low, judged.high, judged.verdict) == (2.0, None, None, "AMBIGUOUS")


# Several runs on each side, at different times


def test_runs_are_the_unit_where_there_are_several_of_each() -> None:
    same = tally(lambda dice: compare_runs(processes(dice, 5), processes(dice, 7)), seed=11)
    assert same["FASTER"] + same["SLOWER"] <= FALSE * COMPARISONS
    slower = tally(lambda dice: compare_runs(processes(dice, 10), processes(dice, 10) * 1.03), seed=12)
    assert slower["SLOWER"] >= FOUND * COMPARISONS


# What is no time


@pytest.mark.parametrize("compare", [compare_processes, compare_rounds, compare_runs])
@pytest.mark.parametrize(
    ("samples", "problem"), [([], "no samples"), ([1.0, math.nan], "finite"), ([1.0, -2.0], "positive")]
)
def test_what_is_no_time_is_refused(
    compare: Callable[..., ComparedRatio], samples: Sequence[float], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        compare(samples, [1.0, 1.0])


def test_every_round_has_one_of_each() -> None:
    with pytest.raises(ValueError, match="one of each"):
        compare_rounds([1.0, 1.0], [1.0])


def test_the_command_line_s_defaults_are_those_that_are_tested_here() -> None:
    assert CompareOptions(a="x").margin == MARGIN
