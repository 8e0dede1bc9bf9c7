"""Ratios of many cells together: whether they agree, and which of them are significant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean
from typing import Final

from sysbench.statistics.samples import Stream, series
from sysbench.statistics.verdict import Ratio, rank_sum, ratio

FALSE_CLAIM: Final = 0.01
"""Largest probability that data without any effect show one, over all comparisons together."""

SMALLEST_EFFECT: Final = 0.01
"""Smaller differences between two cells are not reported: clocks and temperatures differ that much between processes,
which the samples of one process do not show."""

ALIKE: Final = 0.01
"""Ratios within this share of a common ratio count as equal to it."""

WIDEST: Final = 0.05
"""If a ratio is farther than this share from the common value, the range is reported instead."""


@dataclass(frozen=True)
class Pooled:
    """One ratio that several cells agree on."""

    value: float
    """Geometric mean of the ratios."""
    reach: float
    """If a ratio is farther than this share from the common value, the range is reported instead."""
    count: int


def pooled(ratios: Sequence[Ratio]) -> Pooled | None:
    """Return the ratio that all cells agree on; None if they disagree, if one has no interval, or if there are none.

    They agree if the geometric mean of all lies within each one's interval, or within 1 % of it. The intervals are
    widened, on the logarithmic scale, from 95 % for each to 95 % for all of them together (Bonferroni, for normal
    deviates). The result includes the distance of the farthest ratio; if that is more than 5 %, the range says more
    than the common value.
    """
    if not ratios or any(each.low is None or each.high is None or each.low <= 0 for each in ratios):
        return None
    logs = [math.log(each.value) for each in ratios]
    mean = sum(logs) / len(logs)
    # Factor by which the intervals widen so that they hold together.
    wider = NormalDist().inv_cdf(1 - 0.025 / len(ratios)) / NormalDist().inv_cdf(0.975)
    if not all(_holds(each, mean, wider) for each in ratios):
        return None
    value = math.exp(mean)
    # Half the width of each interval on the logarithmic scale.
    halves = (math.log((each.high or each.value) / (each.low or each.value)) / 2 for each in ratios)
    uncertain = math.sqrt(sum(half**2 for half in halves)) / len(ratios)
    reach = max(value * math.expm1(uncertain), *(abs(each.value - value) for each in ratios))
    return Pooled(value, reach, len(ratios)) if reach <= WIDEST * value else None


def _holds(each: Ratio, mean: float, wider: float) -> bool:
    off = mean - math.log(each.value)
    if abs(math.expm1(off)) <= ALIKE:
        return True
    end = each.high if off > 0 else each.low
    return end is not None and abs(off) <= wider * abs(math.log(end / each.value))


@dataclass(frozen=True)
class Effect:
    """The ratio of two streams, and whether it differs significantly from 1."""

    ratio: Ratio
    direction: int
    """1 if the first takes significantly longer, -1 if it takes less; 0 if the difference is not significant."""


def effect(numerator_samples: Stream, denominator_samples: Stream, family: int = 1) -> Effect:
    """Return the ratio of two medians with a verdict that is valid among `family` such questions.

    A difference is significant if four conditions hold: the 95 % interval of the ratio does not contain 1; the
    difference in ranks occurs by chance in less than 1 % of all data sets with `family` such questions (Bonferroni);
    the ratio is at least 1 % away from 1; and the means differ in the same direction, which they do not where a few
    very long samples fall to the stream that usually takes less. For two streams of ten samples that differ by 3 %
    with 1 % noise, a difference is found in 99 % alone and in 95 % among twenty (simulated); in data sets without any
    effect, in less than 1 %.

    Raises ValueError as `ratio` does.
    """
    found = ratio(numerator_samples, denominator_samples)
    if found.low is None or found.high is None or found.low <= 1 <= found.high:
        return Effect(found, 0)
    if (
        abs(found.value - 1) < SMALLEST_EFFECT
        or rank_sum(numerator_samples, denominator_samples) > FALSE_CLAIM / family
    ):
        return Effect(found, 0)
    of_means = fmean(series(numerator_samples).values) / fmean(series(denominator_samples).values)
    agreed = (of_means > 1) == (found.value > 1)
    return Effect(found, (1 if found.value > 1 else -1) if agreed else 0)
