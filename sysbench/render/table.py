"""A table without looks: columns that carry their unit, and cells that keep their numbers at full precision.

Declared tables (`sysbench.render.declared`) make them from a record; renderers in `sysbench.render` show them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from sysbench.units import Unit

_WORD: Final = re.compile(r"[a-z]+(?=[,;:.)]?(?:\s|$))")
"""A word of letters alone: what has digits, hyphens or underscores in it (`bf16`, `sdpa-math`, `d_model`) is a name."""

_NAMES: Final = frozenset({"xl", "ctx", "cpu", "cuda", "mps", "sdpa", "rsqrt"})
"""Words of letters alone that are names nevertheless, and are written as they are typed."""


def sentence(text: str) -> str:
    """The text with a capital letter at its beginning and a full stop at its end, where these are missing.

    A name keeps its letters: bf16 begins a sentence as bf16.
    """
    first = _WORD.match(text)
    if first and first[0] not in _NAMES and (len(first[0]) > 1 or first[0] == "a"):
        text = text[0].upper() + text[1:]
    return text if not text or text[-1] in ".!?:…" else f"{text}."


Tone = Literal["plain", "strong", "quiet", "good", "bad"]
"""How a cell asks to be seen, where there is colour."""


@dataclass(frozen=True)
class Measure:
    """A number in the base unit of its column, with what is known of its uncertainty.

    `deviation` is a standard deviation, `low` and `high` are an interval. What is `aside` was measured but does not
    count (a warm-up step), and is shown in brackets. `text` is for numbers whose digits or powers of ten are the point:
    they are shown as it has them.
    """

    value: float
    deviation: float | None = None
    low: float | None = None
    high: float | None = None
    tone: Tone = "plain"
    aside: bool = False
    text: str | None = None


@dataclass(frozen=True)
class Word:
    """A word where a number could not be: `oom`, `unknown`; or nothing at all."""

    text: str
    tone: Tone = "plain"


NOTHING = Word("")

Cell = Measure | Word | str | int | None
"""None is a number that was not measured."""


@dataclass(frozen=True)
class Column:
    """What one column holds.

    `key` names it for programs and `title` for people; `unit` is that of its Measures before scaling. `group` is a
    heading that neighbouring columns share. `importance` 0 is never left out for want of width; of the others the
    highest go first. `note` is what one has to know to read the column, said below the table when it is shown.
    `wide_range` is for numbers that span orders of magnitude: each then stands beside a unit of its own. Texts of an
    `elastic` column lose their middle where there is no room for all of them.
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

    @property
    def numeric(self) -> bool:
        """Whether it holds Measures."""
        return self.unit is not None


@dataclass(frozen=True)
class Offer:
    """A column that a table has for those who ask for it by name: `--columns +energy`."""

    column: Column
    cells: tuple[Cell, ...]
    """One for each row."""
    instead_of: str = ""
    """The key of a column that says less of the same, and goes when this one comes."""


@dataclass(frozen=True)
class Table:
    """One table; the first `axes` columns say what a row is about."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    axes: int = 0
    notes: tuple[str, ...] = ()
    offers: tuple[Offer, ...] = ()
    constants: tuple[tuple[Column, Cell], ...] = ()
    """The axes on which all rows agree: said above the table for people, kept as columns for programs."""


def notes(table: Table) -> tuple[str, ...]:
    """Everything that is said below a table: about its columns, then about all of it."""
    return tuple(dict.fromkeys([*(column.note for column in table.columns if column.note), *table.notes]))


RemarkKind = Literal["caution", "outcome", "finding", "note"]


@dataclass(frozen=True)
class Remark:
    """What is said beside the tables, and what to do about it; a finding is a whole sentence."""

    kind: RemarkKind
    text: str
    remedy: str | None = None

    def __post_init__(self) -> None:
        if self.kind == "finding":
            object.__setattr__(self, "text", sentence(self.text))


@dataclass(frozen=True)
class Sheet:
    """Everything that is shown of a record: what it is about, its tables, and what has to be said beside them."""

    subject: tuple[str, ...]
    tables: tuple[Table, ...]
    remarks: tuple[Remark, ...] = ()
