"""Figures of a timing run: phases of a step, step time by context, and share of peak."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sysbench import cells as spec_axes
from sysbench import units
from sysbench.commands.time import predicted
from sysbench.commands.time.record import TimeCellRecord, TimeRecord
from sysbench.render.plots import (
    EXCLUDED_NOTE,
    QUIET,
    Bar,
    BarPanel,
    Heading,
    LazyFigure,
    LineStyle,
    Mark,
    PanelLayout,
    arrange_handles,
    caption_text,
    create_panels,
    cross_handle,
    draw_crosses,
    draw_error_bars,
    draw_excluded,
    draw_legend,
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

SERIES: Final = (
    LineStyle("#0072b2", "o"),
    LineStyle("#d55e00", "s"),
    LineStyle("#009e73", "D"),
    LineStyle("#cc79a7", "^"),
    LineStyle("#56b4e9", "v"),
    LineStyle("#e69f00", "P"),
    LineStyle("#000000", "X"),
)
"""Okabe and Ito's colours, by descending contrast, each with a different marker."""

_DASHES: Final = ("-", (0, (4, 2)), (0, (1, 1.5)))


def series(number: int) -> LineStyle:
    """Return the style of series `number`, counted from 0; dashes distinguish series of the same colour."""
    look = SERIES[number % len(SERIES)]
    return LineStyle(look.colour, look.marker, _DASHES[number // len(SERIES) % len(_DASHES)])


MAX_PANELS: Final = 9
MAX_SERIES: Final = 7
MAX_BARS: Final = 4
"""Largest number of bars per context; with more bars, phases would be too thin to distinguish."""


def of_run(record: TimeRecord) -> Iterator[LazyFigure]:
    yield from predicted.figures(record)
    yield from figures(record.cells)


def figures(cells: Sequence[TimeCellRecord]) -> Iterator[LazyFigure]:
    timed = [cell for cell in cells if cell.outcome == "ok" and cell.samples("step") is not None]
    layout, about = _layout(cells), subject(cells)
    doubt = [EXCLUDED_NOTE] if any(cell.excluding_cautions() for cell in timed) else []
    if len({phase for cell in timed for phase in cell.phases}) > 2:
        heading = _heading("phases of a step, medians", about)
        caption = caption_text("Median time of each phase of a step", about, _notes(doubt, layout, MAX_BARS))
        yield LazyFigure("phases", caption, lambda: draw_phases(layout, heading))
    if layout.x_axis is not None and len(timed) > 1:
        what = _X_AXIS_NAMES[layout.x_axis]
        text = f"Median step time against {what}, both axes logarithmic; bars are 95% CIs"
        times_heading = _heading(f"step time against {what}", (*about, "medians, bars: 95% CI"))
        caption = caption_text(text, about, _notes(doubt, layout, MAX_SERIES))
        yield LazyFigure("times", caption, lambda: draw_times(layout, times_heading))
        if sum(_peak_share(cell) is not None for cell in timed) > 1:
            rates_heading = _heading("share of the hardware's peak", about)
            text = "FLOP/s of matrix products over the mean step, as a share of the hardware's peak"
            caption = caption_text(text, about, _notes(doubt, layout, MAX_SERIES))
            yield LazyFigure("peak-share", caption, lambda: draw_rates(layout, rates_heading))


_X_AXIS_NAMES: Final = {"ctx": "the context", "size": "the number of parameters", "batch": "the batch"}


def _heading(title: str, about: Sequence[str]) -> Heading:
    return Heading(title, " · ".join(about))


# --- arrangement of cells


@dataclass(frozen=True)
class Layout:
    """Arrangement of cells: a panel per size, one axis along x, and a series per combination of the other axes."""

    x_axis: str | None
    """Axis drawn along x (`ctx`, `size` or `batch`); None if none of them varies."""
    panels: tuple[tuple[str, tuple[TimeCellRecord, ...]], ...]
    series: tuple[str, ...]
    series_of: Callable[[TimeCellRecord], str]
    """Returns the name of a cell's series."""


def _layout(cells: Sequence[TimeCellRecord]) -> Layout:
    differing = spec_axes.varying(cells)
    x_axis = next((axis for axis in ("ctx", "size", "batch") if axis in differing), None)
    others = [axis for axis in differing if axis not in ("size", "ctx", x_axis)]

    def series_of(cell: TimeCellRecord) -> str:
        return " ".join(spec_axes.phrase(axis, cell.axes.get(axis)) for axis in others)

    names = tuple(dict.fromkeys(series_of(cell) for cell in cells))
    by_size: dict[str, list[TimeCellRecord]] = {}
    for cell in sorted(cells, key=lambda cell: cell.model.parameters or 0):
        panel_per_size = x_axis != "size" and "size" in differing
        by_size.setdefault(cell.cell.size if panel_per_size else "", []).append(cell)
    return Layout(x_axis, tuple((size, tuple(found)) for size, found in by_size.items()), names, series_of)


def _notes(doubt: Sequence[str], layout: Layout, max_series: int) -> str:
    parts = []
    if len(layout.panels) > MAX_PANELS:
        parts.append(f"the {MAX_PANELS} smallest of {len(layout.panels)} sizes")
    if len(layout.series) > max_series:
        parts.append(f"the first {max_series} of {len(layout.series)} settings")
    return " ".join([*([f"Shown are {' and '.join(parts)}."] if parts else []), *doubt])


def _position(cell: TimeCellRecord, x_axis: str | None) -> float:
    if x_axis == "size":
        return float(cell.model.parameters or 0)
    return float(cell.axes[x_axis]) if x_axis else 1.0


def _tick(cell: TimeCellRecord, x_axis: str | None) -> str:
    return str(cell.axes[x_axis]) if x_axis else ""


# --- phases of a step


_OUT_OF_MEMORY: Final = Mark("×", size=10, rise=5)
_MISSING: Final = Mark("–", size=8, rise=5, colour=QUIET)


def draw_phases(layout: Layout, heading: Heading) -> Figure:
    """Draw stacked bars: a panel per size, a group of bars per value along x, and a hatch per series."""
    from matplotlib.patches import Patch

    shown = layout.panels[:MAX_PANELS]
    names = layout.series[:MAX_BARS]
    handles = series_handles(names)
    if any(cell.outcome == "oom" for _, cells in shown for cell in cells):
        handles.append(cross_handle("out of memory"))
    rows = arrange_handles(handles)
    frame = PanelLayout(
        min(3, len(shown)),
        1.55 if len(shown) > 1 else 2.2,
        above_in=0.26 if len(shown) > 1 else 0.08,
        legend_lines=1 + len(rows),
    )
    figure, found = create_panels(frame, len(shown), heading)
    for axes, (size, cells) in zip(found, shown, strict=True):
        ticks = dict.fromkeys(_tick(cell, layout.x_axis) for cell in sorted(cells, key=_position_key(layout)))
        panel = BarPanel(
            size, tuple(ticks), tuple(_bar(cell, layout) for cell in cells if layout.series_of(cell) in names)
        )
        longest = max((timed.median_s for cell in cells if (timed := cell.samples("step"))), default=1.0)
        draw_stacked(axes, panel, names, PHASES, "s", longest, headroom=1.12, x=layout.x_axis or "")
    present = [phase for phase in PHASES if any(phase in cell.phases for _, cells in shown for cell in cells)]
    draw_legend(figure, [Patch(facecolor=PHASES[phase], label=phase) for phase in present], *rows)
    return figure


def _bar(cell: TimeCellRecord, layout: Layout) -> Bar:
    found = {phase: cell.samples(phase) for phase in PHASES} if cell.outcome == "ok" else {}
    parts = {phase: timed.median_s for phase, timed in found.items() if timed is not None}
    absent = None if parts else _OUT_OF_MEMORY if cell.outcome == "oom" else _MISSING
    excluded = bool(cell.excluding_cautions())
    return Bar(_tick(cell, layout.x_axis), layout.series_of(cell), parts, absent, excluded)


def _position_key(layout: Layout) -> Callable[[TimeCellRecord], float]:
    return lambda cell: _position(cell, layout.x_axis)


# --- lines


def draw_times(layout: Layout, heading: Heading) -> Figure:
    """Draw the median step time with its 95% CI on logarithmic axes; panels share the y axis."""

    def median_with_ci(cell: TimeCellRecord) -> tuple[float, float | None, float | None] | None:
        found = cell.samples("step") if cell.outcome == "ok" else None
        if found is None:
            return None
        low, high = found.ci95_s or (None, None)
        return found.median_s, low, high

    def format_tick(value_s: float, _: object) -> str:
        number, _, symbol = units.seconds(value_s).partition(" ")
        return f"{float(number.replace(' ', '')):g} {symbol}"

    from matplotlib.ticker import LogLocator, NullLocator

    figure, found = _draw_lines(layout, heading, median_with_ci, "step time")
    for ax in found:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(format_tick)
        ax.yaxis.set_minor_formatter(lambda value, _: "")
        low, high = ax.get_ylim()
        # Axes below two decades have labels at 1, 2 and 5; longer axes only at powers of ten.
        subs = (1.0, 2.0, 5.0) if high / low < 100 else (1.0,)
        ax.yaxis.set_major_locator(LogLocator(base=10, subs=subs, numticks=12))
        ax.yaxis.set_minor_locator(NullLocator())
    return figure


def draw_rates(layout: Layout, heading: Heading) -> Figure:
    """Draw the share of peak FLOP/s against context, size or batch."""

    def peak_percent(cell: TimeCellRecord) -> tuple[float, float | None, float | None] | None:
        share = _peak_share(cell)
        return (share * 100, None, None) if share is not None else None

    figure, found = _draw_lines(layout, heading, peak_percent, "% of peak")
    for ax in found:
        ax.set_ylim(0, max(ax.get_ylim()[1] / 1.6 * 1.15, 1))
    return figure


def _peak_share(cell: TimeCellRecord) -> float | None:
    return cell.rates.peak_share if cell.rates and cell.outcome == "ok" else None


_Point = tuple[float, float | None, float | None]


def _draw_lines(
    layout: Layout, heading: Heading, value: Callable[[TimeCellRecord], _Point | None], label: str
) -> tuple[Figure, list[Axes]]:
    from matplotlib.lines import Line2D

    rows, keys, key_of = _line_panels(layout)
    columns = min(3, len(rows))
    out_of_memory = {cell.key for _, cells in rows for cell in cells if key_of(cell) in keys and cell.outcome == "oom"}
    handles = [
        Line2D([], [], **series(number).line, markersize=4.5, label=printable(key))
        for number, key in enumerate(keys if len(keys) > 1 else ())
    ]
    if out_of_memory:
        handles.append(cross_handle("out of memory"))
    lines = arrange_handles(handles)
    frame = PanelLayout(
        columns,
        1.7 if len(rows) > 1 else 2.5,
        left_in=0.78,
        above_in=0.26 if len(rows) > 1 else 0.08,
        right_in=0.1,
        legend_lines=len(lines),
        shared_y=True,
    )
    figure, found = create_panels(frame, len(rows), heading)
    every = [point for _, cells in rows for cell in cells if (point := value(cell)) is not None]
    low, high = min(point[0] for point in every), max(point[0] for point in every)
    for ax, (title, cells) in zip(found, rows, strict=True):
        for number, key in enumerate(keys):
            line = sorted((cell for cell in cells if key_of(cell) == key), key=_position_key(layout))
            points = [(_position(cell, layout.x_axis), *point) for cell in line if (point := value(cell))]
            excluded = [
                (_position(cell, layout.x_axis), point[0])
                for cell in line
                if cell.excluding_cautions() and (point := value(cell))
            ]
            look = series(number)
            xs, ys = [x for x, *_ in points], [y for _, y, *_ in points]
            ax.plot(xs, ys, **look.line, markersize=4.5, linewidth=1.4, zorder=3)
            draw_error_bars(ax, points, look.colour, cap=2.5, zorder=4)
            draw_excluded(ax, excluded, look, 4.5)
        ax.set_ylim(low / 1.3, high * 1.6)
        oom_colours: dict[float, list[str]] = {}
        for cell in (cell for cell in cells if cell.key in out_of_memory):
            colour = series(keys.index(key_of(cell))).colour
            oom_colours.setdefault(_position(cell, layout.x_axis), []).append(colour)
        for at, colours in oom_colours.items():
            draw_crosses(ax, at, colours, size=13, spacing=9, zorder=3)
        _format_x_axis(ax, cells, layout)
        leftmost = ax is found[0] or found.index(ax) % columns == 0
        style_axes(
            ax, title=title, x=_X_AXIS_LABELS.get(layout.x_axis or "", ""), y=label if leftmost else "", lines="both"
        )
    draw_legend(figure, *lines)
    return figure, found


_X_AXIS_LABELS: Final = {"ctx": "ctx", "size": "parameters", "batch": "batch"}


def _line_panels(
    layout: Layout,
) -> tuple[list[tuple[str, tuple[TimeCellRecord, ...]]], list[str], Callable[[TimeCellRecord], str]]:
    """Return the titled panels, the keys of their lines, and a function that returns the key of a cell's line."""
    shown = list(layout.panels[:MAX_PANELS])
    if len(layout.series) > 1 or len(shown) == 1:
        return shown, list(layout.series[:MAX_SERIES]), layout.series_of
    cells = tuple(cell for _, found in shown for cell in found)
    return [("", cells)], [size for size, _ in shown], lambda cell: cell.cell.size


def _format_x_axis(ax: Axes, cells: Sequence[TimeCellRecord], layout: Layout) -> None:
    at = sorted({_position(cell, layout.x_axis) for cell in cells})
    ax.set_xscale("log")
    ax.minorticks_off()
    labels = [units.count(value) if layout.x_axis == "size" else f"{value:.0f}" for value in at]
    ax.set_xticks(at, labels)
    if layout.x_axis == "size" and len(at) > 4:
        ax.tick_params(axis="x", labelrotation=30)
    room = 1.25
    ax.set_xlim(at[0] / room, at[-1] * room)
