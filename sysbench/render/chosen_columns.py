"""Selection of table columns by name (`--columns`): instead of the default columns, or in addition to them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from sysbench.cells import TITLES
from sysbench.errors import UsageError, unknown
from sysbench.render.table import Cell, Column, Remark, Sheet, Table

ADDED = "+"
"""Prefix of a name: the column is added to the default ones instead of replacing them."""

_NOT_IN_NAMES = re.compile(r"[^a-z0-9.]+")


@dataclass(frozen=True)
class Name:
    """The names of a column: its key, its title, and the heading of its group."""

    key: str
    title: str = ""
    group: str = ""

    @property
    def shown(self) -> str:
        """The column's name in messages and lists."""
        return self.key or _slug(self.title)

    @property
    def spellings(self) -> frozenset[str]:
        """All names that select the column."""
        texts = (self.key, self.title, self.group, f"{self.group} {self.title}")
        return frozenset(_slug(text) for text in texts if text)


@dataclass(frozen=True)
class _Filled:
    column: Column
    cells: tuple[Cell, ...]


def with_columns(sheet: Sheet, names: Sequence[str], possible: Collection[Name] = ()) -> Sheet:
    """Return the sheet with only the named columns, in the order of `names`; unchanged if there are no names.

    A name is a column's key, its title, or the heading of its group. With the prefix `+`, a name adds to the columns
    named without a prefix or, if there are none, to the default columns. Axis columns are always kept. Tables that have
    none of the columns named without a prefix are omitted. The sheet gets a note for each named column that is
    `possible` but in none of the tables. Raises UsageError for any other unknown name.
    """
    if not names:
        return sheet
    there = [
        _name(column)
        for table in sheet.tables
        for column in (*table.columns[table.axes :], *(offer.column for offer in table.offers))
    ]
    refuse_unknown(names, (*there, *possible))
    present = [name for name in names if is_any(name, there)]
    absent = [name for name in names if name not in present and is_any(name, possible)]
    plain = [name for name in names if not name.startswith(ADDED) and name not in absent]
    tables = _chosen(sheet.tables, plain, [name.removeprefix(ADDED) for name in present if name.startswith(ADDED)])
    notes = (
        Remark("note", f"no column {name.removeprefix(ADDED)}: no cell of this run has a value") for name in absent
    )
    return replace(sheet, tables=tuple(tables), remarks=(*sheet.remarks, *notes))


def refuse_unknown(names: Sequence[str], known: Collection[Name]) -> None:
    """Raise UsageError for the first name that is neither a column nor an axis."""
    for each in names:
        if is_known(each, known):
            continue
        name = each.removeprefix(ADDED)
        there = dict.fromkeys(text for one in known for text in (one.shown, _slug(one.group)) if text)
        nearest_first = sorted(there, key=lambda text: -difflib.SequenceMatcher(None, _slug(name), text).ratio())
        raise UsageError(f"--columns {unknown(name, 'a column of these tables', nearest_first)}")


def is_known(name: str, columns: Iterable[Name]) -> bool:
    """Whether this is the name of an axis or of one of the columns."""
    return is_any(name, columns) or _slug(name) in _AXES


def name_of(column: Column) -> str:
    """Return the name that selects the column on the command line."""
    return _name(column).shown


def _chosen(tables: Iterable[Table], plain: Sequence[str], added: Sequence[str]) -> Iterable[Table]:
    only_axes = bool(plain) and all(_slug(name) in _AXES for name in plain)
    for table in tables:
        if only_axes:
            yield _adding(table, [], added)
        elif not plain:
            yield _adding(table, _own(table), added)
        elif found := _named(table, plain):
            # Later columns are less important, so that they are hidden first.
            ranked = [replace(each, column=replace(each.column, importance=rank)) for rank, each in enumerate(found)]
            yield _adding(table, ranked, added)


def _adding(table: Table, base: list[_Filled], added: Sequence[str]) -> Table:
    """Return the table with its axes, `base`, and the added columns.

    Added columns are never hidden for lack of width, and replace less detailed columns (`Offer.instead_of`).
    """
    there = {_identity(each.column) for each in base}
    more = [each for each in _named(table, added) if _identity(each.column) not in there]
    said_better = {offer.instead_of for offer in table.offers for each in more if offer.column == each.column}
    kept = [each for each in base if each.column.key not in said_better]
    always = (replace(each, column=replace(each.column, importance=0)) for each in more)
    shown = [*_all(table)[: table.axes], *kept, *always]
    rows = zip(*(each.cells for each in shown), strict=True) if table.rows else ()
    return replace(table, columns=tuple(each.column for each in shown), rows=tuple(rows))


def _named(table: Table, names: Sequence[str]) -> list[_Filled]:
    """Return the table's columns with these names, in the order of `names` and without duplicates."""
    everything = [*_own(table), *(_Filled(offer.column, offer.cells()) for offer in table.offers)]
    found = [each for name in names for each in everything if is_any(name, [_name(each.column)])]
    return list({id(each): each for each in found}.values())


def _own(table: Table) -> list[_Filled]:
    return _all(table)[table.axes :]


def _all(table: Table) -> list[_Filled]:
    return [
        _Filled(column, tuple(row[position] for row in table.rows)) for position, column in enumerate(table.columns)
    ]


def _identity(column: Column) -> tuple[str, ...]:
    return (column.key, column.group, column.title)


def _name(column: Column) -> Name:
    return Name(column.key, column.title, column.group)


def is_any(name: str, known: Iterable[Name]) -> bool:
    """Whether this is the name of one of the columns; axes do not count."""
    wanted = _slug(name)
    return bool(wanted) and any(wanted in each.spellings for each in known)


def _slug(text: str) -> str:
    return _NOT_IN_NAMES.sub("_", text.lower()).strip("_")


_AXES = frozenset(_slug(text) for axis in TITLES.items() for text in axis)
"""Columns that are always shown."""
