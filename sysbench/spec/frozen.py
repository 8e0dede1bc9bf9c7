"""Base class of events, records and their parts, and a check of list lengths."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Base class of immutable pydantic models; rejects unknown fields, infinities and NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, allow_inf_nan=False)


Columns = TypeVar("Columns", bound=Frozen)


def check_equal_lengths(columns: Columns, *names: str) -> Columns:
    """Return `columns`; raises ValueError if its lists with these names differ in length."""
    lengths = {name: len(getattr(columns, name)) for name in names}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{length} {name}" for name, length in lengths.items())
        raise ValueError(f"lists that belong together have different lengths: {listed}")
    return columns
