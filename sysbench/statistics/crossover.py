"""The size at which one implementation overtakes another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from sysbench.statistics.comparison import Ratio


@dataclass(frozen=True)
class Crossover:
    """A ratio passes through 1 between two measured sizes."""

    at: float
    """Estimated size of the crossover, by linear interpolation of the logarithms; only the bracket is measured."""
    below: float
    """Largest measured size at which the ratio is still significantly on the first side."""
    above: float
    """Smallest measured size at which the ratio is significantly on the other side."""
    falls: bool
    """Whether the ratio falls from above 1 to below 1."""


def direction(ratio: Ratio) -> int:
    """Return 1 if the ratio is significantly above 1, -1 if below, 0 if its interval contains 1 or is missing."""
    if ratio.low is None or ratio.high is None:
        return 0
    return 1 if ratio.low > 1 else -1 if ratio.high < 1 else 0


def crossovers(sizes: Sequence[float], ratios: Sequence[Ratio]) -> list[Crossover]:
    """Find every crossing of the ratio through 1, by ascending size.

    A crossing goes from a size at which the ratio is significantly on one side (its 95 % interval does not contain 1)
    to a size at which it is significantly on the other; undecided sizes in between belong to the bracket. If the line
    through the measured points crosses 1 more than once in a bracket, the result is the geometric mean of these places.

    Raises ValueError for sizes that are not positive, do not ascend, or do not match the ratios in number.
    """
    if len(sizes) != len(ratios):
        raise ValueError(f"{len(sizes)} sizes and {len(ratios)} ratios: each size needs its ratio")
    if any(size <= 0 for size in sizes) or any(a >= b for a, b in itertools.pairwise(sizes)):
        raise ValueError("sizes must be positive and ascend")
    decided = [number for number, ratio in enumerate(ratios) if direction(ratio)]
    return [
        _between(sizes, ratios, first, last)
        for first, last in itertools.pairwise(decided)
        if direction(ratios[first]) != direction(ratios[last])
    ]


def _between(sizes: Sequence[float], ratios: Sequence[Ratio], first: int, last: int) -> Crossover:
    points = [(math.log(sizes[n]), math.log(ratios[n].value)) for n in range(first, last + 1)]
    places = [
        x0 if y0 == y1 else x0 + (x1 - x0) * y0 / (y0 - y1)
        for (x0, y0), (x1, y1) in itertools.pairwise(points)
        if y0 * y1 <= 0
    ]
    return Crossover(
        at=math.exp(sum(places) / len(places)),
        below=sizes[first],
        above=sizes[last],
        falls=direction(ratios[first]) > 0,
    )
