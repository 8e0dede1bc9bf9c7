"""Figures of `sysbench fit`: step time against memory, and memory over the step, for each GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sysbench.commands.fit.record import FitCellRecord, StepMemory
from sysbench.commands.fit.suggestions import suggestions, words
from sysbench.log.records import RunRecord
from sysbench.render.plots import INK, LIMIT, QUIET, Heading, PanelLayout, create_panels, printable, style_axes, subject

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GIB = 2**30
MAX_COLUMNS = 2
PANEL_HEIGHT_IN = 2.8


def frontier(record: RunRecord[FitCellRecord]) -> Figure:
    """Draw one panel per GPU: every combination tried, the suggestions with their numbers, and the memory limit."""
    cell = record.cells[0]
    heading = Heading("Step time against memory", ", ".join(subject(record.cells)), ", ".join(cell.gpus))
    layout = PanelLayout(columns=MAX_COLUMNS, height_in=PANEL_HEIGHT_IN, legend_lines=0)
    figure, panels = create_panels(layout, len(cell.gpus), heading)
    for panel, gpu in zip(panels, cell.gpus, strict=True):
        _draw(panel, cell, gpu)
    return figure


def before_and_after(record: RunRecord[FitCellRecord]) -> Figure:
    """Draw one panel per GPU: memory over the step as asked and over the first suggestion, and the memory limit."""
    cell = record.cells[0]
    pairs = list(zip(cell.memory[::2], cell.memory[1::2], strict=False))
    heading = Heading(
        "Memory over the step", ", ".join(subject(record.cells)), ", ".join(after.gpu for _, after in pairs)
    )
    figure, panels = create_panels(PanelLayout(1, PANEL_HEIGHT_IN, legend_lines=0), len(pairs), heading)
    for panel, (before, after) in zip(panels, pairs, strict=True):
        for memory, colour, name in ((before, LIMIT, "as asked"), (after, INK, words(after.changes))):
            times_ms, bytes_gib = _over_time(memory)
            panel.step(times_ms, bytes_gib, where="post", color=colour, linewidth=1.0, label=printable(name))
        panel.axhline(before.usable_bytes / GIB, color=QUIET, linewidth=1.0, linestyle=(0, (4, 2)), label="available")
        has_rates = any(trial.gpu == before.gpu and trial.step for trial in cell.trials)
        on = "" if has_rates else f", on {cell.explained.reference}" if cell.explained else ""
        style_axes(panel, title=printable(before.gpu), x=f"predicted time (ms){on}", y="allocated (GiB)", lines="both")
        panel.set_ylim(bottom=0)
        panel.legend(fontsize=7, loc="best", framealpha=0.9, edgecolor="none")
    return figure


def _over_time(memory: StepMemory) -> tuple[list[float], list[float]]:
    """Return milliseconds and GiB; within a phase, requests to the allocator are evenly spaced."""
    times_ms, bytes_gib, start_s = [], [], 0.0
    for phase in memory.phases:
        for number, size_bytes in enumerate(phase.allocated_bytes):
            times_ms.append(1e3 * (start_s + phase.duration_s * number / len(phase.allocated_bytes)))
            bytes_gib.append(size_bytes / GIB)
        start_s += phase.duration_s
    return [*times_ms, 1e3 * start_s], [*bytes_gib, *bytes_gib[-1:]]


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
    panel.set_ylim(bottom=0)
