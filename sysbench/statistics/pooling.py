"""Joint evaluation of the ratios of many cells: whether they agree, and which of them differ significantly from 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Final

from sysbench.statistics.doubt import Estimate, Ratio, estimate, ratio
from sysbench.statistics.samples import Stream
from sysbench.statistics.verdict import rank_sum

FAMILYWISE_ERROR_RATE: Final = 0.01
"""Family-wise error rate: the largest probability of any false claim, over all comparisons together."""

MIN_EFFECT_SHARE: Final = 0.01
"""Smaller differences between two cells are not reported: clocks and temperatures cause such differences between
processes, which the samples of a single process do not show."""

AGREEMENT_SHARE: Final = 0.01
"""Ratios within this share of a common ratio count as equal to it."""

MAX_SPREAD_SHARE: Final = 0.05
"""If a ratio is farther than this share from the common value, the range is reported instead."""


@dataclass(frozen=True)
class Pooled:
    """One ratio that several cells agree on."""

    value: float
    """Geometric mean of the ratios."""
    max_deviation: float
    """Largest distance of a ratio from `value`, or the uncertainty of `value` if that is larger."""
    count: int


def pooled(ratios: Sequence[Ratio]) -> Pooled | None:
    """Return the ratio on which all cells agree, or None.

    Cells agree if the geometric mean of all ratios lies within the interval of each ratio, or within 1% of that ratio.
    For this check, the intervals are widened on the logarithmic scale from 95% each to 95% jointly (Bonferroni, for
    normal deviates).

    Returns None if there are no ratios, if the cells disagree, if a ratio has no interval, or if `max_deviation` is
    more than 5% of the value: the range of the ratios is then more informative than a common value.
    """
    if not ratios or any(each.low is None or each.high is None or each.low <= 0 for each in ratios):
        return None
    logs = [math.log(each.value) for each in ratios]
    mean = sum(logs) / len(logs)
    # Factor by which the intervals are widened so that all of them hold jointly.
    widening = NormalDist().inv_cdf(1 - 0.025 / len(ratios)) / NormalDist().inv_cdf(0.975)
    if not all(_covers(each, mean, widening) for each in ratios):
        return None
    value = math.exp(mean)
    # Half the width of each interval on the logarithmic scale.
    half_widths = (math.log((each.high or each.value) / (each.low or each.value)) / 2 for each in ratios)
    uncertainty = math.sqrt(sum(half_width**2 for half_width in half_widths)) / len(ratios)
    max_deviation = max(value * math.expm1(uncertainty), *(abs(each.value - value) for each in ratios))
    return Pooled(value, max_deviation, len(ratios)) if max_deviation <= MAX_SPREAD_SHARE * value else None


def _covers(each: Ratio, mean: float, widening: float) -> bool:
    deviation = mean - math.log(each.value)
    if abs(math.expm1(deviation)) <= AGREEMENT_SHARE:
        return True
    end = each.high if deviation > 0 else each.low
    return end is not None and abs(deviation) <= widening * abs(math.log(end / each.value))


@dataclass(frozen=True)
class Effect:
    """The ratio of the medians of two streams, and whether it differs significantly from 1."""

    ratio: Ratio
    direction: int
    """1 if the numerator is significantly larger, -1 if it is significantly smaller, 0 if neither."""


def effect(numerator: Stream | Estimate, denominator: Stream | Estimate, family: int = 1) -> Effect:
    """Return the ratio of two medians, and whether it differs significantly from 1 as one of `family` comparisons.

    The difference is significant if four conditions hold:

    - The 95% interval of the ratio, which doubts about either median widen, does not contain 1.
    - The p-value of the rank test is at most 1% divided by `family` (Bonferroni).
    - The ratio is at least 1% away from 1.
    - The ratio of the means lies on the same side of 1; a few very long samples in the faster stream may move it to
      the other side.

    A difference of 3% between ten samples each with 1% noise is found in 99% of cases, and in 95% if it is one of
    twenty comparisons; fewer than 1% of data sets without any effect have one reported (simulated).

    Raises ValueError in the same cases as `ratio`.
    """
    upper, lower = estimate(numerator), estimate(denominator)
    found = ratio(upper, lower)
    if found.low is None or found.high is None or found.low <= 1 <= found.high:
        return Effect(found, 0)
    if (
        abs(found.value - 1) < MIN_EFFECT_SHARE
        or rank_sum(upper.samples, lower.samples) > FAMILYWISE_ERROR_RATE / family
    ):
        return Effect(found, 0)
    ratio_of_means = fmean(upper.samples.values) / fmean(lower.samples.values)
    same_direction = (ratio_of_means > 1) == (found.value > 1)
    return Effect(found, (1 if found.value > 1 else -1) if same_direction else 0)
