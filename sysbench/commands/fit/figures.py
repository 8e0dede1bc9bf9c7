"""The figure of `sysbench fit`: step time against memory, for each GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sysbench.commands.fit.record import FitCellRecord
from sysbench.commands.fit.suggestions import suggestions
from sysbench.log.records import RunRecord
from sysbench.render.plots import INK, LIMIT, QUIET, Heading, complete, create_panels, printable, style_axes, subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GIB = 2**30
MAX_COLUMNS = 2
PANEL_HEIGHT_IN = 3.3


def frontier(record: RunRecord[FitCellRecord]) -> Figure:
    """Draw one panel per GPU: every combination tried, the suggestions with their numbers, and the memory limit."""
    cell = record.cells[0]
    heading = Heading("Step time against memory", ", ".join(subject(record.cells)), ", ".join(cell.gpus))
    figure, panels = create_panels(len(cell.gpus), MAX_COLUMNS, PANEL_HEIGHT_IN)
    for panel, gpu in zip(panels, cell.gpus, strict=True):
        _draw(panel, cell, gpu)
    complete(figure, heading)
    return figure


def _draw(panel: Axes, cell: FitCellRecord, gpu: str) -> None:
    trials = [trial for trial in cell.trials if trial.gpu == gpu]
    asked = cell.asked(gpu)
    panel.scatter(
        [trial.needed_bytes / GIB for trial in trials],
        [trial.relative_s * 1e3 for trial in trials],
        s=14,
        color=[QUIET if trial.fits else LIMIT for trial in trials],
        alpha=0.6,
    )
    at = (asked.needed_bytes / GIB, asked.relative_s * 1e3)
    panel.annotate("as asked", at, xytext=(0, 5), textcoords="offset points", fontsize=7, color=INK, ha="right")
    panel.axvline(asked.gpu_bytes / GIB, color=LIMIT, linewidth=1.0)
    number = 0
    for part in suggestions(cell):
        for trial in part.trials:
            number += 1
            if part.gpu == gpu:
                at = (trial.needed_bytes / GIB, trial.relative_s * 1e3)
                panel.annotate(str(number), at, xytext=(3, 3), textcoords="offset points", fontsize=8, color=INK)
    on = "" if asked.step else f", on {cell.explained.reference}" if cell.explained else ""
    style_axes(
        panel, title=printable(gpu), x="memory that a GPU needs (GiB)", y=f"predicted step (ms){on}", lines="both"
    )
    panel.margins(0.08, 0.12)
    panel.set_ylim(bottom=0)
