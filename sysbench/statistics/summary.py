"""A summary of a stream of samples."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from sysbench.statistics.interval import interval_of
from sysbench.statistics.samples import Stream, middle, percentile, series


@dataclass(frozen=True)
class Summary:
    """Summary statistics, in the unit of the samples."""

    count: int
    mean: float
    std: float
    """Sample standard deviation (n − 1); 0 for one sample."""
    median: float
    minimum: float
    maximum: float
    p5: float
    """Percentiles interpolate linearly between order statistics, the k-th smallest of n standing at (k − 1) / (n − 1)
    (Hyndman and Fan's type 7, numpy's default)."""
    p25: float
    p75: float
    p95: float
    mad: float
    """Median absolute deviation from the median, unscaled."""
    ci95: tuple[float, float] | None
    """95 % interval of the median, see `median_interval`; None below six samples."""
    lag1: float | None
    """Correlation of each sample with the next; None below three samples or when all are equal."""


def summarize(samples: Stream) -> Summary:
    """Summarize the samples. Raises ValueError if there are none or one of them is not finite."""
    checked = series(samples)
    values, ordered, count = checked.values, checked.ordered, len(checked)
    # Each value less the first, so that the mean of equal samples is exactly their value. (`reduce` is `sum` without
    # its preparations, which take longer than a sum of so few.)
    every = np.array(values)
    mean = values[0] + float(np.add.reduce(every - values[0])) / count
    deviations = every - mean
    squares = float(np.add.reduce(deviations * deviations))
    p5, p25, median, p75, p95 = (percentile(ordered, percent) for percent in (5, 25, 50, 75, 95))
    return Summary(
        count=count,
        mean=mean,
        std=sqrt(squares / (count - 1)) if count > 1 else 0.0,
        median=median,
        minimum=ordered[0],
        maximum=ordered[-1],
        p5=p5,
        p25=p25,
        p75=p75,
        p95=p95,
        mad=middle(sorted([abs(value - median) for value in values])),
        ci95=interval_of(ordered),
        # Σ (xᵢ − x̄)(xᵢ₊₁ − x̄) / Σ (xᵢ − x̄)²
        lag1=float(np.add.reduce(deviations[:-1] * deviations[1:])) / squares if count > 2 and squares > 0 else None,
    )
