"""Figure of one step of several ranks: for each rank, a lane for compute, and one per kind and group of collectives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sysbench import units
from sysbench.commands.profile.figures import CLASS_COLOURS
from sysbench.render import plots
from sysbench.render.plots import INK, QUIET, WIDTH_IN, printable, text_colour_on
from sysbench.trace.ranks.matching import Bar, Lane, Timeline
from sysbench.trace.ranks.summary import Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_RANKS: Final = 16
"""Maximum number of ranks to draw, starting with the lowest; more would not be legible."""

_COMPUTE_COLOUR: Final = CLASS_COLOURS["matmul"]
_COLLECTIVE_COLOURS: Final[dict[Kind, str]] = {
    "all_reduce": "#882255",
    "all_gather": "#117733",
    "reduce_scatter": "#999933",
    "broadcast": "#ddaa33",
    "all_to_all": "#aa4499",
}
"""Colours of collectives: Paul Tol's muted scheme (personal.sron.nl/~pault)."""
_OTHER_COLOUR: Final = "#8c8c8c"
_HATCH_COLOUR: Final = "#ffffff"
_LANE_IN: Final = 0.2
_MAX_ROWS: Final = 4
"""Maximum number of rows in a lane, for collectives that run at the same time."""
_BETWEEN_RANKS: Final = 0.5
"""Space between ranks, in lanes."""
_CHARACTER_WIDTH_IN: Final = 0.062
"""Width of a character of a label."""
_LEFT_IN: Final = 1.45
_RIGHT_IN: Final = 0.15
_ABOVE_IN: Final = 0.75
_BELOW_IN: Final = 0.45


def write(path: Path, timeline: Timeline, title: str) -> None:
    """Write the figure as png, svg or pdf, depending on the suffix."""
    plots.write(path, lambda: draw(timeline, title))


def draw(timeline: Timeline, title: str) -> Figure:
    """Draw a step. Bars are numbered in launch order within their lane, and hatched where nothing computes."""
    from matplotlib.figure import Figure

    ranks = sorted(timeline.compute)[:MAX_RANKS]
    lane_names = _lane_names([lane for rank in ranks for lane in timeline.collectives[rank]])
    rows = {
        rank: {lane: _rows_without_overlap(bars) for lane, bars in timeline.collectives[rank].items()} for rank in ranks
    }
    lanes = sum(1 + _BETWEEN_RANKS + sum(map(len, rows[rank].values())) for rank in ranks)
    height_in = _ABOVE_IN + lanes * _LANE_IN + _BELOW_IN
    width_in = WIDTH_IN + 1.8
    figure = Figure(figsize=(width_in, height_in), facecolor="white")
    axes_width_in = width_in - _LEFT_IN - _RIGHT_IN
    box = (_LEFT_IN / width_in, _BELOW_IN / height_in, axes_width_in / width_in, lanes * _LANE_IN / height_in)
    axes = figure.add_axes(box)
    scale = units.shared_scale("s", [timeline.duration_s])
    character_width = _CHARACTER_WIDTH_IN / axes_width_in * timeline.duration_s / scale.factor
    ticks: list[tuple[float, str]] = []
    y = _BETWEEN_RANKS / 2
    for rank in ranks:
        ticks.append((y + 0.5, f"rank {rank}  compute"))
        spans = [(start / scale.factor, length / scale.factor) for start, length in timeline.compute[rank]]
        axes.broken_barh(spans, (y + 0.1, 0.8), facecolors=_COMPUTE_COLOUR, linewidth=0)
        y += 1
        for lane, lane_rows in rows[rank].items():
            ticks.append((y + len(lane_rows) / 2, lane_names[lane]))
            for bars in lane_rows:
                for bar in bars:
                    _draw_bar(
                        axes, bar, y, _COLLECTIVE_COLOURS.get(lane.kind, _OTHER_COLOUR), scale.factor, character_width
                    )
                y += 1
        y += _BETWEEN_RANKS
        axes.axhline(y - _BETWEEN_RANKS / 2, color="#e3e3e3", linewidth=0.8)
    axes.set_xlim(0, timeline.duration_s / scale.factor)
    axes.set_ylim(lanes, 0)
    axes.set_yticks([at for at, _ in ticks], [label for _, label in ticks], fontsize=7.5, color=INK)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", colors=QUIET)
    axes.set_xlabel(f"time since the start of the step, {scale.symbol}", color=INK, fontsize=8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    top = 1 - 0.2 / height_in
    figure.text(0.015, top, printable(title), fontsize=10, fontweight="bold", color=INK, va="center")
    step = f"{printable(timeline.step, 40)}: " if timeline.step else ""
    key = f"{step}collectives are numbered in launch order; hatched: exposed, nothing computes at the same time"
    figure.text(0.015, 1 - 0.45 / height_in, key, fontsize=8, color=QUIET, va="center")
    return figure


def _lane_names(lanes: list[Lane]) -> dict[Lane, str]:
    found: dict[Lane, str] = {}
    for lane in lanes:
        groups = {each.group for each in lanes if each.kind == lane.kind}
        sizes = {group.size for group in groups}
        size_note = f" ({lane.group.size})" if len(sizes) > 1 and lane.group.size is not None else ""
        is_named = len({group.name for group in groups if group.size == lane.group.size}) > 1 and lane.group.name
        found[lane] = f"{lane.kind}{size_note}{f' {printable(lane.group.name, 8)}' if is_named else ''}"
    return found


def _rows_without_overlap(bars: Sequence[Bar]) -> list[list[Bar]]:
    """Distribute a lane's collectives over rows without overlap."""
    rows: list[list[Bar]] = []
    for bar in bars:
        free = (row for row in rows if sum(row[-1].span) <= bar.span[0])
        if (row := next(free, None)) is None and len(rows) < _MAX_ROWS:
            rows.append([bar])
        else:
            (rows[-1] if row is None else row).append(bar)
    return rows


def _draw_bar(axes: Axes, bar: Bar, y: float, colour: str, factor: float, character_width: float) -> None:
    start, length = bar.span[0] / factor, bar.span[1] / factor
    axes.broken_barh([(start, length)], (y + 0.1, 0.8), facecolors=colour, linewidth=0)
    exposed = [(begin / factor, width / factor) for begin, width in bar.exposed]
    axes.broken_barh(
        exposed, (y + 0.1, 0.8), facecolors=colour, edgecolor=_HATCH_COLOUR, linewidth=0, hatch="////", alpha=0.75
    )
    size = f" · {units.size(bar.bytes)}" if bar.bytes is not None else ""
    for label in (f"{bar.number}{size}", str(bar.number)):
        if (len(label) + 1) * character_width < length:
            axes.text(
                start + length / 2,
                y + 0.5,
                label,
                ha="center",
                va="center",
                fontsize=7,
                color=text_colour_on(colour),
                bbox={"boxstyle": "square,pad=0.1", "facecolor": colour, "linewidth": 0} if exposed else None,
                clip_on=True,
            )
            return
