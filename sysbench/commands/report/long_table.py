"""A report as one long table for data frames: a row for every number of every table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Final

from sysbench.commands.report.document import Document, Section
from sysbench.commands.report.wording import WrittenFile, text_file
from sysbench.render.table import Cell, Column, Measure, Table, Word

_BEFORE: Final = ("run", "machine", "section", "table", "row")
_AFTER: Final = ("column", "value", "unit", "std", "low", "high", "text", "origin")


def files(document: Document, name: str) -> Iterator[WrittenFile]:
    """The one file, which will be called `name`."""
    yield text_file(name, text(document))


def text(document: Document) -> str:
    """Base units and full precision; what tells rows apart (size, ctx, phase, …) has a column for each of its axes.

    A word in a number's place (`oom`) stands in `text`, and so does whatever is no number. `origin` is measured or
    simulated, row by row.
    """
    axes = list(
        dict.fromkeys(_axis(column) for each in _tables(document) for column in each[1].columns[: each[1].axes])
    )
    out = io.StringIO()
    writer = csv.DictWriter(out, [*_BEFORE, *axes, *_AFTER], restval="", lineterminator="\n")
    writer.writeheader()
    for section, table in _tables(document):
        writer.writerows(_rows(section, table))
    return out.getvalue()


def _tables(document: Document) -> Iterator[tuple[Section, Table]]:
    return ((section, table) for section in document.sections for table in section.tables)


def _rows(section: Section, table: Table) -> Iterator[dict[str, str]]:
    for number, cells in enumerate(table.rows, 1):
        leading = {
            "run": section.run,
            "machine": section.machine,
            "section": section.title,
            "table": table.name,
            "row": str(number),
            "origin": _origin(section, table, cells),
            **{
                _axis(column): _word(cell)
                for column, cell in list(zip(table.columns, cells, strict=True))[: table.axes]
            },
        }
        for column, cell in list(zip(table.columns, cells, strict=True))[table.axes :]:
            if (found := _value(column, cell)) is not None:
                yield {**leading, "column": _name(column), **found}


def _axis(column: Column) -> str:
    return f"{column.key}_axis" if column.key in (*_BEFORE, *_AFTER) else column.key


def _name(column: Column) -> str:
    return column.key or column.title.replace(" ", "_")


def _value(column: Column, cell: Cell) -> Mapping[str, str] | None:
    """What is known of one cell; None where that is nothing."""
    if isinstance(cell, Measure):
        parts = {"value": cell.value, "std": cell.deviation, "low": cell.low, "high": cell.high}
        numbers = {name: repr(part) for name, part in parts.items() if part is not None}
        return {**numbers, "unit": column.unit or "", "text": "aside" if cell.aside else ""}
    word = _word(cell)
    return {"text": word} if word else None


def _word(cell: Cell) -> str:
    if isinstance(cell, Measure):
        return repr(cell.value)
    return "" if cell is None else cell.text if isinstance(cell, Word) else str(cell)


def _origin(section: Section, table: Table, cells: tuple[Cell, ...]) -> str:
    """Of one row, where rows of one run differ: what it is simulated for is one of its axes."""
    if section.origin != "mixed":
        return section.origin
    for column, cell in zip(table.columns, cells, strict=True):
        if column.key == "simulate":
            return "measured" if cell in (None, "measured") else "simulated"
        if column.key == "source":
            return _word(cell)
    return section.origin
