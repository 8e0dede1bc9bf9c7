"""The dip statistic, which measures how far samples are from a unimodal distribution."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sysbench.statistics.samples import Values

Indices = NDArray[np.intp]


def dip(ordered: Values) -> float:
    """Return the dip: the distance of the samples' distribution function from the nearest unimodal one.

    The largest vertical distance between the two, at least 1/(2n) and at most 1/4 (Hartigan and Hartigan, The dip test
    of unimodality, Annals of Statistics 13, 1985). A unimodal distribution function is convex up to its mode and
    concave after it, so the modal interval is narrowed from all samples down, between the greatest convex minorant and
    the least concave majorant, until they lie no farther apart than the distance already needed outside of it.

    `ordered` must be increasing, without ties.
    """
    low, high = 0, len(ordered) - 1
    distance = 1.0
    while True:
        at, rank = ordered[low : high + 1], np.arange(low, high + 1)
        below, above = _knots(at, rank), _knots(at, -rank)
        minorant = np.interp(at, at[below], rank[below])
        majorant = np.interp(at, at[above], rank[above])
        # The distance between a concave and a convex piecewise linear function is largest at a knot of one of them.
        knots = np.union1d(below, above)
        gaps = (majorant - minorant)[knots] + 1
        widest = knots[int(np.argmax(gaps))]
        if gaps.max() <= distance:
            break
        if widest in below:
            left, right = widest, above[np.searchsorted(above, widest)]
        else:
            left, right = below[np.searchsorted(below, widest, side="right") - 1], widest
        distance = max(
            distance,
            float((rank - minorant)[: left + 1].max()) + 1,
            float((majorant - rank)[right:].max()) + 1,
        )
        if (left, right) == (0, high - low):
            break
        low, high = low + int(left), low + int(right)
    return distance / (2 * len(ordered))


def _knots(at: Values, rank: Indices) -> Indices:
    """Indices of the points (at, rank) that the greatest convex minorant touches: the lower convex hull."""
    x, y = at.tolist(), rank.tolist()
    hull: list[int] = []
    for point in range(len(x)):
        while len(hull) > 1 and _at_or_above(x, y, hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return np.array(hull, dtype=np.intp)


def _at_or_above(x: list[float], y: list[int], left: int, middle: int, right: int) -> bool:
    """Whether the middle point lies on or above the line through the other two."""
    return (y[middle] - y[left]) * (x[right] - x[left]) >= (y[right] - y[left]) * (x[middle] - x[left])
