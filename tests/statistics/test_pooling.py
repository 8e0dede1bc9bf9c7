"""One sentence for many cells: that chance alone does not make one, and that what is there is said. By injection."""

from __future__ import annotations

import math
import random

import pytest

from sysbench.statistics import Ratio, effect, pooled, rank_sum, ratio

SEED = 20261121


def scattered(median: float, noise: float, dice: random.Random, count: int = 10) -> list[float]:
    return [median * math.exp(dice.gauss(0, noise)) for _ in range(count)]


def cell(multiple: float, noise: float, dice: random.Random) -> Ratio:
    return ratio(scattered(multiple, noise, dice), scattered(1.0, noise, dice))


def test_long_streams_have_nearly_the_rank_sum_that_counting_would_give() -> None:
    dice = random.Random(SEED)
    one, other = scattered(1.0, 0.02, dice, 40), scattered(1.01, 0.02, dice, 40)
    exactly = rank_sum(one, other)
    # One sample more takes the normal distribution instead.
    assert rank_sum([*one, 1.005], [*other, 1.005]) == pytest.approx(exactly, rel=0.25)


def test_ten_samples_against_ten_others_can_be_told_apart_among_many() -> None:
    assert rank_sum(range(10), range(10, 20)) == pytest.approx(2 / math.comb(20, 10))


@pytest.mark.parametrize("cells", [1, 20])
@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_of_data_without_an_effect_one_in_a_hundred_is_said_to_have_one_at_most(cells: int, noise: float) -> None:
    dice = random.Random(SEED)
    runs = 250 if cells > 1 else 2000
    false = sum(
        any(effect(scattered(1.0, noise, dice), scattered(1.0, noise, dice), cells).direction for _ in range(cells))
        for _ in range(runs)
    )
    # Three standard errors of 1% at this number of runs.
    assert false / runs <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / runs)


@pytest.mark.parametrize("cells", [1, 12])
def test_three_percent_under_one_percent_of_noise_are_found(cells: int) -> None:
    dice = random.Random(SEED)
    found = [effect(scattered(1.03, 0.01, dice), scattered(1.0, 0.01, dice), cells).direction for _ in range(400)]
    assert found.count(1) >= 0.95 * len(found)
    assert -1 not in found


def test_a_difference_that_clocks_alone_make_is_none() -> None:
    dice = random.Random(SEED)
    # Half a percent, known a hundred times better than needed.
    assert effect(scattered(1.005, 1e-5, dice), scattered(1.0, 1e-5, dice)).direction == 0


def test_cells_that_agree_are_said_to_and_the_value_reaches_the_true_one() -> None:
    dice = random.Random(SEED)
    found = [pooled([cell(2.03, 0.01, dice) for _ in range(12)]) for _ in range(200)]
    said = [each for each in found if each is not None]
    assert len(said) >= 0.9 * len(found)
    assert sum(abs(each.value - 2.03) <= each.max_deviation for each in said) >= 0.99 * len(said)


def test_a_cell_that_differs_by_five_percent_keeps_the_others_from_speaking_for_it() -> None:
    dice = random.Random(SEED)
    found = [pooled([cell(2.0, 0.01, dice) for _ in range(11)] + [cell(2.1, 0.01, dice)]) for _ in range(200)]
    assert sum(each is not None for each in found) <= 0.01 * len(found)


def test_no_cell_is_farther_from_the_common_value_than_is_said() -> None:
    ratios = [Ratio(2.00, 1.96, 2.04), Ratio(2.02, 1.99, 2.05), Ratio(2.05, 2.01, 2.09)]
    found = pooled(ratios)
    assert found is not None
    assert all(abs(each.value - found.value) <= found.max_deviation + 1e-12 for each in ratios)


def test_values_that_are_equal_reach_as_far_as_their_mean_is_uncertain() -> None:
    found = pooled([Ratio(2.0, 1.94, 2.06)] * 4)
    assert found is not None
    # Half an interval on the logarithmic scale, over the root of four.
    assert found.max_deviation == pytest.approx(2.0 * math.expm1(math.log(2.06 / 1.94) / 2 / 2))


def test_nothing_is_pooled_without_intervals() -> None:
    assert pooled([]) is None
    assert pooled([Ratio(2.0, None, None), Ratio(2.0, 1.9, 2.1)]) is None


def test_values_that_agree_only_because_nothing_is_known_of_them_are_not_pooled() -> None:
    assert pooled([Ratio(1.0, 0.5, 2.0), Ratio(1.6, 0.8, 3.2)]) is None
