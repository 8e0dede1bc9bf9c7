"""Selection of table columns by name (`--columns`): instead of the default columns, or in addition to them."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from sysbench.cells import AXES
from sysbench.errors import UsageError, unknown
from sysbench.render.table import Cell, Column, Remark, Sheet, Table, slug

ADD_PREFIX = "+"
"""Prefix of a name: the column is added to the default ones instead of replacing them."""


@dataclass(frozen=True)
class _FilledColumn:
    column: Column
    cells: tuple[Cell, ...]


def select_columns(sheet: Sheet, names: Sequence[str], possible: Collection[Column] = ()) -> Sheet:
    """Return the sheet with only the named columns, in the order of `names`, besides the axes.

    With the prefix `+`, a name adds to the columns named without a prefix or, if there are none, to the default ones.
    Tables that have none of the columns named without a prefix are omitted. The sheet gets a note for each named column
    that is `possible` but in none of the tables. Raises UsageError for any other unknown name.
    """
    if not names:
        return sheet
    available = [
        column
        for table in sheet.tables
        for column in (*table.columns[table.axes :], *(offer.column for offer in table.on_request))
    ]
    refuse_unknown(names, (*available, *possible))
    present = [name for name in names if matches_any(name, available)]
    absent = [name for name in names if name not in present and matches_any(name, possible)]
    replacing = [name for name in names if not name.startswith(ADD_PREFIX) and name not in absent]
    tables = _select(
        sheet.tables, replacing, [name.removeprefix(ADD_PREFIX) for name in present if name.startswith(ADD_PREFIX)]
    )
    notes = (
        Remark("note", f"no column {name.removeprefix(ADD_PREFIX)}: no cell of this run has a value") for name in absent
    )
    return replace(sheet, tables=tuple(tables), remarks=(*sheet.remarks, *notes))


def refuse_unknown(names: Sequence[str], known: Collection[Column]) -> None:
    """Raise UsageError for the first name that is neither a column nor an axis."""
    for each in names:
        if is_known(each, known):
            continue
        name = each.removeprefix(ADD_PREFIX)
        choices = dict.fromkeys(text for column in known for text in (column.display_name, slug(column.group)) if text)
        nearest_first = sorted(choices, key=lambda text: -difflib.SequenceMatcher(None, slug(name), text).ratio())
        raise UsageError(f"--columns {unknown(name, 'a column of these tables', nearest_first)}")


def is_known(name: str, columns: Iterable[Column]) -> bool:
    """Whether this is the name of an axis or of one of the columns."""
    return matches_any(name, columns) or _is_axis(name)


def _select(tables: Iterable[Table], replacing: Sequence[str], added: Sequence[str]) -> Iterable[Table]:
    only_axes = bool(replacing) and all(map(_is_axis, replacing))
    for table in tables:
        if only_axes:
            yield _with_added(table, [], added)
        elif not replacing:
            yield _with_added(table, _default_columns(table), added)
        elif columns := _find_columns(table, replacing):
            # Later columns are less important, so that they are hidden first.
            ranked = [
                replace(column, column=replace(column.column, importance=rank)) for rank, column in enumerate(columns)
            ]
            yield _with_added(table, ranked, added)


def _with_added(table: Table, base: list[_FilledColumn], added: Sequence[str]) -> Table:
    """Return the table with its axes, `base`, and the added columns."""
    base_identities = {_identity(column.column) for column in base}
    more = [column for column in _find_columns(table, added) if _identity(column.column) not in base_identities]
    replaced_keys = {offer.replaces for offer in table.on_request for column in more if offer.column == column.column}
    kept = [column for column in base if column.column.key not in replaced_keys]
    never_hidden = (replace(column, column=replace(column.column, importance=0)) for column in more)
    shown = [*_all_columns(table)[: table.axes], *kept, *never_hidden]
    rows = zip(*(column.cells for column in shown), strict=True) if table.rows else ()
    return replace(table, columns=tuple(column.column for column in shown), rows=tuple(rows))


def _find_columns(table: Table, names: Sequence[str]) -> list[_FilledColumn]:
    everything = [*_default_columns(table), *(_FilledColumn(offer.column, offer.cells()) for offer in table.on_request)]
    columns = [column for name in names for column in everything if matches_any(name, [column.column])]
    return list({id(column): column for column in columns}.values())


def _default_columns(table: Table) -> list[_FilledColumn]:
    return _all_columns(table)[table.axes :]


def _all_columns(table: Table) -> list[_FilledColumn]:
    return [
        _FilledColumn(column, tuple(row[position] for row in table.rows))
        for position, column in enumerate(table.columns)
    ]


def _identity(column: Column) -> tuple[str, ...]:
    return (column.key, column.group, column.title)


def matches_any(name: str, known: Iterable[Column]) -> bool:
    """Whether this is the name of one of the columns; axes do not count."""
    wanted = slug(name)
    return bool(wanted) and any(wanted in column.spellings for column in known)


def _is_axis(name: str) -> bool:
    return any(slug(name) in (slug(axis), slug(declared.title)) for axis, declared in AXES.items())
