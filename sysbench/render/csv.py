"""Tables for programs: base units, full precision, the unit in every heading."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from sysbench.render.table import Cell, Column, Measure, Table, Word
from sysbench.units import Unit

_SUFFIXES: dict[Unit, str] = {
    "s": "_s",
    "bytes": "_bytes",
    "flops": "_flops",
    "flops_per_s": "_flops_per_s",
    "bytes_per_s": "_bytes_per_s",
    "tokens_per_s": "_tokens_per_s",
    "joules": "_j",
    "joules_per_token": "_j",
    "watts": "_w",
    "share": "_share",
    "ratio": "_ratio",
    "count": "",
    "number": "",
}

_PARTS = {"value": "", "deviation": "_std", "low": "_low", "high": "_high"}


def csv_text(table: Table) -> str:
    """One table as comma-separated values.

    A number with a deviation or an interval takes a column for each part. A word in a number's place (`oom`) would
    make the column text, so it stands in a column `outcome` of its own.
    """
    parts = [_parts(column, [row[position] for row in table.rows]) for position, column in enumerate(table.columns)]
    words = any(_outcome(row, table.columns) for row in table.rows)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*_headings(table.columns, parts), *(["outcome"] if words else [])])
    for row in table.rows:
        fields = [
            field
            for cell, column, found in zip(row, table.columns, parts, strict=True)
            for field in _fields(cell, column, found)
        ]
        writer.writerow([*fields, *([_outcome(row, table.columns)] if words else [])])
    return out.getvalue()


def _parts(column: Column, cells: Sequence[Cell]) -> list[str]:
    """Which parts of its Measures any cell of the column has; the value is always one."""
    measures = [cell for cell in cells if isinstance(cell, Measure)]
    return ["value", *(part for part in list(_PARTS)[1:] if any(getattr(each, part) is not None for each in measures))]


def _headings(columns: Sequence[Column], parts: Sequence[Sequence[str]]) -> Iterator[str]:
    for column, found in zip(columns, parts, strict=True):
        for part in found:
            value = "_mean" if part == "value" and "deviation" in found else _PARTS[part]
            yield (column.key + value + _SUFFIXES[column.unit]).lstrip("_") if column.unit else column.key


def _fields(cell: Cell, column: Column, parts: Sequence[str]) -> Iterator[str]:
    for part in parts:
        if isinstance(cell, Measure):
            value = getattr(cell, part)
            yield "" if value is None else repr(value)
        elif column.numeric or cell is None:
            yield ""
        else:
            yield cell.text if isinstance(cell, Word) else str(cell)


def _outcome(row: Sequence[Cell], columns: Sequence[Column]) -> str:
    words = (cell.text for cell, column in zip(row, columns, strict=True) if column.numeric and isinstance(cell, Word))
    return next((word for word in words if word and word != "unknown"), "")
