"""The dip statistic, which measures how far samples are from a unimodal distribution."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from operator import sub

from sysbench.statistics.samples import Values


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
