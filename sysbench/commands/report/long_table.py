"""Reports as one long table for data frames, with a row for every number of every table."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Final

from sysbench.commands.report.document import Document, Section
from sysbench.commands.report.wording import WrittenFile, text_file
from sysbench.render.table import Cell, Column, Measure, Table, Word
from sysbench.units import significant

_COLUMNS_BEFORE_AXES: Final = ("run", "machine", "section", "table", "row")
_COLUMNS_AFTER_AXES: Final = ("column", "value", "unit", "std", "low", "high", "text", "origin")


def files(document: Document, name: str) -> Iterator[WrittenFile]:
    yield text_file(name, text(document))


def text(document: Document) -> str:
    """Return the report as CSV in base units and nine digits; words in place of numbers are in the column `text`."""
    tables = [(section, table) for section in document.sections for table in section.tables]
    axes = list(dict.fromkeys(_axis_key(column) for _, table in tables for column in table.columns[: table.axes]))
    buffer = io.StringIO()
    writer = csv.DictWriter(
        buffer, [*_COLUMNS_BEFORE_AXES, *axes, *_COLUMNS_AFTER_AXES], restval="", lineterminator="\n"
    )
    writer.writeheader()
    for section, table in tables:
        writer.writerows(_rows(section, table))
    return buffer.getvalue()


def _rows(section: Section, table: Table) -> Iterator[dict[str, str]]:
    for number, cells in enumerate(table.rows, 1):
        columns_and_cells = list(zip(table.columns, cells, strict=True))
        leading = {
            "run": section.run,
            "machine": section.machine,
            "section": section.title,
            "table": table.name,
            "row": str(number),
            "origin": _origin(section, table, cells),
            **{_axis_key(column): _cell_text(cell) for column, cell in columns_and_cells[: table.axes]},
        }
        for column, cell in columns_and_cells[table.axes :]:
            if (fields := _csv_fields(column, cell)) is not None:
                yield {**leading, "column": column.key or column.title.replace(" ", "_"), **fields}


def _axis_key(column: Column) -> str:
    return f"{column.key}_axis" if column.key in (*_COLUMNS_BEFORE_AXES, *_COLUMNS_AFTER_AXES) else column.key


def _csv_fields(column: Column, cell: Cell) -> Mapping[str, str] | None:
    if isinstance(cell, Measure):
        parts = {"value": cell.value, "std": cell.deviation, "low": cell.low, "high": cell.high}
        numbers = {name: repr(significant(part)) for name, part in parts.items() if part is not None}
        return {**numbers, "unit": column.unit or ""}
    text = _cell_text(cell)
    return {"text": text} if text else None


def _cell_text(cell: Cell) -> str:
    if isinstance(cell, Measure):
        return repr(significant(cell.value))
    return "" if cell is None else cell.text if isinstance(cell, Word) else str(cell)


def _origin(section: Section, table: Table, cells: tuple[Cell, ...]) -> str:
    if section.origin != "mixed":
        return section.origin
    for column, cell in zip(table.columns, cells, strict=True):
        if column.key == "simulate":
            return "measured" if cell in (None, "measured") else "simulated"
        if column.key == "source":
            return _cell_text(cell)
    return section.origin
