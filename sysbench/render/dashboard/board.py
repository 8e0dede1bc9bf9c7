"""All cells of a run in a grid: finished ones with a result, the running one, and waiting ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.text import Text

from sysbench import cells as axes
from sysbench.render import theme
from sysbench.render.axis_columns import axis_columns
from sysbench.render.dashboard.canvas import Canvas, memoized
from sysbench.render.dashboard.run_state import CellState, RunState
from sysbench.render.table import EMPTY_CELL, Cell, Column, Measure, Table, Word
from sysbench.units import Unit

CLOSE, FAR = 1.05, 2.0
"""Results up to `CLOSE` × the best are coloured as good; results of at least `FAR` × the best, as bad."""

HEADING_LINES = 3
"""Lines of a board above its rows: the result, the values of the columns, and units."""

_COLUMN_AXES = ("ctx", "seq")
"""Axes whose values are in columns if the cells differ in them."""

_WAITING, _RUNNING = Word("…", "quiet"), Word("▶", "strong")

Place = tuple[int, int]
"""Row and column."""


@dataclass(frozen=True)
class Quantity:
    """A result of cells that a board shows.

    `best_along` is an axis whose values compete, where less is better. `wide_range` shows every number with a unit of
    its own, in the text of its Measure.
    """

    title: str
    unit: Unit
    value: Callable[[Any], Measure | None]
    """Return the result of a finished cell."""
    best_along: str = ""
    wide_range: bool = False


@dataclass(frozen=True)
class Layout:
    """Positions of the cells on the board: values of one axis in columns, combinations of the other axes in rows."""

    column_axis: str
    row_axes: tuple[str, ...]
    column_values: tuple[object, ...]
    row_values: tuple[tuple[Word | str | int | None, ...], ...]
    positions: dict[str, Place]
    """Position of each cell, by cell key."""

    def alike(self, place: Place, ignored: str) -> tuple[object, ...]:
        """Return the values of the cell at this position on all axes that vary, except on the ignored one."""
        values = zip(self.row_axes, self.row_values[place[0]], strict=True)
        column = self.column_values[place[1]] if self.column_axis != ignored else None
        return (column, *(value for axis, value in values if axis != ignored))


@memoized
def layout(planned: Mapping[str, CellState]) -> Layout | None:
    """Arrange the cells, with contexts (or else the last axis that varies) in columns; None if no axis varies."""
    varying = axes.varying([each.cell for each in planned.values()])
    if not varying:
        return None
    column_axis = next((axis for axis in _COLUMN_AXES if axis in varying), varying[-1])
    row_axes = tuple(axis for axis in varying if axis != column_axis)
    values = {
        key: (tuple(each.cell.axis_value(axis) for axis in row_axes), each.cell.axis_value(column_axis))
        for key, each in planned.items()
    }
    rows = {row: number for number, row in enumerate(dict.fromkeys(row for row, _ in values.values()))}
    columns = {column: number for number, column in enumerate(dict.fromkeys(column for _, column in values.values()))}
    positions = {key: (rows[row], columns[column]) for key, (row, column) in values.items()}
    return Layout(column_axis, row_axes, tuple(columns), tuple(rows), positions)


def board(canvas: Canvas, state: RunState, quantity: Quantity, rows: int) -> list[Text]:
    """Return a grid with one entry per cell, in at most `rows` lines below the headings.

    If the grid is too large, only the part around the running cell is shown; other cells are counted by outcome.
    """
    grid = layout(state.planned)
    if grid is None:
        return []
    cells = _entries(grid, state, quantity)
    row, column = grid.positions.get(state.current_key or "", (0, 0))
    count = len(grid.row_values)
    shown = range(count) if count <= rows else _window(count, max(1, rows - 1), row)
    columns_count = min(len(grid.column_values), max(1, canvas.width // 6))
    for size in range(columns_count, 0, -1):
        columns = _window(len(grid.column_values), size, column)
        lines = canvas.table(_table(grid, quantity, cells, shown, columns))
        if lines is not None:
            break
    else:
        return [canvas.join([(_count_by_outcome(grid.positions.values(), cells), theme.QUIET)])]
    outside = [place for place in grid.positions.values() if place[0] not in shown or place[1] not in columns]
    if outside and len(shown) < rows:
        summary = f"and {len(outside)} more: {_count_by_outcome(outside, cells)}"
        lines.append(canvas.join([(summary, theme.QUIET)]))
    return lines


def _entries(grid: Layout, state: RunState, quantity: Quantity) -> dict[Place, Cell]:
    cells: dict[Place, Cell] = {}
    for key, each in state.ended.items():
        if key in grid.positions:
            value = quantity.value(each) if each.outcome == "ok" else None
            cells[grid.positions[key]] = value or outcome_word(each)
    if state.running in grid.positions:
        cells[grid.positions[state.running]] = _RUNNING
    return _with_best(grid, cells, quantity.best_along) if quantity.best_along else cells


def _with_best(grid: Layout, cells: dict[Place, Cell], along: str) -> dict[Place, Cell]:
    if along not in (*grid.row_axes, grid.column_axis):
        return cells
    best: dict[object, float] = {}
    for place, cell in cells.items():
        if isinstance(cell, Measure):
            group = grid.alike(place, along)
            best[group] = min(cell.value, best.get(group, cell.value))
    return {
        place: _compared(cell, best[grid.alike(place, along)]) if isinstance(cell, Measure) else cell
        for place, cell in cells.items()
    }


def _compared(cell: Measure, best: float) -> Measure:
    share = cell.value / best if best else 1.0
    if share > CLOSE:
        return replace(cell, tone="bad" if share >= FAR else "plain")
    return replace(cell, tone="good", text=f"*{cell.text}")


def outcome_word(ended: CellState) -> Word:
    """Return the outcome of a cell without a result."""
    return Word(str(ended.outcome), "quiet" if ended.outcome in ("skipped", "invalid") else "bad")


def _table(
    grid: Layout, quantity: Quantity, cells: Mapping[Place, Cell], rows: Sequence[int], columns: Sequence[int]
) -> Table:
    planned = set(grid.positions.values())
    heading = f"{quantity.title} by {axes.AXES[grid.column_axis].title}"
    heading += "  * best" if any(isinstance(cell, Measure) and cell.tone == "good" for cell in cells.values()) else ""
    return Table(
        "board",
        "",
        (
            *axis_columns(grid.row_axes),
            *(
                Column(str(at), str(grid.column_values[at]), quantity.unit, heading, wide_range=quantity.wide_range)
                for at in columns
            ),
        ),
        tuple(
            (
                *grid.row_values[row],
                *(cells.get((row, at), _WAITING if (row, at) in planned else EMPTY_CELL) for at in columns),
            )
            for row in rows
        ),
        len(grid.row_axes),
    )


def _window(count: int, size: int, around: int) -> range:
    first = min(max(0, around - size // 2), max(0, count - size))
    return range(first, min(count, first + size))


def _count_by_outcome(places: Collection[Place], cells: Mapping[Place, Cell]) -> str:
    entries = [cells[place] for place in places if place in cells and cells[place] is not _RUNNING]
    words = Counter(cell.text for cell in entries if isinstance(cell, Word))
    ok, waiting = len(entries) - words.total(), len(places) - len(entries)
    counted = [(ok, "ok"), *((count, word) for word, count in words.items()), (waiting, "to go")]
    return ", ".join(f"{count} {word}" for count, word in counted if count)
