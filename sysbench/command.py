"""The commands, each an object whose methods import what they need when they are called.

A command is a package with a `COMMAND` in its `__init__`, listed in `sysbench.commands.PACKAGES`. This module has what
everybody may ask of any command. Commands that run cells have more parts; each room declares those that it asks for in
its own `kinds.py`, so that a part is typed where it is used and no room names the types of one above it.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    from pydantic import BaseModel

Kind = str
"""Name of a command that runs cells; also the `kind` of its specs, cells, logs and records."""


class Command(ABC):
    """One command."""

    help: ClassVar[str | None]
    """The help text; its first line describes the command in the list of all."""
    also_called: ClassVar[str] = ""
    """Other words that people type for it, separated by spaces: a mistake that suggests the command."""
    runs_in_worker: ClassVar[bool] = False
    """Whether the command runs cells in a worker."""

    @property
    def package(self) -> str:
        """The package that defines the command."""
        return type(self).__module__

    @property
    def name(self) -> str:
        """Name on the command line: that of the package."""
        return self.package.rpartition(".")[2]

    @property
    def short_help(self) -> str:
        """One-line help."""
        return (self.help or "").partition("\n")[0]

    @abstractmethod
    def function(self) -> Callable[..., None]:
        """Return the function to register with Typer."""


SpecT_co = TypeVar("SpecT_co", bound="BaseModel", covariant=True)
CellT_co = TypeVar("CellT_co", bound="BaseModel", covariant=True)
OptionsT_co = TypeVar("OptionsT_co", bound="BaseModel", covariant=True)


@dataclass(frozen=True)
class Models(Generic[SpecT_co, CellT_co, OptionsT_co]):
    """What can be asked of a command that has cells: the classes of its specs, cells and options."""

    spec: type[SpecT_co]
    cell: type[CellT_co]
    options: type[OptionsT_co]


class CommandWithCells(Command):
    """A command whose specs describe cells."""

    @abstractmethod
    def models(self) -> Models[BaseModel, BaseModel, BaseModel]:
        """Return the classes of specs, cells and options."""


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


def runnable() -> tuple[Kind, ...]:
    """Return the names of the commands that run their cells in a worker."""
    return tuple(name for name, command in commands().items() if command.runs_in_worker)


def command_of(kind: Kind) -> CommandWithCells:
    """Return the command named `kind`; raises ValueError if no command with cells has this name."""
    command = commands().get(kind)
    if not isinstance(command, CommandWithCells):
        raise ValueError(f"{kind} is not a command that measures cells ({', '.join(kinds())})")
    return command


def kinds() -> tuple[Kind, ...]:
    """Return the names of the commands that have cells and records."""
    return tuple(name for name, command in commands().items() if isinstance(command, CommandWithCells))
