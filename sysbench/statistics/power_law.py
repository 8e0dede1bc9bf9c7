"""Fits of power laws, and crossovers: the sizes at which one implementation overtakes another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sysbench.statistics.doubt import Ratio
from sysbench.statistics.samples import series
from sysbench.statistics.summary import t_quantile

Values: TypeAlias = NDArray[np.float64]

MIN_SIZES = 3
"""Minimum number of sizes for a fit: two points always lie on a line."""

MAX_SCATTER = 0.1
"""Largest scatter about the line, as a share of the values, that counts as a single power law."""

MAX_HALF_WIDTH = 0.25
"""Largest half-width of the exponent's interval that still distinguishes 1 from 1.5, and 1.5 from 2."""

_OUTLIER_CONFIDENCE = 0.99
"""Confidence level of the prediction interval of the other sizes; the smallest size is left out if it lies outside."""

_MIN_OUTLIER_DISTANCE = 0.02
"""A smaller distance from the line, as a share of the value, never excludes a size."""


@dataclass(frozen=True)
class Slope:
    """The exponent between two consecutive sizes."""

    first: float
    last: float
    exponent: float


@dataclass(frozen=True)
class PowerLaw:
    """A power law, value ≈ coefficient · size^exponent, over `sizes`."""

    exponent: float
    low: float
    high: float
    """The ends of the exponent's 95% interval."""
    coefficient: float
    scatter: float
    """Standard deviation of the values about the power law, relative to the values."""
    sizes: tuple[float, ...]
    """Sizes that follow the power law, ascending."""
    excluded_sizes: tuple[float, ...]
    """Smaller sizes that were excluded because a fixed cost dominates their values."""

    @property
    def half_width(self) -> float:
        """Half the width of the exponent's 95% interval."""
        return (self.high - self.low) / 2


@dataclass(frozen=True)
class NoPowerLaw:
    """The result if no single exponent fits: there are too few sizes, or the exponent changes with the size."""

    sizes: tuple[float, ...]
    slopes: tuple[Slope, ...]
    """Exponents between neighbouring sizes, ascending."""

    @property
    def too_few(self) -> bool:
        """Whether there are fewer than three sizes, too few to show a power law."""
        return len(self.sizes) < MIN_SIZES


def power_law(sizes: Sequence[float], values: Sequence[float]) -> PowerLaw | NoPowerLaw:
    """Fit the exponent with which `values` grow over the largest sizes, with its 95% interval.

    The fit is a least-squares line through the logarithms; the interval of the slope comes from Student's t and the
    scatter about the line. Fixed costs (a launch, an allocation) raise the values of the smallest sizes above any power
    law. The fit therefore starts from the longest sequence of sizes that ends with the largest one and whose values
    scatter by at most 10% about the line, and excludes its smallest sizes if they lie outside the 99% prediction
    interval of the others and more than 2% off the line through them. At least three sizes must remain, and determine
    the exponent to within ± 0.25; otherwise the result is NoPowerLaw. The exponent applies only to the sizes used.

    For 4 to 8 sizes, each twice the previous one, simulated coverage is 93–96% if the values scatter by 0.1 to 5%
    about a power law; for 3 sizes, if they scatter by up to 1%.

    Raises ValueError if a size or a value is not positive and finite, if a size occurs twice, or if the numbers of
    sizes and values differ.
    """
    x, y = _logarithms(sizes, "size"), _logarithms(values, "value")
    if len(x) != len(y):
        raise ValueError(f"{len(x)} sizes and {len(y)} values: the numbers must be equal")
    order = np.argsort(x)
    x, y = x[order], y[order]
    if (np.diff(x) == 0).any():
        raise ValueError("duplicate size: give one value for each size")
    first = _find_first_fitted(x, y)
    line = _fit_line(x[first:], y[first:]) if first is not None else None
    if line is None or (law := _to_power_law(line, x, y, first or 0)).half_width > MAX_HALF_WIDTH:
        pairs = itertools.pairwise(zip(_to_sizes(x), x.tolist(), y.tolist(), strict=True))
        return NoPowerLaw(_to_sizes(x), tuple(Slope(a[0], b[0], (b[2] - a[2]) / (b[1] - a[1])) for a, b in pairs))
    return law


@dataclass(frozen=True)
class _Line:
    slope: float
    mean_y: float
    mean_x: float
    x_squares: float
    """Σ (x − x̄)²."""
    residual_deviation: float
    """Standard deviation of the residuals, with n − 2 degrees of freedom."""
    count: int

    def predict(self, x: float) -> float:
        return self.mean_y + self.slope * (x - self.mean_x)


def _fit_line(x: Values, y: Values) -> _Line:
    mean_x, mean_y = float(x.mean()), float(y.mean())
    centered = x - mean_x
    x_squares = float(centered @ centered)
    slope = float(centered @ (y - mean_y)) / x_squares
    residuals = y - mean_y - slope * centered
    residual_deviation = math.sqrt(float(residuals @ residuals) / (len(x) - 2))
    return _Line(slope, mean_y, mean_x, x_squares, residual_deviation, len(x))


def _find_first_fitted(x: Values, y: Values) -> int | None:
    starts = range(len(x) - MIN_SIZES + 1)
    first = next((start for start in starts if _fit_line(x[start:], y[start:]).residual_deviation <= MAX_SCATTER), None)
    while first is not None and len(x) - first > MIN_SIZES and _is_outlier(x, y, first):
        first += 1
    return first


def _is_outlier(x: Values, y: Values, first: int) -> bool:
    others = _fit_line(x[first + 1 :], y[first + 1 :])
    distance = abs(float(y[first]) - others.predict(float(x[first])))
    error_factor = math.sqrt(1 + 1 / others.count + (float(x[first]) - others.mean_x) ** 2 / others.x_squares)
    return distance > max(
        _MIN_OUTLIER_DISTANCE,
        t_quantile(_OUTLIER_CONFIDENCE, others.count - 2) * others.residual_deviation * error_factor,
    )


def _to_power_law(line: _Line, x: Values, y: Values, first: int) -> PowerLaw:
    half_width = t_quantile(0.95, line.count - 2) * line.residual_deviation / math.sqrt(line.x_squares)
    return PowerLaw(
        exponent=line.slope,
        low=line.slope - half_width,
        high=line.slope + half_width,
        coefficient=math.exp(line.predict(0.0)),
        scatter=line.residual_deviation,
        sizes=_to_sizes(x[first:]),
        excluded_sizes=_to_sizes(x[:first]),
    )


def _to_sizes(x: Values) -> tuple[float, ...]:
    """Convert logarithms back to sizes, rounded to nine decimals so that whole numbers are exact."""
    return tuple(float(round(size, 9)) for size in np.exp(x))


def _logarithms(numbers: Sequence[float], what: str) -> Values:
    values = np.array(series(numbers).values)
    if (values <= 0).any():
        raise ValueError(f"{what} {float(values.min())} is not positive: a power law needs positive values")
    logarithms: Values = np.log(values)
    return logarithms


@dataclass(frozen=True)
class Crossover:
    """A crossing of a ratio through 1 between two measured sizes."""

    at: float
    """Estimated size of the crossover, by linear interpolation of the logarithms; only `below` and
    `above` are measured."""
    below: float
    """Largest measured size at which the ratio is still significantly on the first side of 1."""
    above: float
    """Smallest measured size at which the ratio is significantly on the other side of 1."""
    falls: bool
    """Whether the ratio falls from above 1 to below 1."""


def direction(ratio: Ratio) -> int:
    """Return 1 if the ratio is significantly above 1, -1 if significantly below; else 0, also if it has no interval."""
    if ratio.low is None or ratio.high is None:
        return 0
    return 1 if ratio.low > 1 else -1 if ratio.high < 1 else 0


def crossovers(sizes: Sequence[float], ratios: Sequence[Ratio]) -> list[Crossover]:
    """Return every crossing of the ratio through 1, in ascending order of size.

    A crossing lies between two sizes at which the ratio is significantly on opposite sides of 1 (both 95% intervals
    exclude 1). Between the two, there may be sizes at which the ratio does not differ significantly from 1. If the line
    through the measured points crosses 1 more than once between the two, the reported size is the geometric mean of
    these crossings.

    Raises ValueError if a size is not positive, if the sizes are not ascending, or if the numbers of sizes and ratios
    differ.
    """
    if len(sizes) != len(ratios):
        raise ValueError(f"{len(sizes)} sizes and {len(ratios)} ratios: the numbers must be equal")
    if any(size <= 0 for size in sizes) or any(a >= b for a, b in itertools.pairwise(sizes)):
        raise ValueError("sizes must be positive and ascending")
    decided = [number for number, ratio in enumerate(ratios) if direction(ratio)]
    return [
        _interpolate_crossover(sizes, ratios, first, last)
        for first, last in itertools.pairwise(decided)
        if direction(ratios[first]) != direction(ratios[last])
    ]


def _interpolate_crossover(sizes: Sequence[float], ratios: Sequence[Ratio], first: int, last: int) -> Crossover:
    points = [(math.log(sizes[n]), math.log(ratios[n].value)) for n in range(first, last + 1)]
    crossings = [
        x0 if y0 == y1 else x0 + (x1 - x0) * y0 / (y0 - y1)
        for (x0, y0), (x1, y1) in itertools.pairwise(points)
        if y0 * y1 <= 0
    ]
    return Crossover(
        at=math.exp(sum(crossings) / len(crossings)),
        below=sizes[first],
        above=sizes[last],
        falls=direction(ratios[first]) > 0,
    )
