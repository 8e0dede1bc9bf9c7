"""Detection of two modes in a stream of samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean

from sysbench.statistics.dip import dip
from sysbench.statistics.samples import FEWEST, NOTICEABLE, Stream, Values, middle, series

_SMALLEST_MODE = 0.1
"""A group with a smaller share of the samples counts as outliers, not as a mode."""

_FEWEST_IN_A_MODE = 3

_TAIL = 0.05
"""Samples beyond this share at either end are clipped while the two groups are searched for."""


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
    """Share of the samples in the slower group."""
    switches: int
    """Number of switches from one group to the other; 1 is a lasting level shift. Samples in the middle half of the gap
    are in transition, and do not count as switches."""


def two_modes(samples: Stream) -> Modes | None:
    """Whether the samples fall into two groups with a gap between them, such as two clock rates or two code paths.

    Ties are spread over the clock's tick, and the ordered samples are split where the means of the two groups differ
    most for their spread; each group holds at least three samples and a tenth of all. (The outermost 5 % are clipped,
    so that spikes do not attract the split.) The dip test then decides whether there is a gap, on the neighbourhood of
    the split: the smaller group and as many samples next to it from the larger. With groups of equal size, the test
    detects a mode of a fifth of the samples as clearly as one of a half, and its limit holds for every unimodal
    distribution, however skewed, heavy-tailed or flat, and so also for a steady drift. The limit, (0.70 − 0.44/√m)/√m
    for m samples, lies 5 % above the 99.5 % point of the dip of m uniform samples, the worst case, to allow for the
    choice of the split. Simulated over n = 10–200, it raises false alarms on at most 0.5 % of normal and lognormal
    streams, and it finds a gap of six deviations with a fifth of 200 samples above it in 97 %, with half of 50 in 92 %.

    Order does not matter. A single lasting level shift is reported here, with one switch; `drift` also reports it if it
    changes the level from start to end.
    """
    checked = series(samples)
    if len(checked) < FEWEST:
        return None
    ordered = checked.ordered if checked.untied is checked.values else sorted(checked.untied)
    cut = _cut(ordered)
    lower, upper = middle(ordered[:cut]), middle(ordered[cut:])
    if lower <= 0 or upper - lower < NOTICEABLE * lower:
        return None
    smaller = min(cut, len(ordered) - cut)
    limit = (0.70 - 0.44 / math.sqrt(2 * smaller)) / math.sqrt(2 * smaller)
    if dip(ordered[cut - smaller : cut + smaller], limit) <= limit:
        return None
    return Modes(
        lower=lower,
        upper=upper,
        gap_share=upper / lower - 1,
        upper_share=(len(ordered) - cut) / len(ordered),
        switches=_switches([(value - lower) / (upper - lower) for value in checked.values]),
    )


def _cut(ordered: Values) -> int:
    """Size of the lower group that maximises the variance between the two groups."""
    count = len(ordered)
    tail = math.ceil(_TAIL * count)
    pulled = [ordered[tail]] * tail + ordered[tail : count - tail] + [ordered[-1 - tail]] * tail
    mean = fmean(pulled)
    sums = list(accumulate(value - mean for value in pulled))
    smallest = max(_FEWEST_IN_A_MODE, math.ceil(_SMALLEST_MODE * count))
    sizes = range(smallest, count - smallest + 1)
    return max(sizes, key=lambda size: sums[size - 1] ** 2 / (size * (count - size)))


def _switches(heights: Values) -> int:
    """Count how often the heights, 0 in the lower mode and 1 in the upper, change from one to the other."""
    arrived = [height > 1 / 2 for height in heights if abs(height - 1 / 2) > 1 / 4]
    return sum(before != after for before, after in pairwise(arrived))
