"""Input files that are not runs, traces and memory snapshots: `report` shows them, and `compare` compares two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sysbench.render.table import Sheet
from sysbench.units import Unit

Key = tuple[str, ...]


@dataclass(frozen=True)
class Breakdown:
    """Times or sizes in two files, keyed by name."""

    table: str
    title: str
    columns: Mapping[str, str]
    """Headings of the columns that name an amount, by their keys."""
    unit: Unit
    a: Mapping[Key, float]
    b: Mapping[Key, float]
    calls: tuple[Mapping[Key, float], Mapping[Key, float]] | None = None
    """Calls per step in both files, by name; None for memory, which has none."""


@dataclass(frozen=True)
class FileComparison:
    """What two files of the same kind have to compare."""

    breakdowns: tuple[Breakdown, ...]
    basis: str
    """What the amounts are from: `per step: A 3 steps, B 5 steps`."""
    work: str = ""
    """What takes the time, in the plural; empty for memory."""


class Artefact(Protocol):
    """A file that is not a run."""

    @property
    def name(self) -> str:
        """Name of the file."""

    @property
    def kind(self) -> str:
        """Kind of file: `trace`, `snapshot`."""

    @property
    def is_simulated(self) -> bool:
        """Whether the contents were computed instead of recorded."""

    @property
    def sheet(self) -> Sheet:
        """The tables that `--from` shows."""

    def compared_with(self, other: Any) -> FileComparison | None:
        """Return what this file and another of its kind have to compare; None if files of this kind have nothing."""
