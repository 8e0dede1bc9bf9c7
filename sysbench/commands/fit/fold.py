"""Fold the event log of `sysbench fit` into its record."""

from __future__ import annotations

from collections.abc import Iterable

from sysbench.commands.fit import record as records
from sysbench.commands.fit.record import FitCellRecord, FitRecord
from sysbench.commands.fit.spec import FitCell
from sysbench.log import cautions
from sysbench.log import collect as run_record
from sysbench.log.collect import CellEvents, Run, fold_cells
from sysbench.log.events import Event


def fold(events: Iterable[Event]) -> FitRecord:
    run, cells = fold_cells(events, _cell_record)
    return FitRecord(**run_record.run_fields(run), cells=cells)


def _cell_record(cell: FitCell, seen: CellEvents, run: Run) -> FitCellRecord:
    # In an order of their own: that of the events depends on which process ended first.
    tried = sorted(
        seen.all(records.CombinationTried),
        key=lambda each: (cell.on.index(each.gpu), len(each.changes), repr(each.changes)),
    )
    extents = sorted(seen.all(records.ExtentFound), key=lambda each: (each.axis, cell.on.index(each.gpu)))
    return FitCellRecord(
        **run_record.model_cell_fields(cell, seen),
        cautions=list(cautions.assumptions(cell, seen)),
        explained=seen.last(records.PeakExplained),
        trials=[trial.as_record(records.Trial) for trial in tried],
        verified=[verified.as_record(records.VerifiedStep) for verified in seen.all(records.StepVerified)],
        extents=[extent.as_record(records.Extent) for extent in extents],
        stopped_after_s=stopped.max_time_s if (stopped := seen.last(records.SearchStopped)) else None,
        price_per_hour=run.started.spec.get("price", {}),
        training_tokens=run.started.spec.get("tokens"),
    )
