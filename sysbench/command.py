"""What a command is to everybody else: one frozen record, whose parts are named here and imported when they are used.

A command is a package with a `COMMAND` in its `__init__`, listed in `sysbench.commands.PACKAGES`. Nothing else knows
the names of commands: whoever has the `kind` of a spec, log or record asks `measuring` for the parts that belong to it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from sysbench.log.events import DeviceInfo, Event
    from sysbench.log.records import RunRecord
    from sysbench.spec.cell import RunCell, RunSpec
    from sysbench.spec.run import RunOptions

Kind = str
"""The name of a command that runs cells, which is also the `kind` of its specs, cells, logs and records."""


@dataclass(frozen=True)
class InReport:
    """How runs of a command are written up."""

    place: int
    """Runs that no experiment puts into an order come by the place of their command."""
    title: str
    tables: tuple[str, ...] = ()
    """By name, in the order in which they are shown; what a run cannot fill is left out. Without any: what its axes
    imply."""
    tables_of_few: tuple[str, ...] = ()
    """What runs of few cells have besides."""
    kept_picture: str = "As the run drew it"
    """What a picture shows that the run has left beside its record."""


@dataclass(frozen=True)
class Command:
    """One command. Each part is `module:attribute`, of the command's own package unless it says `sysbench.` itself."""

    name: str
    package: str
    help: str
    """One line."""
    function: str = "command:{name}"
    """What Typer calls."""
    spec: str | None = None
    """The class of its specs; None for commands that run no cells, which have none of the parts below either."""
    cell: str = ""
    options: str = ""
    """How it is carried out, and what becomes of its results."""
    record: str = ""
    """The class of its records; importing its module makes the command's own events known."""
    perform: str = "command:perform"
    """What carries a run out in this process, with all of its files: `(spec, options) -> Performed`."""
    refuse_files: str = "command:refuse_wrong_files"
    """What raises UsageError, from its options, for files beside log and record that it could not write."""
    measure: str = "measure:run"
    """The worker's generator of events: `(cell, device, artifact) -> Iterator[Event]`."""
    fold: str = "fold:fold"
    """From events to the record."""
    tables: str = "tables:TABLES"
    """Builders of its tables, by name."""
    usual_tables: str | None = None
    """The names of those that are shown where nobody asks for others: `spec -> names`; without it all of them."""
    long_table: str = "cells"
    """The table that stands for all others where there is room for one."""
    sheet: str = "tables:sheet"
    """Everything that is shown of a record: `(record, names, selection) -> Sheet`."""
    fillable: str | None = None
    """The tables of some names that a record can fill, where a builder takes more than a record."""
    headlines: str | None = None
    """The sentences that are shown below the tables, where the sheet does not have them itself."""
    plan: str = "sysbench.render.plan:sheet"
    """What its cells would be, for `--plan`: `(cells, gpu or None) -> Sheet`; memory is held against the GPU."""
    findings: str = "findings:of_run"
    """Everything that a run shows, in sentences: `record -> Iterable[Said]`."""
    figures: str = "figures:of_run"
    """Everything that there is to draw of a run: `record -> Iterable[Drawn]`."""
    terms: str | None = None
    """What the words in its tables mean: `cells -> Iterator[Term]`."""
    report: InReport | None = None
    compared: tuple[str, ...] = ()
    """The times that `compare` judges its cells by; all others are parts of these."""
    in_turns: bool = False
    """Whether two of its specs can be measured in turns: it is timed, and is no profile."""
    picture: str | None = None
    """What is drawn on a terminal while it runs."""
    lines: str = "live:Lines"
    """What is said line by line where nothing can be drawn."""

    def part(self, name: str) -> Any:
        """The object that a part's name stands for, imported now; raises ValueError where the command has none."""
        written: str | None = getattr(self, name)
        if not written:
            raise ValueError(f"sysbench {self.name} has no {name}")
        module, _, attribute = written.format(name=self.name).partition(":")
        inside = "" if module.startswith("sysbench.") else f"{self.package}."
        return getattr(importlib.import_module(inside + module), attribute)

    @property
    def spec_class(self) -> type[RunSpec]:
        """The class of its specs."""
        found: type[RunSpec] = self.part("spec")
        return found

    @property
    def cell_class(self) -> type[RunCell]:
        """The class of its cells."""
        found: type[RunCell] = self.part("cell")
        return found

    @property
    def options_class(self) -> type[RunOptions]:
        """The class of the options that say how it is carried out."""
        found: type[RunOptions] = self.part("options")
        return found

    @property
    def record_class(self) -> type[RunRecord[Any]]:
        """The class of its records."""
        found: type[RunRecord[Any]] = self.part("record")
        return found

    @property
    def folded(self) -> Callable[[Iterable[Event]], RunRecord[Any]]:
        """From events to the record."""
        found: Callable[[Iterable[Event]], RunRecord[Any]] = self.part("fold")
        return found

    @property
    def measured(self) -> Callable[[Any, DeviceInfo, Path | None], Iterator[Event]]:
        """What the worker does with a cell. Importing it imports torch."""
        found: Callable[[Any, DeviceInfo, Path | None], Iterator[Event]] = self.part("measure")
        return found


@cache
def of_package(package: str) -> Command:
    """The command whose package this is."""
    found: Command = importlib.import_module(package).COMMAND
    return found


def commands() -> Mapping[str, Command]:
    """Every command by name, in the order in which they are listed."""
    return {command.name: command for command in map(of_package, importlib.import_module("sysbench.commands").PACKAGES)}


def measuring(kind: Kind) -> Command:
    """The command that runs cells of this kind; raises ValueError when there is none."""
    found = commands().get(kind)
    if found is None or found.spec is None:
        raise ValueError(f"{kind} is no command that runs cells ({', '.join(kinds())})")
    return found


def kinds() -> tuple[Kind, ...]:
    """The names of the commands that run cells."""
    return tuple(name for name, command in commands().items() if command.spec is not None)


def spec_of(fields: Mapping[str, Any]) -> RunSpec:
    """The spec that was written down as these fields; raises ValueError (pydantic.ValidationError is one)."""
    if "kind" not in fields:
        raise ValueError(f"it does not name its command (kind: {', '.join(kinds())})")
    return measuring(str(fields["kind"])).spec_class.model_validate(fields)


def cell_of(axes: Mapping[str, Any]) -> RunCell:
    """The cell that was written down as these fields; raises ValueError (pydantic.ValidationError is one)."""
    return measuring(str(axes.get("kind"))).cell_class.model_validate(axes)
