"""Bar charts of memory peaks: by category over the context length, and by phase.

The colours and the stacking order of categories are also defined here; the timeline figure and the page use them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sysbench import cells as spec_axes
from sysbench.commands.memory.findings import TRAINING_MODES, cells_with_peak, does_not_fit
from sysbench.commands.memory.record import MemoryCellRecord, MemoryRecord
from sysbench.render.plots import (
    LIMIT,
    Bar,
    BarPanel,
    Heading,
    LazyFigure,
    Mark,
    PanelLayout,
    arrange_handles,
    caption_text,
    create_panels,
    cross_handle,
    draw_legend,
    draw_stacked,
    series_handles,
    subject,
)
from sysbench.snapshot import CATEGORIES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


COLOURS: Final = {
    "parameters": "#4477aa",
    "optimizer state": "#66ccee",
    "unknown": "#8c8c8c",
    "workspace": "#bbbbbb",
    "inputs": "#228833",
    "activations": "#ccbb44",
    "gradients": "#ee6677",
    "communication": "#332288",
    "temporaries": "#aa3377",
}
"""Categories in stacking order, from the bottom: permanent categories below temporary ones, and activations (which
backward frees) below gradients (which it creates).

Paul Tol's bright scheme, which is distinct for colour-blind readers (personal.sron.nl/~pault), a second grey,
and the indigo of his muted scheme.
"""

STACKING: Final = tuple(CATEGORIES.index(name) for name in COLOURS)
"""Position of each category in `CATEGORIES`, from the bottom."""

_DARK_PHASES: Final = frozenset({"zero_grad", "loss", "backward"})


def has_dark_shade(phase: str) -> bool:
    """Return whether a phase has the darker of the two background shades.

    The shades alternate from one long phase to the next.
    """
    return phase in _DARK_PHASES


MAX_PANELS: Final = 9
MAX_BARS: Final = 4
"""Largest number of bars per context."""

_MIN_LIMIT_SHARE: Final = 0.35
"""The line that marks the device's memory is omitted if all peaks are below this share of it."""

_MIN_LEGEND_SHARE: Final = 0.004
"""Categories below this share in every bar are left out of the legend."""

_PHASE_ABBREVIATIONS: Final = {"zero_grad": "zero", "forward": "fwd", "backward": "bwd", "optimizer": "opt"}


DOES_NOT_FIT: Final = Mark("×", size=11, rise=6, weight="bold")


def figures(cells: Sequence[MemoryCellRecord]) -> Iterator[LazyFigure]:
    sources = {cell.cell.simulate for cell in cells}
    for number, source in enumerate(dict.fromkeys(cell.cell.simulate for cell in cells), 1):
        group = [cell for cell in cells if cell.cell.simulate == source]
        for drawn in (_peaks_by_context(group), _peaks_by_phase(group)):
            if drawn is not None:
                name = f"{drawn.name}-{number}" if len(sources) > 1 else drawn.name
                yield replace(drawn, name=name, cells=tuple(group))


def _peaks_by_context(cells: Sequence[MemoryCellRecord]) -> LazyFigure | None:
    without_search = [cell for cell in cells if cell.found is None]
    if not any(_bar_parts(cell) for cell in without_search):
        return None
    differing = spec_axes.varying(without_search)
    bar_axes = [axis for axis in differing if axis not in ("size", "ctx", "mode")]
    bar_names = list(dict.fromkeys(_axes_label(cell, bar_axes) for cell in without_search))
    panel_axes = [axis for axis in ("size", "mode") if axis in differing]
    rows: dict[str, list[MemoryCellRecord]] = {}
    for cell in without_search:
        rows.setdefault(_axes_label(cell, panel_axes), []).append(cell)
    bar_panels = [
        BarPanel(
            title,
            tuple(str(ctx) for ctx in sorted({cell.cell.ctx for cell in row})),
            tuple(
                Bar(
                    str(cell.cell.ctx),
                    _axes_label(cell, bar_axes),
                    _bar_parts(cell),
                    DOES_NOT_FIT if does_not_fit(cell) else None,
                )
                for cell in row
                if _axes_label(cell, bar_axes) in bar_names[:MAX_BARS]
            ),
            _limit(row),
        )
        for title, row in list(rows.items())[:MAX_PANELS]
    ]
    subtitle_parts = subject(without_search)
    heading = Heading("peak breakdown", " · ".join(subtitle_parts), _simulated_gpus(without_search))
    text = f"Peak allocated memory against context length, by category{_simulated_suffix(without_search)}"
    omitted = _omission_note(len(rows), "sizes and modes", len(bar_names))
    return LazyFigure(
        "peaks",
        caption_text(text, subtitle_parts, omitted),
        lambda: draw(bar_panels, bar_names[:MAX_BARS], heading, "ctx"),
    )


def _peaks_by_phase(cells: Sequence[MemoryCellRecord]) -> LazyFigure | None:
    training = [
        cell for cell in cells_with_peak(cells) if cell.cell.mode in TRAINING_MODES and len(cell.peaks_by_phase) > 1
    ]
    if not training:
        return None
    differing = spec_axes.varying(training)
    bar_axes = [axis for axis in differing if axis not in ("size", "ctx")]
    bar_names = list(dict.fromkeys(_axes_label(cell, bar_axes) for cell in training))
    panel_axes = [axis for axis in ("size", "ctx") if axis in differing]
    rows: dict[str, list[MemoryCellRecord]] = {}
    for cell in training:
        rows.setdefault(_axes_label(cell, panel_axes), []).append(cell)
    # The largest panels are the most interesting.
    chosen = list(rows.items())[-MAX_PANELS:]
    bar_panels = [
        BarPanel(
            title,
            tuple(_PHASE_ABBREVIATIONS.get(phase, phase) for phase in row[0].peaks_by_phase),
            tuple(
                Bar(_PHASE_ABBREVIATIONS.get(phase, phase), _axes_label(cell, bar_axes), peak.by_category)
                for cell in row
                if _axes_label(cell, bar_axes) in bar_names[:MAX_BARS]
                for phase, peak in cell.peaks_by_phase.items()
            ),
            _limit(row),
        )
        for title, row in chosen
    ]
    subtitle_parts = subject(training)
    heading = Heading("peak of each phase", " · ".join(subtitle_parts), _simulated_gpus(training))
    text = f"Peak allocated memory of each phase of a training step, by category{_simulated_suffix(training)}"
    omitted = _omission_note(len(rows), "sizes and contexts", len(bar_names))
    return LazyFigure(
        "phases",
        caption_text(text, subtitle_parts, omitted),
        lambda: draw(bar_panels, bar_names[:MAX_BARS], heading, ""),
    )


def _omission_note(rows: int, what: str, names: int) -> str:
    parts = [f"{MAX_PANELS} of {rows} {what}"] if rows > MAX_PANELS else []
    parts += [f"the first {MAX_BARS} of {names} settings"] if names > MAX_BARS else []
    return f"Shown are {' and '.join(parts)}." if parts else ""


def _axes_label(cell: MemoryCellRecord, axis_names: Sequence[str]) -> str:
    return " ".join(spec_axes.phrase(axis, cell.axes.get(axis)) for axis in axis_names)


def _bar_parts(cell: MemoryCellRecord) -> Mapping[str, int]:
    if cell.outcome != "ok" or not cell.peak_allocated_bytes or does_not_fit(cell):
        return {}
    return cell.by_category or {"unknown": cell.peak_allocated_bytes}


def _limit(cells: Sequence[MemoryCellRecord]) -> int | None:
    limits = {
        cell.gpu.memory_bytes if cell.gpu else cell.device.memory_bytes if cell.device else None for cell in cells
    }
    return limits.pop() if len(limits) == 1 else None


def _simulated_gpus(cells: Sequence[MemoryCellRecord]) -> str:
    return ", ".join(dict.fromkeys(cell.gpu.title for cell in cells if cell.gpu))


def _simulated_suffix(cells: Sequence[MemoryCellRecord]) -> str:
    simulated = _simulated_gpus(cells)
    return f"; simulated for {simulated}" if simulated else ""


def draw(bar_panels: Sequence[BarPanel], names: Sequence[str], heading: Heading, x: str) -> Figure:
    """Draw panels of stacked bars. A line marks the device's memory where the peaks come close to it."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    bars = [bar for panel in bar_panels for bar in panel.bars]
    present = [part for part in COLOURS if any(bar.parts.get(part, 0) > _MIN_LEGEND_SHARE * bar.height for bar in bars)]
    line_handles = series_handles(names)
    with_limits = [
        panel if panel.limit and panel.highest > _MIN_LIMIT_SHARE * panel.limit
        else replace(panel, limit=None)
        for panel in bar_panels
    ]  # fmt: skip
    if any(panel.limit for panel in with_limits):
        line_handles.append(Line2D([], [], color=LIMIT, linewidth=1, linestyle=(0, (5, 2)), label="device memory"))
    if any(bar.absent for bar in bars):
        line_handles.append(cross_handle("does not fit"))
    rows = [
        *arrange_handles([Patch(facecolor=COLOURS[part], label=part) for part in present]),
        *arrange_handles(line_handles),
    ]
    frame = PanelLayout(
        min(3, len(bar_panels)),
        1.6 if len(bar_panels) > 1 else 2.4,
        above_in=0.26 if len(bar_panels) > 1 else 0.08,
        below_in=0.44 if x else 0.3,
        legend_lines=len(rows),
    )
    figure, panel_axes = create_panels(frame, len(bar_panels), heading)
    for axes, panel in zip(panel_axes, with_limits, strict=True):
        draw_stacked(axes, panel, names, COLOURS, "bytes", panel.limit or panel.highest, headroom=1.08, x=x)
    draw_legend(figure, *rows)
    return figure


def of_run(record: MemoryRecord) -> Iterator[LazyFigure]:
    return figures(record.cells)
