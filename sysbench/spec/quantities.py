"""What a number in a spec, an event or a record can be: finite, and within what can be measured.

Every file is checked against these when it is read, so that nothing that computes with its numbers has to doubt them:
no NaN, no infinity, no overflow of a product or a sum. A number that may be infinite or NaN, because that is what was
measured, is a `Number`.
"""

from __future__ import annotations

from datetime import datetime
from math import isfinite
from typing import Annotated

from pydantic import AfterValidator, AllowInfNan, Field, PlainSerializer

LARGEST_SIZE = 10**9
"""Of one dimension of a model or of its input."""

LARGEST_COUNT = 2**60
"""Of bytes, nanoseconds, calls, tokens: an exabyte, or 36 years."""

LONGEST_S = 1e10
"""Three hundred years."""

LARGEST = 1e90
"""Of anything else; products of three are still finite."""

CALENDAR_ENDS_S = 253_402_300_800
"""Seconds from 1970 to the year 10000, which no date can be in."""

Size = Annotated[int, Field(ge=1, le=LARGEST_SIZE)]
Steps = Annotated[int, Field(ge=0, le=LARGEST_SIZE)]
Count = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
Bytes = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
Signed = Annotated[int, Field(ge=-LARGEST_COUNT, le=LARGEST_COUNT)]
Exponent = Annotated[int, Field(ge=-2000, le=2000)]
"""Of a power of two, in any format."""
Nanoseconds = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
Flops = Annotated[int, Field(ge=0, le=10**36)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]

Seconds = Annotated[float, Field(ge=0, le=LONGEST_S)]
SomeSeconds = Annotated[float, Field(gt=1e-12, le=LONGEST_S)]
"""A duration that was measured between two readings of a clock, and is none without having lasted."""
Instant = Annotated[float, Field(ge=0, lt=CALENDAR_ENDS_S)]
"""Seconds since 1970."""


def _in_the_calendar(text: str) -> str:
    try:
        datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        raise ValueError("it is no time as in 2026-01-31T12:00:00Z") from None
    return text


Moment = Annotated[str, AfterValidator(_in_the_calendar)]
"""A second of UTC in ISO 8601."""

Share = Annotated[float, Field(gt=0, lt=1)]
Amount = Annotated[float, Field(ge=0, le=LARGEST)]
PerSecond = Annotated[float, Field(gt=0, le=LARGEST)]
Finite = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]

Unbounded = Annotated[float, AllowInfNan(True)]
"""A number that may be infinite or NaN, where JSON needs not tell which: there it is null."""
Number = Annotated[
    float, AllowInfNan(True), PlainSerializer(lambda value: value if isfinite(value) else str(value), when_used="json")
]
"""A number that may be infinite or NaN, for which JSON has no numbers: there it is the word `inf`, `-inf` or `nan`."""
