"""A run as a report has it: its record, and what it and its cells are called there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from sysbench.records import CellRecord, RunRecord
from sysbench.views.report.document import Basis, Origin
from sysbench.views.tables import axes

AnyRecord = TypeVar("AnyRecord", bound=RunRecord[Any], covariant=True)


@dataclass(frozen=True)
class ReportedRun(Generic[AnyRecord]):
    """One run of a report."""

    name: str
    """Unique in the report: what a `sysbench run` calls it, or its command, numbered where there are several."""
    record: AnyRecord
    title: str = ""
    """What its experiment calls it; nothing for a run that is of none."""
    question: str = ""
    """What it was made to answer, where that is known."""
    note: str = ""
    """Why it is not what its experiment asks for; nothing where it is."""
    pictures: tuple[Path, ...] = ()
    """Files of pictures that the run has drawn itself."""

    @cached_property
    def _differing(self) -> tuple[str, ...]:
        return axes.varying(axes.axes_of(self.record.cells))

    def label(self, cell: CellRecord) -> str:
        """A cell by what sets it apart in this run: `medium ctx 512 bf16`."""
        return label(cell, self._differing)

    def basis(self, cells: Iterable[CellRecord]) -> Basis:
        """What a finding rests on, when it rests on these cells of this run."""
        return Basis(self.name, tuple(dict.fromkeys(self.label(cell) for cell in cells)))

    @property
    def origin(self) -> Origin:
        """Whether its numbers were measured or simulated."""
        return origin_of(self.record.cells)


def label(cell: CellRecord, differing: Sequence[str]) -> str:
    """A cell by the axes in which it differs from others, or by what it is first of all where there are none."""
    if "experiment" in cell.axes:
        return " ".join(str(word) for word in (cell.axes["experiment"], cell.axes.get("size")) if word)
    return axes.label(cell.axes, differing)


def origin_of(cells: Iterable[CellRecord]) -> Origin:
    """Whether the numbers of these cells were measured or simulated; what does not say was measured."""
    simulated = {getattr(cell, "source", "measured") == "simulated" for cell in cells}
    return "mixed" if len(simulated) > 1 else "simulated" if simulated == {True} else "measured"
