"""What logs ask of a command that has cells: the record of its runs, and how a worker measures a cell."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sysbench import command
from sysbench.command import CommandWithCells, Kind, Models, load_command

if TYPE_CHECKING:
    from pydantic import BaseModel

    from sysbench.log.events import Event
    from sysbench.log.records import RunRecord
    from sysbench.spec.cell import RunCell, RunSpec


@dataclass(frozen=True)
class Records:
    """The class of a command's records, and the function that computes a record from the events."""

    record: type[RunRecord]
    fold: Callable[[Iterable[Event]], RunRecord]


class CommandWithRecords(CommandWithCells):
    """A command whose runs have a log and a record."""

    @abstractmethod
    def models(self) -> Models[RunSpec, RunCell, BaseModel]:
        """Return the classes of specs, cells and options."""

    @abstractmethod
    def records(self) -> Records:
        """Return the record's class and fold; importing them registers the command's own events."""

    @abstractmethod
    def measure(self) -> Callable[..., Iterator[Event]]:
        """Return the worker's generator function, `(cell, device, artifact) -> events`, which imports torch.

        The artifact is the path for results that are too large for events, if there are any. Raises ValueError if the
        cells are measured by a program of the user's.
        """


def load(package: str) -> CommandWithRecords:
    """Return the command of this package, which has cells."""
    found = load_command(package)
    assert isinstance(found, CommandWithRecords)
    return found


def command_of(kind: Kind) -> CommandWithRecords:
    """Return the command named `kind`; raises ValueError if no command with cells has this name."""
    return load(command.command_of(kind).package)
