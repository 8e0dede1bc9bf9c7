"""Input files that are not runs: traces, memory snapshots, and tables that sysbench wrote with `--json`.

Each command reads its own kinds of files. `report` shows a file in its own section, and `compare` compares two files of
the same kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from sysbench.command import commands
from sysbench.errors import LogError
from sysbench.log.storage import cannot_read
from sysbench.render.csv import SheetRecord
from sysbench.render.table import Sheet
from sysbench.spec.validation import first_error
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
    total_label: str = ""
    """Label of the row with the total; empty if the amounts are incomplete and have no total."""
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
        """Kind of file: `trace`, `snapshot`, `plan`."""

    @property
    def is_simulated(self) -> bool:
        """Whether the contents were computed instead of recorded."""

    @property
    def sheet(self) -> Sheet:
        """The tables that `--from` shows."""

    def compared_with(self, other: Any) -> FileComparison | None:
        """Return what this file and another of its kind have to compare; None if files of this kind have nothing."""


@dataclass(frozen=True)
class TablesArtefact:
    """Tables that sysbench wrote as JSON, such as those of a plan."""

    name: str
    sheet: Sheet
    kind: str = "plan"

    @property
    def is_simulated(self) -> bool:
        """Whether the tables are those of a simulated run, as their subject says: `simulated for a GPU with 24GiB`."""
        return any(phrase.startswith("simulated for ") for phrase in self.sheet.subject[1:])

    def compared_with(self, other: Any) -> FileComparison | None:
        return None


def read(path: Path) -> Artefact | None:
    """Return the trace, snapshot or tables in a file; None for a directory, a log, a record or a missing file.

    Raises LogError if the file cannot be read.
    """
    with _as_log_errors(path):
        if not path.is_file():
            return None
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING_BYTES)
        for command in commands().values():
            artefact: Artefact | None = command.part("artefact")(path, beginning) if command.artefact else None
            if artefact is not None:
                return artefact
        sheet = saved_tables(path, beginning)
        return TablesArtefact(path.name, sheet) if sheet else None


_BEGINNING_BYTES = 4096


def saved_tables(path: Path, beginning: bytes) -> Sheet | None:
    """Return the tables that `--from` or `--plan` wrote to this file with `--json`; None for other files."""
    return SheetRecord.model_validate_json(path.read_bytes()).sheet if b'"kind": "tables"' in beginning else None


@contextmanager
def _as_log_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_read(path, error) from error
    except ValidationError as error:
        raise LogError(f"{path} is not in sysbench's format: {first_error(error)}") from None
