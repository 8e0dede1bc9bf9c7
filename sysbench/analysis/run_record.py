"""What the records of all commands have in common, folded from the log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sysbench import formulas
from sysbench.analysis.collect import CellEvents, Run
from sysbench.records import EnvironmentRecord, ModelRecord
from sysbench.specs.cell import RunCell
from sysbench.specs.model import GridCell


def of_run(run: Run) -> dict[str, Any]:
    """The fields of a RunRecord, without its cells."""
    finished_at = run.finished.at_s if run.finished else None
    return {
        "schema_version": run.started.schema_version,
        "sysbench_version": run.started.sysbench_version,
        "source_digest": run.started.source_digest,
        "started_at": _iso(run.started.at_s),
        "finished_at": _iso(finished_at) if finished_at else None,
        "status": run.finished.status if run.finished else "interrupted",
        "spec": run.started.spec,
        "environment": EnvironmentRecord(
            host=run.started.host,
            torch=run.worker.torch if run.worker else None,
            devices=run.worker.devices if run.worker else [],
            driver=run.started.driver,
        ),
    }


def of_cell(cell: RunCell, seen: CellEvents) -> dict[str, Any]:
    """The fields of a CellRecord, without its cautions."""
    return {
        "key": cell.key,
        "axes": cell.model_dump(mode="json"),
        "device": seen.started.device if seen.started else None,
        "outcome": seen.finished.outcome if seen.finished else "interrupted",
        "detail": seen.finished.detail if seen.finished else "stopped before it was finished",
    }


def of_model_cell(cell: GridCell, seen: CellEvents) -> dict[str, Any]:
    """The fields of a ModelCellRecord, without its cautions."""
    return {
        **of_cell(cell, seen),
        "model": ModelRecord(
            parameters=formulas.parameters(cell.model),
            parameters_without_lm_head=formulas.parameters_without_lm_head(cell.model),
            forward_flops=formulas.forward_flops(cell.model, cell.ctx, cell.batch),
        ),
    }


def _iso(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
