"""Base class and checks of events, records and their parts."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Base of immutable data classes with validation."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, allow_inf_nan=False)


Columns = TypeVar("Columns", bound=Frozen)


def of_one_length(columns: Columns, *names: str) -> Columns:
    """Return the object; raises ValueError unless these lists in it have equal length."""
    lengths = {name: len(getattr(columns, name)) for name in names}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{length} {name}" for name, length in lengths.items())
        raise ValueError(f"lists that belong together have different lengths: {listed}")
    return columns
