"""What is promised of a GPU, as numbers with limits, and what became of each promise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from sysbench import units

Verdict = Literal["kept", "missed", "not seen"]
Unit = Literal["count", "share", "ratio", "bytes", "seconds"]


@dataclass(frozen=True)
class Promise:
    """A number that has to lie within limits, both included."""

    name: str
    unit: Unit
    low: float = -math.inf
    high: float = math.inf

    @property
    def promised(self) -> str:
        """The limits, in words."""
        if self.low == self.high:
            return self.shown(self.low)
        if math.isinf(self.low):
            return f"≤ {self.shown(self.high)}"
        if math.isinf(self.high):
            return f"≥ {self.shown(self.low)}"
        return f"{self.shown(self.low)} to {self.shown(self.high)}"

    def shown(self, value: float) -> str:
        """A number of this promise, with its unit."""
        match self.unit:
            case "count":
                return f"{value:g}"
            case "share":
                return f"{value:.2%}"
            case "ratio":
                return f"{value:.4f}"
            case "bytes":
                return "0 B" if not value else units.size(value)
            case "seconds":
                return units.seconds(value)

    def verdict(self, seen: float | None) -> Verdict:
        """Nothing that was not seen is kept, and a number that is none is not seen."""
        if seen is None or math.isnan(seen):
            return "not seen"
        return "kept" if self.low <= seen <= self.high else "missed"

    def outcome(self, seen: float | None, detail: str = "", *, rehearsal: bool = False) -> dict[str, Any]:
        """What is written down of it. A rehearsal sees nothing: what it came to stands beside."""
        if seen is not None and not math.isfinite(seen):
            seen = None
        found = None if rehearsal else seen
        return {
            "name": self.name,
            "promised": self.promised,
            "low": None if math.isinf(self.low) else self.low,
            "high": None if math.isinf(self.high) else self.high,
            "unit": self.unit,
            "seen": found,
            "shown": "" if found is None else self.shown(found),
            "verdict": self.verdict(found),
            "detail": detail,
            **({"rehearsed": seen} if rehearsal else {}),
        }


def none_of(name: str) -> Promise:
    """There are none of these."""
    return Promise(name, "count", 0, 0)


def at_most(name: str, high: float, unit: Unit = "share") -> Promise:
    """No more than that."""
    return Promise(name, unit, high=high)


def at_least(name: str, low: float, unit: Unit = "share") -> Promise:
    """No less than that."""
    return Promise(name, unit, low=low)


def near_one(name: str, within: float) -> Promise:
    """A ratio that differs from 1 by no more than a share."""
    return Promise(name, "ratio", 1 - within, 1 + within)
