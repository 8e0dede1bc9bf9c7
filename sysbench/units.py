"""One formatter for everything that has a unit: seconds, bytes, FLOPs, counts, shares.

A value and its deviation share one unit and one number of decimals: `21.4 ± 0.2 ms`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

UNKNOWN = "—"
"""Stands for what was not measured."""


@dataclass(frozen=True)
class Scale:
    """A unit to show values in: a value in base units is divided by `factor`."""

    factor: float
    symbol: str

    def digits(self, value: float, decimals: int) -> str:
        """The number alone, in this unit."""
        return f"{value / self.factor:,.{decimals}f}".replace(",", " ") if math.isfinite(value) else UNKNOWN


_TIME = (Scale(1.0, "s"), Scale(1e-3, "ms"), Scale(1e-6, "µs"), Scale(1e-9, "ns"))
_BYTES = tuple(Scale(1024.0**power, symbol) for power, symbol in enumerate(("B", "KiB", "MiB", "GiB", "TiB")))[::-1]
_DECIMAL = tuple(
    Scale(10.0**power, symbol) for power, symbol in ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k"), (0, ""))
)


def _scale(value: float, scales: tuple[Scale, ...]) -> Scale:
    magnitude = abs(value)
    fitting = (scale for scale in scales if magnitude >= scale.factor)
    return next(fitting, scales[-1])


def time_scale(value_s: float) -> Scale:
    """The unit in which `value_s` seconds reads best: 10 s and more in seconds, else milliseconds and down."""
    return _TIME[0] if abs(value_s) >= 10 else _scale(min(abs(value_s), 0.999), _TIME)


def decimals_for(deviation: float, scale: Scale) -> int:
    """As many decimals as show the first significant digit of `deviation`: 0 to 3."""
    shown = abs(deviation) / scale.factor
    if shown <= 0 or not math.isfinite(shown):
        return 1
    return min(3, max(0, -math.floor(math.log10(shown))))


def seconds(value_s: float | None) -> str:
    """`105.6 ms`."""
    return _quantity(value_s, time_scale(value_s)) if value_s is not None else UNKNOWN


def seconds_with_deviation(mean_s: float, deviation_s: float, scale: Scale | None = None) -> str:
    """`105.6 ± 0.2 ms`; the deviation decides the decimals, at least one below 100."""
    unit = scale or time_scale(mean_s)
    decimals = decimals_for(deviation_s, unit)
    if mean_s / unit.factor < 100:
        decimals = max(1, decimals)
    return f"{unit.digits(mean_s, decimals)} ± {unit.digits(deviation_s, decimals)} {unit.symbol}"


def duration(value_s: float) -> str:
    """A waiting time, coarse: `8 s`, `2 min`, `1 h 20 min`."""
    whole = round(value_s)
    if whole < 100:
        return f"{whole} s"
    minutes = round(value_s / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def size(value_bytes: float | None) -> str:
    """`18.2 GiB`."""
    return _quantity(value_bytes, _scale(value_bytes, _BYTES)) if value_bytes is not None else UNKNOWN


def flops(value: float | None) -> str:
    """`1.78 TFLOP`."""
    return f"{_prefixed(value)}FLOP" if value is not None else UNKNOWN


def flop_rate(value: float | None) -> str:
    """`15.2 TFLOP/s`."""
    return f"{_prefixed(value)}FLOP/s" if value is not None else UNKNOWN


def count(value: float | None) -> str:
    """`423.2 M`."""
    return _prefixed(value).rstrip() if value is not None else UNKNOWN


def share(value: float | None) -> str:
    """`78 %`, and one decimal below 10 %."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value * 100:.{0 if abs(value) >= 0.0995 else 1}f} %"


def _quantity(value: float, scale: Scale) -> str:
    return f"{scale.digits(value, _decimals(value / scale.factor))} {scale.symbol}"


def _prefixed(value: float) -> str:
    scale = _scale(value, _DECIMAL)
    shown = value / scale.factor
    return f"{scale.digits(value, 0 if scale.factor == 1 else _decimals(shown))} {scale.symbol}"


def _decimals(shown: float) -> int:
    """Three significant digits, and one decimal at least below a thousand."""
    return 2 if abs(shown) < 10 else 1 if abs(shown) < 1000 else 0
