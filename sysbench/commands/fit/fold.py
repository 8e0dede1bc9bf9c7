"""Fold the event log of `sysbench fit` into its record."""

from __future__ import annotations

from collections.abc import Iterable

from sysbench.commands.fit.record import (
    CombinationEstimated,
    CombinationTried,
    Extent,
    ExtentFound,
    FitCellRecord,
    FitRecord,
    MemoryDrawn,
    PeakExplained,
    StepMemory,
    StepSurveyed,
    StepVerified,
    SurveyedStep,
    Trial,
    VerifiedStep,
)
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
        seen.all(CombinationTried),
        key=lambda each: (cell.on.index(each.gpu), len(each.changes), repr(each.changes)),
    )
    extents = [each.as_record(Extent) for each in seen.all(ExtentFound)]
    whole = [(each.gpu, each.changes) for each in tried]
    return FitCellRecord(
        **run_record.model_cell_fields(cell, seen),
        cautions=list(cautions.assumptions(cell, seen)),
        explained=seen.last(PeakExplained),
        trials=[each.as_record(Trial) for each in tried],
        estimated=sum((each.gpu, each.changes) not in whole for each in seen.all(CombinationEstimated)),
        memory=[each.as_record(StepMemory) for each in seen.all(MemoryDrawn)],
        surveyed=[each.as_record(SurveyedStep) for each in seen.all(StepSurveyed)],
        verified=[each.as_record(VerifiedStep) for each in seen.all(StepVerified)],
        extents=sorted(extents, key=lambda each: (each.axis, cell.on.index(each.gpu))),
        price_per_hour=run.started.spec.get("price", {}),
        training_tokens=run.started.spec.get("tokens"),
    )
