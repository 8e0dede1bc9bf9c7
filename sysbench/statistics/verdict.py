"""Verdicts on speed: faster, slower, the same, or ambiguous.

Ratios are B relative to A: a ratio of 0.9 means that B takes nine tenths of the time, and is FASTER.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sysbench.statistics.comparison import log_distances
from sysbench.statistics.order import autocorrelation
from sysbench.statistics.samples import Series, Stream, series
from sysbench.statistics.student import t_quantile

Verdict = Literal["FASTER", "SLOWER", "SAME", "AMBIGUOUS"]
"""FASTER     the interval lies below 1
SLOWER     the interval lies above 1
SAME       the interval lies within the margin around 1: any difference is smaller than the margin
AMBIGUOUS  none of these: more samples would help
"""

Unit = Literal["steps", "runs", "rounds"]
"""What is repeated: the interval covers the variation between these."""

MARGIN = 0.01
"""Default margin: ratios from 1/1.01 to 1.01 are the same."""

CONFIDENCE = 0.995
"""Nominal level of intervals that are called 99 %: trimmed means of a dozen rounds fall slightly short of their level.
"""

TRIMMED = 0.2
"""Share of the rounds trimmed at either end: on a shared machine, one disturbed round in ten must not decide."""

ROUNDS = 14
"""Finds a difference of 3 % in 99 of 100 comparisons if both processes and steps vary by 1 %; twelve rounds find it in
95, ten in 77 (simulated, see tests/statistics/test_verdict.py)."""

FEWEST_RUNS = 3
"""Fewer runs do not show how much runs differ."""


@dataclass(frozen=True)
class Judged:
    """A ratio B/A, its interval, and the verdict. Without an interval the verdict is AMBIGUOUS."""

    ratio: float
    low: float | None
    high: float | None
    verdict: Verdict
    repeated: Unit
    count: int
    """Number of rounds; of steps or runs, the smaller number of the two sides."""


def within_processes(a: Stream, b: Stream, margin: float = MARGIN) -> Judged:
    """Compare the medians of the steps of one process per side.

    The intervals of the two medians are combined as in `ratio`; if the steps of a process are autocorrelated, its
    interval is widened by the square root of the ratio of samples to effective samples (`autocorrelation`). The
    interval does NOT cover differences between processes (memory placement, a clock that had not settled, load from
    other programs): only fresh processes on both sides, `rounds` or `runs`, show those.

    Raises ValueError for no samples, for one that is not finite, and for one that is not positive.
    """
    first, second = _positive(a), _positive(b)
    median_a, median_b = first.median, second.median
    count = min(len(first), len(second))
    below_a, below_b = _distances(first, median_a), _distances(second, median_b)
    if below_a is None or below_b is None:
        return Judged(median_b / median_a, None, None, "AMBIGUOUS", "steps", count)
    log_ratio = math.log(median_b / median_a)
    low, high = log_ratio - math.hypot(below_b[0], below_a[1]), log_ratio + math.hypot(below_b[1], below_a[0])
    return _judged(log_ratio, low, high, margin, "steps", count)


def over_rounds(a: Sequence[float], b: Sequence[float], margin: float = MARGIN) -> Judged:
    """Compare the arms by one median per round and arm, where the two of a round are measured back to back.

    A disturbance affects both arms of a round, so only the ratio within each round counts: the interval is that of the
    mean of its logarithms with a fifth trimmed from either end (Yuen, The two-sample trimmed t for unequal population
    variances, Biometrika 61, 1974; Tukey and McLaughlin, Sankhyā A 25, 1963, for one sample). Processes are the unit:
    each counts as one number, however many steps it has. Simulated false verdicts with fourteen rounds: 0.6 % for
    normal noise, 0.5 % for t₃, 0.4 % if one process in twelve is slowed by 10 % on average.

    Raises ValueError if the numbers of medians differ, for no medians, and for one that is not positive and finite.
    """
    first, second = np.array(_positive(a).values), np.array(_positive(b).values)
    if len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} medians: every round has one of each arm")
    logs = np.sort(np.log(second / first))
    count, cut = len(logs), int(TRIMMED * len(logs))
    kept = count - 2 * cut
    center = float(logs[cut : count - cut].mean())
    if count < FEWEST_RUNS:
        return Judged(math.exp(center), None, None, "AMBIGUOUS", "rounds", count)
    winsorized = np.clip(logs, logs[cut], logs[count - cut - 1])
    error = float(winsorized.std(ddof=1)) * math.sqrt((count - 1) / (kept * (kept - 1)))
    half = t_quantile(CONFIDENCE, kept - 1) * error
    return _judged(center, center - half, center + half, margin, "rounds", count)


def over_runs(a: Sequence[float], b: Sequence[float], margin: float = MARGIN) -> Judged:
    """Compare runs made at different times, by one median per run.

    Welch's interval for the difference of the mean logarithms (The generalization of Student's problem when several
    different population variances are involved, Biometrika 34, 1947). If all runs of one arm came before those of the
    other, everything that changed in between counts as a difference; unlike `over_rounds`, this cannot detect it.

    Raises ValueError for no medians, and for one that is not positive and finite.
    """
    first, second = np.log(_positive(a).values), np.log(_positive(b).values)
    count = min(len(first), len(second))
    center = float(second.mean() - first.mean())
    if count < FEWEST_RUNS:
        return Judged(math.exp(center), None, None, "AMBIGUOUS", "runs", count)
    parts = [float(values.var(ddof=1)) / len(values) for values in (first, second)]
    total = sum(parts)
    freedom = [part * part / (len(values) - 1) for part, values in zip(parts, (first, second), strict=True)]
    degrees = max(1, int(total * total / sum(freedom))) if sum(freedom) > 0 else count - 1
    half = t_quantile(CONFIDENCE, degrees) * math.sqrt(total)
    return _judged(center, center - half, center + half, margin, "runs", count)


def _judged(log_ratio: float, low: float, high: float, margin: float, repeated: Unit, count: int) -> Judged:
    return Judged(math.exp(log_ratio), math.exp(low), math.exp(high), verdict_of(low, high, margin), repeated, count)


def verdict_of(log_low: float, log_high: float, margin: float) -> Verdict:
    """Turn an interval of the logarithm of B/A into a verdict.

    SAME is checked first: a significant difference smaller than the margin has no practical importance.
    """
    limit = math.log1p(margin)
    if -limit <= log_low and log_high <= limit:
        return "SAME"
    if log_high < 0:
        return "FASTER"
    return "SLOWER" if log_low > 0 else "AMBIGUOUS"


def _positive(samples: Stream) -> Series:
    found = series(samples)
    if found.ordered[0] <= 0:
        raise ValueError(f"one of the times is {found.ordered[0]}: a ratio needs times above zero")
    return found


def _distances(samples: Series, center: float) -> tuple[float, float] | None:
    distances = log_distances(samples, center, CONFIDENCE)
    if distances is None:
        return None
    alike = autocorrelation(samples)
    wider = math.sqrt(len(samples) / alike.effective_count) if alike else 1.0
    return distances[0] * wider, distances[1] * wider
