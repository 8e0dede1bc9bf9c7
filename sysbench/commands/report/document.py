"""A report without looks: what it says, shows and rests on. Writers make pages, Markdown, LaTeX and CSV of it.

A document is computed from records and from nothing else; whoever has the same records gets the same document.

A run as a report has it: its record, and what it and its cells are called there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sysbench.render.table import Remark, Table, sentence

if TYPE_CHECKING:
    from matplotlib.figure import Figure
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from sysbench import cells as axes
from sysbench.command import Command, InReport, Kind, kinds, measuring
from sysbench.log.records import CellRecord, RunRecord

Origin = Literal["measured", "simulated", "predicted", "mixed"]
"""Whether numbers were measured, simulated (memory) or predicted (times). What is mixed says so of each row."""


@dataclass(frozen=True)
class Basis:
    """Cells of one run that a sentence rests on."""

    run: str
    """The run's name in this document."""
    cells: tuple[str, ...]
    """In words that tell them apart within the run: `medium ctx 512 bf16`; none for the run as a whole."""


@dataclass(frozen=True)
class Finding:
    """A sentence computed from data, with its numbers in it, and what it rests on."""

    text: str
    rests_on: tuple[Basis, ...]
    origin: Origin = "measured"
    reservation: bool = False
    """It says of cells why nothing is found of them: it is shown among the cautions."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", sentence(self.text))


@dataclass(frozen=True)
class Picture:
    """A figure, drawn when it is needed."""

    name: str
    """Unique in the document, fit for a file's name and an anchor."""
    caption: str
    """What it shows and on what, in a sentence; also its alternative text."""
    draw: Callable[[], Figure]
    origin: Origin = "measured"


@dataclass(frozen=True)
class Section:
    """What one run has to say."""

    anchor: str
    """Unique in the document: letters, digits and hyphens."""
    title: str
    """What the run is about: as its experiment calls it, or the command and what it ran on."""
    question: str
    """What it was made to answer; nothing where that is not known."""
    run: str
    """The run's name in this document, as `Basis` has it."""
    machine: str
    """The machine's name in the environment, where there are several; else nothing."""
    subject: tuple[str, ...]
    """What all of its numbers have in common: model, device, mode."""
    origin: Origin
    findings: tuple[Finding, ...]
    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...]
    remarks: tuple[Remark, ...]
    """Outcomes and notes; cautions are gathered in the document's own part."""


@dataclass(frozen=True)
class GatheredCaution:
    """A reason to doubt numbers, once for all the cells that it is about."""

    message: str
    remedy: str
    about: tuple[Basis, ...]
    of_run: Mapping[str, str] = field(default_factory=dict)
    """What is said of the cells of each run, with their own numbers; `message` where nothing else stands here."""

    def is_about(self, run: str) -> bool:
        """Whether any of its cells is of this run."""
        return any(basis.run == run for basis in self.about)


@dataclass(frozen=True)
class Term:
    """What a word in the tables means."""

    word: str
    meaning: str


@dataclass(frozen=True)
class Document:
    """A whole report."""

    title: str
    question: str
    """What the whole of it is to answer; nothing where that is not known."""
    made_of: tuple[str, ...]
    """A line for each run: its name, when, how it ended, and the command that would repeat it."""
    environment: tuple[Table, ...]
    """On what it was measured, a row for each machine; and for which GPUs it was simulated."""
    findings: tuple[Finding, ...]
    """What only several runs together show."""
    pictures: tuple[Picture, ...]
    """Likewise."""
    sections: tuple[Section, ...]
    cautions: tuple[GatheredCaution, ...]
    method: tuple[Term, ...]
    """What each phase, protocol and number in this document means."""

    def doubts(self, run: str) -> list[tuple[int, str, str]]:
        """The cautions about a run: where each stands among all, what it says of this run's cells, and the remedy."""
        return [
            (number, caution.of_run.get(run, caution.message), caution.remedy)
            for number, caution in enumerate(self.cautions, 1)
            if caution.is_about(run)
        ]


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
        """Where its numbers are from."""
        return origin_of(self.record.cells)


_MODELLED: Final[frozenset[Origin]] = frozenset({"simulated", "predicted"})


def label(cell: CellRecord, differing: Sequence[str]) -> str:
    """A cell by the axes in which it differs from others, or by what it is first of all where there are none."""
    if "experiment" in cell.axes:
        return " ".join(str(word) for word in (cell.axes["experiment"], cell.axes.get("size")) if word)
    return axes.label(cell.axes, differing)


def origin_of(cells: Iterable[CellRecord]) -> Origin:
    """Where the numbers of these cells are from; what says nothing of it was measured."""
    sources: set[Origin] = {getattr(cell, "source", "measured") for cell in cells}
    if modelled := sources & _MODELLED:
        return "mixed" if sources - _MODELLED else "predicted" if "predicted" in modelled else "simulated"
    return "measured"


def how_reported(kind: Kind) -> InReport:
    """How runs of a command are written up."""
    return measuring(kind).report or InReport(len(kinds()), kind)


def reported() -> list[Command]:
    """The commands that run cells, in the order in which a report has their runs."""
    return sorted(map(measuring, kinds()), key=lambda command: how_reported(command.name).place)
