"""A report independent of any format; writers convert it to HTML, Markdown, LaTeX and CSV.

A document is computed from records alone, so equal records result in equal documents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from sysbench import cells as axes
from sysbench.command import kinds
from sysbench.commands.kinds import CommandWithRuns, command_of
from sysbench.log.outcomes import Subject
from sysbench.log.records import CellRecord, RunRecord
from sysbench.render.table import Remark, Table, sentence
from sysbench.render.terms import Term

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Origin = Literal["measured", "simulated", "predicted", "mixed"]
"""Whether numbers are measured, simulated (memory) or predicted (times); `mixed` is resolved row by row."""


@dataclass(frozen=True)
class Basis:
    """The cells of one run that a sentence is based on."""

    run: str
    """The run's name in this document."""
    cells: tuple[str, ...]
    """Labels that are unique within the run: `medium ctx 512 bf16`; empty for the run as a whole."""


@dataclass(frozen=True)
class Finding:
    """A sentence computed from data, and the cells it is based on."""

    text: str
    bases: tuple[Basis, ...]
    origin: Origin = "measured"

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", sentence(self.text))


@dataclass(frozen=True)
class Picture:
    """A figure, drawn on demand."""

    name: str
    """Name for files and anchors, unique in the document."""
    caption: str
    """Caption, and alternative text."""
    draw: Callable[[], Figure]
    origin: Origin = "measured"


@dataclass(frozen=True)
class Section:
    """The section of one run, trace or memory snapshot."""

    anchor: str
    """Anchor, unique in the document: letters, digits and hyphens."""
    title: str
    """Title given by the experiment, or the command and the subject of the run."""
    question: str
    """The question that the run answers, if known."""
    run: str
    """The run's name in this document, as in `Basis`."""
    machine: str
    """The machine's name, if the report has several."""
    subject: tuple[str, ...]
    """Properties that all cells share: model, device, mode."""
    origin: Origin
    findings: tuple[Finding, ...]
    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...]
    remarks: tuple[Remark, ...]
    """Outcomes and notes; cautions are in the document."""


@dataclass(frozen=True)
class GroupedCaution:
    """A caution, and all cells that it applies to."""

    message: str
    remedy: str
    bases: tuple[Basis, ...]
    message_by_run: Mapping[str, str] = field(default_factory=dict)
    """For each run, the message with that run's numbers."""


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    question: str
    """The question that the report answers, if known."""
    run_lines: tuple[str, ...]
    """A line for each run: its name, time and outcome, and the command that repeats it."""
    environment: tuple[Table, ...]
    """The machines, their devices and software, and the simulated GPUs."""
    findings: tuple[Finding, ...]
    """Findings about several runs."""
    pictures: tuple[Picture, ...]
    """Figures on the first page."""
    sections: tuple[Section, ...]
    cautions: tuple[GroupedCaution, ...]
    method: tuple[Term, ...]
    """Definitions of the terms in this document."""
    missing_runs: tuple[str, ...] = ()
    """A line for each run that an experiment in the report lacks, with the reason and the command."""
    overview: tuple[Table, ...] = ()
    """The table of headline numbers; none for a single run."""
    headlines: tuple[tuple[Section, Finding], ...] = ()
    """The most important findings of the sections; none for a single section."""

    def cautions_of(self, run: str) -> list[tuple[int, str, str]]:
        """Return the cautions about a run, each with its number, its message for this run, and its remedy."""
        return [
            (number, caution.message_by_run.get(run, caution.message), caution.remedy)
            for number, caution in enumerate(self.cautions, 1)
            if any(basis.run == run for basis in caution.bases)
        ]


@dataclass(frozen=True)
class ReportedRun:
    """One run in a report."""

    name: str
    """Name given by `sysbench run`, or the command, numbered if there are several; unique in the report."""
    record: RunRecord
    title: str = ""
    """Title given by the run's experiment; empty if there is none."""
    question: str = ""
    """The question that this run answers, if known."""
    note: str = ""
    """How the run differs from the experiment file; empty if it does not."""
    pictures: tuple[Path, ...] = ()
    """Image files drawn by the run itself."""

    @cached_property
    def _varying_axes(self) -> tuple[str, ...]:
        return axes.varying(self.record.cells)

    def label(self, cell: CellRecord) -> str:
        """Name a cell by the axes in which the cells of the run differ, `medium ctx 512 bf16`, or by its title."""
        return cell.cell.title if cell.cell.named_by_title else axes.label(cell, self._varying_axes)

    def basis(self, cells: Iterable[CellRecord]) -> Basis:
        return Basis(self.name, tuple(dict.fromkeys(self.label(cell) for cell in cells)))

    @property
    def origin(self) -> Origin:
        return origin_of(self.record.cells)


_MODELLED: Final[frozenset[Origin]] = frozenset({"simulated", "predicted"})


def origin_of(cells: Iterable[CellRecord], about: Subject = "times") -> Origin:
    """Return the origin of these cells' numbers; the memory of cells with predicted times is simulated."""
    sources: set[Origin] = {getattr(cell, "source", "measured") for cell in cells}
    if modelled := sources & _MODELLED:
        predicted = "predicted" in modelled and about != "memory"
        return "mixed" if sources - _MODELLED else "predicted" if predicted else "simulated"
    return "measured"


def reported_commands() -> list[CommandWithRuns]:
    return sorted(map(command_of, kinds()), key=lambda command: command.report.position)
