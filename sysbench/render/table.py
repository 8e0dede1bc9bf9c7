"""Tables independent of any format: columns with units, and cells with numbers at full precision."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from sysbench.units import Unit

if TYPE_CHECKING:
    from sysbench.log.records import Samples

_NAMES: Final = frozenset({"xl", "ctx", "cpu", "cuda", "mps", "sdpa", "rsqrt", "ddp", "hsdp", "tp"})
"""Words of letters only that are nevertheless names, and keep their spelling."""


def sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop, unless it begins with a name.

    Names are single letters and words with other characters than letters, such as `bf16`, `sdpa-math` and `d_model`.
    """
    first = text.partition(" ")[0].rstrip(",;:.)")
    if first.islower() and first.isalpha() and first not in _NAMES and (len(first) > 1 or first == "a"):
        text = text[0].upper() + text[1:]
    return text if not text or text[-1] in ".!?:…" else f"{text}."


Tone = Literal["plain", "strong", "quiet", "good", "doubtful", "bad"]
"""Emphasis of a cell on terminals with colour."""


@dataclass(frozen=True)
class Measure:
    """A number in the base unit of its column, with its standard deviation or the bounds of an interval, if known.

    `text` replaces the formatted number if its exact digits or powers of ten matter.
    """

    value: float
    deviation: float | None = None
    low: float | None = None
    high: float | None = None
    tone: Tone = "plain"
    text: str | None = None


def multiplicity(count: int) -> Measure:
    """Return the number of things that a row combines, shown only if there are several."""
    return Measure(count, text=None if count > 1 else "")


def mean_of(times: Samples | None) -> Measure | None:
    """Return the mean, with the standard deviation if there are several samples; None if there are no samples."""
    return Measure(times.mean_s, times.std_s if len(times.samples_s) > 1 else None) if times else None


@dataclass(frozen=True)
class Word:
    """A word in place of a number (`oom`, `unknown`), or the empty text of an empty cell."""

    text: str
    tone: Tone = "plain"


EMPTY_CELL = Word("")

Cell = Measure | Word | str | int | None
"""None stands for a number that was not measured."""


def slug(text: str) -> str:
    """Return a text as a name on the command line: `per_million_tokens`."""
    return re.sub(r"[^a-z0-9.]+", "_", text.lower()).strip("_")


@dataclass(frozen=True)
class Column:
    """Definition of a column.

    `key` is the name for programs, `group` a heading above adjacent columns, and `note` an explanation below the table.
    If a table is too wide, columns with the highest `importance` value are hidden first, and those with 0 never.
    `wide_range` shows every number with a unit of its own. `elastic` texts are shortened in the middle if they do not
    fit; texts of a column that `wraps` continue on further lines.
    """

    key: str
    title: str
    unit: Unit | None = None
    group: str = ""
    importance: int = 0
    signed: bool = False
    note: str = ""
    wide_range: bool = False
    elastic: bool = False
    wraps: bool = False

    @property
    def numeric(self) -> bool:
        """Whether the column contains Measures."""
        return self.unit is not None

    @property
    def display_name(self) -> str:
        """The column's name on the command line, in messages and lists."""
        return self.key or slug(self.title)

    @property
    def spellings(self) -> frozenset[str]:
        """All names that select the column on the command line."""
        texts = (self.key, self.title, self.group, f"{self.group} {self.title}")
        return frozenset(slug(text) for text in texts if text)


@dataclass(frozen=True)
class OnRequestColumn:
    """A column that is shown only if it is requested by name: `--columns +energy`."""

    column: Column
    cells: Callable[[], tuple[Cell, ...]]
    """Computes one cell for each row; called only if the column is requested."""
    replaces: str = ""
    """Key of a less detailed column that this one replaces."""


@dataclass(frozen=True)
class Table:
    """One table; the first `axes` columns identify a row."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    axes: int = 0
    notes: tuple[str, ...] = ()
    on_request: tuple[OnRequestColumn, ...] = ()
    constants: tuple[tuple[Column, Cell], ...] = ()
    """Axes on which all rows agree: shown above the table for people, kept as columns for programs."""
    excluded: frozenset[int] = frozenset()
    """Numbers of the rows about cells that cautions exclude from findings: marked for people."""
    digits: int | None = None
    """Largest number of significant digits of times and rates, those that a prediction deserves; None for as many
    as a column shows."""


EXCLUDED_MARK: Final = "!"
EXCLUDED_NOTE: Final = "! excluded from findings because of cautions"


def notes(table: Table) -> tuple[str, ...]:
    """Return all notes below a table: those on its columns, then those on the table."""
    of_columns = (column.note for column in table.columns if column.note)
    of_rows = (EXCLUDED_NOTE,) if table.excluded else ()
    return tuple(dict.fromkeys([*of_columns, *table.notes, *of_rows]))


PREDICTED_DIGITS: Final = 3
"""Significant digits of a predicted time without an interval: predictions are off by more than the third."""


RemarkKind = Literal["caution", "outcome", "finding", "note"]


@dataclass(frozen=True)
class Remark:
    """A statement next to the tables, possibly with a remedy. A finding gets a capital letter and a full stop."""

    kind: RemarkKind
    text: str
    remedy: str | None = None

    def __post_init__(self) -> None:
        if self.kind == "finding":
            object.__setattr__(self, "text", sentence(self.text))


@dataclass(frozen=True)
class Sheet:
    """The complete output for a record: subject, tables and remarks."""

    subject: tuple[str, ...]
    tables: tuple[Table, ...]
    remarks: tuple[Remark, ...] = ()
