"""Roofline of a profile: rates of attention's parts and of kernel classes, below the limits of the hardware."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sysbench import units
from sysbench.commands.profile.record import ProfileCellRecord
from sysbench.render.findings import Namer
from sysbench.render.plots import INK, QUIET, Drawn, Frame, Heading, captioned, dressed, in_rows, legend, panels
from sysbench.render.plots import subject as subject_of
from sysbench.trace.summary import Rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CELLS: Final = 4

_TRAILING: Final = re.compile(r"\.0+(?= )")

MARKERS: Final = {"forward": "o", "backward": "^", "optimizer": "s"}

_COLOURS: Final = {
    "matmul": "#4477aa", "scores": "#228833", "mask": "#ccbb44", "softmax": "#ee6677", "output": "#66ccee",
    "attention": "#aa3377", "optimizer": "#cc8844",
}  # fmt: skip
"""Paul Tol's bright scheme, with an orange."""


@dataclass(frozen=True)
class Point:
    """What one part does in a phase: FLOPs per byte that must be moved, and FLOP/s."""

    part: str
    phase: str
    intensity: float
    flops_per_s: float


@dataclass(frozen=True)
class Roofline:
    """One profile, and the roofs over it: bytes per second, and FLOP/s of units that its parts use."""

    name: str
    points: tuple[Point, ...]
    bytes_per_s: float
    peaks_flops_per_s: tuple[float, ...]


def rooflines(cells: Sequence[ProfileCellRecord], name: Namer) -> Iterator[Roofline]:
    """The roofline of every profile whose hardware, and the work of some part, are known."""
    for cell in cells:
        if cell.summary is None:
            continue
        known = [each for each in cell.summary.rates if _is_known(each)]
        bandwidths = {each.peak_bytes_per_s for each in known} - {None}
        peaks = sorted({each.peak_flops_per_s for each in known if each.peak_flops_per_s is not None})
        if bandwidths and peaks:
            points = tuple(_point(each, cell.summary.steps) for each in known)
            yield Roofline(name(cell), points, next(each for each in bandwidths if each), tuple(peaks))


def _is_known(rate: Rate) -> bool:
    return bool(rate.flops and rate.bytes and rate.total_ns and rate.peak_bytes_per_s)


def _point(rate: Rate, steps: int) -> Point:
    flops, moved_bytes = rate.flops or 0, rate.bytes or 1
    return Point(rate.part, rate.phase, flops / moved_bytes, flops * steps / (rate.total_ns * 1e-9))


def drawn(cells: Sequence[ProfileCellRecord], name: Namer, mark: str = "") -> Iterator[Drawn]:
    """The picture of a run, if there is anything in it; `mark` names GPUs that were not there."""
    found = list(rooflines(cells, name))[:MOST_CELLS]
    if not found:
        return
    about = subject_of(cells)
    what = "Rate of attention's parts and of classes of kernels over the least bytes that they must move, below the "
    heading = Heading("roofline", " · ".join(about), mark, mark="PREDICTED")
    yield Drawn(
        "roofline",
        captioned(f"{'Predicted: ' if mark else ''}{what}data sheet's roofs", about),
        partial(draw, found, heading),
        tuple(cells),
    )


def draw(found: Sequence[Roofline], heading: Heading) -> Figure:
    """A panel for each profile, both axes logarithmic."""
    from matplotlib.lines import Line2D

    parts = list(dict.fromkeys(point.part for each in found for point in each.points))
    phases = [phase for phase in MARKERS if any(point.phase == phase for each in found for point in each.points)]
    handles: list[Any] = [
        Line2D([], [], color=_COLOURS.get(part, QUIET), linestyle="none", marker="o", markersize=6, label=part)
        for part in parts
    ]
    shapes: list[Any] = [
        Line2D([], [], color=QUIET, linestyle="none", marker=MARKERS[phase], markersize=5, label=phase)
        for phase in phases
    ]
    rows = [*in_rows(handles), *in_rows(shapes)]
    frame = Frame(columns=2 if len(found) > 1 else 1, height_in=2.6, left_in=0.95, legend_lines=len(rows))
    figure, axes = panels(frame, len(found), heading)
    for each, panel in zip(found, axes, strict=True):
        _draw(panel, each, each.name if len(found) > 1 else "")
    legend(figure, *rows)
    return figure


def _draw(axes: Axes, each: Roofline, title: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    intensities = [point.intensity for point in each.points]
    reached = [point.flops_per_s for point in each.points]
    ridges = [peak / each.bytes_per_s for peak in each.peaks_flops_per_s]
    left, right = min(*intensities, *ridges) / 3, max(*intensities, *ridges) * 3
    for peak, ridge in zip(each.peaks_flops_per_s, ridges, strict=True):
        axes.plot([ridge, right], [peak, peak], color=QUIET, linewidth=1.2, zorder=1)
        axes.annotate(
            units.quantity("flops_per_s", peak), (right, peak), (-2, 3), textcoords="offset points", fontsize=7.5,
            color=QUIET, ha="right",
        )  # fmt: skip
    axes.plot([left, ridges[-1]], [left * each.bytes_per_s, each.peaks_flops_per_s[-1]], color=QUIET, linewidth=1.2)
    axes.annotate(
        units.quantity("bytes_per_s", each.bytes_per_s), (left, left * each.bytes_per_s), (4, 18),
        textcoords="offset points", fontsize=7.5, color=QUIET, rotation=0,
    )  # fmt: skip
    for point in each.points:
        axes.plot(
            point.intensity, point.flops_per_s, color=_COLOURS.get(point.part, QUIET),
            marker=MARKERS.get(point.phase, "o"), markersize=6.5, markeredgecolor="white", linestyle="none", zorder=3,
        )  # fmt: skip
    axes.set_xlim(left, right)
    axes.set_ylim(min(reached) / 3, max(each.peaks_flops_per_s) * 3)
    dressed(axes, title=title, x="FLOP for each byte that must be moved", y="", lines="both")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(
        lambda value, _: units.quantity("flops_per_s", value).replace(".00 ", " ").replace(".0 ", " ")
    )
    axes.tick_params(axis="y", labelcolor=INK)
    axes.minorticks_off()
