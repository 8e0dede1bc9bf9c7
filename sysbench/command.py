"""The interface of a command: one frozen record that names its parts, each imported on first use.

A command is a package with a `COMMAND` in its `__init__`, listed in `sysbench.commands.PACKAGES`. Given the `kind` of a
spec, log or record, `command_of` returns the command.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pathlib import Path

    from sysbench.log.events import DeviceInfo, Event
    from sysbench.log.records import RunRecord
    from sysbench.spec.cell import RunCell, RunSpec
    from sysbench.spec.run import RunOptions

Kind = str
"""Name of a command that runs cells; also the `kind` of its specs, cells, logs and records."""


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
class Command:
    """One command, with each part named as `module:attribute`.

    Modules are relative to the command's package, unless they start with `sysbench.`. `{name}` is replaced by the
    command's name, and `{class_name}` by the capitalised name.
    """

    package: str
    help: str | None
    """One-line help."""
    also_called: str = ""
    """Other words that people type for it, separated by spaces: a mistake that suggests the command."""
    name: str = ""
    """Name on the command line; defaults to the package's name."""
    function: str = "command:{name}"
    """Function registered with Typer."""
    spec: str | None = "spec:{class_name}Spec"
    """Class of the specs; None for commands without cells, which also lack all parts below."""
    cell: str = "spec:{class_name}Cell"
    options: str = "spec:{class_name}Options"
    """Class of the run options."""
    record: str = "record:{class_name}Record"
    """Class of the records; importing the module of this class registers the command's own events."""
    perform: str = "sysbench.commands.running:perform"
    """Runs the cells and writes all files: `(spec, options, RunSurroundings) -> RunResult`."""
    suited: str | None = None
    """Returns the spec that suits this machine, if it can be another: `(spec, options) -> spec`."""
    files: str | None = None
    """Writes the files requested by the options, besides log and record: `(record, options) -> paths`."""
    refuse_files: str | None = None
    """Raises UsageError or OutputError if a requested file cannot be written: `options -> None`."""
    gate: str | None = None
    """Yields what a gate guards against and found: `(record, options) -> lines`."""
    show: str | None = None
    """Shows the argument of `--from` if it can be more than a log or record: `(source, options) -> None`."""
    measure: str | None = "measure:run"
    """The worker's generator, `(cell, device, artifact) -> Iterator[Event]`; None for cells that a program measures."""
    fold: str = "fold:fold"
    """Computes the record from the events."""
    tables: str = "tables:TABLES"
    """Builders of the tables, by name."""
    default_tables: str | None = None
    """Names of the default tables: `spec -> names`; if None, all tables."""
    long_table: str = "cells"
    """Name of the table to show if there is room for only one table."""
    sheet: str = "tables:sheet"
    """The complete output for a record: `(record, names, selection) -> Sheet`."""
    build_tables: str | None = None
    """Returns the named tables of a record, if a builder needs more than the record."""
    headlines: str | None = None
    """Sentences below the tables, if the sheet does not include them."""
    plan: str = "sysbench.commands.plan:sheet"
    """Table of a run's cells for `--plan`: `(cells, gpu or None) -> Sheet`; memory is compared with the GPU's."""
    findings: str = "findings:of_run"
    """Findings of a run: `record -> Iterable[Said]`."""
    figures: str | None = "figures:of_run"
    """Figures of a run: `record -> Iterable[Drawn]`; None for a command without figures."""
    terms: str | None = None
    """Definitions of the terms in the tables: `cells -> Iterator[Term]`."""
    report: ReportLayout | None = None
    measures: str | None = None
    """What `compare` and `report` put beside other cells: `cell record -> sysbench.log.measures.Measures`."""
    verdicts: tuple[str, ...] = ()
    """Times for which `compare` gives verdicts; all other times are parts of these."""
    artefact: str | None = None
    """Reads a file that is not a run: `(path, its first bytes) -> sysbench.commands.artefacts.Artefact | None`."""
    completed_together: str | None = None
    """Completes the records of several runs with what the others know: `records -> records`."""
    step_numbers: str | None = None
    """Numbers of training steps that other commands may know, too: `cell records -> Iterator[StepNumber]`."""
    runs_anywhere: bool = False
    """Whether the results are those of number formats, which any machine computes for a GPU that is not present."""
    can_alternate: bool = False
    """Whether `compare --ab` can measure two specs of the command alternately."""
    expected_duration: str | None = None
    """Estimates how long a predicted cell takes to measure: `cell record -> seconds | None`."""
    screen: str = "sysbench.render.dashboard.screen:LinesOnly"
    """What a run shows while it goes on: a `CellScreen`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.package.rpartition(".")[2])

    def part(self, name: str) -> Any:
        """Import and return the part named by a field; raises ValueError if the command does not have this part."""
        reference: str | None = getattr(self, name)
        if not reference:
            raise ValueError(f"sysbench {self.name} has no {name}")
        module, _, attribute = reference.format(name=self.name, class_name=self.name.title()).partition(":")
        prefix = "" if module.startswith("sysbench.") else f"{self.package}."
        return getattr(importlib.import_module(prefix + module), attribute)

    @property
    def spec_class(self) -> type[RunSpec]:
        """Class of the command's specs."""
        found: type[RunSpec] = self.part("spec")
        return found

    @property
    def cell_class(self) -> type[RunCell]:
        """Class of the command's cells."""
        found: type[RunCell] = self.part("cell")
        return found

    @property
    def options_class(self) -> type[RunOptions]:
        """Class of the command's run options."""
        found: type[RunOptions] = self.part("options")
        return found

    @property
    def record_class(self) -> type[RunRecord]:
        """Class of the command's records."""
        found: type[RunRecord] = self.part("record")
        return found

    @property
    def fold_function(self) -> Callable[[Iterable[Event]], RunRecord]:
        """Function that computes the record from the events."""
        found: Callable[[Iterable[Event]], RunRecord] = self.part("fold")
        return found

    @property
    def measure_function(self) -> Callable[[object, DeviceInfo, Path | None], Iterator[Event]]:
        """Generator function with which the worker runs a cell and yields events; accessing it imports torch."""
        found: Callable[[Any, DeviceInfo, Path | None], Iterator[Event]] = self.part("measure")
        return found


@cache
def load_command(package: str) -> Command:
    """Return the command of this package."""
    command: Command = importlib.import_module(package).COMMAND
    return command


def commands() -> Mapping[str, Command]:
    """Return every command by name, in the order of the help screen."""
    return {
        command.name: command for command in map(load_command, importlib.import_module("sysbench.commands").PACKAGES)
    }


def command_of(kind: Kind) -> Command:
    """Return the command named `kind`; raises ValueError if no command with cells has this name."""
    command = commands().get(kind)
    if command is None or command.spec is None:
        raise ValueError(f"{kind} is not a command that measures cells ({', '.join(kinds())})")
    return command


def kinds() -> tuple[Kind, ...]:
    """Return the names of the commands that have cells and records."""
    return tuple(name for name, command in commands().items() if command.spec is not None)


def runnable() -> tuple[Kind, ...]:
    """Return the names of the commands that run their cells in a worker."""
    return tuple(kind for kind in kinds() if command_of(kind).measure is not None)


STORED: Final = "stored"
"""pydantic context for specs read from a file: their names were checked when the file was written."""


def spec_of(fields: Mapping[str, Any]) -> RunSpec:
    """Build a spec from its stored fields."""
    if "kind" not in fields:
        raise ValueError(f"it does not name the command that wrote it (kind: {', '.join(kinds())})")
    return command_of(str(fields["kind"])).spec_class.model_validate(fields, context=STORED)


def cell_of(axes: Mapping[str, Any]) -> RunCell:
    """Build a cell from its stored fields."""
    return command_of(str(axes.get("kind"))).cell_class.model_validate(axes)
