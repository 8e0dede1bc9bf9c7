"""Formatting of all quantities with units: seconds, bytes, FLOPs, tokens, percentages, ratios.

A value and its deviation, and the values in a column of a table, share one unit and one number of decimals:
`21.4 ± 0.2 ms`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

UNKNOWN = "—"
"""Placeholder for a value that was not measured."""

Unit = Literal[
    "s",
    "bytes",
    "flops",
    "flops_per_s",
    "bytes_per_s",
    "elements_per_s",
    "tokens_per_s",
    "joules",
    "joules_per_token",
    "watts",
    "share",
    "ratio",
    "count",
    "number",
]
"""The unit of a number before scaling: SI base units, bytes, operations, and plain shares and ratios."""


@dataclass(frozen=True)
class Scale:
    """A unit for display; values in base units are divided by `factor`."""

    factor: float
    symbol: str

    def digits(self, value: float, decimals: int) -> str:
        """Format the value in this unit, without the unit symbol; negative `decimals` round to tens or hundreds."""
        if not math.isfinite(value):
            return UNKNOWN
        shown = round(value / self.factor, decimals)
        # A deviation that rounds to zero must not read -0.0.
        return f"{shown or 0.0:,.{max(0, decimals)}f}"


SECONDS = Scale(1.0, "s")
_TIME = (SECONDS, Scale(1e-3, "ms"), Scale(1e-6, "µs"), Scale(1e-9, "ns"))
_BYTES = tuple(Scale(1024.0**power, symbol) for power, symbol in enumerate(("B", "KiB", "MiB", "GiB", "TiB")))[::-1]
_PREFIXES = ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k"), (0, ""))
_COUNTS = tuple(Scale(10.0**power, prefix) for power, prefix in ((12, "T"), (9, "B"), (6, "M"), (3, "k"), (0, "")))
_FLOPS = tuple(Scale(10.0**power, f"{prefix}FLOP") for power, prefix in _PREFIXES)
_FLOP_RATES = tuple(Scale(10.0**power, f"{prefix}FLOP/s") for power, prefix in _PREFIXES)
_ENERGIES = tuple(Scale(10.0**power, f"{prefix}J") for power, prefix in ((3, "k"), (0, ""), (-3, "m"), (-6, "µ")))
_SCALES: dict[Unit, tuple[Scale, ...]] = {
    "s": _TIME,
    "bytes": _BYTES,
    "flops": _FLOPS,
    "flops_per_s": _FLOP_RATES,
    # Bandwidth uses powers of ten, as in data sheets.
    "bytes_per_s": tuple(Scale(10.0**power, f"{prefix}B/s") for power, prefix in _PREFIXES),
    "elements_per_s": tuple(Scale(10.0**power, f"{prefix}elements/s") for power, prefix in _PREFIXES),
    "tokens_per_s": (Scale(1.0, "tokens/s"),),
    "joules": _ENERGIES,
    "joules_per_token": tuple(Scale(scale.factor, f"{scale.symbol}/token") for scale in _ENERGIES),
    "watts": (Scale(1.0, "W"),),
    "share": (Scale(0.01, "%"),),
    "ratio": (Scale(1.0, "×"),),
    "count": _COUNTS,
    "number": (Scale(1.0, ""),),
}


def _scale(value: float, scales: tuple[Scale, ...]) -> Scale:
    """Return the largest unit in which the value, rounded as shown, is at least 1; for 0, the base unit."""
    magnitude = abs(value)
    if not magnitude or not math.isfinite(magnitude):
        return next((scale for scale in scales if scale.factor == 1), scales[-1])
    # 999.96 is shown as 1000.0, and 1023.5 KiB without decimals as 1,024 KiB: both are 1.00 of the next unit.
    least = 0.9995 if scales is _BYTES else 0.99995
    fitting = (scale for scale in scales if round(magnitude / scale.factor, 5) >= least)
    return next(fitting, scales[-1])


def time_scale(value_s: float) -> Scale:
    """Return the unit for a time and its deviation: seconds for 10 s or more, otherwise milliseconds or smaller."""
    # Capped at 0.9 s, because _scale would choose seconds from 1 s on.
    return _TIME[0] if abs(value_s) >= 10 else _scale(min(abs(value_s), 0.9), _TIME)


def shared_scale(unit: Unit, values: Iterable[float]) -> Scale:
    """Return one scale for many values, chosen by their median. Times with a median of at least 10 s are in seconds."""
    finite = [abs(value) for value in values if math.isfinite(value) and value]
    typical = statistics.median_low(finite) if finite else 0.0
    return time_scale(typical) if unit == "s" else _scale(typical, _SCALES[unit])


def decimals_for(deviation: float, scale: Scale) -> int:
    """Return the number of decimals, 0 to 3, that shows the first significant digit of `deviation`."""
    shown = abs(deviation) / scale.factor
    if shown <= 0 or not math.isfinite(shown):
        return 1
    return min(3, max(0, -math.floor(math.log10(shown))))


def shared_decimals(scale: Scale, values: Sequence[float], deviations: Sequence[float] = ()) -> int:
    """Return one number of decimals for many values, which their median determines.

    One more is added, up to two in all, if the median deviation needs it for its first significant digit.
    """
    finite = [abs(value) / scale.factor for value in values if math.isfinite(value) and value]
    if not finite:
        return 1
    decimals = _decimals(statistics.median_low(finite))
    known = [deviation for deviation in deviations if math.isfinite(deviation) and deviation]
    if known:
        decimals = max(decimals, min(2, decimals + 1, decimals_for(statistics.median_low(known), scale)))
    return decimals


def decimals_of_interval(low: float, high: float, scale: Scale) -> int:
    """Return the decimals that show two digits of half an interval's width, negative for tens: `63 (38–112)`."""
    half = (high - low) / 2 / scale.factor
    return 1 - math.floor(math.log10(half)) if half > 0 and math.isfinite(half) else 3


def seconds_with_interval(point_s: float, low_s: float, high_s: float) -> str:
    """Format a time with its interval, with as many digits as the interval deserves: `63 ms (38–112)`."""
    scale = _scale(point_s, _TIME)
    decimals = min(2, decimals_of_interval(low_s, high_s, scale))
    point, low, high = (scale.digits(each, decimals) for each in (point_s, low_s, high_s))
    return f"{point} {scale.symbol} ({low}–{high})"


def decimals_of_digits(value: float, scale: Scale, digits: int) -> int:
    """Return the decimals that show so many significant digits of a value, negative for tens; 0 for zero."""
    shown = abs(value) / scale.factor
    return digits - 1 - math.floor(math.log10(shown)) if shown > 0 and math.isfinite(shown) else 0


def seconds(value_s: float | None) -> str:
    """Format a time: `105.6 ms`, `8.40 s`."""
    return quantity("s", value_s)


def seconds_with_deviation(mean_s: float, deviation_s: float, scale: Scale | None = None) -> str:
    """Format a time with its deviation, in one unit and with one number of decimals: `105.6 ± 0.2 ms`."""
    unit = scale or time_scale(mean_s)
    decimals = shared_decimals(unit, [mean_s], [deviation_s])
    return f"{unit.digits(mean_s, decimals)} ± {unit.digits(deviation_s, decimals)} {unit.symbol}"


def duration(value_s: float) -> str:
    """Format a waiting time, rounded: `8 s`, `2 min`, `1 h 20 min`."""
    whole_s = round(value_s)
    if whole_s < 100:
        return f"{whole_s} s"
    minutes = round(value_s / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def size(value_bytes: float | None) -> str:
    """Format a number of bytes: `18.2 GiB`."""
    return quantity("bytes", value_bytes)


def flops(value: float | None) -> str:
    """Format a number of FLOPs: `1.78 TFLOP`."""
    return quantity("flops", value)


def flop_rate(value: float | None) -> str:
    """Format a rate: `15.2 TFLOP/s`."""
    return quantity("flops_per_s", value)


def count(value: float | None) -> str:
    """Format a count: `423.2 M`, `3.41 B`, with B for billions."""
    return quantity("count", value)


def frequency(value_hz: float) -> str:
    """Format a clock frequency, always in MHz: `1410 MHz`."""
    return f"{value_hz / 1e6:.0f} MHz"


def ratio(value: float | None) -> str:
    """Format a ratio: `3.65×`, and `1.004×` near 1."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:.{ratio_decimals([value])}f}×"


def ratio_decimals(values: Iterable[float]) -> int:
    """Return the number of decimals for ratios: two, or three if a ratio is within 0.01 of 1."""
    return 3 if any(abs(value - 1) < 0.01 for value in values) else 2


def share(value: float | None) -> str:
    """Format a fraction as a percentage: `78%`, with one decimal below 10%."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value * 100:.{0 if abs(value) >= 0.0995 else 1}f}%"


def with_digits(value: float) -> str:
    """Format a number without a unit with three significant digits, including final zeros: `0.0944`, `0.100`."""
    rounded = float(f"{value:.2e}")
    decimals = 2 - math.floor(math.log10(abs(rounded))) if rounded else 0
    return f"{rounded:,.{max(0, decimals)}f}"


def significant(value: float) -> float:
    """Round a number for programs to nine significant digits, more than any clock, counter or fit resolves.

    Whole numbers, such as bytes, stay exact. Processors differ in the last digits of a fit: 2.0 or 1.9999999999999998.
    """
    return value if not math.isfinite(value) or value == int(value) else float(f"{value:.9g}")


def quantity(unit: Unit, value: float | None) -> str:
    """Format one value with its unit and at most two decimals; `—` for None and for non-finite values."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    scale = _scale(value, _SCALES[unit])
    # Countable quantities have no decimals.
    has_no_decimals = scale.factor == 1 and unit in ("bytes", "flops", "count")
    return f"{scale.digits(value, 0 if has_no_decimals else _decimals(value / scale.factor))} {scale.symbol}".rstrip()


def _decimals(shown: float) -> int:
    """Return the number of decimals for a value in its unit: 0 for zero, 2 below 10, 1 below 1,000, otherwise 0."""
    magnitude = abs(shown)
    if not magnitude:
        return 0
    return 2 if magnitude < 9.995 else 1 if magnitude < 999.95 else 0
