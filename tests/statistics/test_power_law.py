"""Exponents and crossovers: known ones are found, doubtful ones are withheld, and intervals hold what they promise."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sysbench.statistics import NoPowerLaw, PowerLaw, Ratio, crossovers, direction, power_law, ratio
from sysbench.statistics.summary import t_quantile

SIZES = (256, 512, 1024, 2048, 4096, 8192)


def law(sizes: object, values: object) -> PowerLaw:
    found = power_law(sizes, values)  # type: ignore[arg-type]
    assert isinstance(found, PowerLaw)
    return found


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [(1, 12.706205), (2, 4.302653), (3, 3.182446), (4, 2.776445), (7, 2.364624), (30, 2.042272), (200, 1.971896)],
)
def test_students_quantiles_are_those_of_the_tables(degrees: int, expected: float) -> None:
    assert t_quantile(0.95, degrees) == pytest.approx(expected, abs=1e-6)


def test_a_quantile_needs_a_probability_and_a_degree_of_freedom() -> None:
    with pytest.raises(ValueError, match="probability"):
        t_quantile(1.0, 3)
    with pytest.raises(ValueError, match="degrees"):
        t_quantile(0.95, 0)


@pytest.mark.parametrize(("count", "scatter"), [(4, 0.01), (4, 0.05), (5, 0.03), (6, 0.05)])
def test_the_interval_holds_the_exponent_in_95_of_100_series(count: int, scatter: float) -> None:
    dice = np.random.default_rng(count)
    sizes = SIZES[:count]
    series = [np.array(sizes) ** 1.9 * np.exp(dice.normal(0, scatter, count)) for _ in range(800)]
    found = [each for values in series if isinstance(each := power_law(sizes, values.tolist()), PowerLaw)]
    covered = sum(each.low <= 1.9 <= each.high for each in found) / len(found)
    assert len(found) > 0.9 * len(series)
    assert 0.92 <= covered <= 0.98
    assert 1.8 < float(np.mean([each.exponent for each in found])) < 2.0


def test_what_bends_all_the_way_is_no_power_law_and_its_slopes_are_given() -> None:
    values = [math.exp(0.25 * math.log(size) ** 2) for size in SIZES]
    found = power_law(SIZES, values)
    assert isinstance(found, NoPowerLaw)
    assert not found.too_few
    exponents = [slope.exponent for slope in found.slopes]
    assert exponents == sorted(exponents)
    assert (found.slopes[-1].first, found.slopes[-1].last) == (4096, 8192)
    assert found.slopes[-1].exponent == pytest.approx(math.log(values[-1] / values[-2]) / math.log(2))


def test_two_sizes_have_no_exponent() -> None:
    found = power_law((256, 512), (1.0, 4.0))
    assert isinstance(found, NoPowerLaw)
    assert found.too_few
    assert found.slopes[0].exponent == pytest.approx(2)


@pytest.mark.parametrize(
    ("sizes", "values", "said"),
    [
        ((1, 2), (1.0, 2.0, 3.0), "the numbers must be equal"),
        ((0, 1, 2), (1.0, 2.0, 3.0), "not positive"),
        ((1, 2, 3), (1.0, -2.0, 3.0), "not positive"),
        ((1, 2, 2), (1.0, 2.0, 3.0), "duplicate size"),
        ((1, 2, 3), (1.0, math.nan, 3.0), "must be finite"),
        ((), (), "no samples"),
    ],
)
def test_what_has_no_logarithm_is_refused_in_one_line(sizes: object, values: object, said: str) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        power_law(sizes, values)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)


# --- crossovers


def sure(value: float) -> Ratio:
    return Ratio(value, value * 0.99, value * 1.01)


def test_a_crossover_lies_where_the_two_lines_meet() -> None:
    # t₁ = N², t₂ = 1000·N: they meet at 1000, and straight lines between logarithms are exact for powers.
    (found,) = crossovers(SIZES, [sure(size**2 / (1000 * size)) for size in SIZES])
    assert found.at == pytest.approx(1000)
    assert (found.below, found.above, found.falls) == (512, 1024, False)


def test_sizes_at_which_it_cannot_be_told_widen_the_bracket() -> None:
    ratios = [sure(2.0), Ratio(1.02, 0.9, 1.1), Ratio(0.97, 0.9, 1.1), sure(0.5)]
    (found,) = crossovers(SIZES[:4], ratios)
    assert (found.below, found.above, found.falls) == (256, 2048, True)
    assert 512 < found.at < 1024


def test_what_never_changes_sides_without_doubt_has_no_crossover() -> None:
    assert crossovers(SIZES[:3], [sure(2.0), sure(1.5), sure(1.2)]) == []
    assert crossovers(SIZES[:3], [sure(2.0), Ratio(0.99, 0.9, 1.1), Ratio(0.5, None, None)]) == []


def test_it_can_cross_and_come_back() -> None:
    found = crossovers(SIZES[:3], [sure(2.0), sure(0.5), sure(2.0)])
    assert [each.falls for each in found] == [True, False]
    assert [each.at for each in found] == pytest.approx([256 * 2**0.5, 512 * 2**0.5])


def test_noise_alone_is_rarely_taken_for_a_crossover() -> None:
    dice = np.random.default_rng(0)
    alarms = 0
    for _ in range(200):
        ratios = [ratio(dice.lognormal(0, 0.05, 20), dice.lognormal(0, 0.05, 20)) for _ in SIZES[:4]]
        alarms += bool(crossovers(SIZES[:4], ratios))
    assert alarms < 10


def test_sizes_and_ratios_must_match_and_ascend() -> None:
    with pytest.raises(ValueError, match="the numbers must be equal"):
        crossovers((1, 2), [sure(1.0)])
    with pytest.raises(ValueError, match="ascend"):
        crossovers((2, 1), [sure(1.0), sure(2.0)])


def test_a_direction_needs_an_interval_without_1() -> None:
    assert direction(sure(2.0)) == 1
    assert direction(sure(0.5)) == -1
    assert direction(Ratio(1.0, 0.9, 1.1)) == direction(Ratio(2.0, None, None)) == 0
