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
from statistics import NormalDist, fmean
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sysbench.statistics.doubt import CPU_REPEAT_SD, Estimate, estimate, ratio
from sysbench.statistics.samples import Series, Stream, Values, series
from sysbench.statistics.summary import t_quantile

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

CPU_RESOLUTION_SHARE = math.expm1(NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * math.sqrt(2) * CPU_REPEAT_SD)
"""The smallest difference between one process of A and one of B on a CPU that has a verdict, however many steps."""

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


def compare_processes(a: Stream | Estimate, b: Stream | Estimate, margin: float = MARGIN) -> ComparedRatio:
    """Compare the median step times of two processes, one for A and one for B, by the interval of their `ratio`.

    Differences between processes (memory placement, clocks, neighbours) are covered as far as their `repeat_sd` and
    doubts name them, not as they were on that day: `compare_rounds` and `compare_runs` measure them.

    Raises ValueError if there are no samples, or if a sample is not finite or not positive.
    """
    first, second = estimate(a), estimate(b)
    for each in (first, second):
        _positive_series(each.samples)
    count, found = min(len(first), len(second)), ratio(second, first, CONFIDENCE)
    if found.low is None or found.high is None:
        return ComparedRatio(found.value, None, None, "AMBIGUOUS", "steps", count)
    verdict = verdict_of(math.log(found.low), math.log(found.high), margin) if found.low > 0 else "AMBIGUOUS"
    return ComparedRatio(found.value, found.low, found.high, verdict, "steps", count)


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


def compare_runs(a: Sequence[float | Estimate], b: Sequence[float | Estimate], margin: float = MARGIN) -> ComparedRatio:
    """Compare A and B by one median per run, for runs made at different times.

    The interval is Welch's, for the difference of the mean logarithms (Biometrika 34, 1947), wider by the mean doubt
    about the medians of either side. If all runs of A came before all runs of B, everything else that changed in
    between counts as a difference; `compare_rounds` avoids this.

    Raises ValueError if there are no medians, or if a median is not positive and finite.
    """
    (first_doubt, second_doubt) = (_mean_doubt(side) for side in (a, b))
    first, second = (np.log(_positive_series([_median(run) for run in side]).values) for side in (a, b))
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
    low = center - half_width - second_doubt[0] - first_doubt[1]
    high = center + half_width + second_doubt[1] + first_doubt[0]
    return _compared_ratio(center, low, high, margin, "runs", count)


def _median(run: float | Estimate) -> float:
    return run.median if isinstance(run, Estimate) else run


def _mean_doubt(runs: Sequence[float | Estimate]) -> tuple[float, float]:
    """Return by how much doubts widen the intervals of these medians on average, below and above."""
    known = [found[1] for run in runs if isinstance(run, Estimate) and (found := run.distances()) is not None]
    return (fmean(below for below, _ in known), fmean(above for _, above in known)) if known else (0.0, 0.0)


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
