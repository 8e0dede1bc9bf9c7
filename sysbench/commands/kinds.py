"""What commands ask of a command that has cells: how its runs are carried out, reported and compared."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from sysbench.command import Kind
from sysbench.log import kinds
from sysbench.log.kinds import CommandWithRecords

if TYPE_CHECKING:
    from pathlib import Path

    from sysbench.commands.artefacts import Artefact
    from sysbench.commands.surroundings import RunResult, RunSurroundings
    from sysbench.log.measures import Measures, StepNumber
    from sysbench.log.records import CellRecord
    from sysbench.render.dashboard.screen import CellScreen
    from sysbench.render.declared import DeclaredTable
    from sysbench.render.findings import Statement
    from sysbench.render.plots import LazyFigure
    from sysbench.render.table import Sheet, Table
    from sysbench.render.terms import Term
    from sysbench.spec.hardware import Hardware
    from sysbench.spec.run import Selection

SpecT = TypeVar("SpecT")
CellT = TypeVar("CellT")
RecordT = TypeVar("RecordT")
OptionsT = TypeVar("OptionsT")


@dataclass(frozen=True)
class ReportLayout:
    """How a report presents the runs of a command."""

    position: int
    """Position of the command's runs if no experiment orders them."""
    title: str
    tables: tuple[str, ...] = ()
    """Names of tables in the order of the report; a run may lack some of them. If empty: the tables implied by its
    axes."""
    tables_for_few_cells: tuple[str, ...] = ()
    """Additional tables for runs with few cells."""
    picture_caption: str = "As shown by the run"
    """Caption of a picture that the run wrote next to its record."""


@dataclass(frozen=True)
class Launch(Generic[SpecT, OptionsT, RecordT]):
    """How a run is carried out, and what it writes besides log and record."""

    perform: Callable[[SpecT, OptionsT, RunSurroundings], RunResult]
    """Runs the cells and writes all files."""
    suited: Callable[[SpecT, OptionsT], SpecT] = lambda spec, _: spec
    """Returns the spec that suits this machine."""
    refuse_files: Callable[[OptionsT], None] = lambda _: None
    """Raises UsageError or OutputError if a requested file cannot be written."""
    write_files: Callable[[RecordT, OptionsT], tuple[Path, ...]] = lambda *_: ()
    """Writes the files requested by the options, besides log and record, and returns their paths."""
    gate: Callable[[RecordT, OptionsT], Iterable[str]] = lambda *_: ()
    """Yields what a gate guards against and found."""
    show: Callable[[Any, OptionsT], None] | None = None
    """Shows the argument of `--from` if it can be more than a log or record: `(source, options) -> None`."""


@dataclass(frozen=True, kw_only=True)
class Results(Generic[SpecT, CellT, RecordT]):
    """What is shown of a record, and what other commands do with it. `CellT` is the class of a cell's record."""

    tables: Mapping[str, DeclaredTable]
    default_tables: Callable[[SpecT], tuple[str, ...]]
    """Names of the tables that a run shows by default."""
    long_table: str = "cells"
    """Name of the table to show if there is room for only one table."""
    sheet: Callable[[RecordT, Iterable[str], Selection | None], Sheet]
    """The complete output for a record: `(record, names of tables, selection) -> Sheet`."""
    build_tables: Callable[[RecordT, Iterable[str], Selection], list[Table]] | None = None
    """Returns the named tables of a record, if a builder needs more than the record."""
    headlines: Callable[[Sequence[CellT]], Iterable[Statement]] | None = None
    """Sentences below the tables, if the sheet does not include them."""
    findings: Callable[[RecordT], Iterable[Statement]]
    figures: Callable[[RecordT], Iterable[LazyFigure]] = lambda _: ()
    terms: Callable[[Sequence[CellT]], Iterable[Term]] = lambda _: ()
    """Definitions of the terms in the tables."""
    measures: Callable[[CellT], Measures] | None = None
    """What `compare` and `report` put beside other cells; None for a command without such numbers."""
    step_numbers: Callable[[Sequence[CellT]], Iterable[StepNumber]] = lambda _: ()
    """Numbers of training steps that other commands may know, too."""
    completed_together: Callable[[Sequence[RecordT]], Sequence[RecordT]] = lambda records: records
    """Completes the records of several runs with what the others know."""
    expected_duration_s: Callable[[CellT], float | None] | None = None
    """Estimates how long a predicted cell takes to measure; None for a command that does not predict times."""


class CommandWithRuns(CommandWithRecords):
    """A command whose runs are carried out, reported and compared."""

    report: ClassVar[ReportLayout]
    verdicts: ClassVar[tuple[str, ...]] = ()
    """Times for which `compare` gives verdicts; all other times are parts of these."""
    runs_anywhere: ClassVar[bool] = False
    """Whether the results are those of number formats, which any machine computes for a GPU that is not present."""
    can_alternate: ClassVar[bool] = False
    """Whether `compare --ab` can measure two specs of the command alternately."""

    @abstractmethod
    def launch(self) -> Launch[Any, Any, Any]:
        """Return how the command's runs are carried out."""

    @abstractmethod
    def plan(self, cells: Sequence[Any], gpu: Hardware | None = None) -> Sheet:
        """Return the table of a run's cells for `--plan`; their memory is compared with that of the GPU, if any."""

    @abstractmethod
    def results(self) -> Results[Any, Any, Any]:
        """Return what a record shows, and what other commands do with it."""

    @abstractmethod
    def screen(self) -> type[CellScreen[Any]]:
        """Return what a run shows while it goes on."""

    def artefact(self, path: Path, beginning: bytes) -> Artefact | None:
        """Read a file that is not a run, given its first bytes; None for one of another kind."""
        return None


def command_of(kind: Kind) -> CommandWithRuns:
    """Return the command named `kind`; raises ValueError if no command with cells has this name."""
    command = kinds.command_of(kind)
    assert isinstance(command, CommandWithRuns)
    return command


def measures_of(cell: CellRecord) -> Measures:
    """Return the numbers that the cell's command names; none if it names none."""
    from sysbench.log.measures import Measures

    measures = command_of(cell.cell.kind).results().measures
    found: Measures = measures(cell) if measures else Measures()
    return found if cell.outcome == "ok" else replace(found, prediction=None)
