"""The exact result of a running sum, from the equal steps that `sysbench.rounding` derives."""

from __future__ import annotations

from fractions import Fraction

from sysbench.rounding import Format, equal_steps


def running_sum(addend: Fraction, count: int, accumulator: Format) -> Fraction | None:
    """Return the sum of `count` addends, rounded after every addition; None if it overflows."""
    total, step = Fraction(0), 0
    for each in equal_steps(addend, accumulator):
        if each.steps == 0:
            return each.start_total
        taken = min(each.steps, count - each.first_step)
        total, step = each.start_total + taken * each.increment, each.first_step + taken
        if step == count:
            return total
    return None
