"""Whether the samples come from two states instead of one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sysbench.statistics.dip import dip
from sysbench.statistics.samples import FEWEST, NOTICEABLE, Stream, Values, checked, untied

_SMALLEST_MODE = 0.1
"""A smaller share of the samples is a few outliers, not a mode."""

_FEWEST_IN_A_MODE = 3

_TAIL = 0.05
"""Samples beyond this share at either end are pulled in to it while the two groups are looked for."""


@dataclass(frozen=True)
class Modes:
    """Two groups of samples with a gap between them."""

    lower: float
    """Median of the faster group."""
    upper: float
    """Median of the slower group."""
    gap_share: float
    """(upper − lower) / lower."""
    upper_share: float
    """The share of the samples that is in the slower group."""
    switches: int
    """How many times the stream moved from one group to the other; 1 is a shift of level that lasted. Samples in the
    middle half of the gap are on their way, and do not count as moves."""


def two_modes(samples: Stream) -> Modes | None:
    """Whether the samples fall into two groups with a gap between them, such as two clock rates or two code paths.

    Ties are spread over the clock's tick, and the ordered samples are cut where two groups differ most in their means
    for their spread, each holding at least three samples and a tenth of all (with the outermost 5 % pulled in, so that
    spikes do not attract the cut). Whether there is a gap is then decided by the dip test, on the cut's neighbourhood:
    the smaller group and as many samples next to it from the larger. In an even balance the test sees a mode of a
    fifth of the samples as clearly as one of a half, and its limit holds for every distribution with one hump, however
    skewed, heavy-tailed or flat, so also for a steady drift. The limit, (0.70 − 0.44/√m)/√m for m samples, lies 5 %
    above the 99.5 % point of the dip of m uniform samples, the worst case, to allow for having chosen the cut.
    Simulated over n = 10–200 it alarms on at most 0.5 % of normal and lognormal streams, and it finds a gap of six
    deviations with a fifth of 200 samples above it in 97 %, with half of 50 in 92 %.

    Order does not matter. A level that shifts once, for good, is reported here, with one switch; `drift` reports it
    too if it changes the level from start to end.
    """
    values = checked(samples)
    if len(values) < FEWEST:
        return None
    ordered = np.sort(untied(values))
    cut = _cut(ordered)
    lower, upper = float(np.median(ordered[:cut])), float(np.median(ordered[cut:]))
    if lower <= 0 or upper - lower < NOTICEABLE * lower:
        return None
    smaller = min(cut, len(ordered) - cut)
    if dip(ordered[cut - smaller : cut + smaller]) <= _dip_limit(2 * smaller):
        return None
    return Modes(
        lower=lower,
        upper=upper,
        gap_share=upper / lower - 1,
        upper_share=(len(ordered) - cut) / len(ordered),
        switches=_switches((values - lower) / (upper - lower)),
    )


def _cut(ordered: Values) -> int:
    """How many samples the lower group has when the variance between the two groups is largest."""
    count = len(ordered)
    tail = math.ceil(_TAIL * count)
    pulled = np.clip(ordered, ordered[tail], ordered[-1 - tail])
    smallest = max(_FEWEST_IN_A_MODE, math.ceil(_SMALLEST_MODE * count))
    sizes = np.arange(smallest, count - smallest + 1)
    sums = np.cumsum(pulled - pulled.mean())[sizes - 1]
    return int(sizes[np.argmax(np.square(sums) / (sizes * (count - sizes)))])


def _switches(heights: Values) -> int:
    """How often the heights, 0 in the lower mode and 1 in the upper, go from one to the other."""
    arrived = heights[np.abs(heights - 1 / 2) > 1 / 4] > 1 / 2
    return int(np.count_nonzero(np.diff(arrived)))


def _dip_limit(count: int) -> float:
    return (0.70 - 0.44 / math.sqrt(count)) / math.sqrt(count)
