"""Which tables of a run a report has: all that answer a question, and not those that are only for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from sysbench.records import RunRecord
from sysbench.specs.kinds import Kind
from sysbench.specs.run import Selection
from sysbench.views import sheets
from sysbench.views.table import Table
from sysbench.views.tables import axes

FEW_CELLS = 3
"""Tables that have many rows for every cell are shown of runs with at most as many cells."""

TOP_KERNELS = 10
"""Kernels, or operators, that are named of each cell where there are more than FEW_CELLS of them."""

SHOWN: Mapping[Kind, tuple[str, ...]] = {
    "time": (
        "summary",
        "phases",
        "precision",
        "execution",
        "attention",
        "optimizer",
        "devices",
        "warmup",
        "memory",
    ),
    "memory": ("summary", "grid", "phases", "categories", "state", "residual"),
    "profile": ("summary", "phases", "classes", "attention", "device", "precision", "kernels"),
    "attention": ("sweep", "comparison", "exponents", "crossovers", "frontier", "accounting"),
    "accum": (),
}
"""By name, in the order in which they are shown; what a run cannot fill is left out. Of none: what its axes imply."""

OF_FEW: Mapping[Kind, tuple[str, ...]] = {"memory": ("largest", "modules"), "profile": ("tree",)}
"""What runs of few cells have besides."""

OF_AXES: Mapping[str, str] = {"warmup": "warmup"}
"""What is shown only of runs in which an axis varies."""


def tables_of(record: RunRecord[Any]) -> tuple[Table, ...]:
    """The tables of one run."""
    return tuple(_without_repeats(_all(record)))


def _all(record: RunRecord[Any]) -> Iterable[Table]:
    few = len(record.cells) <= FEW_CELLS
    differing = axes.varying(axes.axes_of(record.cells))
    shown = (name for name in SHOWN[record.kind] if name not in OF_AXES or OF_AXES[name] in differing)
    if record.kind == "time" and not any(cell.memory.allocated_peak_bytes for cell in record.cells):
        # The summary has what there is then: the peak on the host.
        shown = (name for name in shown if name != "memory")
    names = (*shown, *(OF_FEW.get(record.kind, ()) if few else ()))
    if not names:
        return sheets.sheet(record).tables
    return sheets.fillable(record, names, Selection() if few else Selection(top=TOP_KERNELS))


def _without_repeats(found: Iterable[Table]) -> Iterator[Table]:
    """Some tables come down to the same numbers where a run has one cell or one axis."""
    seen: set[tuple[object, ...]] = set()
    for table in found:
        content = (table.columns, table.rows)
        if table.rows and content not in seen:
            seen.add(content)
            yield table
