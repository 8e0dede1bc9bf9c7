"""What stands on stdout when a run is over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console

from sysbench.hardware import Hardware
from sysbench.records import RunRecord
from sysbench.specs.kinds import Cell
from sysbench.specs.run import Format, Selection
from sysbench.views import column_names
from sysbench.views.sheet_output import show_sheet
from sysbench.views.sheets import LONG, TABLES, sheet
from sysbench.views.table import Sheet
from sysbench.views.tables import axes, plan


def show(
    record: RunRecord[Any],
    console: Console,
    form: Format = "terminal",
    tables: Iterable[str] = (),
    selection: Selection | None = None,
    columns: Sequence[str] = (),
) -> None:
    """Print a record: the tables called `tables`, or without any those that the run was made for.

    `columns` are those of its tables that are shown; without any it is what each table has by itself.

    CSV has no place for two tables in one file: without a choice it is the long table of all cells and phases, and of
    several chosen tables each follows the one before after an empty line. Raises UsageError for a table or a column
    that does not exist or that this record cannot fill.
    """
    names = tuple(tables)
    if form == "csv":
        names = names or (LONG[record.kind],)
    there = column_names.possible(record.kind, names) if columns else ()
    show_sheet(sheet(record, names, selection), console, form, columns, there)


def show_plan(
    cells: Sequence[Cell],
    console: Console,
    form: Format = "terminal",
    device: Hardware | None = None,
    columns: Sequence[str] = (),
) -> None:
    """Print what a run would do, and whether it fits into `device`."""
    specs = [cell.model_dump() for cell in cells]
    show_sheet(Sheet((*axes.subject(specs), *axes.effort(specs)), (plan(cells, device),)), console, form, columns)


__all__ = ["TABLES", "show", "show_plan", "show_sheet"]
