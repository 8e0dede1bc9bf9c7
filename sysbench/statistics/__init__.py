"""Robust statistics of raw step times.

All functions are pure. They take samples in any unit, in the order of measurement, and raise ValueError for input that
is empty or not finite. The detectors (`outliers`, `drift`, `autocorrelation`, `two_modes`, `warmup_unfinished`) look
for effects that make a summary misleading, and return None if they find nothing. Each raises a false alarm on at most
1% of clean streams, and ignores differences below 0.1%.
"""

from sysbench.statistics.doubt import Doubt, Estimate, Load, Ratio, Signs, doubts, estimate, ratio
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
    has_converged,
    has_enough_samples,
    median_interval,
    relative_width,
    summarize,
    too_few,
)
from sysbench.statistics.verdict import rank_sum

__all__ = [
    "Autocorrelation",
    "Crossover",
    "Doubt",
    "Drift",
    "Effect",
    "Estimate",
    "Load",
    "Modes",
    "NoPowerLaw",
    "Outliers",
    "Pooled",
    "PowerLaw",
    "Ratio",
    "Series",
    "Signs",
    "Slope",
    "Stream",
    "Summary",
    "WarmupUnfinished",
    "autocorrelation",
    "crossovers",
    "direction",
    "doubts",
    "drift",
    "effect",
    "estimate",
    "has_converged",
    "has_enough_samples",
    "median_interval",
    "outliers",
    "pooled",
    "power_law",
    "rank_sum",
    "ratio",
    "relative_width",
    "series",
    "summarize",
    "too_few",
    "two_modes",
    "warmup_unfinished",
]
