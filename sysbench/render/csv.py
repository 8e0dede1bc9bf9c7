"""Tables for programs, as CSV and JSON: base units, nine significant digits, and units in the column names."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from sysbench.log.schema import SCHEMA_VERSION
from sysbench.package import VERSION
from sysbench.render.table import Cell, Column, Measure, Sheet, Table, Word, notes
from sysbench.units import Unit, significant

_SUFFIXES: dict[Unit, str] = {
    "s": "_s",
    "bytes": "_bytes",
    "flops": "_flops",
    "flops_per_s": "_flops_per_s",
    "bytes_per_s": "_bytes_per_s",
    "elements_per_s": "_elements_per_s",
    "tokens_per_s": "_tokens_per_s",
    "joules": "_j",
    "joules_per_token": "_j",
    "watts": "_w",
    "share": "_share",
    "ratio": "_ratio",
    "count": "",
    "number": "",
}

_PART_SUFFIXES = {"value": "", "deviation": "_std", "low": "_low", "high": "_high"}


Value = int | float | str | None
"""Content of a field: a number as measured, text, or nothing."""


def csv_text(*tables: Table) -> str:
    """Format tables as CSV with a common header row."""
    headings, rows = tidy(*tables)
    out = io.StringIO()
    writer = csv.DictWriter(out, headings, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def tidy(*tables: Table) -> tuple[list[str], list[dict[str, Value]]]:
    """Return the column headings of all tables, and their rows as dicts keyed by heading.

    Axes come first, after a column `table` if the tables have different names. A number with a deviation or an interval
    has a column for each part. A word in place of a number (`oom`) goes into the column `outcome`.
    """
    several = len({table.name for table in tables}) > 1
    leading: list[str] = ["table"] if several else []
    headings: list[str] = []
    rows: list[dict[str, Value]] = []
    for table in tables:
        found, fields = _tidy(table)
        first = table.axes + len(table.constants)
        leading += found[:first]
        headings += found[first:]
        rows += [{**({"table": table.name} if several else {}), **row} for row in fields]
    if any(row.get("outcome") for row in rows):
        headings.append("outcome")
    return list(dict.fromkeys((*leading, *headings))), rows


def _tidy(table: Table) -> tuple[list[str], list[dict[str, Value]]]:
    constants, values = zip(*table.constants, strict=True) if table.constants else ((), ())
    columns = (*table.columns[: table.axes], *constants, *table.columns[table.axes :])
    filled = [(*row[: table.axes], *values, *row[table.axes :]) for row in table.rows]
    parts = [_used_parts([row[position] for row in filled]) for position in range(len(columns))]
    headings = [heading for column, found in zip(columns, parts, strict=True) for heading in _headings(column, found)]
    rows = []
    for row in filled:
        fields = [
            field
            for cell, column, found in zip(row, columns, parts, strict=True)
            for field in _fields(cell, column, found)
        ]
        pairs = zip(row, columns, strict=True)
        words = (cell.text for cell, column in pairs if column.numeric and isinstance(cell, Word))
        outcome = next((word for word in words if word and word != "unknown"), None)
        rows.append({"outcome": outcome, **dict(zip(headings, fields, strict=True))})
    return headings, rows


def _used_parts(cells: Sequence[Cell]) -> list[str]:
    measures = [cell for cell in cells if isinstance(cell, Measure)]
    return [
        "value",
        *(part for part in list(_PART_SUFFIXES)[1:] if any(getattr(measure, part) is not None for measure in measures)),
    ]


def _headings(column: Column, parts: Sequence[str]) -> Iterator[str]:
    for part in parts:
        value = "_mean" if part == "value" and "deviation" in parts else _PART_SUFFIXES[part]
        yield _heading(column.key, value, column.unit) if column.unit else column.key


def _heading(key: str, part: str, unit: Unit) -> str:
    """Return the key with part and unit: `step_mean_s`. A key that ends with its unit does not repeat it."""
    suffix = _SUFFIXES[unit]
    return (f"_{key}".removesuffix(suffix) + part + suffix).lstrip("_")


def _fields(cell: Cell, column: Column, parts: Sequence[str]) -> Iterator[Value]:
    for part in parts:
        if isinstance(cell, Measure):
            value = getattr(cell, part)
            yield value if value is None else significant(value)
        elif column.numeric or cell is None:
            yield None
        else:
            yield cell.text if isinstance(cell, Word) else cell


def sheet_json(content: Sheet) -> str:
    """Return tables and remarks as JSON. Rows are as in CSV: units in the keys, base units, nine digits."""
    tables = []
    for table in content.tables:
        headings, rows = tidy(table)
        constants = tuple(column for column, _ in table.constants)
        columns = (*table.columns[: table.axes], *constants, *table.columns[table.axes :])
        tables.append(
            {
                "name": table.name,
                "title": table.title,
                "axes": table.axes + len(constants),
                "columns": [
                    {"key": column.key, "title": f"{column.group} {column.title}".strip(), "unit": column.unit}
                    for column in columns
                ],
                "rows": [{heading: row.get(heading) for heading in headings} for row in rows],
                "notes": notes(table),
            }
        )
    found = {
        "schema_version": SCHEMA_VERSION,
        "kind": "tables",
        "sysbench_version": VERSION,
        "subject": content.subject,
        "tables": tables,
        "remarks": [asdict(remark) for remark in content.remarks],
    }
    return json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False)
