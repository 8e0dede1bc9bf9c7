"""Detection of outliers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean

from sysbench.statistics.samples import FEWEST, NOTICEABLE, Stream, series


@dataclass(frozen=True)
class Outliers:
    """The outliers of a stream and their effect on the mean."""

    indices: tuple[int, ...]
    """Positions in the stream, ascending."""
    mean_shift_share: float
    """Mean with outliers minus mean without them, as a share of the median."""


def outliers(samples: Stream) -> Outliers | None:
    """Find samples that lie farther from the median than the spread of the stream explains.

    A sample is an outlier if its distance from the median is more than k(n) = 4.1 + 0.15·ln n + 130/n^1.5 robust
    deviations (1.4826 times the median absolute deviation, with ties spread over the clock's tick) and at least 0.1 %
    of the median. k(n) follows the 99.5 % points of the largest such distance in tens of thousands of lognormal streams
    (σ = 0.05) of each length, so that fewer than one clean stream in a hundred raises an alarm: 8.6 for ten samples,
    whose spread is poorly known, 6.0 for twenty, 4.9 for two hundred. The fence is symmetric and made for timings that
    scatter evenly; samples in the tail of a long-tailed distribution are reported as outliers.

    Returns None for fewer than six samples or without a positive median.
    """
    checked = series(samples)
    values, count, level = checked.values, len(checked), checked.median
    if count < FEWEST or level <= 0:
        return None
    deviations = 4.1 + 0.15 * math.log(count) + 130 / math.pow(count, 1.5)
    fence = max(deviations * checked.sigma, NOTICEABLE * level)
    indices = tuple(index for index, value in enumerate(values) if abs(value - level) > fence)
    if not indices:
        return None
    inside = [value for value in values if abs(value - level) <= fence]
    return Outliers(indices, mean_shift_share=(fmean(values) - fmean(inside)) / level)
