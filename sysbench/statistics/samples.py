"""What every statistic here is computed from: a stream of samples, checked, with its ties and its spread understood."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Values: TypeAlias = NDArray[np.float64]
Stream: TypeAlias = Sequence[float] | Values
"""Samples of one quantity in the order in which they were taken, all in one unit."""

FEWEST = 6
"""Fewer samples carry neither a 95 % interval of the median (1 − 2·0.5⁵ is 93.75 %) nor any verdict on their order."""

NOTICEABLE = 0.001
"""Differences of less than 0.1 % are never reported, however significant: no decision rests on them."""

_SAME = 1e-8
"""Samples this close, as a share of the median, are one reading of the clock; the rest is floating point."""

_COARSEST_TICK = 0.01
"""A clock is taken to resolve at least 1 % of what it measures; values farther apart differ for another reason."""

_MAD_TO_SIGMA = 1.4826
"""1 / Φ⁻¹(3/4): the median absolute deviation of normal samples, times this, is their standard deviation."""


def checked(samples: Stream) -> Values:
    """The samples as a vector. Raises ValueError, in one line, if there are none or one of them is not finite."""
    values = np.asarray(samples, dtype=np.float64)
    if values.ndim != 1:
        raise ValueError(f"samples must be a flat sequence of numbers, not of shape {values.shape}")
    if values.size == 0:
        raise ValueError("no samples: at least one is needed")
    finite = np.isfinite(values)
    if not finite.all():
        index = int(np.argmin(finite))
        raise ValueError(f"sample {index} of {values.size} is {values[index]}: every sample must be finite")
    return values


def untied(values: Values) -> Values:
    """The same samples, with ties spread evenly over the clock's tick.

    A clock of finite resolution turns a smooth distribution into a few tall columns with nothing between them, which
    look like modes, and which leave no spread to measure outliers by. A reading stands for anything within half a tick
    of it, so equal readings are laid out evenly over that range; the tick is the smallest step between readings that
    occur. Samples without ties come back as they are.
    """
    scale = abs(float(np.median(values)))
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
    """What numpy's is, at a sixth of its cost for ten values: a comparison of two long records takes thousands."""
    ordered, count = np.sort(values), len(values)
    return float(ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def robust_sigma(values: Values) -> float:
    """The standard deviation that normal samples of this median absolute deviation have; a minority cannot move it."""
    return _MAD_TO_SIGMA * median_absolute_deviation(values)


def median_absolute_deviation(values: Values) -> float:
    """The median distance from the median, unscaled."""
    return float(np.median(np.abs(values - np.median(values))))


def indistinguishable(values: Values) -> bool:
    """Whether all samples agree to within what is worth reporting."""
    return float(values.max() - values.min()) <= NOTICEABLE * abs(median(values))
