"""Columns of whole numbers that grow, kept in as few bytes as they take.

A trace of some gigabytes has tens of millions of numbers, and most of them are small, or close to those around them:
of every stretch only the least one is kept whole, and of the others how much more they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from sysbench.analysis.trace import Integers

_ROWS: Final = 65_536
"""That are packed at a time: a few megabytes before, a few hundred kilobytes after."""
_TYPES: Final = ("uint8", "uint16", "uint32")


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """A stretch of a column."""

    length: int
    least: int
    kind: str
    """A numpy type; empty where all are the same."""
    differences: bytes
    """From the least one; of `kind`."""

    @classmethod
    def of(cls, column: Integers) -> Packed:
        """Pack a stretch that is not empty."""
        least, largest = int(column.min()), int(column.max())
        if least == largest:
            return cls(len(column), least, "", b"")
        kind = next((kind for kind in _TYPES if largest - least <= np.iinfo(kind).max), None)
        if kind is None:
            return cls(len(column), 0, "int64", column.tobytes())
        return cls(len(column), least, kind, (column - least).astype(kind).tobytes())

    def into(self, column: Integers) -> None:
        """Write what was packed to a column of its length."""
        column.fill(self.least)
        if self.kind:
            column += np.frombuffer(self.differences, self.kind)


Stretch = list[Packed]
"""The same rows of every column."""


class Table:
    """Columns of one length, to which rows are added."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._waiting: list[Sequence[NDArray[Any]]] = []
        self._waiting_rows = 0
        self._packed: list[Stretch] = []

    def __bool__(self) -> bool:
        """Whether there are any rows."""
        return bool(self._packed or self._waiting)

    def add(self, columns: Sequence[NDArray[Any]]) -> None:
        """Add rows, given as columns of one length that is not 0."""
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

    def _pack(self) -> None:
        if self._waiting:
            whole = [np.concatenate(parts).astype(np.int64, copy=False) for parts in zip(*self._waiting, strict=True)]
            self._packed.append([Packed.of(column) for column in whole])
        self._waiting, self._waiting_rows = [], 0

    def take(self) -> list[Integers]:
        """All rows, as columns; they are not kept."""
        stretches = self.packed()
        self._packed = []
        rows = sum(stretch[0].length for stretch in stretches)
        columns = []
        for at in range(self._width):
            column = np.empty(rows, np.int64)
            first = 0
            for stretch in stretches:
                packed = stretch[at]
                packed.into(column[first : first + packed.length])
                first += packed.length
                stretch[at] = _TAKEN
            columns.append(column)
        return columns


_TAKEN: Final = Packed(0, 0, "", b"")


def unpacked(stretches: Iterable[Stretch]) -> Iterator[list[Integers]]:
    """Stretch by stretch, columns of one length."""
    for stretch in stretches:
        columns = [np.empty(packed.length, np.int64) for packed in stretch]
        for packed, column in zip(stretch, columns, strict=True):
            packed.into(column)
        yield columns
