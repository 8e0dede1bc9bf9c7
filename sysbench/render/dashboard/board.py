"""All cells of a run in a grid: finished ones with a result, the running one, and waiting ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from rich.text import Text

from sysbench import cells as axes
from sysbench.render.axis_columns import axis_columns
from sysbench.render.dashboard.canvas import Canvas
from sysbench.render.dashboard.run_state import CellState, RunState
from sysbench.render.table import EMPTY_CELL, Cell, Column, Measure, Table, Word
from sysbench.units import Unit

_COLUMN_AXES = ("ctx", "seq")
"""Axes whose values are in columns if the cells differ in them."""

MIN_COLUMN_WIDTH = 6

_WAITING, _RUNNING = Word("…", "quiet"), Word("▶", "strong")


@dataclass(frozen=True)
class Quantity:
    """A result of cells that a board shows; `wide_range` shows every number with a unit of its own."""

    title: str
    unit: Unit
    value: Callable[[Any], Measure | None]
    """Return the result of a finished cell."""
    wide_range: bool = False


def board(canvas: Canvas, state: RunState, quantity: Quantity, varying: tuple[str, ...], rows: int) -> list[Text]:
    """Return a grid with contexts (or else the last axis that varies) in columns, in at most `rows` rows.

    If it does not fit, only the part around the running cell is shown.
    """
    column_axis = next((axis for axis in _COLUMN_AXES if axis in varying), varying[-1])
    row_axes = [axis for axis in varying if axis != column_axis]
    grid: dict[tuple[Any, ...], dict[Any, Cell]] = {}
    running: tuple[Any, Any] = ((), None)
    for key, each in state.cells:
        row, column = tuple(each.cell.axis_value(axis) for axis in row_axes), each.cell.axis_value(column_axis)
        grid.setdefault(row, {})[column] = _entry(each, quantity)
        if key == state.running:
            running, grid[row][column] = (row, column), _RUNNING
    heading = f"{quantity.title} by {axes.AXES[column_axis].title}"
    all_columns, shown_rows = list(dict.fromkeys(chain(*grid.values()))), _around(list(grid), running[0], rows)
    for count in range(min(len(all_columns), canvas.width // MIN_COLUMN_WIDTH), 0, -1):
        shown = _around(all_columns, running[1], count)
        columns = (Column(str(at), str(at), quantity.unit, heading, wide_range=quantity.wide_range) for at in shown)
        body = ((*row, *(grid[row].get(at, EMPTY_CELL) for at in shown)) for row in shown_rows)
        table = Table("board", "", (*axis_columns(row_axes), *columns), tuple(body), len(row_axes))
        if lines := canvas.table(table):
            return lines
    return []


def _around(values: Sequence[Any], value: Any, count: int) -> Sequence[Any]:
    at = values.index(value) if value in values else 0
    first = max(0, min(at - count // 2, len(values) - count))
    return values[first : first + count]


def _entry(cell: CellState, quantity: Quantity) -> Cell:
    if cell.outcome is None:
        return _WAITING
    return (quantity.value(cell) if cell.outcome == "ok" else None) or outcome_word(cell)


def outcome_word(ended: CellState) -> Word:
    """Return the outcome of a cell without a result."""
    return Word(str(ended.outcome), "quiet" if ended.outcome in ("skipped", "invalid") else "bad")
