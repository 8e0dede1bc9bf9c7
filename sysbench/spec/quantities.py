"""Types of numbers in specs, events and records: finite, and within a plausible range.

Every file is checked against these types when it is read, so computations need no checks of their own: there is no
NaN, no infinity, and no overflow of a product or a sum. A measured result that may be infinite or NaN is a `Number`.
"""

from __future__ import annotations

import re
from datetime import datetime
from math import isfinite
from typing import Annotated, Final, Literal, TypeVar

from pydantic import AfterValidator, AllowInfNan, BeforeValidator, Field, PlainSerializer, WithJsonSchema

T = TypeVar("T")

MAX_SIZE = 10**9
"""Upper limit of one dimension of a model or of its input."""

MAX_COUNT = 2**60
"""Upper limit of bytes, nanoseconds, calls and tokens: an exabyte, or 36 years."""

MAX_DURATION_S = 1e10
"""Upper limit of durations: three hundred years."""

MAX_QUANTITY = 1e90
"""Upper limit of other quantities; products of three remain finite."""

MAX_TIMESTAMP_S = 253_402_300_800
"""Seconds from 1970 to the year 10000, the limit of dates."""

Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]
Steps = Annotated[int, Field(ge=0, le=MAX_SIZE)]
Count = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Bytes = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Signed = Annotated[int, Field(ge=-MAX_COUNT, le=MAX_COUNT)]
Nanoseconds = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Flops = Annotated[int, Field(ge=0, le=10**36)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]

Seconds = Annotated[float, Field(ge=0, le=MAX_DURATION_S)]
PositiveSeconds = Annotated[float, Field(gt=1e-12, le=MAX_DURATION_S)]
"""A duration measured between two clock readings; it must be positive."""
Instant = Annotated[float, Field(ge=0, lt=MAX_TIMESTAMP_S)]
"""Seconds since 1970."""


def _check_utc_time(text: str) -> str:
    try:
        datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        raise ValueError("it is not a time such as 2026-01-31T12:00:00Z") from None
    return text


Moment = Annotated[str, AfterValidator(_check_utc_time)]
"""A UTC time in ISO 8601, with a resolution of one second."""

Share = Annotated[float, Field(gt=0, lt=1)]
Amount = Annotated[float, Field(ge=0, le=MAX_QUANTITY)]
PerSecond = Annotated[float, Field(gt=0, le=MAX_QUANTITY)]
Finite = Annotated[float, Field(ge=-MAX_QUANTITY, le=MAX_QUANTITY)]

Unbounded = Annotated[float, AllowInfNan(True), WithJsonSchema({"type": ["number", "null"]})]
"""A number that may be infinite or NaN; in JSON, both are null."""
Number = Annotated[
    float,
    AllowInfNan(True),
    PlainSerializer(lambda value: value if isfinite(value) else str(value), when_used="json"),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]}),
]
"""A number that may be infinite or NaN; in JSON, these are the words `inf`, `-inf` or `nan`."""


def stored_unless(default: T, description: str | None = None) -> T:
    """Return a field that is stored unless it has its default value, so that records and keys show what was chosen."""
    field: T = Field(default=default, exclude_if=lambda value: value == default, description=description)
    return field


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
