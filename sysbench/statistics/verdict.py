"""Verdicts on the speed of B relative to A: faster, slower, the same, or ambiguous.

Ratios are B/A: with a ratio of 0.9, B takes nine tenths of the time that A takes, and is FASTER. The verdicts are based
on the interval of a ratio. `rank_sum` tests whether two streams have the same distribution.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sysbench.statistics.order import autocorrelation
from sysbench.statistics.samples import Series, Stream, Values, series
from sysbench.statistics.summary import median_interval, t_quantile

Verdict = Literal["FASTER", "SLOWER", "SAME", "AMBIGUOUS"]
"""FASTER     the interval lies below 1
SLOWER     the interval lies above 1
SAME       the interval lies within the margin around 1: any difference is smaller than the margin
AMBIGUOUS  none of these: more samples would help
"""

Unit = Literal["steps", "runs", "rounds"]
"""The unit of replication: the interval covers the variation between these units."""

MARGIN = 0.01
"""Default margin: ratios from 1/1.01 to 1.01 count as the same."""

CONFIDENCE = 0.995
"""Nominal level of intervals that are reported as 99%, because intervals of trimmed means over a dozen rounds cover
slightly less than their nominal level."""

TRIMMED_SHARE = 0.2
"""Share of the rounds trimmed at either end: on a shared machine, one disturbed round in ten must not decide the
verdict."""

MIN_RUNS = 3
"""Fewer runs are not enough to estimate the variation between runs."""


@dataclass(frozen=True)
class ComparedRatio:
    """A ratio B/A, its interval, and the verdict, which is AMBIGUOUS if there is no interval."""

    ratio: float
    low: float | None
    high: float | None
    verdict: Verdict
    repeated: Unit
    count: int
    """Number of rounds, or of steps or runs on the side that has fewer."""


def compare_processes(a: Stream, b: Stream, margin: float = MARGIN) -> ComparedRatio:
    """Compare the median step times of two processes, one for A and one for B.

    The intervals of the two medians are combined by the method of `ratio`, each widened by √(samples / effective
    samples) if its steps are autocorrelated. The result does NOT cover differences between processes (memory placement,
    clocks, load): `compare_rounds` and `compare_runs` do.

    Raises ValueError if there are no samples, or if a sample is not finite or not positive.
    """
    first, second = _positive_series(a), _positive_series(b)
    median_a, median_b = first.median, second.median
    count = min(len(first), len(second))
    below_a, below_b = _widened_distances(first, median_a), _widened_distances(second, median_b)
    if below_a is None or below_b is None:
        return ComparedRatio(median_b / median_a, None, None, "AMBIGUOUS", "steps", count)
    log_ratio = math.log(median_b / median_a)
    low, high = log_ratio - math.hypot(below_b[0], below_a[1]), log_ratio + math.hypot(below_b[1], below_a[0])
    return _compared_ratio(log_ratio, low, high, margin, "steps", count)


def compare_rounds(a: Sequence[float], b: Sequence[float], margin: float = MARGIN) -> ComparedRatio:
    """Compare A and B by their medians in each round; within a round, both are measured back to back.

    A disturbance affects both sides of a round, so only the ratio within each round counts. The interval is that of the
    mean logarithm of these ratios, with a fifth trimmed from either end (Tukey and McLaughlin, Sankhyā A 25, 1963).
    Each process counts as one number, however many steps it has. Simulated false verdicts with fourteen rounds: 0.6%.

    Raises ValueError if there are no medians, if their numbers differ, or if a median is not positive and finite.
    """
    first, second = np.array(_positive_series(a).values), np.array(_positive_series(b).values)
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} medians: every round needs one of each arm")
    logs = np.sort(np.log(second / first))
    count, cut = len(logs), int(TRIMMED_SHARE * len(logs))
    kept = count - 2 * cut
    center = float(logs[cut : count - cut].mean())
    if count < MIN_RUNS:
        return ComparedRatio(math.exp(center), None, None, "AMBIGUOUS", "rounds", count)
    winsorized = np.clip(logs, logs[cut], logs[count - cut - 1])
    error = float(winsorized.std(ddof=1)) * math.sqrt((count - 1) / (kept * (kept - 1)))
    half_width = t_quantile(CONFIDENCE, kept - 1) * error
    return _compared_ratio(center, center - half_width, center + half_width, margin, "rounds", count)


def compare_runs(a: Sequence[float], b: Sequence[float], margin: float = MARGIN) -> ComparedRatio:
    """Compare A and B by one median per run, for runs made at different times.

    The interval is Welch's, for the difference of the mean logarithms (Biometrika 34, 1947). If all runs of A came
    before all runs of B, everything that changed in between counts as a difference; `compare_rounds` avoids this.

    Raises ValueError if there are no medians, or if a median is not positive and finite.
    """
    first, second = np.log(_positive_series(a).values), np.log(_positive_series(b).values)
    count = min(len(first), len(second))
    center = float(second.mean() - first.mean())
    if count < MIN_RUNS:
        return ComparedRatio(math.exp(center), None, None, "AMBIGUOUS", "runs", count)
    mean_variances = [float(values.var(ddof=1)) / len(values) for values in (first, second)]
    total_variance = sum(mean_variances)
    degrees_terms = [
        variance * variance / (len(values) - 1)
        for variance, values in zip(mean_variances, (first, second), strict=True)
    ]
    degrees = max(1, int(total_variance * total_variance / sum(degrees_terms))) if sum(degrees_terms) > 0 else count - 1
    half_width = t_quantile(CONFIDENCE, degrees) * math.sqrt(total_variance)
    return _compared_ratio(center, center - half_width, center + half_width, margin, "runs", count)


def _compared_ratio(
    log_ratio: float, low: float, high: float, margin: float, repeated: Unit, count: int
) -> ComparedRatio:
    return ComparedRatio(
        math.exp(log_ratio), math.exp(low), math.exp(high), verdict_of(low, high, margin), repeated, count
    )


def verdict_of(log_low: float, log_high: float, margin: float) -> Verdict:
    """Return the verdict for an interval of the logarithm of B/A.

    SAME is checked first: a significant difference smaller than the margin has no practical importance.
    """
    limit = math.log1p(margin)
    if -limit <= log_low and log_high <= limit:
        return "SAME"
    if log_high < 0:
        return "FASTER"
    return "SLOWER" if log_low > 0 else "AMBIGUOUS"


def _positive_series(samples: Stream) -> Series:
    found = series(samples)
    if found.ordered[0] <= 0:
        raise ValueError(f"one of the times is {found.ordered[0]}: a ratio needs positive times")
    return found


def _widened_distances(samples: Series, center: float) -> tuple[float, float] | None:
    distances = log_distances(samples, center, CONFIDENCE)
    if distances is None:
        return None
    correlation = autocorrelation(samples)
    widening = math.sqrt(len(samples) / correlation.effective_count) if correlation else 1.0
    return distances[0] * widening, distances[1] * widening


@dataclass(frozen=True)
class Ratio:
    """A ratio of two medians with its 95% interval; the ends are None if a stream is too short for an interval."""

    value: float
    low: float | None
    high: float | None


def ratio(numerator_samples: Stream, denominator_samples: Stream) -> Ratio:
    """Return the ratio of the medians of two streams, with its 95% interval.

    The intervals of the two medians are combined on the logarithmic scale by variance estimates recovery (Zou and
    Donner, Statistics in Medicine 27, 2008): the distances from each median to the relevant end of its interval add in
    quadrature. Simulated coverage is 95.1–97.5% for streams of 10 to 200 samples.

    Raises ValueError if there are no samples, if a sample is not finite, or if a median is not positive.
    """
    numerator, denominator = series(numerator_samples), series(denominator_samples)
    upper, lower = _positive_median(numerator), _positive_median(denominator)
    value = upper / lower
    over, under = log_distances(numerator, upper), log_distances(denominator, lower)
    if over is None or under is None:
        return Ratio(value, None, None)
    return Ratio(
        value,
        low=value * math.exp(-math.hypot(over[0], under[1])),
        high=value * math.exp(math.hypot(over[1], under[0])),
    )


def _positive_median(samples: Series) -> float:
    found = samples.median
    if found <= 0:
        raise ValueError(f"the median is {found}: a ratio needs positive medians")
    return found


def log_distances(samples: Series, center: float, confidence: float = 0.95) -> tuple[float, float] | None:
    """Return the log-scale distances from the median (`center`) to both ends of its interval; None if it has none."""
    interval = median_interval(samples, confidence)
    if interval is None:
        return None
    low, high = interval
    return math.log(center / low) if low > 0 else math.inf, math.log(high / center)


_MAX_EXACT_SAMPLES = 40
"""Largest number of samples per stream for the exact distribution; the normal approximation suffices for more."""


def rank_sum(one: Stream, other: Stream) -> float:
    """Return the two-sided p-value of the Mann–Whitney U test for the null hypothesis of equal distributions.

    If neither stream has more than 40 samples, the p-value is exact except for ties, which count as half; for longer
    streams, it comes from the normal distribution with continuity correction (Mann and Whitney, Annals of Mathematical
    Statistics 18, 1947).

    Raises ValueError if there are no samples, or if a sample is not finite.
    """
    first, second = series(one).values, series(other).values
    wins = _wins(first, second)
    pairs = len(first) * len(second)
    extreme = min(wins, pairs - wins)
    if max(len(first), len(second)) <= _MAX_EXACT_SAMPLES:
        return min(1.0, 2 * float(_u_distribution(len(first), len(second))[math.ceil(extreme)]))
    deviation = math.sqrt(pairs * (len(first) + len(second) + 1) / 12)
    return math.erfc(max((pairs / 2 - extreme - 0.5) / deviation, 0.0) / math.sqrt(2))


def _wins(first: Values, second: Values) -> float:
    ordered = sorted(second)
    return sum(bisect_left(ordered, value) + bisect_right(ordered, value) for value in first) / 2


@lru_cache(maxsize=256)
def _u_distribution(first: int, second: int) -> NDArray[np.float64]:
    """Return the cumulative distribution of U if every order of the samples is equally likely.

    The number of orders with each U is a coefficient of the Gaussian binomial.
    """
    counts = np.zeros(first * second + 1)
    counts[0] = 1.0
    for step in range(1, first + 1):
        # Multiply by (1 − q^(second + step)), divide by (1 − q^step).
        offset = second + step
        if offset < len(counts):
            counts[offset:] -= counts[:-offset].copy()
        for index in range(step, len(counts)):
            counts[index] += counts[index - step]
    probabilities: NDArray[np.float64] = np.cumsum(counts) / math.comb(first + second, first)
    return probabilities
