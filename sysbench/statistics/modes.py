"""Detection of two modes in a stream of samples with Hartigan's dip test of unimodality."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from operator import sub
from statistics import fmean

from sysbench.statistics.samples import MIN_REPORTABLE_SHARE, MIN_SAMPLES, Stream, Values, median_of_sorted, series

_MIN_MODE_SHARE = 0.1
"""A group with a smaller share of the samples counts as outliers, not as a mode."""

_MIN_MODE_SAMPLES = 3

_CLIPPED_SHARE = 0.05
"""Share of the samples that is clipped at either end to find the split."""


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
    """Number of switches between the groups; 1 means a lasting level shift. Samples in the middle half of the gap are
    ignored."""


def two_modes(samples: Stream) -> Modes | None:
    """Return two groups of samples if a gap separates them, for example after a change of clock rate; else None.

    The sorted samples are split where the variance between the two groups is largest; the outermost 5% at either end
    are clipped first, so that spikes do not attract the split. The dip test then decides whether there is a gap, on the
    smaller group and an equal number of adjacent samples from the larger, so that a mode with a fifth of the samples is
    found as reliably as one with half of them. The limit for m samples is (0.70 − 0.44/√m)/√m, 5% above the 99.5%
    quantile of the dip of m uniform samples, to allow for the choice of the split. Uniform samples are the worst case,
    so the limit holds for every unimodal distribution, and for a steady drift.

    In simulations with n = 10–200, at most 0.5% of normal and lognormal streams raise a false alarm. A gap of six
    standard deviations is found in 97% of streams of 200 samples if a fifth of them lie above it.
    """
    checked = series(samples)
    if len(checked) < MIN_SAMPLES:
        return None
    ordered = checked.ordered if checked.without_ties is checked.values else sorted(checked.without_ties)
    split = _best_split(ordered)
    lower, upper = median_of_sorted(ordered[:split]), median_of_sorted(ordered[split:])
    if lower <= 0 or upper - lower < MIN_REPORTABLE_SHARE * lower:
        return None
    smaller = min(split, len(ordered) - split)
    limit = (0.70 - 0.44 / math.sqrt(2 * smaller)) / math.sqrt(2 * smaller)
    if dip(ordered[split - smaller : split + smaller], limit) <= limit:
        return None
    return Modes(
        lower=lower,
        upper=upper,
        gap_share=upper / lower - 1,
        upper_share=(len(ordered) - split) / len(ordered),
        switches=_count_switches([(value - lower) / (upper - lower) for value in checked.values]),
    )


def _best_split(ordered: Values) -> int:
    count = len(ordered)
    tail = math.ceil(_CLIPPED_SHARE * count)
    clipped = [ordered[tail]] * tail + ordered[tail : count - tail] + [ordered[-1 - tail]] * tail
    mean = fmean(clipped)
    sums = list(accumulate(value - mean for value in clipped))
    min_size = max(_MIN_MODE_SAMPLES, math.ceil(_MIN_MODE_SHARE * count))
    sizes = range(min_size, count - min_size + 1)
    return max(sizes, key=lambda size: sums[size - 1] ** 2 / (size * (count - size)))


def _count_switches(scaled: Values) -> int:
    """Count the switches; `scaled` is 0 at the lower mode and 1 at the upper."""
    in_upper = [value > 1 / 2 for value in scaled if abs(value - 1 / 2) > 1 / 4]
    return sum(before != after for before, after in pairwise(in_upper))


def dip(ordered: Values, floor: float = 0.0) -> float:
    """Return Hartigan's dip: the distance of the empirical distribution function from the nearest unimodal one.

    The distance is the largest vertical difference between the two functions, at least 1/(2n) and at most 1/4 (Hartigan
    and Hartigan, The dip test of unimodality, Annals of Statistics 13, 1985). A unimodal distribution function is
    convex up to its mode and concave after it. The algorithm therefore compares the greatest convex minorant with the
    least concave majorant, first over all samples, then over a modal interval that becomes narrower in each round. It
    ends when minorant and majorant are no farther apart than the distance already required outside the modal interval.

    A dip below `floor` is returned as `floor`, which saves most of the time. `ordered` must be increasing, without
    ties.
    """
    low, high = 0, len(ordered) - 1
    distance = least = max(1.0, 2 * len(ordered) * floor)
    while low < high and _range_about_chord(ordered[low : high + 1]) + 1 > distance:
        at, rank = ordered[low : high + 1], list(range(low, high + 1))
        below, above = _lower_convex_hull(at, rank), _lower_convex_hull(at, [-each for each in rank])
        minorant, majorant = _interpolate(at, rank, below), _interpolate(at, rank, above)
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


def _range_about_chord(at: Sequence[float]) -> float:
    """Return the range of vertical deviations from the line through the ends: an upper bound on the hulls' distance."""
    slope = (len(at) - 1) / (at[-1] - at[0])
    heights = [rank - slope * (x - at[0]) for rank, x in enumerate(at)]
    return max(heights) - min(heights)


def _lower_convex_hull(at: Sequence[float], rank: Sequence[int]) -> list[int]:
    """Return the indices of the points (at, rank) on the greatest convex minorant."""
    hull: list[int] = []
    for point, (x, y) in enumerate(zip(at, rank, strict=True)):
        while len(hull) > 1:
            left, middle = hull[-2], hull[-1]
            if (rank[middle] - rank[left]) * (x - at[left]) < (y - rank[left]) * (at[middle] - at[left]):
                break
            hull.pop()  # it lies on or above the line through the other two
        hull.append(point)
    return hull


def _interpolate(at: Sequence[float], rank: Sequence[int], knots: Sequence[int]) -> list[float]:
    values: list[float] = []
    for first, second in pairwise(knots):
        begin, level = at[first], rank[first]
        slope = (rank[second] - level) / (at[second] - begin)
        values += [slope * (x - begin) + level for x in at[first:second]]
    return [*values, rank[knots[-1]]]
