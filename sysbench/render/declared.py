"""Declared tables: a function from a record to a list of tables, whose columns are known before there is a record.

    SUMMARY = DeclaredTable(
        "summary", "peak memory", rows=lambda record: record.cells, leading=leading_axes(),
        columns=(
            Field("allocated_peak", "allocated", "bytes", "{source}", get=lambda cell: cell.peak_allocated_bytes),
            Field("fits", get=fits, optional=True),
        ),
        words={"source": Fill(("measured", "simulated"), source_of)},
    )

A row is any object that `rows` returns: a cell of a run, a pair of cells, a phase of a cell. If a record needs several
tables, `parts` splits it; `rows`, `title`, `notes`, `values`, … then receive one part.
"""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from sysbench import cells
from sysbench.cells import HasAxes
from sysbench.errors import UsageError, unknown
from sysbench.log.outcomes import MEASURED, Subject
from sysbench.log.records import CellRecord, RunRecord
from sysbench.render.axis_columns import axis_columns, axis_values
from sysbench.render.table import EMPTY_CELL, EXCLUDED_NOTE, Cell, Column, Measure, OnRequestColumn, Table, Word
from sysbench.units import Unit

Result = TypeVar("Result")
Reader = Callable[[Any], Result]
"""Reads something from a record, a part or a row: the types of these differ from table to table."""

AxisValues = Mapping[str, Sequence[str]]
"""Values of each axis of a run, taken from its spec before anything has run."""


@dataclass(frozen=True)
class Field:
    """The declaration of a column. `title` defaults to the key.

    `get` returns the cell of a row; a bare number becomes a Measure if the column has a unit. An `optional` column is
    omitted if no row has a value, and one with `when` if that function returns false. An `on_request` column is shown
    only if it is requested by name; it then replaces the column whose key is `replaces`. A `shown_with_outcome` column
    keeps its value in rows with an outcome instead of numbers.
    """

    key: str
    title: str = ""
    unit: Unit | None = None
    group: str = ""
    importance: int | Callable[..., int] = 0
    get: Callable[..., Any] = field(kw_only=True)
    when: Callable[..., bool] | None = None
    optional: bool = False
    on_request: bool = False
    replaces: str = ""
    shown_with_outcome: bool = False
    note: str | Callable[..., str] = ""
    signed: bool = False
    wide_range: bool = False
    elastic: bool = False
    wraps: bool = False


@dataclass(frozen=True)
class Each:
    """Columns that are repeated for each value of a placeholder, such as a phase.

    The value replaces `{placeholder}` in key, title and group, and is passed to `get(row, value)`, `when(part, value)`,
    `note` and `importance`. `possible_values` lists the values that are possible before the run, or names the axis that
    has them; by default `values` if these are fixed, otherwise the axis with the placeholder's name. `format_value`
    formats a value for titles and groups.
    """

    placeholder: str
    columns: tuple[Field | Each, ...]
    values: Sequence[object] | Reader[Sequence[object]]
    possible_values: str | Sequence[object] = ""
    format_value: Reader[object] = str

    def resolve_possible_values(self, axis_values: AxisValues) -> Sequence[object]:
        """Return the values that are possible before the run."""
        possible_values = self.possible_values or (self.placeholder if callable(self.values) else self.values)
        return axis_values.get(possible_values, ()) if isinstance(possible_values, str) else possible_values


@dataclass(frozen=True)
class Fill:
    """A placeholder in titles and groups with one value per table, `value_of(part)`."""

    possible_values: Sequence[str]
    value_of: Reader[str]


@dataclass(frozen=True)
class Leading:
    """The columns that identify a row: `columns(part)`, with the cells `values(part)(row)`.

    `cells_of(row)` returns the cells of the run that a row describes; axes on which they all agree become constants.
    `is_excluded(row)` tells whether a row is about a cell that cautions exclude from findings, if its cells do not.
    """

    columns: Reader[Sequence[Column]]
    values: Reader[Reader[Sequence[Cell]]]
    cells_of: Reader[Iterable[HasAxes]] | None = None
    is_excluded: Reader[bool] | None = None

    def excludes(self, row: object, subject: Subject) -> bool:
        """Whether cautions exclude a cell of this row from findings about a subject."""
        if self.is_excluded is not None:
            return self.is_excluded(row)
        recorded = (cell for cell in (self.cells_of(row) if self.cells_of else ()) if isinstance(cell, CellRecord))
        return any(cell.outcome in MEASURED and cell.excluding_cautions(subject) for cell in recorded)

    def constants(self, rows: Sequence[object], there: Collection[str]) -> Iterator[tuple[Column, Cell]]:
        """Yield each axis that has one value in all rows, with this value, except the axes in `there`."""
        shown = [cell for row in rows for cell in self.cells_of(row)] if self.cells_of else []
        differing = cells.varying(shown)
        for axis in cells.present_axes(shown):
            if axis not in there and axis not in differing:
                yield axis_columns([axis])[0], shown[0].axes.get(axis)


def varying_or_size(record: RunRecord) -> tuple[str, ...]:
    """Return the axes in which the cells of a record differ; `size` if they do not differ."""
    return cells.varying(record.cells) or ("size",)


def leading_axes(
    axes: Reader[Sequence[str]] = varying_or_size,
    cells_of: Reader[Iterable[HasAxes]] = lambda row: (row,),
) -> Leading:
    """Return leading columns for the axes in `axes(part)`, on which all cells of a row must agree."""

    def values(part: object) -> Reader[Sequence[Cell]]:
        named = axes(part)
        return lambda row: axis_values(next(iter(cells_of(row))), named)

    return Leading(columns=lambda part: axis_columns(axes(part)), values=values, cells_of=cells_of)


def leading_fields(*fields: Field, is_excluded: Reader[bool] | None = None) -> Leading:
    """Return leading columns that are declared like other columns."""
    columns = tuple(_column(_BoundField(each, (), {}, {}), {}, int(each.importance), "") for each in fields)  # type: ignore[arg-type]
    return Leading(
        columns=lambda part: columns,
        values=lambda part: lambda row: [_cell(each, each.get(row)) for each in fields],
        is_excluded=is_excluded,
    )


def adapter_columns(model: Reader[Any]) -> tuple[Field, ...]:
    """Return columns of the parameters that are trained and frozen, if adapters are; `model` finds the row's model."""
    return (
        Field("trained", unit="count", importance=3, get=lambda row: model(row).trainable_parameters, optional=True),
        Field("frozen", unit="count", importance=4, get=lambda row: model(row).frozen_parameters, optional=True),
    )


@dataclass(frozen=True)
class _BoundField:
    """A field with values for its placeholders: `keys` for column keys, `words` for titles and groups."""

    field: Field
    values: tuple[object, ...]
    keys: Mapping[str, object]
    words: Mapping[str, object]


@dataclass(frozen=True)
class DeclaredTable:
    """A table whose structure is known without data.

    `outcome_of` returns the outcome (`oom`) of a row without numbers, which the most important column shows. A table
    without rows is omitted, unless `keep_empty` is set; `needs` names what the record then lacks ("it needs …"). Rows
    about a cell that cautions exclude from findings about `about` are marked. `digits` is that of the tables.
    """

    name: str
    title: str | Reader[str]
    columns: tuple[Field | Each, ...]
    rows: Reader[Iterable[object]] = lambda record: record.cells
    leading: tuple[Leading, ...] | Leading = field(default_factory=leading_axes)
    parts: Reader[Iterable[object]] = lambda record: (record,)
    when: Reader[bool] = lambda part: True
    outcome_of: Reader[Word | None] = lambda row: None
    notes: Sequence[str] | Reader[Iterable[str]] = ()
    words: Mapping[str, Fill] = field(default_factory=dict)
    keep_empty: bool = False
    about: Subject = "times"
    needs: str = ""
    digits: int | None = None

    def __call__(self, record: object) -> list[Table]:
        """Return the tables for a record; none if the record lacks their data."""
        parts = [part for part in self.parts(record) if self.when(part)]
        return [self._table(part, rows) for part in parts if (rows := tuple(self.rows(part))) or self.keep_empty]

    def names(self, axis_values: AxisValues) -> Iterator[Column]:
        """Yield the names of all columns except the leading ones, given the values of each axis."""
        values = {**axis_values, **{word: fill.possible_values for word, fill in self.words.items()}}
        for bound in _expand(self.columns, lambda each: each.resolve_possible_values(values)):
            texts = (bound.field.key, bound.field.title or bound.field.key, bound.field.group)
            there = {place for text in texts for _, place, _, _ in string.Formatter().parse(text) if place}
            places = sorted(place for place in there if re.split(r"[.[]", place)[0] not in bound.keys)
            for combination in itertools.product(*(values.get(place, ()) for place in places)):
                yield _column(bound, dict(zip(places, combination, strict=True)), 0, "")

    def _table(self, part: object, rows: Sequence[object]) -> Table:
        outcomes = [self.outcome_of(row) for row in rows]
        first = self.leading if isinstance(self.leading, tuple) else (self.leading,)
        axes = [column for each in first for column in each.columns(part)]
        named = [each for each in first if each.columns(part)]
        values = [each.values(part) for each in first]
        shown, offered = self._columns(part, rows)
        if None not in outcomes:  # notes would explain numbers that no row has
            shown = [(at, column if at.field.shown_with_outcome else replace(column, note="")) for at, column in shown]
        outcome_column = min(
            (column for bound, column in shown if not bound.field.shown_with_outcome),
            key=lambda column: column.importance,
            default=None,
        )

        def cell(bound: _BoundField, column: Column, number: int) -> Cell:
            outcome = outcomes[number]
            if outcome is not None and not bound.field.shown_with_outcome:
                return outcome if column is outcome_column else EMPTY_CELL
            return _cell(bound.field, bound.field.get(rows[number], *bound.values))

        def column_cells(bound: _BoundField, column: Column) -> tuple[Cell, ...]:
            return tuple(cell(bound, column, number) for number in range(len(rows)))

        offers = (
            OnRequestColumn(column, partial(column_cells, bound, column), bound.field.replaces)
            for bound, column in offered
        )
        return Table(
            self.name,
            self.title if isinstance(self.title, str) else self.title(part),
            (*axes, *(column for _, column in shown)),
            tuple(
                (
                    *(value for values_of in values for value in values_of(row)),
                    *(cell(bound, column, number) for bound, column in shown),
                )
                for number, row in enumerate(rows)
            ),
            len(axes),
            (*(self.notes(part) if callable(self.notes) else self.notes), *self._exclusion_note(part, rows, first)),
            tuple(offers),
            tuple(one for each in first for one in each.constants(rows, {column.key for column in axes})),
            frozenset(n for n, row in enumerate(rows) if any(each.excludes(row, self.about) for each in named)),
            self.digits,
        )

    def _exclusion_note(self, part: object, rows: Sequence[object], leading: Sequence[Leading]) -> Iterator[str]:
        """Yield that cautions exclude the only cell, if no column names it, so that no row needs a mark."""
        unnamed = [each for each in leading if not each.columns(part)]
        if any(each.excludes(row, self.about) for each in unnamed for row in rows[:1]):
            yield EXCLUDED_NOTE

    def _columns(
        self, part: object, rows: Sequence[object]
    ) -> tuple[list[tuple[_BoundField, Column]], list[tuple[_BoundField, Column]]]:
        words = {word: fill.value_of(part) for word, fill in self.words.items()}
        shown: list[tuple[_BoundField, Column]] = []
        offered: list[tuple[_BoundField, Column]] = []
        for bound in _expand(self.columns, lambda each: each.values(part) if callable(each.values) else each.values):
            declared = bound.field
            if declared.when is not None and not declared.when(part, *bound.values):
                continue
            if declared.optional and all(declared.get(row, *bound.values) in (None, "", EMPTY_CELL) for row in rows):
                continue
            importance, note = declared.importance, declared.note
            column = _column(
                bound,
                words,
                importance(part, *bound.values) if callable(importance) else importance,
                note(part, *bound.values) if callable(note) else note,
            )
            (offered if declared.on_request else shown).append((bound, column))
        there = {(column.title, column.unit) for _, column in shown}
        return shown, [each for each in offered if (each[1].title, each[1].unit) not in there]


def _expand(
    columns: Iterable[Field | Each],
    values_of: Callable[[Each], Sequence[object]],
    values: tuple[object, ...] = (),
    keys: Mapping[str, object] | None = None,
    words: Mapping[str, object] | None = None,
) -> Iterator[_BoundField]:
    for column in columns:
        if isinstance(column, Field):
            yield _BoundField(column, values, keys or {}, words or {})
            continue
        for value in values_of(column):
            bound = {**(keys or {}), column.placeholder: value}
            said = {**(words or {}), column.placeholder: column.format_value(value)}
            yield from _expand(column.columns, values_of, (*values, value), bound, said)


def _column(bound: _BoundField, words: Mapping[str, object], importance: int, note: str) -> Column:
    declared = bound.field
    key = declared.key.format(**{**words, **bound.keys})
    return Column(
        key.lower().replace(" ", "_").replace(":", "_"),
        (declared.title or declared.key).format(**{**words, **bound.words}),
        declared.unit,
        declared.group.format(**{**words, **bound.words}),
        importance,
        declared.signed,
        note,
        declared.wide_range,
        declared.elastic,
        declared.wraps,
    )


def _cell(declared: Field, value: Any) -> Cell:
    numeric = declared.unit is not None and isinstance(value, int | float)
    return Measure(value) if numeric else value


def build_tables(
    tables: Mapping[str, Reader[list[Table]]],
    record: object,
    names: Iterable[str],
    what: str = "this run",
) -> list[Table]:
    """Return the tables called `names`; raises UsageError if a table is unknown or has no rows."""
    shown: list[Table] = []
    for name in names:
        if name not in tables:
            raise UsageError(unknown(name, "a table", tables))
        if not (found := tables[name](record)):
            needs = getattr(tables[name], "needs", "")
            raise UsageError(f"{what} has no data for the table {name}{f': it needs {needs}' if needs else ''}")
        shown += found
    return shown
