"""Bar charts of memory peaks by category over the context length.

The colours and the stacking order of categories are also defined here; the timeline figure and the page use them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from sysbench import cells as axes_of_cells
from sysbench.commands.memory.record import MemoryCellRecord, MemoryRecord
from sysbench.render.plots import (
    LIMIT,
    Bar,
    BarPanel,
    Heading,
    LazyFigure,
    Mark,
    caption_text,
    complete,
    create_panels,
    cross_handle,
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

DARK_PHASES: Final = frozenset({"zero_grad", "loss", "backward"})
"""Phases with the darker of two background shades, which alternate from one long phase to the next."""

MAX_PANELS: Final = 9
MAX_COLUMNS: Final = 3
MAX_BARS: Final = 4
"""Largest number of bars per context."""

_MIN_LIMIT_SHARE: Final = 0.35
"""The line that marks the device's memory is omitted if all peaks are below this share of it."""

_MIN_LEGEND_SHARE: Final = 0.004
"""Categories below this share in every bar are left out of the legend."""

DOES_NOT_FIT: Final = Mark("×", size=11, rise=6, weight="bold")


def of_run(record: MemoryRecord) -> Iterator[LazyFigure]:
    return figures(record.cells)


def figures(cells: Sequence[MemoryCellRecord]) -> Iterator[LazyFigure]:
    """Yield a figure of the peaks by category for the measured cells, and for the cells of each simulated GPU."""
    sources = axes_of_cells.values_along(cells, "simulate")
    for number, source in enumerate(sources, 1):
        shown = [cell for cell in cells if cell.cell.simulate == source and cell.found is None]
        if any(cell.peak_bytes for cell in shown):
            yield _peaks(shown, f"peaks-{number}" if len(sources) > 1 else "peaks")


def _peaks(cells: Sequence[MemoryCellRecord], name: str) -> LazyFigure:
    """Return panels for sizes and modes, with a group of bars per context: a bar for each setting of other axes."""
    differing = axes_of_cells.varying(cells)
    panel_axes = [axis for axis in ("size", "mode") if axis in differing]
    bar_axes = [axis for axis in differing if axis not in ("size", "mode", "ctx")]
    settings = list(dict.fromkeys(_name(cell, bar_axes) for cell in cells))
    rows: dict[str, list[MemoryCellRecord]] = {}
    for cell in cells:
        rows.setdefault(_name(cell, panel_axes), []).append(cell)
    panels = [_panel(title, row, bar_axes, settings[:MAX_BARS]) for title, row in list(rows.items())[:MAX_PANELS]]
    about, gpus = subject(cells), ", ".join(dict.fromkeys(cell.gpu.title for cell in cells if cell.gpu))
    text = f"Peak allocated memory against context length, by category{f'; simulated for {gpus}' if gpus else ''}"
    left_out = [f"{MAX_PANELS} of {len(rows)} sizes and modes"] if len(rows) > MAX_PANELS else []
    left_out += [f"the first {MAX_BARS} of {len(settings)} settings"] if len(settings) > MAX_BARS else []
    caption = caption_text(text, about, f"Shown are {' and '.join(left_out)}." if left_out else "")
    heading = Heading("peak breakdown", " · ".join(about), gpus)
    return LazyFigure(name, caption, lambda: _draw(panels, settings[:MAX_BARS], heading), tuple(cells))


def _name(cell: MemoryCellRecord, axis_names: Sequence[str]) -> str:
    return " ".join(axes_of_cells.phrase(axis, cell.axis_value(axis)) for axis in axis_names)


def _panel(title: str, row: Sequence[MemoryCellRecord], bar_axes: Sequence[str], settings: Sequence[str]) -> BarPanel:
    limits = {cell.gpu.memory_bytes if cell.gpu else cell.device.memory_bytes if cell.device else None for cell in row}
    highest, limit = max(cell.peak_bytes for cell in row), limits.pop() if len(limits) == 1 else None
    return BarPanel(
        title,
        tuple(map(str, sorted({cell.cell.ctx for cell in row}))),
        tuple(
            Bar(str(cell.cell.ctx), setting, _parts(cell), DOES_NOT_FIT if cell.does_not_fit else None)
            for cell in row
            if (setting := _name(cell, bar_axes)) in settings
        ),
        limit if limit and highest > _MIN_LIMIT_SHARE * limit else None,
    )


def _parts(cell: MemoryCellRecord) -> Mapping[str, int]:
    if not cell.peak_bytes:
        return {}
    return cell.by_category or {"unknown": cell.peak_bytes}


def _draw(panels: Sequence[BarPanel], settings: Sequence[str], heading: Heading) -> Figure:
    """Draw panels of stacked bars. A line marks the device's memory where the peaks come close to it."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    bars = [bar for panel in panels for bar in panel.bars]
    present = [part for part in COLOURS if any(bar.parts.get(part, 0) > _MIN_LEGEND_SHARE * bar.height for bar in bars)]
    handles = series_handles(settings)
    if any(panel.limit for panel in panels):
        handles.append(Line2D([], [], color=LIMIT, linewidth=1, linestyle=(0, (5, 2)), label="device memory"))
    if any(bar.absent for bar in bars):
        handles.append(cross_handle("does not fit"))
    figure, panel_axes = create_panels(len(panels), MAX_COLUMNS, 2.3 if len(panels) > 1 else 2.9)
    for axes, panel in zip(panel_axes, panels, strict=True):
        draw_stacked(axes, panel, settings, COLOURS, "bytes", panel.limit or panel.highest, headroom=1.08, x="ctx")
    complete(figure, heading, [*(Patch(facecolor=COLOURS[part], label=part) for part in present), *handles])
    return figure
