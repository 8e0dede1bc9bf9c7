"""Student's t distribution, for intervals."""

from __future__ import annotations

import math
from functools import lru_cache

_ENOUGH = 1e-13
"""Relative tolerance at which the bisection ends."""


@lru_cache(maxsize=256)
def t_quantile(probability: float, degrees: int) -> float:
    """Return the two-sided quantile: t with P(|T| ≤ t) = `probability`, for `degrees` degrees of freedom.

    Raises ValueError for a probability outside (0, 1), and for fewer degrees of freedom than one.
    """
    if not 0 < probability < 1:
        raise ValueError(f"probability is {probability}: it must lie between 0 and 1")
    if degrees < 1:
        raise ValueError(f"{degrees} degrees of freedom: at least one is needed")
    low, high = 0.0, 1.0
    while _within(high, degrees) < probability:
        high *= 2
    while high - low > _ENOUGH * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < probability else (low, middle)
    return (low + high) / 2


def _within(t: float, degrees: int) -> float:
    """P(|T| ≤ t): finite sums (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4)."""
    theta = math.atan2(t, math.sqrt(degrees))
    cosine, sine = math.cos(theta), math.sin(theta)
    if degrees % 2:
        term, total = cosine, 0.0
        for k in range(1, degrees - 1, 2):
            total += term
            term *= cosine * cosine * (k + 1) / (k + 2)
        return 2 / math.pi * (theta + sine * total)
    term, total = 1.0, 0.0
    for k in range(0, degrees - 1, 2):
        total += term
        term *= cosine * cosine * (k + 1) / (k + 2)
    return sine * total
