"""Number formatting in tables.

Columns with the same unit share a scale (ms, GiB), and columns of a group also share the number of decimals. Columns
whose numbers are far larger or smaller than the others get a scale of their own.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, takewhile

from sysbench.render.table import EXCLUDED_MARK, Cell, Column, Measure, Table, Word
from sysbench.units import (
    SECONDS,
    UNKNOWN,
    Scale,
    Unit,
    decimals_of_digits,
    decimals_of_interval,
    quantity,
    ratio_decimals,
    shared_decimals,
    shared_scale,
)

_READABLE = (0.005, 10_000)
"""Range of readable numbers: shown as at least 0.01, and with at most four digits before the point."""

_PREDICTED_UNITS: frozenset[Unit] = frozenset({"s", "tokens_per_s", "flops_per_s", "bytes_per_s"})
"""Units of what a predicted time makes uncertain; bytes and operations are counted."""


@dataclass(frozen=True)
class FormattedColumn:
    """A column as displayed: the unit is in the heading or, if `symbol` is empty, next to every number."""

    column: Column
    symbol: str
    texts: tuple[str, ...]


def format_columns(table: Table, *, deviations: bool = True) -> tuple[FormattedColumn, ...]:
    """Format every column of a table; without `deviations`, the `± …` parts are omitted to save width."""
    scales = {unit: _scale(table, unit) for unit in {column.unit for column in table.columns if column.unit}}
    transposed = list(zip(*table.rows, strict=True)) if table.rows else [() for _ in table.columns]
    by_column = list(zip(table.columns, transposed, strict=True))
    group_measures: dict[object, list[Measure]] = {}
    for column, cells in by_column:
        group_measures.setdefault(_decimals_group(column), []).extend(
            cell for cell in cells if isinstance(cell, Measure)
        )
    column_scales = [
        _readable_scale(column.unit, scales[column.unit], group_measures[_decimals_group(column)])
        if column.unit
        else None
        for column in table.columns
    ]
    # The same number of bytes has the same digits in all columns of one scale: 324.0 beside 324.0.
    for (column, cells), scale in zip(by_column, column_scales, strict=True):
        if column.unit == "bytes":
            group_measures.setdefault(scale, []).extend(cell for cell in cells if isinstance(cell, Measure))
    formatted = [
        _format_column(
            column,
            cells,
            scale,
            group_measures[scale if column.unit == "bytes" else _decimals_group(column)],
            deviations,
            table.digits if column.unit in _PREDICTED_UNITS else None,
        )
        if column.unit and scale is not None
        else FormattedColumn(column, "", tuple(_format_unmeasured(cell) for cell in cells))
        for (column, cells), scale in zip(by_column, column_scales, strict=True)
    ]
    if table.excluded and formatted:
        marked = max(table.axes - 1, 0)
        formatted[marked] = _with_marks(formatted[marked], table.excluded)
    return tuple(formatted)


def _with_marks(column: FormattedColumn, excluded: Collection[int]) -> FormattedColumn:
    blank = " " * len(EXCLUDED_MARK)
    texts = (f"{text} {EXCLUDED_MARK if row in excluded else blank}" for row, text in enumerate(column.texts))
    return replace(column, texts=tuple(texts))


def _decimals_group(column: Column) -> object:
    return (column.group, column.unit) if column.group else column


def _scale(table: Table, unit: Unit) -> Scale:
    positions = [position for position, column in enumerate(table.columns) if column.unit == unit]
    cells = [row[position] for row in table.rows for position in positions]
    measures = [cell for cell in cells if isinstance(cell, Measure)]
    scale = shared_scale(unit, [measure.value for measure in measures])
    # From a second on, an interval leaves no digits for milliseconds.
    has_intervals = measures and all(measure.low is not None for measure in measures)
    is_long = unit == "s" and statistics.median_low([abs(measure.value) for measure in measures] or [0.0]) >= 1
    return SECONDS if has_intervals and is_long else scale


def _readable_scale(unit: Unit, scale: Scale, measures: Sequence[Measure]) -> Scale:
    values = [measure.value for measure in measures]
    typical = statistics.median_low(map(abs, values)) if values else 0.0
    is_readable = not typical or _READABLE[0] <= typical / scale.factor < _READABLE[1]
    return scale if is_readable else shared_scale(unit, values)


def _format_column(
    column: Column,
    cells: Sequence[Cell],
    scale: Scale,
    measures: Sequence[Measure],
    deviations: bool,
    digits: int | None,
) -> FormattedColumn:
    if column.wide_range:
        return FormattedColumn(
            column, "", tuple(_with_own_unit(cell, column.unit or "number", deviations) for cell in cells)
        )
    decimals = _decimals(column, scale, measures)
    texts = (
        _format_measure(cell, scale, _deserved(cell, scale, decimals, digits), column.signed, deviations)
        if isinstance(cell, Measure)
        else _format_unmeasured(cell)
        for cell in cells
    )
    return FormattedColumn(column, scale.symbol if measures else "", tuple(texts))


def _decimals(column: Column, scale: Scale, measures: Sequence[Measure]) -> int:
    values = [measure.value for measure in measures]
    if column.unit == "tokens_per_s":
        return 0
    if column.unit == "count" and scale.factor == 1 and all(value == round(value) for value in values):
        return 0
    if column.unit == "ratio":
        return ratio_decimals(values)
    if column.unit == "share" and not column.signed:
        return 0 if any(abs(value) >= 0.0995 for value in values) else 1
    deviations = [measure.deviation for measure in measures if measure.deviation is not None]
    decimals = shared_decimals(scale, values, deviations)
    return 1 if column.unit == "share" else decimals


def _deserved(measure: Measure, scale: Scale, decimals: int, digits: int | None) -> int:
    """Return how many of the column's decimals the number deserves, given its interval or the table's digits."""
    if measure.low is not None and measure.high is not None and measure.deviation is None:
        # The lower end of a wide interval shows a digit: 0.76 (0.07–8.65), not 0.8 (0.1–8.6).
        of_ends = decimals_of_interval(measure.low, measure.high, scale), decimals_of_digits(measure.low, scale, 1)
        return min(decimals, max(of_ends))
    return decimals if digits is None else min(decimals, decimals_of_digits(measure.value, scale, digits))


def _format_measure(measure: Measure, scale: Scale, decimals: int, signed: bool, deviations: bool) -> str:
    if measure.text is not None:
        return measure.text
    text = scale.digits(measure.value, decimals)
    if signed and measure.value >= 0:
        text = f"+{text}"
    if measure.deviation is not None and deviations:
        text = f"{text} ± {scale.digits(measure.deviation, decimals)}"
    if measure.low is not None and measure.high is not None and deviations:
        text = f"{text} ({scale.digits(measure.low, decimals)}–{scale.digits(measure.high, decimals)})"
    return text


def _with_own_unit(cell: Cell, unit: Unit, deviations: bool) -> str:
    if not isinstance(cell, Measure):
        return _format_unmeasured(cell)
    if cell.text is not None:
        return cell.text
    if not deviations or (cell.deviation is None and cell.low is None):
        return quantity(unit, cell.value)
    scale = shared_scale(unit, [cell.value])
    shared = shared_decimals(scale, [cell.value], [] if cell.deviation is None else [cell.deviation])
    decimals = _deserved(cell, scale, shared, None)
    return f"{_format_measure(cell, scale, decimals, False, True)} {scale.symbol}"


def groups(columns: Sequence[FormattedColumn]) -> list[tuple[str, list[int]]]:
    """Return each group heading with the positions of the adjacent columns below it; "" for columns without a group."""
    numbered = groupby(enumerate(columns), lambda each: each[1].column.group)
    return [(group, [position for position, _ in members]) for group, members in numbered]


def repeated_axes(cells: Sequence[Cell], above: Sequence[Cell]) -> int:
    """Return how many leading cells repeat the row above; they can be dimmed."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(cells, above, strict=False)))


def indent(text: str) -> int:
    """Return the number of leading spaces, which show the depth of a row in a tree and must be kept."""
    return len(text) - len(text.lstrip(" "))


def _format_unmeasured(cell: Cell) -> str:
    if isinstance(cell, Word):
        return cell.text
    return UNKNOWN if cell is None else str(cell)
