"""Bar charts of memory peaks: by category over the context length, and by phase.

The colours and the stacking order of categories are also defined here; the timeline figure and the page use them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from sysbench import cells as spec_axes
from sysbench.commands.memory.findings import TRAINING, does_not_fit, known
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

_DARKER: Final = frozenset({"zero_grad", "loss", "backward"})


def darker(phase: str) -> bool:
    """Return whether a phase has the darker of the two background shades.

    The shades alternate from one long phase to the next.
    """
    return phase in _DARKER


MOST_PANELS: Final = 9
MOST_BARS: Final = 4
"""Largest number of bars per context."""

_WORTH_SEEING: Final = 0.35
"""The line that marks the device's memory is omitted if all peaks are below this share of it."""

_SEEN: Final = 0.004
"""Categories below this share in every bar are left out of the legend."""

_SHORT: Final = {"zero_grad": "zero", "forward": "fwd", "backward": "bwd", "optimizer": "opt"}


DOES_NOT_FIT: Final = Mark("×", size=11, rise=6, weight="bold")


def figures(cells: Sequence[MemoryCellRecord]) -> Iterator[LazyFigure]:
    """Yield all figures of a run, with separate figures for measured cells and for each simulated GPU."""
    sources = {cell.cell.simulate for cell in cells}
    for number, source in enumerate(dict.fromkeys(cell.cell.simulate for cell in cells), 1):
        group = [cell for cell in cells if cell.cell.simulate == source]
        for drawn in (_over_contexts(group), _by_phase(group)):
            if drawn is not None:
                name = f"{drawn.name}-{number}" if len(sources) > 1 else drawn.name
                yield replace(drawn, name=name, cells=tuple(group))


def _over_contexts(cells: Sequence[MemoryCellRecord]) -> LazyFigure | None:
    told = [cell for cell in cells if cell.found is None]
    if not any(_parts(cell) for cell in told):
        return None
    differing = spec_axes.varying(spec_axes.axes_of(told))
    across = [axis for axis in differing if axis not in ("size", "ctx", "mode")]
    names = list(dict.fromkeys(_words(cell, across) for cell in told))
    apart = [axis for axis in ("size", "mode") if axis in differing]
    rows: dict[str, list[MemoryCellRecord]] = {}
    for cell in told:
        rows.setdefault(_words(cell, apart), []).append(cell)
    shown = [
        BarPanel(
            title,
            tuple(str(ctx) for ctx in sorted({cell.cell.ctx for cell in row})),
            tuple(
                Bar(
                    str(cell.cell.ctx),
                    _words(cell, across),
                    _parts(cell),
                    DOES_NOT_FIT if does_not_fit(cell) else None,
                )
                for cell in row
                if _words(cell, across) in names[:MOST_BARS]
            ),
            _limit(row),
        )
        for title, row in list(rows.items())[:MOST_PANELS]
    ]
    about = subject(told)
    heading = Heading("peak breakdown", " · ".join(about), _simulated(told))
    text = f"Peak allocated memory against context length, by category{_marked(told)}"
    left = _left_out(len(rows), "sizes and modes", len(names))
    return LazyFigure("peaks", caption_text(text, about, left), lambda: draw(shown, names[:MOST_BARS], heading, "ctx"))


def _by_phase(cells: Sequence[MemoryCellRecord]) -> LazyFigure | None:
    """Return the figure of peaks by phase, with a panel per size and context; None if there is nothing to show."""
    training = [cell for cell in known(cells) if cell.cell.mode in TRAINING and len(cell.peaks_by_phase) > 1]
    if not training:
        return None
    differing = spec_axes.varying(spec_axes.axes_of(training))
    others = [axis for axis in differing if axis not in ("size", "ctx")]
    names = list(dict.fromkeys(_words(cell, others) for cell in training))
    apart = [axis for axis in ("size", "ctx") if axis in differing]
    rows: dict[str, list[MemoryCellRecord]] = {}
    for cell in training:
        rows.setdefault(_words(cell, apart), []).append(cell)
    # The largest panels are the most interesting.
    chosen = list(rows.items())[-MOST_PANELS:]
    shown = [
        BarPanel(
            title,
            tuple(_SHORT.get(phase, phase) for phase in row[0].peaks_by_phase),
            tuple(
                Bar(_SHORT.get(phase, phase), _words(cell, others), peak.by_category)
                for cell in row
                if _words(cell, others) in names[:MOST_BARS]
                for phase, peak in cell.peaks_by_phase.items()
            ),
            _limit(row),
        )
        for title, row in chosen
    ]
    about = subject(training)
    heading = Heading("peak of each phase", " · ".join(about), _simulated(training))
    text = f"Peak allocated memory of each phase of a training step, by category{_marked(training)}"
    left = _left_out(len(rows), "sizes and contexts", len(names))
    return LazyFigure("phases", caption_text(text, about, left), lambda: draw(shown, names[:MOST_BARS], heading, ""))


def _left_out(rows: int, what: str, names: int) -> str:
    parts = [f"{MOST_PANELS} of {rows} {what}"] if rows > MOST_PANELS else []
    parts += [f"the first {MOST_BARS} of {names} settings"] if names > MOST_BARS else []
    return f"Shown are {' and '.join(parts)}." if parts else ""


def _words(cell: MemoryCellRecord, across: Sequence[str]) -> str:
    return " ".join(spec_axes.phrase(axis, cell.axes.get(axis)) for axis in across)


def _parts(cell: MemoryCellRecord) -> Mapping[str, int]:
    """Return the peak by category, or as `unknown` if categories are missing; empty if the cell does not fit."""
    if cell.outcome != "ok" or not cell.peak_allocated_bytes or does_not_fit(cell):
        return {}
    return cell.by_category or {"unknown": cell.peak_allocated_bytes}


def _limit(cells: Sequence[MemoryCellRecord]) -> int | None:
    limits = {
        cell.gpu.memory_bytes if cell.gpu else cell.device.memory_bytes if cell.device else None for cell in cells
    }
    return limits.pop() if len(limits) == 1 else None


def _simulated(cells: Sequence[MemoryCellRecord]) -> str:
    return ", ".join(dict.fromkeys(cell.gpu.title for cell in cells if cell.gpu))


def _marked(cells: Sequence[MemoryCellRecord]) -> str:
    simulated = _simulated(cells)
    return f"; simulated for {simulated}" if simulated else ""


def draw(shown: Sequence[BarPanel], names: Sequence[str], heading: Heading, x: str) -> Figure:
    """Draw panels of stacked bars. A line marks the device's memory where the peaks come close to it."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    bars = [bar for panel in shown for bar in panel.bars]
    present = [part for part in COLOURS if any(bar.parts.get(part, 0) > _SEEN * bar.height for bar in bars)]
    kinds = series_handles(names)
    near = [
        panel if panel.limit and panel.highest > _WORTH_SEEING * panel.limit
        else replace(panel, limit=None)
        for panel in shown
    ]  # fmt: skip
    if any(panel.limit for panel in near):
        kinds.append(Line2D([], [], color=LIMIT, linewidth=1, linestyle=(0, (5, 2)), label="device memory"))
    if any(bar.absent for bar in bars):
        kinds.append(cross_handle("does not fit"))
    rows = [*arrange_handles([Patch(facecolor=COLOURS[part], label=part) for part in present]), *arrange_handles(kinds)]
    frame = PanelLayout(
        min(3, len(shown)),
        1.6 if len(shown) > 1 else 2.4,
        above_in=0.26 if len(shown) > 1 else 0.08,
        below_in=0.44 if x else 0.3,
        legend_lines=len(rows),
    )
    figure, found = create_panels(frame, len(shown), heading)
    for axes, panel in zip(found, near, strict=True):
        draw_stacked(axes, panel, names, COLOURS, "bytes", panel.limit or panel.highest, headroom=1.08, x=x)
    draw_legend(figure, *rows)
    return figure


def of_run(record: MemoryRecord) -> Iterator[LazyFigure]:
    """Yield all figures of a run."""
    return figures(record.cells)
