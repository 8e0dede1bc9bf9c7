"""Bar charts of memory peaks: by category over the context length, and by phase.

The colours and the stacking order of categories are also defined here; the timeline figure and the page use them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    shown = [cell for cell in cells if cell.found is None]
    if not any(_bar_parts(cell) for cell in shown):
        return None

    def bars(cell: MemoryCellRecord, name: str) -> Iterator[Bar]:
        yield Bar(str(cell.cell.ctx), name, _bar_parts(cell), DOES_NOT_FIT if does_not_fit(cell) else None)

    def ticks(row: Sequence[MemoryCellRecord]) -> Iterable[str]:
        return map(str, sorted({cell.cell.ctx for cell in row}))

    text = "Peak allocated memory against context length, by category"
    panels = _BarPanels(shown, ("size", "mode"), "sizes and modes", slice(MAX_PANELS), "ctx", ticks, bars)
    return panels.figure("peaks", "peak breakdown", text)


def _peaks_by_phase(cells: Sequence[MemoryCellRecord]) -> LazyFigure | None:
    training = [
        cell for cell in cells_with_peak(cells) if cell.cell.mode in TRAINING_MODES and len(cell.peaks_by_phase) > 1
    ]
    if not training:
        return None

    def bars(cell: MemoryCellRecord, name: str) -> Iterator[Bar]:
        for phase, peak in cell.peaks_by_phase.items():
            yield Bar(_PHASE_ABBREVIATIONS.get(phase, phase), name, peak.by_category)

    def ticks(row: Sequence[MemoryCellRecord]) -> Iterable[str]:
        return (_PHASE_ABBREVIATIONS.get(phase, phase) for phase in row[0].peaks_by_phase)

    text = "Peak allocated memory of each phase of a training step, by category"
    # The largest panels, which come last, are the most interesting.
    panels = _BarPanels(training, ("size", "ctx"), "sizes and contexts", slice(-MAX_PANELS, None), "", ticks, bars)
    return panels.figure("phases", "peak of each phase", text)


@dataclass(frozen=True)
class _BarPanels:
    """Cells in panels by `panel_axes`, with a series of bars for each setting of the axes that are not along `x`."""

    cells: Sequence[MemoryCellRecord]
    panel_axes: tuple[str, ...]
    panel_noun: str
    chosen: slice
    x: str
    ticks: Callable[[Sequence[MemoryCellRecord]], Iterable[str]]
    bars: Callable[[MemoryCellRecord, str], Iterable[Bar]]

    def figure(self, name: str, title: str, text: str) -> LazyFigure:
        differing = spec_axes.varying(self.cells)
        bar_axes = [axis for axis in differing if axis not in (*self.panel_axes, self.x)]
        series = list(dict.fromkeys(_axes_label(cell, bar_axes) for cell in self.cells))
        shown = series[:MAX_BARS]
        rows: dict[str, list[MemoryCellRecord]] = {}
        for cell in self.cells:
            label = _axes_label(cell, [axis for axis in self.panel_axes if axis in differing])
            rows.setdefault(label, []).append(cell)
        bar_panels = [
            BarPanel(
                panel_title,
                tuple(self.ticks(row)),
                tuple(
                    bar
                    for cell in row
                    if (label := _axes_label(cell, bar_axes)) in shown
                    for bar in self.bars(cell, label)
                ),
                _limit(row),
            )
            for panel_title, row in list(rows.items())[self.chosen]
        ]
        about = subject(self.cells)
        gpus = ", ".join(dict.fromkeys(cell.gpu.title for cell in self.cells if cell.gpu))
        heading = Heading(title, " · ".join(about), gpus)
        suffix = f"; simulated for {gpus}" if gpus else ""
        caption = caption_text(f"{text}{suffix}", about, _omission_note(len(rows), self.panel_noun, len(series)))
        return LazyFigure(name, caption, lambda: draw(bar_panels, shown, heading, self.x))


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
