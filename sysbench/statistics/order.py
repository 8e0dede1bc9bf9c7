"""Detectors of effects that depend on the order of samples: a slow start, a drift, and autocorrelation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from operator import mul
from statistics import fmean

import numpy as np

from sysbench.statistics.samples import (
    MIN_REPORTABLE_SHARE,
    MIN_SAMPLES,
    Series,
    Stream,
    Values,
    median,
    median_of_sorted,
    percentile,
    robust_sigma,
    series,
)


@dataclass(frozen=True)
class Drift:
    """A trend over the whole stream."""

    change_share: float
    """(end − start) / start: 0.01 means 1% slower at the end."""
    start: float
    end: float
    """Levels of the fitted line at the first and at the last sample."""


@dataclass(frozen=True)
class Autocorrelation:
    """Correlation of consecutive samples, which reduces the effective sample size."""

    lag1: float
    """Rank correlation of consecutive samples."""
    effective_count: float
    """Effective sample size: the number of independent samples that determine the median equally well."""


@dataclass(frozen=True)
class WarmupUnfinished:
    """A slow start: the first measured steps are slower than the rest."""

    slow_steps: int
    """Number of leading steps above the 75th percentile of the second half of the steps."""
    excess_share: float
    """Mean of the slow steps minus the median of the second half, as a share of that median."""


_DRIFT_LIMIT = 3.09
"""Φ⁻¹(0.999): a two-sided level of 0.2% for a known autocorrelation; simulated false alarms stay below 1%."""

_MAX_CORRELATION = 1 - 1e-9
"""Limit of rank correlations in both directions, because atanh(±1) is infinite."""

_MAX_FITTED_SAMPLES = 300
"""Longer streams are reduced to the medians of 300 blocks, which have 44,850 pairwise slopes."""


def drift(samples: Stream) -> Drift | None:
    """Return the drift if the level changes steadily from the start of the stream to its end; else None.

    The size of the drift comes from the Theil–Sen line: its slope is the median slope over all pairs of samples, and
    its intercept is the median residual.

    The test statistic is Spearman's correlation with time on Fisher's scale, with variance 1.06/(m − 3) (Fieller,
    Hartley and Pearson, Biometrika 44, 1957). An autocorrelated stream shows trends by chance, so m is its effective
    sample size, n(1 − φ)/(1 + φ), where φ is the lag-1 correlation of the detrended ranks, corrected for its bias
    −(2 + 4φ)/n (Marriott and Pope, Biometrika 41, 1954). False alarms (simulated): 0.3% for independent samples, and
    0.7% for φ = 0.5 and n ≥ 50; below n = 50, autocorrelation cannot be distinguished from drift.

    Returns None if there are fewer than six samples or if the change is below 0.1%.
    """
    checked = series(samples)
    if len(checked) < MIN_SAMPLES or checked.indistinguishable or abs(_trend_score(checked.ranks)) <= _DRIFT_LIMIT:
        return None
    start, end = _theil_sen_line(checked.values)
    if start <= 0 or abs(end - start) < MIN_REPORTABLE_SHARE * start:
        return None
    return Drift(change_share=end / start - 1, start=start, end=end)


_AUTOCORRELATION_LIMIT = 2.65
"""One-sided level of 0.4%."""


def autocorrelation(samples: Stream) -> Autocorrelation | None:
    """Return the correlation of consecutive samples, if significant, and the effective sample size; else None.

    The test is Bartels' rank version of von Neumann's ratio (Journal of the American Statistical Association 77, 1982):
    the sum of squared differences of consecutive ranks over that of squared deviations from the mean rank. It is 2 on
    average for independent samples, with variance 4(n − 2)(5n² − 2n − 9) / (5n(n + 1)(n − 1)²), and 2(1 − ρ) for lag-1
    rank correlation ρ. Only ρ > 0, which makes intervals too narrow, is reported. The effective sample size is
    n(1 − ρ)/(1 + ρ), as for a first-order autoregressive process. A drift or a level shift also correlates consecutive
    samples: check `drift` and `two_modes` first.

    Returns None if there are fewer than six samples or if all agree within 0.1%.
    """
    checked = series(samples)
    count, ranks = len(checked), checked.ranks
    if count < MIN_SAMPLES or checked.indistinguishable:
        return None
    # For centred ranks, Σ (rᵢ − rᵢ₊₁)² = 2 Σ rᵢ² − r₁² − rₙ² − 2 Σ rᵢ rᵢ₊₁.
    squares = _dot(ranks, ranks)
    ratio = 2 - (ranks[0] ** 2 + ranks[-1] ** 2 + 2 * _dot(ranks, ranks[1:])) / squares
    variance = 4 * (count - 2) * (5 * count**2 - 2 * count - 9) / (5 * count * (count + 1) * (count - 1) ** 2)
    if (2 - ratio) / math.sqrt(variance) <= _AUTOCORRELATION_LIMIT:
        return None
    lag1 = 1 - ratio / 2
    return Autocorrelation(lag1=lag1, effective_count=count * (1 - lag1) / (1 + lag1))


@dataclass(frozen=True)
class _SlowStartLimits:
    """Limits of the three signs of `warmup_unfinished`; m is the number of samples after the first one or three.

    first  (c, d): the first sample is slow above c + d/m^1.5 robust deviations
    three  (c, d): the first three samples are slow above c + d/m^1.5 robust deviations
    level  significance level of the number of leading samples that are slower than all later ones
    """

    first: tuple[float, float]
    three: tuple[float, float]
    level: float


_WITHOUT_WARMUP = _SlowStartLimits(first=(3.0, 112), three=(2.0, 95), level=0.0025)

_AFTER_SHORT_WARMUP = replace(_WITHOUT_WARMUP, level=0.012)
"""The very first step, which is slow in every run, helps to confirm a sign, so the warm-up confirms it too often."""

_AFTER_WARMUP = _SlowStartLimits(first=(2.3, 74), three=(1.5, 62), level=0.012)
"""The warm-up must confirm a sign; it confirms less than half of the false alarms by chance."""

_CONFIRMING_STEPS = 3
"""Number of last warm-up steps that must confirm a slow start."""


def warmup_unfinished(warmup: Stream, samples: Stream) -> WarmupUnfinished | None:
    """Return the slow start if the first measured steps are slow because the warm-up was too short; else None.

    One of three signs in `samples` is enough:

    1. The first sample is slower than all others, and exceeds the median of the m others by more than 3.0 + 112/m^1.5
       robust deviations; after at least four warm-up steps, 2.3 + 74/m^1.5.
    2. The median of the first three samples is above the 95th percentile of the m others, and exceeds their median by
       more than 2.0 + 95/m^1.5 robust deviations; after at least four warm-up steps, 1.5 + 62/m^1.5.
    3. Each of the first k samples is slower than everything after it. By chance, this happens in (n − k)!/n! of all
       streams. This probability must be below 0.25% without a warm-up, and below 1.2% after one: for ten steps, k
       must be at least 3 without a warm-up, and at least 2 after one.

    Without a warm-up, the limits in 1 and 2 follow the 99.7% quantiles of simulated lognormal streams (σ = 0.05). After
    at least four warm-up steps, 0.7% of simulated lognormal streams raise a false alarm, and 1.4% of exponential and
    Pareto streams.

    If there is a `warmup`, it must confirm the sign: the median of its last three steps must exceed the median of the
    second half of `samples` by at least half the excess of the slow steps. This distinguishes a slow start from a spike
    that happened to come first.

    Returns None if there are fewer than six samples or if the excess is below 0.1%. Raises ValueError if there are no
    samples, or if a sample or a warm-up step is not finite.
    """
    checked = series(samples)
    values = checked.values
    before = series(warmup).values if len(warmup) else None
    limits = _WITHOUT_WARMUP
    if before is not None:
        limits = _AFTER_WARMUP if len(before) > _CONFIRMING_STEPS else _AFTER_SHORT_WARMUP
    if len(values) < MIN_SAMPLES or not _starts_slow(checked, limits):
        return None
    later = sorted(values[len(values) // 2 :])
    level, upper_quartile = median_of_sorted(later), percentile(later, 75)
    slow = next(number for number, value in enumerate(values) if value <= upper_quartile)
    if slow == 0 or level <= 0:
        return None
    excess = fmean(values[:slow]) - level
    if excess < MIN_REPORTABLE_SHARE * level:
        return None
    if before is not None and median(before[-_CONFIRMING_STEPS:]) - level < excess / 2:
        return None
    return WarmupUnfinished(slow_steps=slow, excess_share=excess / level)


def _starts_slow(samples: Series, limits: _SlowStartLimits) -> bool:
    values = samples.values
    run = _count_leading_slowest(values) if values[0] == samples.ordered[-1] else 0
    return (
        1 / math.perm(len(values), run) < limits.level
        or (run > 0 and _exceeds(samples, 1, *limits.first))
        or (
            len(values) > MIN_SAMPLES
            and median(values[:3]) > percentile(sorted(values[3:]), 95)
            and _exceeds(samples, 3, *limits.three)
        )
    )


def _exceeds(samples: Series, head: int, base: float, extra: float) -> bool:
    return _head_score(samples, head) > base + extra / math.pow(len(samples) - head, 1.5)


def _count_leading_slowest(values: Values) -> int:
    slowest_after = list(accumulate(values[:0:-1], max))[::-1]
    return next((number for number, slowest in enumerate(slowest_after) if values[number] <= slowest), len(values) - 1)


def _head_score(samples: Series, head: int) -> float:
    """Return how far the median of the first `head` samples exceeds the median of the rest, in robust deviations."""
    excess = median(samples.values[:head]) - median(samples.values[head:])
    # The first samples help to determine the clock's tick, even if all others are equal.
    sigma = robust_sigma(samples.without_ties[head:])
    if sigma == 0:
        return math.inf if excess > 0 else 0.0
    return excess / sigma


@lru_cache(maxsize=64)
def _centered_times(count: int) -> tuple[Values, float]:
    time = [step - (count - 1) / 2 for step in range(count)]
    return time, _dot(time, time)


def _trend_score(ranks: Values) -> float:
    """Return the correlation of the ranks with time, in standard deviations.

    Autocorrelation can only lower the score, so it is estimated only if the score would be significant without it.
    """
    count = len(ranks)
    time, time_squares = _centered_times(count)
    cross_product, rank_squares = _dot(time, ranks), _dot(ranks, ranks)
    slope = cross_product / time_squares
    correlation = slope * math.sqrt(time_squares / rank_squares)
    fisher = math.atanh(min(max(correlation, -_MAX_CORRELATION), _MAX_CORRELATION))
    unadjusted = fisher * math.sqrt((count - 3) / 1.06)
    if abs(unadjusted) <= _DRIFT_LIMIT:
        return unadjusted
    residuals = [rank - slope * step for rank, step in zip(ranks, time, strict=True)]
    phi = _residual_autocorrelation(residuals) if abs(correlation) < _MAX_CORRELATION else 0.0
    effective_count = count * (1 - phi) / (1 + phi)
    if effective_count <= 3:
        return 0.0
    return fisher * math.sqrt((effective_count - 3) / 1.06)


def _residual_autocorrelation(residuals: Values) -> float:
    """Return the lag-1 correlation of the residuals of a trend, corrected for its bias and limited to 0–0.97."""
    count = len(residuals)
    observed = _dot(residuals, residuals[1:]) / _dot(residuals, residuals)
    return min(max((count * observed + 2) / (count - 4), 0.0), 0.97)


def _dot(one: Values, other: Values) -> float:
    return float(sum(map(mul, one, other)))


def _theil_sen_line(values: Values) -> tuple[float, float]:
    """Return the levels of the Theil–Sen line at the first and at the last sample."""
    count = len(values)
    time, level = np.arange(count, dtype=np.float64), np.array(values)
    if count > _MAX_FITTED_SAMPLES:
        blocks = np.array_split(np.arange(count), _MAX_FITTED_SAMPLES)
        time = np.array([block.mean() for block in blocks])
        level = np.array([np.median(level[block]) for block in blocks])
    first, second = np.triu_indices(len(level), k=1)
    slope = float(np.median((level[second] - level[first]) / (time[second] - time[first])))
    start = float(np.median(level - slope * time))
    return start, start + slope * (count - 1)
