"""Figure of a memory timeline: live bytes by category, phases, and the largest allocations at the peak."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from sysbench import units
from sysbench.commands.memory.figures import COLOURS, STACKING, has_dark_shade
from sysbench.render import plots
from sysbench.render.plots import INK, QUIET, SIMULATED, printable
from sysbench.snapshot import CATEGORIES
from sysbench.snapshot.timeline import Group, Timeline

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE_IN: Final = (10.0, 5.0)
BUCKETS: Final = 480
"""Number of intervals of the timeline; the highest and the lowest point of each is drawn."""
LARGEST_SHOWN: Final = 3
_HEADROOM: Final = 1.36
"""Height of the axes as a multiple of the highest line, which leaves room for the label of the peak."""
_MIN_PHASE_SHARE: Final = 0.002
"""Phases narrower than this share of the width are not shaded."""
_MAX_TEXT_LENGTH: Final = 64
_PHASE_SHADES: Final = ("#f3f3f3", "#e7e7e7")


def write(path: Path, timeline: Timeline, title: str) -> None:
    """Write the figure of a timeline as png, svg or pdf, depending on the suffix."""
    plots.write(path, lambda: draw(timeline, title))


def draw(timeline: Timeline, title: str) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_IN, facecolor="white")
    axes = figure.add_axes((0.075, 0.1, 0.72, 0.76))
    states = representative_states(timeline.allocated_bytes, BUCKETS)
    scale = units.shared_scale("bytes", [float(timeline.peak.allocated_bytes)])
    _draw_phases(axes, timeline)
    _draw_stack(axes, timeline, states, scale.factor)
    if timeline.reserved_bytes is not None:
        reserved = timeline.reserved_bytes[states] / scale.factor
        axes.step(states, reserved, where="post", color=QUIET, linewidth=1, linestyle=(0, (4, 2)), zorder=4)
    axes.set_xlim(0, max(timeline.states - 1, 1))
    # Include reserved memory, unless it would flatten everything else.
    allocated_bytes, reserved_bytes = max(timeline.peak.allocated_bytes, 1), timeline.reserved_peak_bytes or 0
    highest = reserved_bytes if allocated_bytes < reserved_bytes < 1.5 * allocated_bytes else allocated_bytes
    axes.set_ylim(0, highest / scale.factor * _HEADROOM)
    axes.set_ylabel(f"allocated, {scale.symbol}", color=INK)
    axes.set_xlabel("allocator events", color=INK)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.tick_params(colors=QUIET)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#d5d5d5", linewidth=0.5, zorder=1)
    _draw_peak(axes, timeline, scale.factor)
    figure.text(0.075, 0.945, printable(title, _MAX_TEXT_LENGTH), fontsize=11, fontweight="bold", color=INK)
    if timeline.inferred:
        note = "categories and phases inferred from stacks and lifetimes"
        figure.text(0.075, 0.905, note, fontsize=8, color=QUIET)
    device = f" for {printable(timeline.device_name, _MAX_TEXT_LENGTH)}" if timeline.device_name else ""
    if timeline.source == "simulated":
        figure.text(0.985, 0.945, f"SIMULATED{device}", fontsize=10, fontweight="bold", color=SIMULATED, ha="right")
    elif device:
        figure.text(0.985, 0.945, device.removeprefix(" for "), fontsize=9, color=QUIET, ha="right")
    _draw_legend(figure, timeline)
    return figure


def representative_states(values: npt.NDArray[np.int64], buckets: int) -> npt.NDArray[np.int64]:
    """Return the states to draw: the first, the last, and the highest and lowest in each bucket.

    If there are few states, all are drawn.
    """
    count = len(values)
    if count <= 3 * buckets:
        return np.arange(count)
    edges = np.linspace(0, count, buckets + 1).astype(np.int64)
    chosen = [0, count - 1]
    for first, end in itertools.pairwise(edges):
        chosen += [first + int(np.argmax(values[first:end])), first + int(np.argmin(values[first:end]))]
    return np.unique(chosen)


def _draw_phases(axes: Axes, timeline: Timeline) -> None:
    for phase in timeline.phases:
        first, end = phase.first, phase.end - 1
        if (end - first) / max(timeline.states, 1) < _MIN_PHASE_SHARE:
            continue
        axes.axvspan(first, end, facecolor=_PHASE_SHADES[has_dark_shade(phase.name)], edgecolor="none", zorder=0)
        # Skip names that are wider than their phase, because they would overlap.
        if (end - first) / max(timeline.states, 1) > 0.011 * len(phase.name):
            axes.annotate(
                phase.name,
                ((first + end) / 2, 1),
                (0, 3),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                ha="center",
                color=QUIET,
                fontsize=8,
            )


def _draw_stack(axes: Axes, timeline: Timeline, states: npt.NDArray[np.int64], factor: float) -> None:
    below = np.zeros(len(states))
    for code in STACKING:
        sizes = timeline.by_category[code, states] / factor
        if not sizes.any():
            continue
        above = below + sizes
        colour = COLOURS[CATEGORIES[code]]
        axes.fill_between(states, below, above, step="post", facecolor=colour, edgecolor="none", linewidth=0, zorder=2)
        below = above
    axes.step(states, below, where="post", color=INK, linewidth=0.6, zorder=3)


def _draw_peak(axes: Axes, timeline: Timeline, factor: float) -> None:
    peak = timeline.peak
    if not peak.allocated_bytes:
        return
    height = peak.allocated_bytes / factor
    phase = timeline.phase_at(peak.state)
    text_x = min(max(peak.state / max(timeline.states - 1, 1), 0.01), 0.99)
    lines = [f"peak {units.size(peak.allocated_bytes)}{f' in {phase.name}' if phase else ''}"]
    lines += [_group_label(timeline, group) for group in timeline.groups(peak.state)[:LARGEST_SHOWN]]
    axes.plot([peak.state], [height], marker="v", color=INK, markersize=5, zorder=6, clip_on=False)
    axes.annotate(
        "\n".join(lines),
        (peak.state, height),
        (text_x, 0.965),
        textcoords="axes fraction",
        # Align the text away from the nearer edge.
        ha="left" if text_x < 0.35 else "right" if text_x > 0.65 else "center",
        va="top",
        multialignment="left",
        fontsize=8,
        linespacing=1.35,
        color=INK,
        zorder=7,
        bbox={"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": "#bbbbbb", "linewidth": 0.8},
        arrowprops={"arrowstyle": "-", "color": INK, "linewidth": 0.8, "shrinkB": 3},
    )


def _group_label(timeline: Timeline, group: Group) -> str:
    frames = timeline.stacks.of(group.stack)
    place = f"{Path(frames[0].filename.replace(chr(92), '/')).name}:{frames[0].line}" if frames else ""
    modules = {".".join(module) for module in group.modules}
    where = place or (modules.pop() if len(modules) == 1 else "")
    what = f"{group.count} × {units.size(group.size_bytes)} {group.category}"
    return f"{what} · {printable(where, _MAX_TEXT_LENGTH)}" if where else what


def _draw_legend(figure: Figure, timeline: Timeline) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    at_peak = timeline.categories_at(timeline.peak.state)
    present = [CATEGORIES[code] for code in reversed(STACKING) if timeline.by_category[code].any()]
    handles: list[Artist] = [
        Patch(facecolor=COLOURS[name], label=f"{name}\n{units.size(at_peak.get(name, 0))} at the peak")
        for name in present
    ]
    reserved = timeline.reserved_peak_bytes
    if reserved is not None:
        label = f"reserved\n{units.size(reserved)} at most"
        handles.insert(0, Line2D([], [], color=QUIET, linewidth=1, linestyle=(0, (4, 2)), label=label))
    if handles:
        figure.legend(
            handles=handles,
            loc="upper left",
            bbox_to_anchor=(0.8, 0.9),
            frameon=False,
            fontsize=8,
            labelcolor=INK,
            labelspacing=0.9,
        )
