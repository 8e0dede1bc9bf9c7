"""Figures of a timing run, measured or predicted: phases of a step, and step time along an axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from sysbench import cells as spec_axes
from sysbench import units
from sysbench.commands.time import predicted
from sysbench.commands.time.record import TimeCellRecord, TimeRecord
from sysbench.log.predictions import MARK
from sysbench.render.plots import (
    EXCLUDED_NOTE,
    QUIET,
    Bar,
    BarPanel,
    Heading,
    LazyFigure,
    LineStyle,
    Mark,
    caption_text,
    complete,
    create_panels,
    cross_handle,
    draw_crosses,
    draw_error_bars,
    draw_excluded,
    draw_stacked,
    printable,
    series_handles,
    style_axes,
    subject,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


PHASES: Final = {
    "zero_grad": "#bbbbbb",
    "forward": "#66ccee",
    "loss": "#aa3377",
    "backward": "#4477aa",
    "optimizer": "#ccbb44",
}
"""Colours of the phases, in the order of a step: Paul Tol's bright scheme (personal.sron.nl/~pault), which is distinct
under all common kinds of colour blindness, in the same hues as the dashboard."""

COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
"""Okabe and Ito's colours, by descending contrast."""

MARKERS: Final = "osD^vPX"

MAX_PANELS: Final = 9
MAX_COLUMNS: Final = 3
MAX_LINES: Final = 12
MAX_BARS: Final = 4
"""Largest number of bars per context; with more bars, phases would be too thin to distinguish."""

_X_AXES: Final = {"ctx": "the context", "size": "the number of parameters", "batch": "the batch", "simulate": "the GPU"}


def of_run(record: TimeRecord) -> Iterator[LazyFigure]:
    return figures(record.cells)


def figures(cells: Sequence[TimeCellRecord]) -> Iterator[LazyFigure]:
    timed = [cell for cell in cells if cell.outcome == "ok" and cell.time_s() is not None]
    if not timed:
        return
    is_predicted = any(cell.cell.simulate for cell in cells)
    about = (*subject(cells), *predicted.gpu_title(cells))
    mark, what, interval = (f"{MARK}: ", "Predicted", "90% interval") if is_predicted else ("", "Median", "95% CI")
    doubt = ["Nothing was measured."] if is_predicted else []
    doubt += [EXCLUDED_NOTE] if any(cell.excluding_cautions() for cell in timed) else []
    differing = spec_axes.varying(cells)
    x_axis = next((axis for axis in _X_AXES if axis in differing), None)
    others = [axis for axis in differing if axis != x_axis]
    if any(len(_phases(cell)) > 1 for cell in timed):
        panels = _panels(cells, x_axis, others)
        heading = Heading(f"{mark}phases of a step", " · ".join(about))
        caption = caption_text(f"{what} time of each phase of a step", about, " ".join([*panels.omissions, *doubt]))
        yield LazyFigure("phases", caption, partial(draw_phases, panels, heading))
    if x_axis is not None and len(timed) > 1:
        lines = _lines(cells, x_axis, others)
        shown = dict(list(lines.items())[:MAX_LINES])
        omitted = [f"Shown are the first {MAX_LINES} of {len(lines)} settings."] if len(lines) > MAX_LINES else []
        heading = Heading(f"{mark}step time against {_X_AXES[x_axis]}", " · ".join((*about, f"bars: {interval}")))
        text = f"{what} step time against {_X_AXES[x_axis]}; bars are the {interval}"
        caption = caption_text(text, about, " ".join([*omitted, *doubt]))
        yield LazyFigure("times", caption, partial(draw_times, shown, x_axis, heading))


def _phases(cell: TimeCellRecord) -> dict[str, float]:
    """Return the seconds of each phase; empty if the cell failed."""
    found = {phase: cell.time_s(phase) for phase in PHASES} if cell.outcome == "ok" else {}
    return {phase: seconds for phase, seconds in found.items() if seconds is not None}


def _step(cell: TimeCellRecord) -> tuple[float, float | None, float | None] | None:
    """Return the step time with the ends of its interval; None if the cell failed."""
    step_s = cell.time_s() if cell.outcome == "ok" else None
    if step_s is None:
        return None
    if cell.prediction and cell.prediction.step:
        return step_s, cell.prediction.step.low_s, cell.prediction.step.high_s
    samples = cell.samples("step")
    return step_s, *(samples.ci95_s if samples and samples.ci95_s else (None, None))


def _label(cell: TimeCellRecord, axes: Sequence[str]) -> str:
    return " ".join(spec_axes.phrase(axis, cell.axes.get(axis)) for axis in axes)


def _tick(cell: TimeCellRecord, x_axis: str | None) -> str:
    return str(cell.axes[x_axis]) if x_axis else ""


def _position(cell: TimeCellRecord, x_axis: str | None) -> float:
    if x_axis == "size":
        return float(cell.model.parameters or 0)
    return float(cell.axes[x_axis]) if x_axis in ("ctx", "batch") else 1.0


# --- phases of a step

_OUT_OF_MEMORY: Final = Mark("×", size=10, rise=5)
_MISSING: Final = Mark("–", size=8, rise=5, colour=QUIET)


@dataclass(frozen=True)
class _Panels:
    cells: dict[str, list[TimeCellRecord]]
    """The cells of each panel by its title."""
    x_axis: str | None
    series_axes: Sequence[str]
    """The axes that distinguish the bars at a tick."""
    series: Sequence[str]
    omissions: Sequence[str]


def _panels(cells: Sequence[TimeCellRecord], x_axis: str | None, others: Sequence[str]) -> _Panels:
    by_size: dict[str, list[TimeCellRecord]] = {}
    for cell in sorted(cells, key=lambda cell: cell.model.parameters or 0):
        by_size.setdefault(cell.cell.size if "size" in others else "", []).append(cell)
    series_axes = [axis for axis in others if axis != "size"]
    series = list(dict.fromkeys(_label(cell, series_axes) for cell in cells))
    omitted = [f"the {MAX_PANELS} smallest of {len(by_size)} sizes"] if len(by_size) > MAX_PANELS else []
    omitted += [f"the first {MAX_BARS} of {len(series)} settings"] if len(series) > MAX_BARS else []
    return _Panels(
        dict(list(by_size.items())[:MAX_PANELS]),
        x_axis,
        series_axes,
        series[:MAX_BARS],
        [f"Shown are {' and '.join(omitted)}."] if omitted else [],
    )


def draw_phases(panels: _Panels, heading: Heading) -> Figure:
    """Draw stacked bars: a panel per size, a group of bars per value along x, and a hatch per series."""
    from matplotlib.patches import Patch

    handles = series_handles(panels.series)
    if any(cell.outcome == "oom" for cells in panels.cells.values() for cell in cells):
        handles.append(cross_handle("out of memory"))
    figure, drawn = create_panels(len(panels.cells), MAX_COLUMNS, 2.2 if len(panels.cells) > 1 else 2.7)
    for axes, (size, cells) in zip(drawn, panels.cells.items(), strict=True):
        ordered = sorted(cells, key=lambda cell: _position(cell, panels.x_axis))
        bars = tuple(_bar(cell, panels) for cell in cells if _label(cell, panels.series_axes) in panels.series)
        panel = BarPanel(size, tuple(dict.fromkeys(_tick(cell, panels.x_axis) for cell in ordered)), bars)
        x = panels.x_axis if panels.x_axis in ("ctx", "batch") else ""
        draw_stacked(axes, panel, panels.series, PHASES, "s", panel.highest, headroom=1.12, x=x or "")
    present = {phase for cells in panels.cells.values() for cell in cells for phase in _phases(cell)}
    phases = [Patch(facecolor=PHASES[phase], label=phase) for phase in PHASES if phase in present]
    complete(figure, heading, [*phases, *handles])
    return figure


def _bar(cell: TimeCellRecord, panels: _Panels) -> Bar:
    parts = _phases(cell)
    absent = None if parts else _OUT_OF_MEMORY if cell.outcome == "oom" else _MISSING
    return Bar(
        _tick(cell, panels.x_axis), _label(cell, panels.series_axes), parts, absent, bool(cell.excluding_cautions())
    )


# --- step time along an axis


def _lines(cells: Sequence[TimeCellRecord], x_axis: str, others: Sequence[str]) -> dict[str, list[TimeCellRecord]]:
    lines: dict[str, list[TimeCellRecord]] = {}
    for cell in sorted(cells, key=lambda cell: _position(cell, x_axis)):
        lines.setdefault(_label(cell, others), []).append(cell)
    return lines


def draw_times(lines: dict[str, list[TimeCellRecord]], x_axis: str, heading: Heading) -> Figure:
    """Draw the step time with its interval on logarithmic axes, a line for each setting; GPUs are not connected."""
    from matplotlib.lines import Line2D

    connector = "none" if x_axis == "simulate" else "-"
    styles = [
        LineStyle(COLOURS[n % len(COLOURS)], MARKERS[n % len(MARKERS)], connector if n < len(COLOURS) else "--")
        for n in range(len(lines))
    ]
    handles = [
        Line2D([], [], **style.line, markersize=4.5, label=printable(name))
        for style, name in zip(styles if len(lines) > 1 else (), lines, strict=False)
    ]
    cells = [cell for line in lines.values() for cell in line]
    if any(cell.outcome == "oom" for cell in cells):
        handles.append(cross_handle("out of memory"))
    figure, (axes,) = create_panels(1, 1, 3.0)
    places = _draw_x_axis(axes, sorted(cells, key=lambda cell: _position(cell, x_axis)), x_axis)
    oom_colours: dict[float, list[str]] = {}
    for style, line in zip(styles, lines.values(), strict=True):
        at = [places[_tick(cell, x_axis)] for cell in line]
        points = [(x, *step) for x, cell in zip(at, line, strict=True) if (step := _step(cell))]
        axes.plot([x for x, *_ in points], [y for _, y, *_ in points], **style.line, markersize=4.5, linewidth=1.4)
        draw_error_bars(axes, points, style.colour, cap=2.5, zorder=4)
        excluded = {x for x, cell in zip(at, line, strict=True) if cell.excluding_cautions()}
        draw_excluded(axes, [(x, y) for x, y, *_ in points if x in excluded], style, 4.5)
        for x, cell in zip(at, line, strict=True):
            if cell.outcome == "oom":
                oom_colours.setdefault(x, []).append(style.colour)
    for x, colours in oom_colours.items():
        draw_crosses(axes, x, colours, size=13, spacing=9, zorder=3)
    _format_y_axis(axes)
    style_axes(axes, x={"size": "parameters", "simulate": ""}.get(x_axis, x_axis), y="step time", lines="both")
    complete(figure, heading, handles)
    return figure


def _draw_x_axis(axes: Axes, cells: Sequence[TimeCellRecord], x_axis: str) -> dict[str, float]:
    """Return the place of each tick on the axis: a number on a logarithmic scale, or the number of a GPU."""
    if x_axis == "simulate":
        places = {tick: float(n) for n, tick in enumerate(dict.fromkeys(_tick(cell, x_axis) for cell in cells))}
        axes.set_xticks(list(places.values()), list(places))
        axes.set_xlim(-0.5, len(places) - 0.5)
        return places
    places = {_tick(cell, x_axis): _position(cell, x_axis) for cell in cells}
    at = list(places.values())
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xticks(at, [units.count(value) if x_axis == "size" else f"{value:.0f}" for value in at])
    axes.set_xlim(at[0] / 1.25, at[-1] * 1.25)
    return places


def _format_y_axis(axes: Axes) -> None:
    from matplotlib.ticker import LogLocator

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.set_ylim(low / 1.3, high * 1.6)
    # Axes below two decades have labels at 1, 2 and 5; longer axes only at powers of ten.
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < 100 else (1,), numticks=12))
    axes.yaxis.set_major_formatter(lambda value_s, _: units.seconds(value_s))
    axes.yaxis.set_minor_formatter(lambda value_s, _: "")
