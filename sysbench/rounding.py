"""Floating-point formats and rounding to them, in exact arithmetic.

A format keeps the first `significant_bits` bits and rounds to the nearest, ties to even (IEEE 754-2019 4.3.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

FormatName = Literal["fp32", "tf32", "bf16", "fp16", "fp8-e4m3", "fp8-e5m2"]

ArithmeticSource = Literal["device", "rounded"]
"""device   the device's own arithmetic in the format
rounded  arithmetic in a wider format, with every result rounded to the format (for products: the inputs)
"""


@dataclass(frozen=True)
class Format:
    """One floating-point format.

    significant_bits  including the implicit leading bit
    least_exponent    base-2 exponent of the smallest normal number
    largest           the largest finite number
    saturates         whether larger values become `largest`, because the format has no infinity
    """

    name: FormatName
    significant_bits: int
    min_exponent: int
    largest: Fraction
    saturates: bool = False

    @property
    def smallest(self) -> float:
        """The smallest positive number, which is subnormal."""
        return math.ldexp(1.0, self.min_exponent - self.significant_bits + 1)

    def spacing(self, value: Fraction) -> Fraction:
        """Return the distance between neighbouring numbers of the format near `value`."""
        exponent = max(_exponent(abs(value)), self.min_exponent) if value else self.min_exponent
        return _power_of_two(exponent - self.significant_bits + 1)

    def rounded(self, value: Fraction) -> Fraction | None:
        """Round to the nearest number of the format; return None if the value overflows to infinity."""
        spacing = self.spacing(value)
        nearest = Fraction(round(value / spacing)) * spacing  # Python rounds ties to even
        if abs(nearest) <= self.largest:
            return nearest
        return (self.largest if value > 0 else -self.largest) if self.saturates else None

    def nearest(self, value: float) -> float:
        """Round to the nearest number of the format, in fast float arithmetic; overflow results in infinity."""
        if not value or not math.isfinite(value):
            return value
        _, exponent = math.frexp(value)  # its mantissa is in [0.5, 1)
        spacing = math.ldexp(1.0, max(exponent - 1, self.min_exponent) - self.significant_bits + 1)
        found = round(value / spacing) * spacing
        if abs(found) <= self.largest:
            return found
        return math.copysign(float(self.largest) if self.saturates else math.inf, value)


def _largest(significant_bits: int, exponent: int) -> Fraction:
    return (2 - _power_of_two(1 - significant_bits)) * _power_of_two(exponent)


def _power_of_two(exponent: int) -> Fraction:
    return Fraction(2) ** exponent


FORMATS: dict[FormatName, Format] = {
    each.name: each
    for each in (
        Format("fp32", 24, -126, _largest(24, 127)),
        Format("tf32", 11, -126, _largest(11, 127)),
        Format("bf16", 8, -126, _largest(8, 127)),
        Format("fp16", 11, -14, _largest(11, 15)),
        Format("fp8-e4m3", 4, -6, Fraction(448), saturates=True),
        Format("fp8-e5m2", 3, -14, _largest(3, 15)),
    )
}
"""IEEE 754 binary32 and binary16; bfloat16; NVIDIA's TF32 as a format of its own (fp32's exponents, 10 bits of
mantissa); and the two 8-bit formats of the Open Compute Project's OFP8 specification, of which e4m3 has no infinity and
saturates, as hardware conversions do."""


def exact(value: float) -> Fraction:
    """Return the fraction that equals the shortest decimal form of a float: 1/100 for 0.01."""
    return Fraction(Decimal(repr(value)))


def _exponent(value: Fraction) -> int:
    """Return the exponent e with 2**e ≤ value < 2**(e + 1), for value > 0."""
    guess = value.numerator.bit_length() - value.denominator.bit_length()
    return guess if _power_of_two(guess) <= value else guess - 1


@dataclass(frozen=True)
class EqualSteps:
    """Consecutive steps of a running sum that all add the same `increment`; an endless run of steps has `steps` 0."""

    first_step: int
    steps: int
    start_total: Fraction
    increment: Fraction


def equal_steps(addend: Fraction, accumulator: Format) -> Iterator[EqualSteps]:
    """Yield the running sum `s = rounded(s + addend)`, which starts at 0, as runs of steps with equal increments.

    Between two powers of two the spacing of the format is constant, so every step adds the same multiple of it. Only
    the first step there may differ: it rounds a tie to the even neighbour, from which all further ties are rounded in
    one direction. If the sum stalls, the last run has increment 0 and no end (`steps` is 0).
    """
    total, step = Fraction(0), 0
    same_binade = False
    """Whether the last step began between the same powers of two as the total."""
    while True:
        next_total = accumulator.rounded(total + addend)
        if next_total is None:
            return
        increment = next_total - total
        if not increment:
            yield EqualSteps(step, 0, total, increment)
            return
        steps = max(1, _min_equal_steps(total, addend, increment, accumulator)) if same_binade else 1
        yield EqualSteps(step, steps, total, increment)
        before, total, step = total, total + steps * increment, step + steps
        same_binade = bool(before) and _exponent(abs(before)) == _exponent(abs(total))


def _min_equal_steps(total: Fraction, addend: Fraction, increment: Fraction, accumulator: Format) -> int:
    """Return a lower bound on how many steps, starting at `total`, add exactly `increment`."""
    exponent = max(_exponent(abs(total)), accumulator.min_exponent)
    room = _power_of_two(exponent + 1) - abs(total) - abs(addend)
    return math.ceil(room / abs(increment))


@dataclass(frozen=True)
class Stall:
    """The point where a running sum stops growing: after `step` additions, the sum stays at `total`."""

    step: int
    total: Fraction


def stall(addend: Fraction, accumulator: Format) -> Stall | None:
    """Return the point from which adding `addend` no longer changes the sum; None if the sum overflows first."""
    ends = (step for step in equal_steps(addend, accumulator) if step.steps == 0)
    return next((Stall(end.first_step, end.start_total) for end in ends), None)
