"""The ratio of two streams of times."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sysbench.statistics.interval import median_interval
from sysbench.statistics.samples import Series, Stream, series


@dataclass(frozen=True)
class Ratio:
    """A ratio of two medians with its 95 % interval; the ends are None if a stream is too short for an interval."""

    value: float
    low: float | None
    high: float | None


def ratio(numerator_samples: Stream, denominator_samples: Stream) -> Ratio:
    """Divide the median of one stream by the median of the other, with a 95 % interval.

    The interval joins those of the two medians on the logarithmic scale by the method of variance estimates recovery
    (Zou and Donner, Construction of confidence limits about effect measures, Statistics in Medicine 27, 2008): the
    distances from each estimate to the relevant end of its interval add in quadrature. It takes the medians' intervals
    as they are, lopsided or not, and needs no resampling. It errs towards caution: simulated coverage is 95.1–97.5 %
    for streams of 10 to 200 samples of equal and of unequal length and spread, highest for two streams of ten.

    Raises ValueError for no samples, for one that is not finite, and for medians that are not positive.
    """
    numerator, denominator = series(numerator_samples), series(denominator_samples)
    upper, lower = _positive_median(numerator), _positive_median(denominator)
    value = upper / lower
    over, under = log_distances(numerator, upper), log_distances(denominator, lower)
    if over is None or under is None:
        return Ratio(value, None, None)
    return Ratio(
        value,
        low=value * math.exp(-math.hypot(over[0], under[1])),
        high=value * math.exp(math.hypot(over[1], under[0])),
    )


def _positive_median(samples: Series) -> float:
    found = samples.median
    if found <= 0:
        raise ValueError(f"the median is {found}: a ratio needs medians above zero")
    return found


def log_distances(samples: Series, center: float, confidence: float = 0.95) -> tuple[float, float] | None:
    """Distances on a logarithmic scale from the median (`center`) to the lower and to the upper end of its interval."""
    interval = median_interval(samples, confidence)
    if interval is None:
        return None
    low, high = interval
    return math.log(center / low) if low > 0 else math.inf, math.log(high / center)
