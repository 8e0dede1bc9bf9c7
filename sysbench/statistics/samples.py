"""Validated streams of samples, with median, ranks, spread and outliers: the basis of all other statistics.

Most functions are plain Python: for a few dozen samples, a loop takes no longer than a single call of numpy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import isfinite
from statistics import fmean
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = list[float]

MIN_SAMPLES = 6
"""Fewer samples are not enough for a 95% interval of the median (1 − 2·0.5⁵ is 93.75%) or a test of their order."""

MIN_REPORTABLE_SHARE = 0.001
"""Differences below 0.1% are never reported, however significant, because no decision depends on them."""

_TIE_TOLERANCE = 1e-8
"""Samples that differ by less than this share of the median are the same clock reading, up to floating-point error."""

_MAX_TICK_SHARE = 0.01
"""Largest tick of a clock, as a share of the median; larger differences between readings have another cause."""

_MAD_TO_SIGMA = 1.4826
"""1 / Φ⁻¹(3/4): converts the median absolute deviation of normal samples to their standard deviation."""


@dataclass(frozen=True, eq=False)
class Series:
    """A non-empty sequence of finite samples, with cached values that several statistics use."""

    values: Values
    ordered: Values
    """The samples in ascending order."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def median(self) -> float:
        """The median."""
        return median_of_sorted(self.ordered)

    @cached_property
    def without_ties(self) -> Values:
        """Samples with ties spread evenly over the clock's tick.

        A coarse clock turns a smooth distribution into a few readings with gaps, which look like modes, and ties can
        make the estimated spread zero. A reading may represent any value within half a tick of it. The tick is the
        smallest difference between distinct readings, at most 1% of the median.
        """
        ordered, scale = self.ordered, abs(self.median)
        tolerance = _TIE_TOLERANCE * scale
        starts_reading = [True, *(after - before > tolerance for before, after in pairwise(ordered))]
        if all(starts_reading):
            return self.values
        first = [place for place, new in enumerate(starts_reading) if new]
        readings = [ordered[place] for place in first]
        if len(first) == 1:
            return readings * len(ordered)
        tick = min(min(after - before for before, after in pairwise(readings)), _MAX_TICK_SHARE * scale)
        order = sorted(range(len(ordered)), key=self.values.__getitem__)
        spread = [0.0] * len(ordered)
        for reading, begin, end in zip(readings, first, [*first[1:], len(ordered)], strict=True):
            for place in range(begin, end):
                spread[order[place]] = reading + tick * ((place - begin + 0.5) / (end - begin) - 0.5)
        return spread

    @cached_property
    def ranks(self) -> Values:
        """Ranks minus their mean; tied samples get the mean of their ranks."""
        count = len(self.ordered)
        last = {value: place for place, value in enumerate(self.ordered)}
        if len(last) == count:
            return [last[value] - (count - 1) / 2 for value in self.values]
        first = dict(zip(reversed(self.ordered), range(count - 1, -1, -1), strict=True))
        return [(first[value] + last[value] - count + 1) / 2 for value in self.values]

    @cached_property
    def sigma(self) -> float:
        """Robust estimate of the standard deviation, unaffected by outliers and ties."""
        return robust_sigma(self.without_ties)

    @property
    def indistinguishable(self) -> bool:
        """Whether the samples differ by at most 0.1% of the median."""
        return self.ordered[-1] - self.ordered[0] <= MIN_REPORTABLE_SHARE * abs(self.median)


Stream: TypeAlias = Sequence[float] | NDArray[np.float64] | Series
"""Samples of one quantity in one unit, in the order in which they were taken. Callers that need several statistics of
the same samples create a Series.
"""


def series(samples: Stream) -> Series:
    """Validate samples and return them as a Series. Raises ValueError if there are none, or if one is not finite."""
    if isinstance(samples, Series):
        return samples
    try:
        values = list(map(float, samples))
    except TypeError:
        raise ValueError("samples must be a flat sequence of numbers") from None
    if not values:
        raise ValueError("no samples: at least one is required")
    if not all(map(isfinite, values)):
        index = next(number for number, value in enumerate(values) if not isfinite(value))
        raise ValueError(f"sample {index} of {len(values)} is {values[index]}: every sample must be finite")
    return Series(values, sorted(values))


def median(values: Values) -> float:
    """Return the median of samples in any order."""
    return median_of_sorted(sorted(values))


def median_of_sorted(ordered: Values) -> float:
    """Return the median of samples in ascending order."""
    count = len(ordered)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def percentile(ordered: Values, percent: float) -> float:
    """Return a percentile of samples in ascending order, by linear interpolation (type 7), bit-identical to numpy's."""
    position = (len(ordered) - 1) * (percent / 100)
    index = int(position)
    if index + 1 >= len(ordered):
        return ordered[-1]
    low, high, share = ordered[index], ordered[index + 1], position - index
    return low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)


def robust_sigma(values: Values) -> float:
    """Estimate the standard deviation from the median absolute deviation, which is robust to a few outliers."""
    return _MAD_TO_SIGMA * median_absolute_deviation(values)


def median_absolute_deviation(values: Values) -> float:
    """Return the median distance from the median, unscaled."""
    center = median(values)
    return median([abs(value - center) for value in values])


@dataclass(frozen=True)
class Outliers:
    """The outliers of a stream and their effect on the mean."""

    indices: tuple[int, ...]
    """Positions in the stream, ascending."""
    mean_shift_share: float
    """Mean with outliers minus mean without them, as a share of the median."""


def outliers(samples: Stream) -> Outliers | None:
    """Return the samples that lie too far from the median, relative to the spread; None if there are none.

    A sample is an outlier if its distance from the median is more than k(n) = 4.1 + 0.15·ln n + 130/n^1.5 robust
    deviations (1.4826 times the median absolute deviation, with ties spread over the clock's tick) and more than 0.1%
    of the median. k(n) follows the 99.5% quantiles of the largest distance in simulated lognormal streams (σ = 0.05),
    so less than 1% of clean streams raise an alarm.

    Returns None if there are fewer than six samples or if the median is not positive.
    """
    checked = series(samples)
    values, count, level = checked.values, len(checked), checked.median
    if count < MIN_SAMPLES or level <= 0:
        return None
    deviations = 4.1 + 0.15 * math.log(count) + 130 / math.pow(count, 1.5)
    limit = max(deviations * checked.sigma, MIN_REPORTABLE_SHARE * level)
    indices = tuple(index for index, value in enumerate(values) if abs(value - level) > limit)
    if not indices:
        return None
    inliers = [value for value in values if abs(value - level) <= limit]
    return Outliers(indices, mean_shift_share=(fmean(values) - fmean(inliers)) / level)
