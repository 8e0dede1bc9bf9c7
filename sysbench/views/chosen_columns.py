"""Which columns of a table are shown: all that it has, some of them by name, or more than it has by itself."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from sysbench.errors import UsageError, unknown
from sysbench.views.table import Cell, Column, Sheet, Table

ADDED = "+"
"""In front of a name: beside the columns that are there anyway, and not instead of them."""

_NOT_IN_NAMES = re.compile(r"[^a-z0-9.]+")


@dataclass(frozen=True)
class _Filled:
    """A column with what stands in it."""

    column: Column
    cells: tuple[Cell, ...]


def with_columns(sheet: Sheet, names: Sequence[str]) -> Sheet:
    """The sheet with these columns of its tables, beside the axes and in this order; without names it is as it was.

    A name is a column's key, its title, or the heading that several share. With a `+` in front the column is added to
    those that are there, or to those named without one. Tables that have none of what is named without a `+` are left
    out. Raises UsageError for a name that no table of the sheet has.
    """
    if not names:
        return sheet
    plain = [name for name in names if not name.startswith(ADDED)]
    added = [name.removeprefix(ADDED) for name in names if name.startswith(ADDED)]
    for name in (*plain, *added):
        _refuse_unknown(name, sheet.tables)
    return replace(sheet, tables=tuple(_chosen(sheet.tables, plain, added)))


def name_of(column: Column) -> str:
    """What a column is called on the command line."""
    return column.key or _slug(column.title)


def _chosen(tables: Iterable[Table], plain: Sequence[str], added: Sequence[str]) -> Iterable[Table]:
    for table in tables:
        if not plain:
            yield _adding(table, _own(table), added)
        elif found := _named(table, plain):
            yield _adding(table, _in_order(found), added)


def _adding(table: Table, base: list[_Filled], added: Sequence[str]) -> Table:
    """The table with its axes, `base`, and what is added to it, which never goes for want of width."""
    there = {_identity(each.column) for each in base}
    more = [each for each in _named(table, added) if _identity(each.column) not in there]
    said_better = {offer.instead_of for offer in table.offers for each in more if offer.column == each.column}
    kept = [each for each in base if each.column.key not in said_better]
    shown = [*_axes(table), *kept, *(replace(each, column=replace(each.column, importance=0)) for each in more)]
    rows = zip(*(each.cells for each in shown), strict=True) if table.rows else ()
    return replace(table, columns=tuple(each.column for each in shown), rows=tuple(rows))


def _in_order(found: list[_Filled]) -> list[_Filled]:
    """Where not all of them fit, those that were named last go first."""
    return [replace(each, column=replace(each.column, importance=rank)) for rank, each in enumerate(found)]


def _named(table: Table, names: Sequence[str]) -> list[_Filled]:
    """In the order of the names, each column once."""
    everything = [*_own(table), *(_Filled(offer.column, offer.cells) for offer in table.offers)]
    found = [each for name in names for each in everything if _is_called(each.column, name)]
    return list({id(each): each for each in found}.values())


def _axes(table: Table) -> list[_Filled]:
    return _all(table)[: table.axes]


def _own(table: Table) -> list[_Filled]:
    return _all(table)[table.axes :]


def _all(table: Table) -> list[_Filled]:
    return [
        _Filled(column, tuple(row[position] for row in table.rows)) for position, column in enumerate(table.columns)
    ]


def _identity(column: Column) -> tuple[str, ...]:
    return (column.key, column.group, column.title)


def _is_called(column: Column, name: str) -> bool:
    wanted = _slug(name)
    spellings = (column.key, column.title, column.group, f"{column.group} {column.title}")
    return bool(wanted) and wanted in {_slug(spelling) for spelling in spellings if spelling}


def _slug(text: str) -> str:
    return _NOT_IN_NAMES.sub("_", text.lower()).strip("_")


def _refuse_unknown(name: str, tables: Sequence[Table]) -> None:
    if any(_named(table, [name]) for table in tables):
        return
    there = dict.fromkeys(
        name
        for table in tables
        for column in (*table.columns[table.axes :], *(offer.column for offer in table.offers))
        for name in (name_of(column), _slug(column.group))
        if name
    )
    nearest_first = sorted(there, key=lambda known: -difflib.SequenceMatcher(None, _slug(name), known).ratio())
    raise UsageError(f"--columns {unknown(name, 'a column of these tables', nearest_first)}")
