"""Figures of profiles: shares of kernel classes, parts of attention by time and by FLOPs, and rooflines.

The colours of kernel classes and phases are also defined here; flame graphs use them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sysbench import units
from sysbench.commands.profile.findings import RANGES, attention_parts, class_shares, has_phase
from sysbench.commands.profile.record import ProfileCellRecord, ProfileRecord
from sysbench.render.findings import Namer, marked, namer
from sysbench.render.plots import (
    INK,
    QUIET,
    WIDTH_IN,
    Box,
    Heading,
    LazyFigure,
    PanelLayout,
    arrange_handles,
    caption_text,
    create_panels,
    draw_boxes,
    draw_heading,
    draw_legend,
    printable,
    style_axes,
    subject,
    text_colour_on,
)
from sysbench.trace.summary import KernelClass

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


CLASS_COLOURS: Final[Mapping[KernelClass, str]] = {
    "matmul": "#4477aa",
    "attention": "#66ccee",
    "softmax": "#ee6677",
    "normalisation": "#aa3377",
    "elementwise": "#ccbb44",
    "reduction": "#228833",
    "embedding": "#999933",
    "permutation": "#44aa99",
    "quantisation": "#332288",
    "optimizer": "#cc8844",
    "copy": "#bbbbbb",
    "communication": "#882255",
    "other": "#8c8c8c",
}
"""Colours of kernel classes: Paul Tol's bright and muted schemes (personal.sron.nl/~pault), which stay distinct under
colour blindness."""

PART_COLOURS: Final[Mapping[str, str]] = {
    "scores": "#4477aa",
    "mask": "#ccbb44",
    "softmax": "#ee6677",
    "output": "#66ccee",
}
"""Colours of the parts of naive attention, in order."""

PHASE_COLOURS: Final[Mapping[str, str]] = {
    "zero_grad": "#d6dbe1",
    "forward": "#cfe3f2",
    "loss": "#ead9ee",
    "backward": "#d5d9f0",
    "optimizer": "#f0e5cf",
}
"""Colours of phases, light because module names are written on them."""

NEUTRAL_COLOUR: Final = "#e4e7eb"
"""Colour of the whole step and of unknown phases."""

MAX_CELLS: Final = 10
"""Maximum number of cells in a figure; each has up to three bars."""

MAX_ROOFLINES: Final = 4
"""Maximum number of cells in a figure of rooflines; each has a panel."""

_MIN_LABELLED_SHARE: Final = 0.06
"""Minimum share at which a part has room for its number."""

_MIN_LEGEND_SHARE: Final = 0.004
"""Parts with a smaller share in all bars are omitted from the legend."""

_BAR_HEIGHT_IN: Final = 0.2
_GAP_IN: Final = 0.12
_ABOVE_IN: Final = 0.58
_BELOW_IN: Final = 0.34
_LINE_IN: Final = 0.19

MARKERS: Final = {"forward": "o", "backward": "^", "optimizer": "s"}

_POINT_COLOURS: Final = {
    "matmul": "#4477aa", "scores": "#228833", "mask": "#ccbb44", "softmax": "#ee6677", "output": "#66ccee",
    "attention": "#aa3377", "optimizer": "#cc8844",
}  # fmt: skip
"""Colours of points: Paul Tol's bright scheme, plus an orange."""

_RANGE_ABBREVIATIONS: Final = {"forward": "forward", "forward and backward": "fwd + bwd", "the step": "step"}


@dataclass(frozen=True)
class Bar:
    """One stacked bar, whose parts add up to 1. Bars of the same group are drawn close together."""

    group: str
    label: str
    parts: Mapping[str, float]


def of_run(record: ProfileRecord) -> Iterator[LazyFigure]:
    return figures(record.cells)


def figures(cells: Sequence[ProfileCellRecord]) -> Iterator[LazyFigure]:
    profiled = [cell for cell in cells if cell.summary is not None and cell.summary.spent.total_ns]
    subtitle_parts = subject(cells)
    mark = ", ".join(dict.fromkeys(cell.prediction.gpu for cell in profiled if cell.prediction))
    for name, title, what, bars, colours in (
        ("classes", "time by kernel class", "Share of time by kernel class", _class_bars, CLASS_COLOURS),
        (
            "attention-parts",
            "parts of attention",
            "Parts of attention by share of its time and of its FLOPs",
            _attention_bars,
            PART_COLOURS,
        ),
    ):
        found = bars(profiled, marked(namer(cells)))
        if found:
            groups = list(dict.fromkeys(bar.group for bar in found))
            shown = [bar for bar in found if bar.group in groups[:MAX_CELLS]]
            omitted = f"The first {MAX_CELLS} of {len(groups)} profiles." if len(groups) > MAX_CELLS else ""
            heading = Heading(title, " · ".join(subtitle_parts), mark, mark="PREDICTED")
            yield LazyFigure(
                name, caption_text(what, subtitle_parts, omitted), partial(draw_bars, shown, colours, heading)
            )
    yield from _roofline_figures(profiled, marked(namer(cells)), mark)


def _class_bars(cells: Sequence[ProfileCellRecord], name: Callable[[ProfileCellRecord], str]) -> list[Bar]:
    found = []
    for cell in cells:
        for what, short in _RANGE_ABBREVIATIONS.items():
            if what == "forward" or has_phase(cell, "backward" if what != "the step" else "optimizer"):
                parts: Mapping[KernelClass, float] = class_shares(cell, RANGES[what])
                if parts:
                    found.append(Bar(name(cell), short, {str(kind): share for kind, share in parts.items()}))
    return found


def _attention_bars(cells: Sequence[ProfileCellRecord], name: Callable[[ProfileCellRecord], str]) -> list[Bar]:
    found = []
    for cell in cells:
        for phase in ("forward", "backward"):
            rates = attention_parts(cell.summary, phase) if cell.summary is not None else {}
            times = {part: float(rate.total_ns) for part, rate in rates.items()}
            flops = {part: float(rate.flops or 0) for part, rate in rates.items()}
            if sum(times.values()) and sum(flops.values()):
                found += [
                    Bar(name(cell), f"{phase}, time", _shares(times)),
                    Bar(name(cell), f"{phase}, FLOPs", _shares(flops)),
                ]
    return found


def _shares(values: Mapping[str, float]) -> dict[str, float]:
    whole = sum(values.values())
    return {part: value / whole for part, value in values.items()}


def draw_bars(bars: Sequence[Bar], colours: Mapping[Any, str], heading: Heading) -> Figure:
    """Draw groups of horizontal stacked bars of equal length."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    present = [part for part in colours if any(bar.parts.get(part, 0.0) >= _MIN_LEGEND_SHARE for bar in bars)]
    rows = arrange_handles([Patch(facecolor=colours[part], label=part) for part in present])
    groups = list(dict.fromkeys(bar.group for bar in bars))
    show_group_names = len(groups) > 1
    group_label_in = 0.2 if show_group_names else 0.0
    axes_height_in = len(bars) * _BAR_HEIGHT_IN + len(groups) * (_GAP_IN + group_label_in)
    height = _ABOVE_IN + axes_height_in + _BELOW_IN + len(rows) * _LINE_IN + 0.1
    figure = Figure(figsize=(WIDTH_IN, height), facecolor="white")
    left_in = 0.3 + 0.065 * max(len(bar.label) for bar in bars)
    bottom_in = height - _ABOVE_IN - axes_height_in
    axes = figure.add_axes(
        (left_in / WIDTH_IN, bottom_in / height, 1 - (left_in + 0.25) / WIDTH_IN, axes_height_in / height)
    )
    _draw_groups(axes, bars, colours, group_label_in, show_group_names)
    axes.set_xlim(0, 100)
    axes.set_ylim(axes_height_in, 0)
    axes.set_xticks([0, 20, 40, 60, 80, 100], ["0", "20", "40", "60", "80", "100 %"])
    style_axes(axes, lines="")
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.spines["left"].set_visible(False)
    draw_heading(figure, heading)
    draw_legend(figure, *rows)
    return figure


def _draw_groups(
    axes: Axes,
    bars: Sequence[Bar],
    colours: Mapping[Any, str],
    group_label_in: float,
    show_group_names: bool,
) -> None:
    y_in, group = 0.0, None
    ticks: list[tuple[float, str]] = []
    boxes: list[Box] = []
    for bar in bars:
        if bar.group != group:
            y_in += _GAP_IN + group_label_in
            group = bar.group
            if show_group_names:
                axes.annotate(
                    printable(group), (0, y_in), (0, 2), textcoords="offset points", fontsize=8.5, color=INK,
                    va="bottom", fontweight="bold", annotation_clip=False,
                )  # fmt: skip
        ticks.append((y_in + _BAR_HEIGHT_IN / 2, bar.label))
        boxes += _draw_bar(axes, bar, y_in + _BAR_HEIGHT_IN / 2, colours)
        y_in += _BAR_HEIGHT_IN
    draw_boxes(axes, boxes, edge=0.4)
    axes.set_yticks([place for place, _ in ticks], [label for _, label in ticks])


def _draw_bar(axes: Axes, bar: Bar, y_in: float, colours: Mapping[Any, str]) -> list[Box]:
    left, boxes = 0.0, []
    for part, colour in colours.items():
        share = bar.parts.get(part, 0.0) * 100
        if not share:
            continue
        boxes.append(Box(left, y_in - 0.43 * _BAR_HEIGHT_IN, share, 0.86 * _BAR_HEIGHT_IN, colour))
        if share >= _MIN_LABELLED_SHARE * 100:
            axes.text(
                left + share / 2, y_in, f"{share:.0f}", fontsize=7.5, color=text_colour_on(colour), ha="center",
                va="center", zorder=3,
            )  # fmt: skip
        left += share
    return boxes


# --- roofline


@dataclass(frozen=True)
class Point:
    """One part of a step in a roofline plot: FLOPs per byte of minimum traffic, and FLOP/s."""

    part: str
    phase: str
    intensity: float
    flops_per_s: float


@dataclass(frozen=True)
class Roofline:
    """Points of one profile, and their ceilings: memory bandwidth, and the peak FLOP/s of each hardware unit."""

    name: str
    points: tuple[Point, ...]
    bytes_per_s: float
    peaks_flops_per_s: tuple[float, ...]


def rooflines(cells: Sequence[ProfileCellRecord], name: Namer) -> Iterator[Roofline]:
    """Yield a roofline for each profile with known hardware and at least one part with known FLOPs and bytes."""
    for cell in cells:
        if cell.summary is None:
            continue
        points, bandwidths, peaks = [], [], set()
        for rate in cell.summary.rates:
            if rate.flops and rate.bytes and rate.total_ns and rate.peak_bytes_per_s:
                flops_per_s = rate.flops * cell.summary.steps / (rate.total_ns * 1e-9)
                points.append(Point(rate.part, rate.phase, rate.flops / rate.bytes, flops_per_s))
                bandwidths.append(rate.peak_bytes_per_s)
                peaks.add(rate.peak_flops_per_s)
        known_peaks = sorted(peak for peak in peaks if peak is not None)
        if known_peaks:
            yield Roofline(name(cell), tuple(points), bandwidths[0], tuple(known_peaks))


def _roofline_figures(cells: Sequence[ProfileCellRecord], name: Namer, mark: str) -> Iterator[LazyFigure]:
    found = list(rooflines(cells, name))[:MAX_ROOFLINES]
    if not found:
        return
    subtitle_parts = subject(cells)
    what = "Performance of attention's parts and kernel classes over FLOP per byte of minimum traffic, below the "
    heading = Heading("roofline", " · ".join(subtitle_parts), mark, mark="PREDICTED")
    yield LazyFigure(
        "roofline",
        caption_text(f"{'Predicted: ' if mark else ''}{what}data sheet's roofline", subtitle_parts),
        partial(draw_rooflines, found, heading),
        tuple(cells),
    )


def draw_rooflines(rooflines_to_draw: Sequence[Roofline], heading: Heading) -> Figure:
    """Draw one panel per profile, with logarithmic axes."""
    from matplotlib.lines import Line2D

    parts = list(dict.fromkeys(point.part for each in rooflines_to_draw for point in each.points))
    phases = [
        phase for phase in MARKERS if any(point.phase == phase for each in rooflines_to_draw for point in each.points)
    ]
    handles: list[Artist] = [
        Line2D([], [], color=_POINT_COLOURS.get(part, QUIET), linestyle="none", marker="o", markersize=6, label=part)
        for part in parts
    ]
    shapes: list[Artist] = [
        Line2D([], [], color=QUIET, linestyle="none", marker=MARKERS[phase], markersize=5, label=phase)
        for phase in phases
    ]
    rows = [*arrange_handles(handles), *arrange_handles(shapes)]
    frame = PanelLayout(
        columns=2 if len(rooflines_to_draw) > 1 else 1, height_in=2.6, left_in=0.95, legend_lines=len(rows)
    )
    figure, axes = create_panels(frame, len(rooflines_to_draw), heading)
    for each, panel in zip(rooflines_to_draw, axes, strict=True):
        _draw_roofline(panel, each, each.name if len(rooflines_to_draw) > 1 else "")
    draw_legend(figure, *rows)
    return figure


def _draw_roofline(axes: Axes, roofline: Roofline, title: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    intensities = [point.intensity for point in roofline.points]
    rates = [point.flops_per_s for point in roofline.points]
    ridges = [peak / roofline.bytes_per_s for peak in roofline.peaks_flops_per_s]
    left, right = min(*intensities, *ridges) / 3, max(*intensities, *ridges) * 3
    for peak, ridge in zip(roofline.peaks_flops_per_s, ridges, strict=True):
        axes.plot([ridge, right], [peak, peak], color=QUIET, linewidth=1.2, zorder=1)
        axes.annotate(
            units.quantity("flops_per_s", peak), (right, peak), (-2, 3), textcoords="offset points", fontsize=7.5,
            color=QUIET, ha="right",
        )  # fmt: skip
    axes.plot(
        [left, ridges[-1]], [left * roofline.bytes_per_s, roofline.peaks_flops_per_s[-1]], color=QUIET, linewidth=1.2
    )
    axes.annotate(
        units.quantity("bytes_per_s", roofline.bytes_per_s), (left, left * roofline.bytes_per_s), (4, 18),
        textcoords="offset points", fontsize=7.5, color=QUIET, rotation=0,
    )  # fmt: skip
    for point in roofline.points:
        axes.plot(
            point.intensity, point.flops_per_s, color=_POINT_COLOURS.get(point.part, QUIET),
            marker=MARKERS.get(point.phase, "o"), markersize=6.5, markeredgecolor="white", linestyle="none", zorder=3,
        )  # fmt: skip
    axes.set_xlim(left, right)
    axes.set_ylim(min(rates) / 3, max(roofline.peaks_flops_per_s) * 3)
    style_axes(axes, title=title, x="FLOP per byte (minimum traffic)", y="", lines="both")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(
        lambda value, _: units.quantity("flops_per_s", value).replace(".00 ", " ").replace(".0 ", " ")
    )
    axes.tick_params(axis="y", labelcolor=INK)
    axes.minorticks_off()
