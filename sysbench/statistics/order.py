"""Effects of the order of samples: a slow start, a drift, autocorrelation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from operator import mul
from statistics import fmean

import numpy as np

from sysbench.statistics.samples import (
    FEWEST,
    NOTICEABLE,
    Series,
    Stream,
    Values,
    median,
    middle,
    percentile,
    robust_sigma,
    series,
)


@dataclass(frozen=True)
class Drift:
    """A trend over the whole stream."""

    change_share: float
    """(end − start) / start: 0.01 is 1 % slower at the end."""
    start: float
    end: float
    """Levels of the fitted line at the first and at the last sample."""


@dataclass(frozen=True)
class Autocorrelation:
    """Consecutive samples are correlated, so the effective sample size is smaller than their number."""

    lag1: float
    """Rank correlation of consecutive samples."""
    effective_count: float
    """Effective sample size: the number of independent samples that determine the median equally well."""


@dataclass(frozen=True)
class WarmupUnfinished:
    """The first measured steps are still slower than the rest."""

    slow_steps: int
    """Number of steps before the first one that is no slower than the slowest quarter of the later half."""
    excess_share: float
    """Mean of these steps minus the median of the later half, as a share of that median."""


_DRIFT_LIMIT = 3.09
"""Φ⁻¹(0.999): two-sided 0.2 % if the autocorrelation were known; by simulation the false-alarm rate stays below 1 %."""

_NEARLY_ONE = 1 - 1e-9
"""A rank correlation this high counts as perfect order."""

_LONGEST_FITTED = 300
"""Longer streams are reduced to the medians of this many blocks: all pairs of 300 samples are 44,850 slopes."""


def drift(samples: Stream) -> Drift | None:
    """Whether the level changes steadily from the start of the stream to its end, and by how much.

    The size of the drift is by Theil and Sen: the median of the slopes between all pairs of samples, and the line
    through the median residual. Its significance is decided on ranks, so that neither the distribution nor spikes
    matter: Spearman's correlation with time, on Fisher's scale, with variance 1.06/(m − 3) (Fieller, Hartley and
    Pearson, Tests for rank correlation coefficients, Biometrika 44, 1957). An autocorrelated stream produces trends by
    chance, so m is its effective sample size, n(1 − φ)/(1 + φ), where φ is the lag-1 correlation of the ranks about
    their trend, corrected for its bias −(2 + 4φ)/n (Marriott and Pope, Biometrika 41, 1954). The limit of 3.09 keeps
    false alarms at 0.3 % for independent samples and at 0.7 % for φ = 0.5 and n ≥ 50 (simulated; below n = 50
    autocorrelation is not distinguishable from drift). A drift of 1 % over 200 samples with 0.5 % noise is always
    found, 2 % over 20 in three runs of four.

    Returns None for fewer than six samples or for a change below 0.1 %.
    """
    checked = series(samples)
    if len(checked) < FEWEST or checked.indistinguishable or abs(_trend_score(checked.ranks)) <= _DRIFT_LIMIT:
        return None
    start, end = _line(checked.values)
    if start <= 0 or abs(end - start) < NOTICEABLE * start:
        return None
    return Drift(change_share=end / start - 1, start=start, end=end)


_AUTOCORRELATION_LIMIT = 2.65
"""One-sided 0.4 %."""


def autocorrelation(samples: Stream) -> Autocorrelation | None:
    """Whether consecutive samples are correlated, and the effective sample size.

    Bartels' rank version of von Neumann's ratio (The rank version of von Neumann's ratio test for randomness, Journal
    of the American Statistical Association 77, 1982): the squared differences of consecutive ranks over the squared
    deviations from their mean is 2 for independent samples of any distribution, with variance 4(n − 2)(5n² − 2n − 9) /
    (5n(n + 1)(n − 1)²), and 2(1 − ρ) for correlated ones. Only ρ > 0 is reported, because only it makes intervals too
    narrow; the effective sample size is n(1 − ρ)/(1 + ρ), as for a first-order autoregression. A drift or a level shift
    also makes neighbours alike: check `drift` and `two_modes` first.

    Returns None for fewer than six samples, and if all agree within 0.1 %.
    """
    checked = series(samples)
    count, ranks = len(checked), checked.ranks
    if count < FEWEST or checked.indistinguishable:
        return None
    # In ranks about their mean, the squared differences of neighbours are those of both, less their products twice.
    squares = _product(ranks, ranks)
    ratio = 2 - (ranks[0] ** 2 + ranks[-1] ** 2 + 2 * _product(ranks, ranks[1:])) / squares
    variance = 4 * (count - 2) * (5 * count**2 - 2 * count - 9) / (5 * count * (count + 1) * (count - 1) ** 2)
    if (2 - ratio) / math.sqrt(variance) <= _AUTOCORRELATION_LIMIT:
        return None
    lag1 = 1 - ratio / 2
    return Autocorrelation(lag1=lag1, effective_count=count * (1 - lag1) / (1 + lag1))


_RUN_IN_CHANCE = 0.0025
"""Largest probability that a stationary stream begins with steps slower than all that follow, if there is no warm-up.
"""

_RUN_IN_CHANCE_AFTER_WARMUP = 0.012
"""This probability if the warm-up must confirm the slow start, which chance does in less than half of these cases."""


def warmup_unfinished(warmup: Stream, samples: Stream) -> WarmupUnfinished | None:
    """Whether the first measured steps are slower than the rest because the warm-up was too short.

    One of three signs in `samples` is enough. (1) The first sample is slower than all others and exceeds the median of
    the m others by more than 3.0 + 112/m^1.5 robust deviations. (2) The median of the first three is above the 95th
    percentile of the m others and exceeds their median by more than 2.0 + 95/m^1.5 robust deviations. (Both limits
    follow the 99.7 % points in tens of thousands of lognormal streams of each length, σ = 0.05; the comparison of ranks
    limits false alarms on skewed streams.) (3) The first k are each slower than everything after them, which happens by
    chance in (n − k)!/n! of all streams: less than 0.25 %, or 1.2 % after a warm-up, so k is 3 or 2 for ten steps.

    If there was a `warmup`, it must confirm the sign: a start that is still settling was no faster just before, so the
    median of the last three warm-up steps must exceed the later half by at least half as much as the slow steps do.
    This distinguishes a slow start from a spike that happened to come first.

    Returns None for fewer than six samples or for an excess below 0.1 %. Raises ValueError for no samples, and for a
    sample or a warm-up step that is not finite.
    """
    checked = series(samples)
    values = checked.values
    before = series(warmup).values if len(warmup) else None
    chance = _RUN_IN_CHANCE if before is None else _RUN_IN_CHANCE_AFTER_WARMUP
    if len(values) < FEWEST or not _starts_slow(checked, chance):
        return None
    later = sorted(values[len(values) // 2 :])
    level, usual = middle(later), percentile(later, 75)
    slow = next(number for number, value in enumerate(values) if value <= usual)
    if slow == 0 or level <= 0:
        return None
    excess = fmean(values[:slow]) - level
    if excess < NOTICEABLE * level:
        return None
    if before is not None and median(before[-3:]) - level < excess / 2:
        return None
    return WarmupUnfinished(slow_steps=slow, excess_share=excess / level)


def _starts_slow(samples: Series, chance: float) -> bool:
    values = samples.values
    run = _run_in(values) if values[0] == samples.ordered[-1] else 0
    return (
        1 / math.perm(len(values), run) < chance
        or (run > 0 and _head_score(samples, 1) > 3.0 + 112 / math.pow(len(values) - 1, 1.5))
        or (
            len(values) > FEWEST
            and median(values[:3]) > percentile(sorted(values[3:]), 95)
            and _head_score(samples, 3) > 2.0 + 95 / math.pow(len(values) - 3, 1.5)
        )
    )


def _run_in(values: Values) -> int:
    """Count the leading samples that are each slower than all that come after them."""
    slowest_after = list(accumulate(values[:0:-1], max))[::-1]
    return next((number for number, slowest in enumerate(slowest_after) if values[number] <= slowest), len(values) - 1)


def _head_score(samples: Series, head: int) -> float:
    """Excess of the median of the first `head` samples over that of the rest, in robust deviations of the rest."""
    excess = median(samples.values[:head]) - median(samples.values[head:])
    # The first samples help to determine the clock's tick, even if all others are equal.
    sigma = robust_sigma(samples.untied[head:])
    if sigma == 0:
        return math.inf if excess > 0 else 0.0
    return excess / sigma


@lru_cache(maxsize=64)
def _times(count: int) -> tuple[Values, float]:
    """The numbers of the samples about their mean, and the sum of their squares."""
    time = [step - (count - 1) / 2 for step in range(count)]
    return time, _product(time, time)


def _trend_score(ranks: Values) -> float:
    """Distance of the ranks' correlation with time from zero, in standard deviations.

    Autocorrelation only lowers it, and is left out where the score of independent samples is not significant.
    """
    count = len(ranks)
    time, of_time = _times(count)
    together, of_ranks = _product(time, ranks), _product(ranks, ranks)
    slope = together / of_time
    correlation = slope * math.sqrt(of_time / of_ranks)
    fisher = math.atanh(min(max(correlation, -_NEARLY_ONE), _NEARLY_ONE))
    unadjusted = fisher * math.sqrt((count - 3) / 1.06)
    if abs(unadjusted) <= _DRIFT_LIMIT:
        return unadjusted
    about_trend = [rank - slope * step for rank, step in zip(ranks, time, strict=True)]
    phi = _memory_about_trend(about_trend) if abs(correlation) < _NEARLY_ONE else 0.0
    independent = count * (1 - phi) / (1 + phi)
    if independent <= 3:
        return 0.0
    return fisher * math.sqrt((independent - 3) / 1.06)


def _memory_about_trend(residuals: Values) -> float:
    """Lag-1 correlation of the residuals of a trend, corrected for its bias and never below 0."""
    count = len(residuals)
    observed = _product(residuals, residuals[1:]) / _product(residuals, residuals)
    return min(max((count * observed + 2) / (count - 4), 0.0), 0.97)


def _product(one: Values, other: Values) -> float:
    """The scalar product, as long as both last."""
    return float(sum(map(mul, one, other)))


def _line(values: Values) -> tuple[float, float]:
    """Levels of Theil and Sen's line at the first and at the last sample."""
    count = len(values)
    time, level = np.arange(count, dtype=np.float64), np.array(values)
    if count > _LONGEST_FITTED:
        blocks = np.array_split(np.arange(count), _LONGEST_FITTED)
        time = np.array([block.mean() for block in blocks])
        level = np.array([np.median(level[block]) for block in blocks])
    first, second = np.triu_indices(len(level), k=1)
    slope = float(np.median((level[second] - level[first]) / (time[second] - time[first])))
    start = float(np.median(level - slope * time))
    return start, start + slope * (count - 1)
