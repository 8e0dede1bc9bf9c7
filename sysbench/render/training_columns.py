"""Columns for a whole training: its duration in hours, and its cost."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from sysbench import units
from sysbench.log.predictions import Expected, Training
from sysbench.render.declared import Field, Reader
from sysbench.render.table import Measure

HOUR_S = 3600.0


def fields(get: Reader[Training | None]) -> tuple[Field, ...]:
    """Return the columns `training` and `cost` of a table; `get` returns the training of a row."""
    return (
        Field("training", unit="s", get=lambda row: _duration(get(row)), optional=True, wide_range=True),
        Field("cost", unit="number", get=lambda row: _cost(get(row)), optional=True),
    )


def missing_prices(priced: Collection[str], gpus: Iterable[str]) -> Iterator[str]:
    """Yield the note that costs are missing for want of a price, if they are."""
    if missing := [gpu for gpu in dict.fromkeys(gpus) if gpu not in priced]:
        yield f"no cost without the price of a GPU hour: --price {','.join(f'{gpu}=2.5' for gpu in missing)}"


def _duration(found: Training | None) -> Measure | None:
    """Return the hours of a training with their interval; exports have seconds."""
    return _measure(found.duration_s, f"{in_digits(found.duration_s.times(1 / HOUR_S))} h") if found else None


def _cost(found: Training | None) -> Measure | None:
    return _measure(found.cost, in_digits(found.cost)) if found and found.cost else None


def _measure(amount: Expected, text: str) -> Measure:
    return Measure(amount.point, low=amount.low, high=amount.high, text=text)


def in_digits(amount: Expected) -> str:
    """Return an amount with its interval: `49.0 (40.7–71.3)`."""
    point = units.with_digits(amount.point)
    if amount.low is None or amount.high is None:
        return point
    return f"{point} ({units.with_digits(amount.low)}–{units.with_digits(amount.high)})"
