"""From records to tables: pure functions, one per question that people ask of a run.

`TABLES` has them all by name. A builder returns no table when the run does not carry what it shows (one precision
only, say), and several when it takes more than one to show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from sysbench.errors import UsageError, unknown
from sysbench.records import TimeRecord
from sysbench.views.table import Sheet, Table
from sysbench.views.tables import axes
from sysbench.views.tables.arms import CATEGORICAL, arms_table
from sysbench.views.tables.grids import devices, grid
from sysbench.views.tables.long import cells
from sysbench.views.tables.memory import memory
from sysbench.views.tables.phases import phases
from sysbench.views.tables.plan import plan
from sysbench.views.tables.remarks import cautions, outcomes
from sysbench.views.tables.spread import first_steps, spread, warmup
from sysbench.views.tables.summary import summary

__all__ = ["TABLES", "cautions", "outcomes", "plan", "sheet", "tables_for"]

Builder = Callable[[TimeRecord], list[Table]]

TABLES: dict[str, Builder] = {
    "summary": summary,
    "grid": grid,
    **{axis: arms_table(axis) for axis in CATEGORICAL},
    "devices": devices,
    "phases": phases,
    "warmup": warmup,
    "first-steps": first_steps,
    "spread": spread,
    "memory": memory,
    "cells": cells,
}
"""Every table that a record can be shown as."""

COMPARISONS: dict[str, str] = {"warmup": "warmup", "device": "devices", **{axis: axis for axis in CATEGORICAL}}
"""The table that an axis asks for by varying; the first one that varies is shown without being asked for."""

SUMMARY_ROWS = 24
"""A longer summary does not fit a screen together with a comparison that shows the same times again."""


def tables_for(record: TimeRecord, names: Iterable[str] = ()) -> list[Table]:
    """The tables called `names`, or without any the summary and the one comparison that the run was made for.

    Raises UsageError for a name that is not a table, and for one that this record cannot fill.
    """
    chosen = tuple(names)
    if not chosen:
        return _implied(record)
    return [table for name in chosen for table in _named(record, name)]


def sheet(record: TimeRecord, names: Iterable[str] = ()) -> Sheet:
    """Everything that is shown of a record at the end of a run."""
    specs = axes.axes_of(record.cells)
    hardware = tuple(dict.fromkeys(cell.device.name for cell in record.cells if cell.device))
    torch = (f"torch {record.environment.torch.torch}",) if record.environment.torch else ()
    return Sheet(
        subject=(*axes.subject(specs), *hardware, *axes.effort(specs), *torch),
        tables=tuple(tables_for(record, names)),
        remarks=(*outcomes(record), *cautions(record)),
    )


def _named(record: TimeRecord, name: str) -> list[Table]:
    if name not in TABLES:
        raise UsageError(unknown(name, "a table", TABLES))
    found = TABLES[name](record)
    if not found:
        raise UsageError(f"this run has nothing to show as the table {name}: it takes other axes")
    return found


def _implied(record: TimeRecord) -> list[Table]:
    differing = axes.varying(axes.axes_of(record.cells))
    name = next((table for axis, table in COMPARISONS.items() if axis in differing), None)
    comparison = TABLES[name](record) if name else []
    if comparison and len(record.cells) > SUMMARY_ROWS:
        return comparison
    return [*summary(record), *comparison]
