"""What events, records and their parts have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Base of everything that is said once and never changed."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
