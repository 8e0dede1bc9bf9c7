"""A stream of samples, validated, with its ties, median, spread and outliers: the basis of every statistic here.

Streams are a few dozen samples long, and runs have thousands of them. The call of a numpy function takes as long as a
pass over such a list in plain Python, which is therefore several times as fast.
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

FEWEST = 6
"""Fewer samples support neither a 95 % interval of the median (1 − 2·0.5⁵ is 93.75 %) nor any verdict on their order.
"""

NOTICEABLE = 0.001
"""Differences below 0.1 % are never reported, however significant, because no decision depends on them."""

_SAME = 1e-8
"""Samples closer than this share of the median are one clock reading; the rest is floating-point error."""

_COARSEST_TICK = 0.01
"""A clock is assumed to resolve at least 1 % of what it measures; larger steps have another cause."""

_MAD_TO_SIGMA = 1.4826
"""1 / Φ⁻¹(3/4): converts the median absolute deviation of normal samples to their standard deviation."""


@dataclass(frozen=True, eq=False)
class Series:
    """Finite samples, at least one, with values that several statistics share, computed once."""

    values: Values
    ordered: Values
    """The samples in ascending order."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def median(self) -> float:
        """Equal to numpy's median, at a fraction of its cost for ten values."""
        return middle(self.ordered)

    @cached_property
    def untied(self) -> Values:
        """Samples with ties spread evenly over the clock's tick.

        A clock of finite resolution turns a smooth distribution into a few tall columns with gaps between them, which
        look like modes, and which leave no spread for the detection of outliers. A reading stands for any value within
        half a tick of it, so equal readings are spread evenly over that range; the tick is the smallest step that
        occurs between readings. Samples without ties are returned unchanged.
        """
        ordered, scale = self.ordered, abs(self.median)
        same = _SAME * scale
        begins = [True, *(after - before > same for before, after in pairwise(ordered))]
        if all(begins):
            return self.values
        first = [place for place, new in enumerate(begins) if new]
        readings = [ordered[place] for place in first]
        if len(first) == 1:
            return readings * len(ordered)
        tick = min(min(after - before for before, after in pairwise(readings)), _COARSEST_TICK * scale)
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
        """Standard deviation, estimated so that outliers and ties do not affect it."""
        return robust_sigma(self.untied)

    @property
    def indistinguishable(self) -> bool:
        """Whether all samples agree to within the smallest difference that is reported."""
        return self.ordered[-1] - self.ordered[0] <= NOTICEABLE * abs(self.median)


Stream: TypeAlias = Sequence[float] | NDArray[np.float64] | Series
"""Samples of one quantity in one unit, in the order in which they were taken. Callers that need several statistics of
the same samples create a Series.
"""


def series(samples: Stream) -> Series:
    """Check the samples. Raises ValueError if there are none or one of them is not finite."""
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
    """The median of samples in any order."""
    return middle(sorted(values))


def middle(ordered: Values) -> float:
    """Median of samples in ascending order."""
    count = len(ordered)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def percentile(ordered: Values, percent: float) -> float:
    """Equal to numpy's percentile for samples in ascending order: linear interpolation (type 7), to the last bit."""
    place = (len(ordered) - 1) * (percent / 100)
    below = int(place)
    if below + 1 >= len(ordered):
        return ordered[-1]
    low, high, share = ordered[below], ordered[below + 1], place - below
    return low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)


def robust_sigma(values: Values) -> float:
    """Standard deviation estimated from the median absolute deviation; a minority of outliers does not affect it."""
    return _MAD_TO_SIGMA * median_absolute_deviation(values)


def median_absolute_deviation(values: Values) -> float:
    """The median distance from the median, unscaled."""
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
