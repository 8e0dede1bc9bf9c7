"""A stream of samples, validated, with its ties, median and spread: the basis of every statistic here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = NDArray[np.float64]
Stream: TypeAlias = Sequence[float] | Values
"""Samples of one quantity in one unit, in the order in which they were taken."""

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


def checked(samples: Stream) -> Values:
    """Return the samples as a vector. Raises ValueError if there are none or one of them is not finite."""
    values = np.asarray(samples, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"samples must be a flat sequence of numbers, not of shape {values.shape}")
    if values.size == 0:
        raise ValueError("no samples: at least one is needed")
    finite = np.isfinite(values)
    if np.count_nonzero(finite) < values.size:  # at a third of the cost of `all`
        index = int(np.argmin(finite))
        raise ValueError(f"sample {index} of {values.size} is {values[index]}: every sample must be finite")
    return values


def untied(values: Values) -> Values:
    """Spread tied samples evenly over the clock's tick.

    A clock of finite resolution turns a smooth distribution into a few tall columns with gaps between them, which look
    like modes, and which leave no spread for the detection of outliers. A reading stands for any value within half a
    tick of it, so equal readings are spread evenly over that range; the tick is the smallest step that occurs between
    readings. Samples without ties are returned unchanged.
    """
    scale = abs(median(values))
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    begins = np.concatenate(([True], np.diff(ordered) > _SAME * scale))
    if begins.all():
        return values
    first = np.flatnonzero(begins)
    reading = np.cumsum(begins) - 1
    if len(first) == 1:
        return np.full_like(values, ordered[0])
    tick = min(float(np.diff(ordered[first]).min()), _COARSEST_TICK * scale)
    count = np.bincount(reading)[reading]
    place = np.arange(len(values)) - first[reading]
    spread = np.empty_like(values)
    spread[order] = ordered[first[reading]] + tick * ((place + 0.5) / count - 0.5)
    return spread


def median(values: Values) -> float:
    """Equal to numpy's median, at a sixth of its cost for ten values: comparing two long records needs thousands."""
    return middle(np.sort(values))


def middle(ordered: Values) -> float:
    """Median of samples in ascending order."""
    count = len(ordered)
    return float(ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def percentile(ordered: Values, percent: float) -> float:
    """Equal to numpy's percentile for samples in ascending order: linear interpolation (type 7), to the last bit."""
    place = (len(ordered) - 1) * (percent / 100)
    below = int(place)
    if below + 1 >= len(ordered):
        return float(ordered[-1])
    low, high, share = float(ordered[below]), float(ordered[below + 1]), place - below
    return low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)


def robust_sigma(values: Values) -> float:
    """Standard deviation estimated from the median absolute deviation; a minority of outliers does not affect it."""
    return _MAD_TO_SIGMA * median_absolute_deviation(values)


def median_absolute_deviation(values: Values) -> float:
    """The median distance from the median, unscaled."""
    return median(np.abs(values - median(values)))


def indistinguishable(values: Values) -> bool:
    """Whether all samples agree to within the smallest difference that is reported."""
    return float(values.max() - values.min()) <= NOTICEABLE * abs(median(values))
