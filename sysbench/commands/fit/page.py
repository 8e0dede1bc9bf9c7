"""The page of `sysbench fit --output`: GPUs, batches, contexts and changes to choose from, as one offline HTML file.

Its script (assets/fit_page) shows the chosen step: its memory, its time and its command. Names are part of the data,
and are inserted only as text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from sysbench import cells as axes
from sysbench.commands.fit.findings import verdict
from sysbench.commands.fit.record import FitCellRecord, SurveyedStep
from sysbench.commands.fit.suggestions import command, words
from sysbench.errors import UsageError
from sysbench.log.records import RunRecord
from sysbench.package import VERSION
from sysbench.render import pages

ASSETS: Final = "fit_page"


def write(path: Path, record: RunRecord[FitCellRecord]) -> None:
    """Write the page; raises OutputError if that fails, and UsageError for a run without other batches and contexts."""
    if not any(cell.surveyed for cell in record.cells):
        raise UsageError("--output needs other batches and contexts, which only a run with --output simulates")
    pages.write(path, render(record))


def render(record: RunRecord[FitCellRecord]) -> str:
    cell = record.cells[0]
    return pages.render(
        ASSETS,
        title=" · ".join(axes.subject(record.cells)),
        version=VERSION,
        data={
            "asked": {"batch": cell.cell.batch, "ctx": cell.cell.ctx, "changes": ""},
            "reference": cell.explained.reference if cell.explained else "",
            "steps": [_step(record, step) for step in cell.surveyed],
        },
    )


def _step(record: RunRecord[FitCellRecord], surveyed: SurveyedStep) -> dict[str, Any]:
    trial = surveyed.trial
    cell = record.cells[0].cell
    sizes = {axis: trial.changes.get(axis, getattr(cell, axis)) for axis in ("batch", "ctx")}
    changes = {name: value for name, value in trial.changes.items() if name not in sizes}
    return {
        **sizes,
        "gpu": trial.gpu,
        "changes": words(changes),
        "relearns": trial.relearns,
        "verdict": verdict(trial),
        "has": trial.gpu_bytes,
        "needs": trial.needed_bytes,
        "peak": trial.allocated_peak_bytes,
        "phase": trial.phase,
        "usable": surveyed.usable_bytes,
        "categories": sorted(trial.by_category.items(), key=lambda item: -item[1]),
        "step": [trial.step.point_s, trial.step.low_s, trial.step.high_s] if trial.step else None,
        "tokens": trial.tokens,
        "phases": [[phase.name, phase.duration_s, phase.allocated_bytes] for phase in surveyed.phases],
        "command": command(record, trial),
    }
