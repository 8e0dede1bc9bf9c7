"""Axes of cells as the leading columns of a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sysbench.cells import AXES, HasAxes
from sysbench.render.table import Cell, Column


def axis_columns(axes: Sequence[str]) -> tuple[Column, ...]:
    """Return the leading columns of a table whose rows differ in these axes."""
    return tuple(Column(axis, AXES[axis].title) for axis in axes)


def axis_values(cell: HasAxes, axes: Iterable[str]) -> tuple[Cell, ...]:
    """Return the values of one cell for the columns of these axes; without a value, the word for that."""
    stored = cell.axes
    found = ((axis, stored.get(axis, AXES[axis].stored_default)) for axis in axes)
    return tuple(AXES[axis].unset or None if value is None else value for axis, value in found)
