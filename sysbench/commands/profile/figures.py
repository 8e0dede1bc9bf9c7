"""Figures of profiles: shares of kernel classes, and rooflines.

The colours of kernel classes and phases are also defined here; flame graphs use them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from sysbench import units
from sysbench.commands.profile.findings import RANGES, class_shares, covers
from sysbench.commands.profile.record import ProfileCellRecord, ProfileRecord
from sysbench.render.findings import Namer, marked, namer
from sysbench.render.plots import (
    INK,
    QUIET,
    Heading,
    LazyFigure,
    PanelLayout,
    arrange_handles,
    caption_text,
    create_panels,
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

_BAR_IN: Final = 0.24

MARKERS: Final = {"forward": "o", "backward": "^", "optimizer": "s"}

_POINT_COLOURS: Final[Mapping[str, str]] = {
    **{str(kind): colour for kind, colour in CLASS_COLOURS.items()},
    "scores": "#228833",
    "mask": "#ccbb44",
    "output": "#66ccee",
}
"""Colours of kernel classes and of the parts of attention."""


def of_run(record: ProfileRecord) -> Iterator[LazyFigure]:
    return figures(record.cells)


def figures(cells: Sequence[ProfileCellRecord]) -> Iterator[LazyFigure]:
    profiled = [cell for cell in cells if cell.summary is not None and cell.summary.spent.total_ns]
    about, name = subject(cells), marked(namer(cells))
    mark = ", ".join(dict.fromkeys(cell.prediction.gpu for cell in profiled if cell.prediction))
    if bars := _class_bars(profiled[:MAX_CELLS], name):
        omitted = f"The first {MAX_CELLS} of {len(profiled)} profiles." if len(profiled) > MAX_CELLS else ""
        heading = Heading("time by kernel class", " · ".join(about), mark, mark="PREDICTED")
        caption = caption_text("Share of time by kernel class", about, omitted)
        yield LazyFigure("classes", caption, partial(draw_bars, bars, heading))
    if found := list(rooflines(profiled, name))[:MAX_ROOFLINES]:
        what = "Performance of attention's parts and kernel classes over FLOP per byte of minimum traffic, below the "
        heading = Heading("roofline", " · ".join(about), mark, mark="PREDICTED")
        caption = caption_text(f"{'Predicted: ' if mark else ''}{what}data sheet's roofline", about)
        yield LazyFigure("roofline", caption, partial(draw_rooflines, found, heading), tuple(profiled))


def _class_bars(cells: Sequence[ProfileCellRecord], name: Namer) -> dict[str, dict[KernelClass, float]]:
    """Return the share of each class by the label of a bar: a cell and a range."""
    return {
        f"{f'{name(cell)}, ' if len(cells) > 1 else ''}{what}": shares
        for cell in cells
        for what, (phases, _) in RANGES.items()
        if covers(cell, what) and (shares := class_shares(cell, phases))
    }


def draw_bars(bars: Mapping[str, Mapping[KernelClass, float]], heading: Heading) -> Figure:
    """Draw one stacked horizontal bar per label; all are 100% long."""
    from matplotlib.patches import Patch

    present = [kind for kind in CLASS_COLOURS if any(kind in shares for shares in bars.values())]
    legend = arrange_handles([Patch(facecolor=CLASS_COLOURS[kind], label=kind) for kind in present])
    labels = [printable(label, 40) for label in bars]
    layout = PanelLayout(
        1, len(bars) * _BAR_IN, left_in=0.3 + 0.065 * max(map(len, labels)), right_in=0.2, legend_lines=len(legend)
    )
    figure, (axes,) = create_panels(layout, 1, heading)
    left = [0.0] * len(bars)
    for kind in present:
        widths = [100 * shares.get(kind, 0.0) for shares in bars.values()]
        drawn = axes.barh(range(len(bars)), widths, left=left, color=CLASS_COLOURS[kind], edgecolor="white")
        written = [f"{width:.0f}" if width >= 100 * _MIN_LABELLED_SHARE else "" for width in widths]
        axes.bar_label(drawn, written, label_type="center", fontsize=7.5, color=text_colour_on(CLASS_COLOURS[kind]))
        left = [begin + width for begin, width in zip(left, widths, strict=True)]
    axes.set_xlim(0, 100)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xticks([0, 20, 40, 60, 80, 100], ["0", "20", "40", "60", "80", "100%"])
    axes.set_yticks(range(len(bars)), labels)
    style_axes(axes, lines="")
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.spines["left"].set_visible(False)
    draw_legend(figure, *legend)
    return figure


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


def draw_rooflines(rooflines_to_draw: Sequence[Roofline], heading: Heading) -> Figure:
    """Draw one panel per profile, with logarithmic axes."""
    from matplotlib.lines import Line2D

    parts = list(dict.fromkeys(point.part for each in rooflines_to_draw for point in each.points))
    phases = [
        phase for phase in MARKERS if any(point.phase == phase for each in rooflines_to_draw for point in each.points)
    ]
    handles: list[Artist] = [
        Line2D([], [], color=_POINT_COLOURS[part], linestyle="none", marker="o", markersize=6, label=part)
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
            point.intensity, point.flops_per_s, color=_POINT_COLOURS[point.part],
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
