from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench import statistics
from sysbench.statistics.modes import dip

Sampler = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]

MEDIAN_ONE: dict[str, Sampler] = {
    "normal 0.05": lambda random, shape: 1 + 0.05 * random.standard_normal(shape),
    "lognormal 0.05": lambda random, shape: np.exp(0.05 * random.standard_normal(shape)),
    "lognormal 0.5": lambda random, shape: np.exp(0.5 * random.standard_normal(shape)),
    "laplace": lambda random, shape: random.laplace(1, 0.05, shape),
    "uniform": lambda random, shape: random.uniform(0.5, 1.5, shape),
    "exponential": lambda random, shape: random.exponential(1 / math.log(2), shape),
}

timings = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=40)

OF_ONE_STREAM: list[Callable[[statistics.Stream], object]] = [
    statistics.summarize,
    statistics.median_interval,
    statistics.relative_width,
    lambda samples: statistics.has_converged(samples, 0.01),
    statistics.too_few,
    statistics.drift,
    statistics.two_modes,
    statistics.outliers,
    statistics.autocorrelation,
    lambda samples: statistics.warmup_unfinished((), samples),
    lambda samples: statistics.ratio(samples, [1.0]),
]

DETECTORS: list[Callable[[statistics.Stream], object]] = [
    statistics.drift,
    statistics.two_modes,
    statistics.outliers,
    statistics.autocorrelation,
    lambda samples: statistics.warmup_unfinished((), samples),
    lambda samples: statistics.warmup_unfinished(samples, samples),
]


# What a summary says.


def test_a_summary_agrees_with_numbers_worked_out_by_hand() -> None:
    summary = statistics.summarize([4.0, 1.0, 3.0, 2.0, 10.0])
    assert (summary.count, summary.mean, summary.median) == (5, 4.0, 3.0)
    assert (summary.minimum, summary.maximum) == (1.0, 10.0)
    assert summary.std == pytest.approx(math.sqrt((0 + 9 + 1 + 4 + 36) / 4))
    assert summary.mad == 1.0  # distances 1, 2, 0, 1, 7
    # The k-th smallest of five stands at (k - 1) / 4: 5% lies a fifth of the way from 1 to 2, 95% four fifths from 4.
    assert (summary.p5, summary.p25, summary.p75, summary.p95) == pytest.approx((1.2, 2.0, 4.0, 8.8))
    # Deviations 0, -3, -1, -2, 6: products of neighbours 0 + 3 + 2 - 12 over squares 50.
    assert summary.lag1 == pytest.approx(-7 / 50)
    assert summary.ci95 is None


@pytest.mark.parametrize("count", [2, 3, 5])
def test_few_samples_are_summarized_without_an_interval(count: int) -> None:
    summary = statistics.summarize([1.0 + 0.1 * index for index in range(count)])
    assert summary.ci95 is None
    assert (summary.lag1 is None) == (count < 3)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 2.5e-7])
@pytest.mark.parametrize("count", [1, 2, 3, 6, 10, 200])
def test_equal_samples_have_exactly_their_own_value_everywhere(value: float, count: int) -> None:
    summary = statistics.summarize([value] * count)
    levels = (summary.mean, summary.median, summary.minimum, summary.maximum, summary.p5, summary.p25, summary.p95)
    assert set(levels) == {value}
    assert (summary.std, summary.mad, summary.lag1) == (0.0, 0.0, None)
    assert summary.ci95 == ((value, value) if count >= 6 else None)


@pytest.mark.parametrize("function", OF_ONE_STREAM)
@pytest.mark.parametrize(
    ("samples", "said"),
    [
        ([], "no samples"),
        ([1.0, math.nan, 1.0], "sample 1 of 3 is nan"),
        ([1.0] * 9 + [math.inf], "sample 9 of 10 is inf"),
        ([1.0, -math.inf], "sample 1 of 2 is -inf"),
        ([[1.0, 2.0], [3.0, 4.0]], "flat sequence"),
    ],
)
def test_samples_that_mean_nothing_are_refused_in_one_line(
    function: Callable[[object], object], samples: object, said: str
) -> None:
    with pytest.raises(ValueError, match=said) as refusal:
        function(samples)
    assert "\n" not in str(refusal.value)


def test_samples_are_left_as_they_were() -> None:
    samples = np.random.default_rng(1).normal(1, 0.05, 50).round(2)
    before = samples.copy()
    for function in OF_ONE_STREAM:
        function(samples)
    assert np.array_equal(samples, before)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 10, 50, 200])
def test_no_detector_alarms_on_equal_samples(count: int) -> None:
    for detector in DETECTORS:
        assert detector([0.1] * count) is None


@pytest.mark.parametrize("count", [6, 10, 50, 200])
def test_differences_below_a_tenth_of_a_percent_are_not_reported(count: int) -> None:
    rising = [1 + 0.0009 * index / count for index in range(count)]
    two_levels = [1 + 0.0009 * (index % 2) for index in range(count)]
    for stream, detector in itertools.product((rising, rising[::-1], two_levels, [1.0009] + [1.0] * count), DETECTORS):
        assert detector(stream) is None


@pytest.mark.parametrize("count", range(1, 6))
def test_no_detector_speaks_below_six_samples_but_too_few(count: int) -> None:
    samples = [100.0, 3.0, 2.0, 1.0, 0.5][:count]
    assert statistics.too_few(samples)
    assert all(detector(samples) is None for detector in DETECTORS)
    assert not statistics.too_few([1.0] * 6)


@given(st.integers(0, 2**32 - 1), st.sampled_from([6, 7, 10, 33, 150]))
def test_the_verdict_does_not_depend_on_the_unit(seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    samples = 1 + 0.05 * random.standard_normal(count) + random.choice([0, 0.5]) * (random.random(count) < 0.4)
    for detector in DETECTORS:
        # Powers of two, so that not a bit of the mantissa changes.
        assert (detector(samples) is None) == (detector(samples * 2.0**-20) is None)


# How well the median is known.


def test_the_interval_of_a_long_stream_is_the_normal_one() -> None:
    """At n = 5,000 the ends stand 1.96 · √n / 2 = 69.3 places from the middle."""
    interval = statistics.median_interval(np.arange(5000.0))
    assert interval == pytest.approx((2499.5 - 69.3, 2499.5 + 69.3), abs=0.5)


@pytest.mark.parametrize("confidence", [0.0, 1.0, -0.5, 95.0, math.nan])
def test_a_confidence_outside_zero_and_one_is_refused(confidence: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        statistics.median_interval(range(10), confidence)


@given(timings)
def test_the_interval_encloses_the_median_and_stays_within_the_samples(samples: list[float]) -> None:
    interval = statistics.median_interval(samples)
    assert (interval is None) == (len(samples) < 6)
    if interval is not None:
        low, high = interval
        assert min(samples) <= low <= np.median(samples) <= high <= max(samples)


@pytest.mark.slow
@pytest.mark.parametrize("count", [10, 20, 50, 200])
@pytest.mark.parametrize("distribution", ["normal 0.05", "lognormal 0.05", "lognormal 0.5"])
def test_the_interval_holds_the_median_in_93_to_97_of_100_runs(distribution: str, count: int) -> None:
    streams = MEDIAN_ONE[distribution](np.random.default_rng(count), (10_000, count))
    assert 0.93 <= _share_covering_one(streams) <= 0.97


@pytest.mark.parametrize("count", [6, 7, 8, 9, 11, 15])
@pytest.mark.parametrize("distribution", MEDIAN_ONE)
def test_the_interval_holds_the_median_for_every_shape_from_six_samples_on(distribution: str, count: int) -> None:
    streams = MEDIAN_ONE[distribution](np.random.default_rng(count), (2_000, count))
    assert 0.93 <= _share_covering_one(streams) <= 0.97


def _share_covering_one(streams: np.ndarray) -> float:
    intervals = (statistics.median_interval(stream) for stream in streams)
    return float(np.mean([interval is not None and interval[0] <= 1 <= interval[1] for interval in intervals]))


def test_a_coarse_clock_does_not_narrow_the_interval_below_its_tick() -> None:
    random = np.random.default_rng(5)
    streams = (1 + 0.005 * random.standard_normal((2_000, 10))).round(2)
    assert _share_covering_one(streams) >= 0.93


# When to stop.


def test_the_width_is_relative_to_the_median() -> None:
    assert statistics.relative_width([2.0 * k for k in range(1, 7)]) == pytest.approx((5.642857 - 1.357143) / 3.5)
    assert statistics.relative_width([5.0] * 10) == 0.0
    assert statistics.relative_width([1.0] * 5) is None
    assert statistics.relative_width([0.0] * 10) is None


def test_measuring_stops_at_the_second_narrow_look() -> None:
    steady = [1.0, 1.001] * 100
    stops = [count for count in range(1, 201) if statistics.has_converged(steady[:count], 0.01)]
    assert stops == [15, 23, 35, 53, 80, 120, 180]


def test_one_narrow_look_is_not_enough() -> None:
    quiet_then_loud = [1.0] * 10 + [2.0] * 40
    assert not any(statistics.has_converged(quiet_then_loud[:count], 0.01) for count in range(1, 51))


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.03, 0.06, 0.09])
@pytest.mark.parametrize("distribution", ["normal 0.05", "lognormal 0.05"])
def test_the_interval_still_holds_the_median_where_measuring_stopped(distribution: str, share: float) -> None:
    streams = MEDIAN_ONE[distribution](np.random.default_rng(7), (1_000, 400))
    covers, lengths = [], []
    for stream in streams:
        stop = next((count for count in range(1, 400) if statistics.has_converged(stream[:count], share)), 400)
        interval = statistics.median_interval(stream[:stop])
        covers.append(interval is not None and interval[0] <= 1 <= interval[1])
        lengths.append(stop)
    assert np.mean(covers) >= 0.92
    # It must have stopped by itself, and at different lengths, or the test has seen no stopping rule at work.
    assert np.mean(np.array(lengths) < 400) > 0.95
    assert len(set(lengths)) > 1


# How many times as long.


def test_a_ratio_is_that_of_the_medians() -> None:
    fp32, bf16 = [365.0 + k for k in (-2, -1, 0, 1, 2, 30)], [100.0] * 10
    ratio = statistics.ratio(fp32, bf16)
    low, high = statistics.median_interval(fp32) or (0, 0)
    assert ratio.value == pytest.approx(3.655)
    # With a denominator known exactly, the interval is the numerator's.
    assert (ratio.low, ratio.high) == pytest.approx((low / 100, high / 100))


def test_a_ratio_of_short_streams_has_no_interval() -> None:
    assert statistics.ratio([2.0] * 2, [1.0] * 10) == statistics.Ratio(2.0, None, None)
    assert statistics.ratio([2.0] * 10, [1.0]) == statistics.Ratio(2.0, None, None)


def test_the_ratio_the_other_way_round_is_the_reciprocal() -> None:
    random = np.random.default_rng(3)
    first, second = random.lognormal(0, 0.3, 12), random.lognormal(1, 0.1, 30)
    one, other = statistics.ratio(first, second), statistics.ratio(second, first)
    assert one.low is not None
    assert one.high is not None
    assert (other.value, other.low, other.high) == pytest.approx((1 / one.value, 1 / one.high, 1 / one.low))


def test_a_ratio_needs_positive_medians() -> None:
    with pytest.raises(ValueError, match="needs positive medians"):
        statistics.ratio([1.0] * 10, [0.0] * 10)
    with pytest.raises(ValueError, match="needs positive medians"):
        statistics.ratio([-1.0] * 10, [1.0] * 10)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "other_count", "other_sigma"), [(10, 10, 0.05), (10, 50, 0.01), (50, 50, 0.5)])
def test_the_interval_of_a_ratio_holds_it(count: int, other_count: int, other_sigma: float) -> None:
    random = np.random.default_rng(11)
    covers = []
    for _ in range(2_000):
        numerator = 3.65 * np.exp(0.05 * random.standard_normal(count))
        ratio = statistics.ratio(numerator, np.exp(other_sigma * random.standard_normal(other_count)))
        assert ratio.low is not None
        assert ratio.high is not None
        covers.append(ratio.low <= 3.65 <= ratio.high)
    assert 0.94 <= np.mean(covers) <= 0.985


# The dip, on which the verdict of two modes rests.


@pytest.mark.parametrize(
    ("ordered", "expected"),
    [
        # From Maechler's C code for Hartigan's algorithm (the diptest packages).
        (np.array([1.0, 1.1, 1.25, 1.3, 1.42, 3.0, 3.05, 3.2, 3.31, 3.5]), 0.18990384615384615),
        (np.array(sorted(((i * 37) % 101) / 7 + (i % 5) ** 3 for i in range(40))), 0.06793893129770992),
        (np.concatenate((np.arange(20) ** 1.5, 200 + np.arange(7) ** 2.0)), 0.09916456476090428),
        (np.sqrt(np.arange(1, 31)), 1 / 60),
        (np.array([4.0, 9.0, 30.0, 34.0]), 0.20192307692307693),
    ],
)
def test_the_dip_agrees_with_the_published_algorithm(ordered: np.ndarray, expected: float) -> None:
    assert dip(ordered) == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.integers(-10_000, 10_000), min_size=4, max_size=40, unique=True))
def test_the_dip_lies_between_that_of_one_hump_and_that_of_two_points(samples: list[int]) -> None:
    ordered = np.array(sorted(samples), dtype=float)
    assert 1 / (2 * len(samples)) - 1e-12 <= dip(ordered) <= 0.25
    assert dip(ordered) == pytest.approx(dip(-ordered[::-1]), abs=1e-12)


@given(st.lists(st.integers(-10_000, 10_000), min_size=4, max_size=40, unique=True), st.floats(0, 0.25))
def test_a_dip_below_the_floor_is_the_floor_and_one_above_it_is_exact(samples: list[int], floor: float) -> None:
    ordered = sorted(map(float, samples))
    whole, found = dip(ordered), dip(ordered, floor)
    assert found == pytest.approx(max(whole, floor), abs=1e-12)
    assert (found > floor) == (whole > floor) or whole == pytest.approx(floor, abs=1e-12)


# What it costs to have it.


def test_it_needs_numpy_and_nothing_heavier() -> None:
    code = (
        "import sys, sysbench.statistics; print(*({'torch', 'scipy', 'pandas', 'pydantic', 'rich'} & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
