"""Forward, forward and backward, and the full step, as multiples of forward."""

from __future__ import annotations

import statistics

from sysbench.records import TimeCellRecord, TimeRecord
from sysbench.views.table import Cell, Column, Measure, Table
from sysbench.views.tables import axes, times
from sysbench.views.tables.offers import offers

FORWARD_BACKWARD = ("forward", "loss", "backward")
"""What is called forward+backward everywhere: the loss is in it, the optimizer and zeroing gradients are not."""


def phases(record: TimeRecord) -> list[Table]:
    """Forward, forward + loss + backward, the full step where there is an optimizer, and their ratio to forward."""
    cells = [cell for cell in record.cells if "forward" in cell.phases or not cell.phases]
    if not any("backward" in cell.phases for cell in cells):
        return []
    named = axes.varying(axes.axes_of(record.cells)) or ("size",)
    full = any("optimizer" in cell.phases for cell in cells)
    columns = (
        *axes.columns(named),
        Column("parameters", "parameters", "count", importance=3),
        Column("forward", "forward", "s"),
        Column("forward_backward", "fwd + bwd", "s"),
        Column("forward_backward", "to forward", "ratio"),
        *((Column("step", "full step", "s", importance=1), Column("step", "to forward", "ratio", importance=1)) * full),
    )
    rows = tuple((*axes.values(cell.axes, named), *_row(cell)[: len(columns) - len(named)]) for cell in cells)
    note = "fwd + bwd is forward, loss and backward; zeroing gradients and the optimizer are not in it"
    more = offers(cells, columns)
    return [Table("phases", "phases, and their ratio to forward", columns, rows, len(named), (note,), more)]


def _row(cell: TimeCellRecord) -> list[Cell]:
    forward = times.summed(cell, ("forward",))
    both = times.summed(cell, FORWARD_BACKWARD) if "backward" in cell.phases else None
    full = times.summed(cell, ("step",)) if "optimizer" in cell.phases else None
    return [
        Measure(cell.model.parameters),
        times.or_outcome(cell, times.mean_of(forward)),
        times.or_outcome(cell, times.mean_of(both), here=False),
        times.or_outcome(cell, _multiple(both, forward), here=False),
        times.or_outcome(cell, times.mean_of(full), here=False),
        times.or_outcome(cell, _multiple(full, forward), here=False),
    ]


def _multiple(values_s: list[float] | None, of_s: list[float] | None) -> Cell:
    if not values_s or not of_s:
        return None
    return Measure(statistics.fmean(values_s) / statistics.fmean(of_s))
