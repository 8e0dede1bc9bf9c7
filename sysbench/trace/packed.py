"""Columns of whole numbers that grow, kept in as few bytes as they take.

A trace of some gigabytes has tens of millions of numbers, and most of them are small, or close to those around them:
of every stretch only the least one is kept whole, and of the others how much more they are.

What a profiler recorded, packed: traces of gigabytes fit into memory, to be taken out whole or slice by slice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from sysbench.trace.recording import DeviceWork, Integers, Launches, Operators, Ranges, Recorded, Trace

_ROWS: Final = 65_536
"""Rows that are packed at a time: a few megabytes before, a few hundred kilobytes after."""
_TYPES: Final = ("uint8", "uint16", "uint32")


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """A stretch of a column."""

    length: int
    least: int
    largest: int
    kind: str
    """A numpy type; empty where all are the same."""
    differences: bytes
    """From the least one; of `kind`."""

    @classmethod
    def of(cls, column: Integers) -> Packed:
        """Pack a stretch that is not empty."""
        least, largest = int(column.min()), int(column.max())
        if least == largest:
            return cls(len(column), least, largest, "", b"")
        kind = next((kind for kind in _TYPES if largest - least <= np.iinfo(kind).max), None)
        if kind is None:
            return cls(len(column), least, largest, "int64", column.tobytes())
        return cls(len(column), least, largest, kind, (column - least).astype(kind).tobytes())

    def numbers(self) -> Integers:
        """The numbers that were packed."""
        if not self.kind:
            return np.full(self.length, self.least, np.int64)
        found = np.frombuffer(self.differences, self.kind).astype(np.int64)
        return found if self.kind == "int64" else found + self.least

    def moved(self, by: int) -> Packed:
        """These numbers, each increased by so much."""
        if self.kind == "int64":
            return Packed.of(self.numbers() + by)
        return msgspec.structs.replace(self, least=self.least + by, largest=self.largest + by)


Stretch = list[Packed]
"""Some rows, packed column by column."""


class Table:
    """Columns of one length, to which rows are added."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._waiting: list[Sequence[NDArray[Any]]] = []
        self._waiting_rows = 0
        self._packed: list[Stretch] = []

    @classmethod
    def of(cls, columns: Sequence[Integers]) -> Table:
        """A table of these columns."""
        table = cls(len(columns))
        for first in range(0, len(columns[0]), _ROWS):
            table.add([column[first : first + _ROWS] for column in columns])
        return table

    def __len__(self) -> int:
        """How many rows there are."""
        return self._waiting_rows + sum(stretch[0].length for stretch in self._packed)

    def add(self, columns: Sequence[NDArray[Any]]) -> None:
        """Add rows, given as columns of one length."""
        if not len(columns[0]):
            return
        self._waiting.append(columns)
        self._waiting_rows += len(columns[0])
        if self._waiting_rows >= _ROWS:
            self._pack()

    def packed(self) -> list[Stretch]:
        """All rows."""
        self._pack()
        return self._packed

    def join(self, stretches: Iterable[Stretch]) -> None:
        """Add rows that are packed."""
        self._pack()
        self._packed += stretches

    def clear(self) -> None:
        """Let go of all rows."""
        self._waiting, self._waiting_rows, self._packed = [], 0, []

    def _pack(self) -> None:
        if self._waiting:
            whole = [np.concatenate(parts).astype(np.int64, copy=False) for parts in zip(*self._waiting, strict=True)]
            self._packed.append([Packed.of(column) for column in whole])
        self._waiting, self._waiting_rows = [], 0

    def column(self, at: int) -> Integers:
        """One column, whole."""
        parts = [stretch[at].numbers() for stretch in self.packed()]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def columns(self) -> list[Integers]:
        """All of them, whole."""
        return [self.column(at) for at in range(self.width)]

    def stretches(self, *places: int) -> Iterator[list[Integers]]:
        """These columns, or all where none is named, some ten thousand rows at a time."""
        chosen = places or range(self.width)
        for stretch in self.packed():
            yield [stretch[at].numbers() for at in chosen]

    def between(self, at: int, first: int, beyond: int) -> tuple[Integers, list[Integers]]:
        """Rows whose number in column `at` is `first` or more and less than `beyond`: which they are, and all columns.

        Stretches without any are not even unpacked: rows are best added in the order in which they are asked for.
        """
        found: list[list[Integers]] = [[np.zeros(0, np.int64) for _ in range(self.width + 1)]]
        for rows, stretch in self._numbered():
            numbers = stretch[at]
            if numbers.least >= beyond or numbers.largest < first:
                continue
            columns = [rows, *(packed.numbers() for packed in stretch)]
            if numbers.least < first or numbers.largest >= beyond:
                chosen = (columns[at + 1] >= first) & (columns[at + 1] < beyond)
                columns = [column[chosen] for column in columns]
            found.append(columns)
        rows, *columns = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return rows, columns

    def where(self, holds: Callable[..., NDArray[np.bool_]], *places: int) -> Table:
        """A table of the rows of whose numbers in these columns this holds, asked of some rows at a time.

        Stretches of which all rows are chosen are in both tables, and take memory once.
        """
        found = Table(self.width)
        for stretch in self.packed():
            chosen = holds(*(stretch[place].numbers() for place in places))
            if chosen.all():
                found.join([[*stretch]])
            elif chosen.any():
                found.add([packed.numbers()[chosen] for packed in stretch])
        return found

    def bounds(self, at: int) -> tuple[int, int] | None:
        """The least and the largest number of a column; None without rows."""
        stretches = self.packed()
        if not stretches:
            return None
        return min(stretch[at].least for stretch in stretches), max(stretch[at].largest for stretch in stretches)

    def move(self, at: int, by: int) -> None:
        """Make every number of a column more by so much."""
        for stretch in self.packed():
            stretch[at] = stretch[at].moved(by)

    def replace(self, at: int, computed: Callable[..., Integers], *places: int) -> None:
        """Put in a column's place what is computed from these columns, some rows at a time."""
        for stretch in self.packed():
            stretch[at] = Packed.of(computed(*(stretch[place].numbers() for place in places)))

    def append(self, width: int, computed: Callable[..., Sequence[Integers]], *places: int) -> None:
        """Add so many columns, computed from the rows' numbers and these columns, some rows at a time."""
        for rows, stretch in self._numbered():
            stretch += [Packed.of(column) for column in computed(rows, *(stretch[place].numbers() for place in places))]
        self.width += width

    def _numbered(self) -> Iterator[tuple[Integers, Stretch]]:
        first = 0
        for stretch in self.packed():
            yield np.arange(first, first + stretch[0].length, dtype=np.int64), stretch
            first += stretch[0].length


START, DURATION, NAME = 0, 1, 2
"""Places of the columns that every table begins with."""


@dataclass(frozen=True, kw_only=True)
class Recording(Recorded):
    """Tables whose columns are those of a `Trace`'s parts, in their order."""

    work: Table
    launches: Table
    operators: Table
    ranges: Table

    @property
    def tables(self) -> tuple[Table, ...]:
        """All of them."""
        return (self.work, self.launches, self.operators, self.ranges)

    def whole(self) -> Trace:
        """Everything at once, in memory that grows with it."""
        return Trace(
            **{each.name: getattr(self, each.name) for each in fields(Recorded)},
            work=DeviceWork(*self.work.columns()),
            launches=Launches(*self.launches.columns()),
            operators=Operators(*self.operators.columns()),
            ranges=Ranges(*self.ranges.columns()),
        )


def since_the_first(tables: Iterable[Table]) -> int:
    """Count the times of all tables from the earliest of them on; returns what that was. At least one has rows."""
    known = [table for table in tables if len(table)]
    origin = min(bounds[0] for table in known if (bounds := table.bounds(START)))
    for table in known:
        table.move(START, -origin)
    return origin
