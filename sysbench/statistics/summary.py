"""A summary of a stream of samples, the confidence interval of its median, and a rule for when to stop measuring."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt

import numpy as np

from sysbench.statistics.samples import FEWEST, Stream, Values, middle, percentile, series


@dataclass(frozen=True)
class Summary:
    """Summary statistics, in the unit of the samples."""

    count: int
    mean: float
    std: float
    """Sample standard deviation (n − 1); 0 for one sample."""
    median: float
    minimum: float
    maximum: float
    p5: float
    """Percentiles interpolate linearly between order statistics, the k-th smallest of n standing at (k − 1) / (n − 1)
    (Hyndman and Fan's type 7, numpy's default)."""
    p25: float
    p75: float
    p95: float
    mad: float
    """Median absolute deviation from the median, unscaled."""
    ci95: tuple[float, float] | None
    """95 % interval of the median, see `median_interval`; None below six samples."""
    lag1: float | None
    """Correlation of each sample with the next; None below three samples or when all are equal."""


def summarize(samples: Stream) -> Summary:
    """Summarize the samples. Raises ValueError if there are none or one of them is not finite."""
    checked = series(samples)
    values, ordered, count = checked.values, checked.ordered, len(checked)
    # Each value less the first, so that the mean of equal samples is exactly their value. (`reduce` is `sum` without
    # its preparations, which take longer than a sum of so few.)
    every = np.array(values)
    mean = values[0] + float(np.add.reduce(every - values[0])) / count
    deviations = every - mean
    squares = float(np.add.reduce(deviations * deviations))
    p5, p25, median, p75, p95 = (percentile(ordered, percent) for percent in (5, 25, 50, 75, 95))
    return Summary(
        count=count,
        mean=mean,
        std=sqrt(squares / (count - 1)) if count > 1 else 0.0,
        median=median,
        minimum=ordered[0],
        maximum=ordered[-1],
        p5=p5,
        p25=p25,
        p75=p75,
        p95=p95,
        mad=middle(sorted([abs(value - median) for value in values])),
        ci95=interval_of(ordered),
        # Σ (xᵢ − x̄)(xᵢ₊₁ − x̄) / Σ (xᵢ − x̄)²
        lag1=float(np.add.reduce(deviations[:-1] * deviations[1:])) / squares if count > 2 and squares > 0 else None,
    )


_FIRST_LOOK = 10
_LOOK_GROWTH = 1.5


@dataclass(frozen=True)
class TooFew:
    """There are too few samples for an interval."""

    count: int
    needed: int


def median_interval(samples: Stream, confidence: float = 0.95) -> tuple[float, float] | None:
    """Return the distribution-free confidence interval of the median.

    The d-th smallest and d-th largest of n independent samples enclose the median with probability P(d ≤ B ≤ n − d), B
    binomial (n, ½). For small n no d comes near 95 %, so the ends lie between the two order statistics whose coverage
    is just above and just below, interpolated as in Hettmansperger and Sheather (Confidence intervals based on
    interpolated order statistics, Statistics & Probability Letters 4, 1986; Nyblom, ibid. 14, 1992). Simulated coverage
    at 95 % lies in 94.2–95.3 % for every n ≥ 6 on normal, lognormal, Laplace, uniform and exponential samples.

    Returns None if there are too few samples: below six, even the smallest and the largest enclose the median in less
    than 95 % of all runs. Autocorrelated samples carry less information than their number suggests: see
    `autocorrelation`. Raises ValueError for no samples, for one that is not finite, or a confidence outside (0, 1).
    """
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}: it must lie between 0 and 1")
    return interval_of(series(samples).ordered, confidence)


def interval_of(ordered: Values, confidence: float = 0.95) -> tuple[float, float] | None:
    """Like `median_interval`, for samples in ascending order."""
    position = _position(len(ordered), confidence)
    if position is None:
        return None
    depth, inward = position
    below, above = ordered[depth - 1 : depth + 1], ordered[len(ordered) - depth - 1 : len(ordered) - depth + 1]
    return below[0] + inward * (below[1] - below[0]), above[1] - inward * (above[1] - above[0])


def relative_width(samples: Stream) -> float | None:
    """Width of the 95 % interval as a share of the median; None without an interval or a positive median."""
    checked = series(samples)
    interval = interval_of(checked.ordered)
    if interval is None or checked.median <= 0:
        return None
    return (interval[1] - interval[0]) / checked.median


def settled(samples: Stream, share: float) -> bool:
    """Whether measuring may stop now because the median is known to within `share` of its value (0.01 is 1 %).

    Call this after every sample. Checking often and stopping at the first narrow interval selects streams whose spread
    happens to look small, and the interval at the stop then covers the median in only 91 % of the runs (simulated,
    checks from ten samples on). Checks are therefore rare, at 10, 15, 23, 35, 53, … samples, each half as many again as
    the last, and the interval must be narrow at two checks in a row; between checks the answer is False. Simulated
    coverage at the stop is at least 93.5 % on normal, lognormal and Laplace samples, for shares from 0.4 to 2
    deviations.
    """
    values = series(samples).values
    looks = [_FIRST_LOOK]
    while looks[-1] < len(values):
        looks.append(math.ceil(looks[-1] * _LOOK_GROWTH))
    if len(looks) < 2 or looks[-1] != len(values):
        return False
    widths = [relative_width(values[:look]) for look in looks[-2:]]
    return all(width is not None and width <= share for width in widths)


def too_few(samples: Stream) -> TooFew | None:
    """Return TooFew if there are fewer than six samples, which a 95 % interval of the median needs; else None."""
    count = len(series(samples))
    return TooFew(count, FEWEST) if count < FEWEST else None


@lru_cache(maxsize=1024)
def _position(count: int, confidence: float) -> tuple[int, float] | None:
    """Depth d of the outer order statistic, counted from 1, and the fraction of the way to depth d + 1 (0–1)."""
    ways, outside, covered = 1, 1, 1.0
    for depth in range(1, count // 2 + 1):
        # `outside` counts the subsets with fewer than `depth` members: exactly 2^count · P(B < depth).
        wider, covered = covered, 1 - 2 * outside / 2**count
        if covered < confidence:
            return None if depth == 1 else (depth - 1, _inward(count, depth - 1, wider, covered, confidence))
        ways = ways * (count - depth + 1) // depth
        outside += ways
    return None if count < 2 else (count // 2, 0.0)


def _inward(count: int, depth: int, wider: float, narrower: float, confidence: float) -> float:
    """Hettmansperger and Sheather's λ: exact for a Laplace population, and close for all others."""
    excess = (wider - confidence) / (wider - narrower)
    return (count - depth) * excess / (depth + (count - 2 * depth) * excess)


def enough(samples: Stream, steps: int, until: float | None, most: int) -> bool:
    """Whether these samples suffice: `steps` of them, or with `until` as many as it takes to settle, up to `most`."""
    if len(samples) < steps:
        return False
    return until is None or len(samples) >= most or settled(samples, until)


_ENOUGH = 1e-13
"""Relative tolerance at which the bisection ends."""


@lru_cache(maxsize=256)
def t_quantile(probability: float, degrees: int) -> float:
    """Return the two-sided quantile: t with P(|T| ≤ t) = `probability`, for `degrees` degrees of freedom.

    Raises ValueError for a probability outside (0, 1), and for fewer degrees of freedom than one.
    """
    if not 0 < probability < 1:
        raise ValueError(f"probability is {probability}: it must lie between 0 and 1")
    if degrees < 1:
        raise ValueError(f"{degrees} degrees of freedom: at least one is required")
    low, high = 0.0, 1.0
    while _within(high, degrees) < probability:
        high *= 2
    while high - low > _ENOUGH * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < probability else (low, middle)
    return (low + high) / 2


def _within(t: float, degrees: int) -> float:
    """P(|T| ≤ t): finite sums (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4)."""
    theta = math.atan2(t, math.sqrt(degrees))
    cosine, sine = math.cos(theta), math.sin(theta)
    if degrees % 2:
        term, total = cosine, 0.0
        for k in range(1, degrees - 1, 2):
            total += term
            term *= cosine * cosine * (k + 1) / (k + 2)
        return 2 / math.pi * (theta + sine * total)
    term, total = 1.0, 0.0
    for k in range(0, degrees - 1, 2):
        total += term
        term *= cosine * cosine * (k + 1) / (k + 2)
    return sine * total
