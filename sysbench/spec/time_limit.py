"""Time limits of measurements, as options state them: `90s`, `3m`, `1h30m`, or `none`."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field

from sysbench.spec.quantities import MAX_DURATION_S

CPU_LIMIT_S: Final = 180.0
"""Limit of a cell on the CPU if none is given: long enough for a number, and short enough to wait for it."""

_PARTS = re.compile(r"(?:(?P<h>\d+(?:\.\d+)?)h)?(?:(?P<m>\d+(?:\.\d+)?)m(?:in)?)?(?:(?P<s>\d+(?:\.\d+)?)s?)?")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_EXAMPLES = "90s, 3m, 1h30m, or none for no limit"


def parse_time_limit(value: object) -> object:
    """Convert text such as `3m` to seconds; `none` and `auto` remain words; raises ValueError for other text."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{value!r} is not a time limit: write {_EXAMPLES}")
    if isinstance(value, str):
        text = re.sub(r"\s", "", value.lower())
        if text in ("none", "auto"):
            return text
        found = _PARTS.fullmatch(text) if text else None
        if found is None:
            raise ValueError(f"{value or '(nothing)'} is not a time limit: write {_EXAMPLES}")
        value = sum(float(found[unit] or 0) * seconds for unit, seconds in _SECONDS.items())
    if not 0 < value <= MAX_DURATION_S:
        raise ValueError(f"{value:g} s is out of range: write {_EXAMPLES}")
    return float(value)


def time_limit_word(limit: float | str) -> str:
    """Write a limit as an option reads it: `3m`, `90s`, `none`."""
    if isinstance(limit, str):
        return limit
    hours, rest_s = divmod(limit, 3600)
    minutes, seconds = divmod(rest_s, 60)
    if hours or (minutes >= 2 and not seconds):
        parts = zip((hours, minutes, seconds), "hms", strict=True)
        return "".join(f"{count:g}{unit}" for count, unit in parts if count)
    return f"{limit:g}s"


TimeLimit = Annotated[
    Annotated[float, Field(gt=0, le=MAX_DURATION_S)] | Literal["auto", "none"], BeforeValidator(parse_time_limit)
]
"""Seconds; `none` for no limit; or `auto`: CPU_LIMIT_S on a CPU, and none elsewhere."""


def limit_in_seconds(limit: float | str, device_type: str) -> float | None:
    """Return the limit in seconds on this type of device; None for no limit."""
    if isinstance(limit, float):
        return limit
    return CPU_LIMIT_S if limit == "auto" and device_type == "cpu" else None
