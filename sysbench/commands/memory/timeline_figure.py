"""Figure of a memory timeline: live bytes by category, phases, and the largest allocations at the peak."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from sysbench import units
from sysbench.commands.memory.breakdown import allocation_groups
from sysbench.commands.memory.figures import COLOURS, DARK_PHASES, STACKING
from sysbench.commands.memory.findings import group_description
from sysbench.render import plots
from sysbench.render.plots import INK, QUIET, Heading, printable
from sysbench.snapshot import CATEGORIES
from sysbench.snapshot.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

HEIGHT_IN: Final = 4.1
BUCKETS: Final = 480
"""Number of intervals of the timeline; the highest and the lowest point of each is drawn."""
LARGEST_SHOWN: Final = 3
_HEADROOM: Final = 1.36
"""Height of the axes as a multiple of the highest line, which leaves room for the label of the peak."""
_MAX_TEXT_LENGTH: Final = 64
_PHASE_SHADES: Final = ("#f3f3f3", "#e7e7e7")
_DASHED: Final = (0, (4, 2))


def write(path: Path, timeline: Timeline, title: str) -> None:
    """Write the figure of a timeline as png, svg or pdf, depending on the suffix."""
    plots.write(path, lambda: draw(timeline, title))


def draw(timeline: Timeline, title: str) -> Figure:
    notes = ["sizes in the legend: at the peak"]
    notes += ["categories and phases inferred from stacks and lifetimes"] if timeline.inferred else []
    simulated, device = timeline.source == "simulated", timeline.device_name
    notes += [device] if device and not simulated else []
    heading = Heading(printable(title, _MAX_TEXT_LENGTH), " · ".join(notes), (device or "a GPU") if simulated else "")
    figure, (axes,) = plots.create_panels(1, 1, HEIGHT_IN)
    scale = units.shared_scale("bytes", [float(timeline.peak.allocated_bytes)])
    plots.style_axes(axes, x="allocator events", y=f"allocated, {scale.symbol}")
    states = representative_states(timeline.allocated_bytes, BUCKETS)
    names = _draw_phases(axes, timeline)
    _draw_stack(axes, timeline, states, scale.factor)
    if timeline.reserved_bytes is not None:
        reserved = timeline.reserved_bytes[states] / scale.factor
        axes.step(states, reserved, where="post", color=QUIET, linewidth=1, linestyle=_DASHED, zorder=4)
    axes.set_xlim(0, max(timeline.states - 1, 1))
    # Include reserved memory, unless it would flatten everything else.
    allocated_bytes, reserved_bytes = max(timeline.peak.allocated_bytes, 1), timeline.reserved_peak_bytes or 0
    highest = reserved_bytes if allocated_bytes < reserved_bytes < 1.5 * allocated_bytes else allocated_bytes
    axes.set_ylim(0, highest / scale.factor * _HEADROOM)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    _draw_peak(axes, timeline, scale.factor)
    plots.complete(figure, heading, _handles(timeline))
    figure.draw_without_rendering()  # places the axes, on whose width depends which names fit
    for name, (first, end) in names:
        room = axes.transData.transform([(first, 0), (end, 0)])[:, 0]
        name.set_visible(name.get_window_extent().width < room[1] - room[0])
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


def _draw_phases(axes: Axes, timeline: Timeline) -> list[tuple[Text, tuple[int, int]]]:
    """Draw the phases behind everything else; return their names, each with the first and the last state."""
    names = []
    for phase in timeline.phases:
        first, end = phase.first, phase.end - 1
        axes.axvspan(first, end, facecolor=_PHASE_SHADES[phase.name in DARK_PHASES], edgecolor="none", zorder=0)
        place, transform = ((first + end) / 2, 1.01), axes.get_xaxis_transform()
        written = axes.text(*place, phase.name, transform=transform, ha="center", color=QUIET, fontsize=8)
        names.append((written, (first, end)))
    return names


def _draw_stack(axes: Axes, timeline: Timeline, states: npt.NDArray[np.int64], factor: float) -> None:
    below = np.zeros(len(states))
    for code in STACKING:
        above = below + timeline.by_category[code, states] / factor
        if (above > below).any():
            colour = COLOURS[CATEGORIES[code]]
            axes.fill_between(states, below, above, step="post", facecolor=colour, linewidth=0, zorder=2)
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
    groups = allocation_groups(timeline, peak.state, LARGEST_SHOWN)
    lines += [printable(group_description(group), _MAX_TEXT_LENGTH) for group in groups]
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
        color=INK,
        zorder=7,
        bbox={"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": "#bbbbbb", "linewidth": 0.8},
        arrowprops={"arrowstyle": "-", "color": INK, "linewidth": 0.8, "shrinkB": 3},
    )


def _handles(timeline: Timeline) -> list[Artist]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    at_peak = timeline.categories_at(timeline.peak.state)
    handles: list[Artist] = [
        Patch(facecolor=COLOURS[name], label=f"{name} {units.size(at_peak.get(name, 0))}")
        for name in reversed(COLOURS)
        if timeline.by_category[CATEGORIES.index(name)].any()
    ]
    if timeline.reserved_peak_bytes is not None:
        label = f"reserved, at most {units.size(timeline.reserved_peak_bytes)}"
        handles.append(Line2D([], [], color=QUIET, linewidth=1, linestyle=_DASHED, label=label))
    return handles
