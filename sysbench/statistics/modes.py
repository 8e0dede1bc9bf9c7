"""Detection of two modes in a stream of samples by the dip statistic, the distance from a unimodal distribution."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import sub
from statistics import fmean

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


def dip(ordered: Values, floor: float = 0.0) -> float:
    """Return the dip: the distance of the samples' distribution function from the nearest unimodal one.

    A dip below `floor` is not determined, which takes a fraction of the time; the result is then `floor`.

    The largest vertical distance between the two, at least 1/(2n) and at most 1/4 (Hartigan and Hartigan, The dip test
    of unimodality, Annals of Statistics 13, 1985). A unimodal distribution function is convex up to its mode and
    concave after it, so the modal interval is narrowed from all samples down, between the greatest convex minorant and
    the least concave majorant, until they lie no farther apart than the distance already needed outside of it.

    `ordered` must be increasing, without ties.
    """
    low, high = 0, len(ordered) - 1
    distance = least = max(1.0, 2 * len(ordered) * floor)
    while low < high and _off_line(ordered[low : high + 1]) + 1 > distance:
        at, rank = ordered[low : high + 1], list(range(low, high + 1))
        below, above = _knots(at, rank), _knots(at, [-each for each in rank])
        minorant, majorant = _between(at, rank, below), _between(at, rank, above)
        # The distance between a concave and a convex piecewise linear function is largest at a knot of one of them.
        gaps = {knot: majorant[knot] - minorant[knot] + 1 for knot in sorted({*below, *above})}
        widest = max(gaps, key=gaps.__getitem__)
        if gaps[widest] <= distance:
            break
        if widest in below:
            left, right = widest, above[bisect_left(above, widest)]
        else:
            left, right = below[bisect_right(below, widest) - 1], widest
        distance = max(
            distance,
            max(map(sub, rank[: left + 1], minorant)) + 1,
            max(map(sub, majorant[right:], rank[right:])) + 1,
        )
        if (left, right) == (0, high - low):
            break
        low, high = low + left, low + right
    return distance / (2 * len(ordered)) if distance > least else max(floor, 1 / (2 * len(ordered)))


def _off_line(at: Sequence[float]) -> float:
    """How far the points (at, rank) scatter about the line from the first to the last.

    The hulls are no farther apart, since the line encloses them when it is moved below and above all points.
    """
    slope = (len(at) - 1) / (at[-1] - at[0])
    heights = [rank - slope * (x - at[0]) for rank, x in enumerate(at)]
    return max(heights) - min(heights)


def _knots(at: Sequence[float], rank: Sequence[int]) -> list[int]:
    """Indices of the points (at, rank) that the greatest convex minorant touches: the lower convex hull."""
    hull: list[int] = []
    for point, (x, y) in enumerate(zip(at, rank, strict=True)):
        while len(hull) > 1:
            left, middle = hull[-2], hull[-1]
            if (rank[middle] - rank[left]) * (x - at[left]) < (y - rank[left]) * (at[middle] - at[left]):
                break
            hull.pop()  # it lies on or above the line through the other two
        hull.append(point)
    return hull


def _between(at: Sequence[float], rank: Sequence[int], knots: Sequence[int]) -> list[float]:
    """Values at every point of the piecewise linear function through the points at the knots."""
    values: list[float] = []
    for first, second in pairwise(knots):
        begin, level = at[first], rank[first]
        slope = (rank[second] - level) / (at[second] - begin)
        values += [slope * (x - begin) + level for x in at[first:second]]
    return [*values, rank[knots[-1]]]
