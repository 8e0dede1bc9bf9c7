"""Robust statistics of raw step times.

All functions are pure and take samples in any unit, in the order in which they were taken. A summary condenses the
samples; an interval says how precisely the median is known; detectors look for effects that make either misleading, and
return None if they find none. Each detector raises a false alarm on at most one clean stream in a hundred, and ignores
differences below 0.1 %. Input that is empty or not finite raises ValueError.
"""

from sysbench.statistics.modes import Modes, two_modes
from sysbench.statistics.order import (
    Autocorrelation,
    Drift,
    WarmupUnfinished,
    autocorrelation,
    drift,
    warmup_unfinished,
)
from sysbench.statistics.pooling import Effect, Pooled, effect, pooled
from sysbench.statistics.power_law import Crossover, NoPowerLaw, PowerLaw, Slope, crossovers, direction, power_law
from sysbench.statistics.samples import Outliers, Series, Stream, outliers, series
from sysbench.statistics.summary import (
    Summary,
    TooFew,
    enough,
    median_interval,
    relative_width,
    settled,
    summarize,
    too_few,
)
from sysbench.statistics.verdict import Ratio, rank_sum, ratio

__all__ = [
    "Autocorrelation",
    "Crossover",
    "Drift",
    "Effect",
    "Modes",
    "NoPowerLaw",
    "Outliers",
    "Pooled",
    "PowerLaw",
    "Ratio",
    "Series",
    "Slope",
    "Stream",
    "Summary",
    "TooFew",
    "WarmupUnfinished",
    "autocorrelation",
    "crossovers",
    "direction",
    "drift",
    "effect",
    "enough",
    "median_interval",
    "outliers",
    "pooled",
    "power_law",
    "rank_sum",
    "ratio",
    "relative_width",
    "series",
    "settled",
    "summarize",
    "too_few",
    "two_modes",
    "warmup_unfinished",
]
