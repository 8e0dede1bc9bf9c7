"""At which size one thing overtakes another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from sysbench.statistics.comparison import Ratio


@dataclass(frozen=True)
class Crossover:
    """Between two sizes that were measured, a ratio passes through 1."""

    at: float
    """Where, by a straight line between logarithms; the bracket is what was measured."""
    below: float
    """The largest measured size at which the ratio is, without doubt, still on the one side."""
    above: float
    """The smallest at which it is on the other."""
    falls: bool
    """The ratio is over 1 before, and under 1 after."""


def direction(ratio: Ratio) -> int:
    """1 where the ratio is above 1 without doubt, -1 where it is below, 0 where its interval holds 1 or is missing."""
    if ratio.low is None or ratio.high is None:
        return 0
    return 1 if ratio.low > 1 else -1 if ratio.high < 1 else 0


def crossovers(sizes: Sequence[float], ratios: Sequence[Ratio]) -> list[Crossover]:
    """Every passage of the ratio through 1, by ascending size.

    A passage is one from a size at which the ratio is on one side without doubt (its 95 % interval does not hold 1) to
    one at which it is on the other; sizes in between at which it cannot be told belong to the bracket. Where the line
    through the measured points crosses 1 more than once in a bracket, the geometric mean of these places is given.

    Raises ValueError for sizes that are not positive, do not ascend, or are not as many as the ratios.
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
