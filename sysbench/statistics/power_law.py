"""Whether something grows as a power of a size, and which: the measured meaning of "linear" and "quadratic"."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sysbench.statistics.samples import Values, checked
from sysbench.statistics.student import t_quantile

FEWEST_SIZES = 3
"""Through two points there is always a line, and nothing says whether it means anything."""

MOST_SCATTER = 0.1
"""Of the values about the line, as a share of them: more is not one power law."""

WIDEST_HALF = 0.25
"""An exponent that is not known better than this tells neither 1 from 1.5 nor 1.5 from 2."""

_STANDS_OUT = 0.99
"""The smallest size is left out where chance would put it so far off the line of the others once in a hundred times."""

_NEGLIGIBLE = 0.02
"""Of a value: a smaller distance from the line never leaves a size out."""


@dataclass(frozen=True)
class Slope:
    """The exponent between two neighbouring sizes."""

    first: float
    last: float
    exponent: float


@dataclass(frozen=True)
class PowerLaw:
    """value ≈ coefficient · size^exponent, over `sizes`."""

    exponent: float
    low: float
    high: float
    """The ends of the exponent's 95 % interval."""
    coefficient: float
    scatter: float
    """Standard deviation of the values about the law, as a share of them."""
    sizes: tuple[float, ...]
    """That carry the law, ascending."""
    left_out: tuple[float, ...]
    """Smaller ones, at which a fixed cost still shows."""

    @property
    def half_width(self) -> float:
        """The exponent is known to plus or minus this."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class NoPowerLaw:
    """There is no one exponent: too few sizes, or it changes with the size."""

    sizes: tuple[float, ...]
    slopes: tuple[Slope, ...]
    """Between neighbours, ascending."""

    @property
    def too_few(self) -> bool:
        """Whether more sizes might have shown one."""
        return len(self.sizes) < FEWEST_SIZES


def power_law(sizes: Sequence[float], values: Sequence[float]) -> PowerLaw | NoPowerLaw:
    """The exponent with which `values` grow over the largest sizes, with its 95 % interval.

    Least squares on the logarithms of both, with Student's interval of the slope from the scatter about the line: that
    holds what single timings do not know of, such as caches, tiles that do not fill, and clocks. Fixed costs (a launch,
    an allocation) lift the smallest sizes off any power law, so only the longest run of sizes up to the largest counts
    that scatters by at most 10 % about its line, less the smallest ones that stand out of the 99 % prediction interval
    of the others by more than 2 %. What remains must be three sizes, and know its exponent to within ± 0.25. It is the
    exponent over these sizes: where a fixed cost fades slowly it lies below that of the limit.

    Simulated coverage is 93–96 % for 4 to 8 sizes, each twice the last, that scatter by 0.1 to 5 % about a power law,
    and for 3 sizes that scatter by up to 1 %. Where 3 sizes scatter by 5 %, three of four exponents are withheld, and
    of the others 86 % hold the truth.

    Raises ValueError for sizes or values that are not positive and finite, or not as many as each other, and for a size
    that comes twice.
    """
    x, y = _logarithms(sizes, "size"), _logarithms(values, "value")
    if len(x) != len(y):
        raise ValueError(f"{len(x)} sizes and {len(y)} values: each size needs its value")
    order = np.argsort(x)
    x, y = x[order], y[order]
    if (np.diff(x) == 0).any():
        raise ValueError("a size comes twice: take one value for each")
    first = _regime(x, y)
    found = _line(x[first:], y[first:]) if first is not None else None
    if found is None or (law := _law(found, x, y, first or 0)).half_width > WIDEST_HALF:
        return NoPowerLaw(_sizes(x), tuple(_slopes(x, y)))
    return law


@dataclass(frozen=True)
class _Line:
    """A straight line by least squares."""

    slope: float
    at_mean: float
    mean: float
    spread: float
    """Σ (x − x̄)²."""
    deviation: float
    """Standard deviation of the residuals, with n − 2 degrees of freedom."""
    count: int

    def at(self, x: float) -> float:
        return self.at_mean + self.slope * (x - self.mean)


def _line(x: Values, y: Values) -> _Line:
    mean, at_mean = float(x.mean()), float(y.mean())
    about = x - mean
    spread = float(about @ about)
    slope = float(about @ (y - at_mean)) / spread
    residuals = y - at_mean - slope * about
    deviation = math.sqrt(float(residuals @ residuals) / (len(x) - 2))
    return _Line(slope, at_mean, mean, spread, deviation, len(x))


def _regime(x: Values, y: Values) -> int | None:
    """The position of the first size that carries the law; None where no three do."""
    starts = range(len(x) - FEWEST_SIZES + 1)
    first = next((start for start in starts if _line(x[start:], y[start:]).deviation <= MOST_SCATTER), None)
    while first is not None and len(x) - first > FEWEST_SIZES and _stands_out(x, y, first):
        first += 1
    return first


def _stands_out(x: Values, y: Values, first: int) -> bool:
    """Whether the first of these points is none of the line through the others."""
    others = _line(x[first + 1 :], y[first + 1 :])
    distance = abs(float(y[first]) - others.at(float(x[first])))
    reach = math.sqrt(1 + 1 / others.count + (float(x[first]) - others.mean) ** 2 / others.spread)
    return distance > max(_NEGLIGIBLE, t_quantile(_STANDS_OUT, others.count - 2) * others.deviation * reach)


def _law(line: _Line, x: Values, y: Values, first: int) -> PowerLaw:
    half = t_quantile(0.95, line.count - 2) * line.deviation / math.sqrt(line.spread)
    return PowerLaw(
        exponent=line.slope,
        low=line.slope - half,
        high=line.slope + half,
        coefficient=math.exp(line.at(0.0)),
        scatter=line.deviation,
        sizes=_sizes(x[first:]),
        left_out=_sizes(x[:first]),
    )


def _slopes(x: Values, y: Values) -> list[Slope]:
    pairs = itertools.pairwise(zip(_sizes(x), x.tolist(), y.tolist(), strict=True))
    return [Slope(a[0], b[0], (b[2] - a[2]) / (b[1] - a[1])) for a, b in pairs]


def _sizes(x: Values) -> tuple[float, ...]:
    """Back from logarithms; whole sizes come back whole."""
    return tuple(float(round(size, 9)) for size in np.exp(x))


def _logarithms(numbers: Sequence[float], what: str) -> Values:
    values = checked(numbers)
    if (values <= 0).any():
        raise ValueError(f"{what} {float(values.min())} is not positive: only positive ones have a power law")
    logarithms: Values = np.log(values)
    return logarithms
