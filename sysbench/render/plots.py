"""Figures as files: a common style, reproducible bytes, and the layout of figures with many panels.

All sizes are in inches, so text has the same size in every figure. Figures are as wide as a page of text.
"""

from __future__ import annotations

import io
import math
import unicodedata
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from sysbench import cells as axes_of_cells
from sysbench import units
from sysbench.errors import UsageError
from sysbench.log.records import CellRecord
from sysbench.log.storage import cannot_write

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.text import Text


FORMATS: Final = ("png", "svg", "pdf")
DOTS_PER_INCH: Final = 160
INK: Final = "#222222"
QUIET: Final = "#666666"
SIMULATED: Final = "#b45309"
"""Colour of the mark for simulated results."""
_STYLE: Final[Any] = {
    "font.size": 9,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    # Otherwise identifiers in the file change from run to run.
    "svg.hashsalt": "sysbench",
    "axes.edgecolor": QUIET,
    "axes.linewidth": 0.8,
    "hatch.linewidth": 0.6,
    "text.parse_math": False,
}


def write(path: Path, draw: Callable[[], Figure]) -> None:
    """Save a figure in the format of the path's suffix: png, svg or pdf.

    Raises UsageError for other suffixes, and OutputError if the file cannot be written.
    """
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise UsageError(f"{path.name} is not a valid picture name: it must end in {', '.join(FORMATS)}")
    picture = content(draw, suffix)
    try:
        path.write_bytes(picture)
    except OSError as error:
        raise cannot_write(path, error) from error


def content(draw: Callable[[], Figure], suffix: str) -> bytes:
    """Return a figure as the bytes of a png, svg or pdf file."""
    # Importing matplotlib takes half a second, and only figures need it.
    import matplotlib as mpl

    file = io.BytesIO()
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # Characters that the font lacks appear as boxes, which cannot be avoided here.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        # Without a date, so that identical content results in an identical file.
        undated: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(suffix, {})
        draw().savefig(file, format=suffix, dpi=DOTS_PER_INCH, metadata=undated)
    return file.getvalue()


def printable(text: str, max_characters: int = 110) -> str:
    """Remove control characters, which XML does not allow, and truncate the text to `max_characters` characters."""
    clean = "".join(char for char in text if unicodedata.category(char)[0] != "C")
    return clean if len(clean) <= max_characters else f"{clean[: max_characters - 1]}…"


DARK_TEXT: Final = "#1b1f24"
"""Colour of text on light surfaces, which stay light in a dark theme too."""


def text_colour_on(colour: str) -> str:
    """Return the text colour, dark or white, that has more contrast with `colour`, by relative luminance (WCAG 2.2)."""
    channels = [int(colour[position : position + 2], 16) / 255 for position in (1, 3, 5)]
    linear = [channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4 for channel in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return DARK_TEXT if luminance > 0.22 else "#ffffff"


GRID: Final = "#e3e3e3"
WIDTH_IN: Final = 7.2
"""Width of the text on a page."""
_HEADING_IN: Final = 0.54
_LEGEND_LINE_IN: Final = 0.19
"""Height of a line of the legend."""
_MARGIN_IN: Final = 0.1


@dataclass(frozen=True)
class LazyFigure:
    """A figure about some cells, drawn on demand."""

    name: str
    """Unique among the figures of a run."""
    caption: str
    """Caption, in a sentence or two."""
    draw: Callable[[], Figure]
    cells: tuple[CellRecord, ...] = ()
    """The cells shown; by default all cells of the run."""


def subject(cells: Sequence[CellRecord]) -> tuple[str, ...]:
    """Return the properties that all cells share, for a heading: `batch 4`, `train`, the hardware."""
    measured = (cell for cell in cells if getattr(cell, "source", "measured") == "measured")
    hardware = dict.fromkeys(cell.device.name for cell in measured if cell.device)
    return (*axes_of_cells.subject(cells), *(list(hardware) if len(hardware) == 1 else ()))


def caption_text(text: str, about: Sequence[str], omission: str = "") -> str:
    """Return a caption such as `Median time of each phase of a step (batch 4, train). Shown are …`."""
    common = f" ({', '.join(about)})" if about else ""
    return f"{text}{common}.{f' {omission}' if omission else ''}"


@dataclass(frozen=True)
class Heading:
    """Heading above the panels of a figure."""

    title: str
    subtitle: str = ""
    simulated: str = ""
    """The simulated GPU; empty for measured results."""
    mark: str = "SIMULATED"
    """Word before the GPU's name."""


def create_panels(count: int, columns: int, height_in: float) -> tuple[Figure, list[Axes]]:
    """Create a figure with `count` empty panels, filled row by row; `height_in` is a panel's height with its labels."""
    from matplotlib.figure import Figure

    columns = min(columns, max(count, 1))
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(WIDTH_IN, rows * height_in), facecolor="white", layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in panels[count:]:
        unused.remove()
    return figure, panels[:count]


def complete(figure: Figure, heading: Heading, handles: Sequence[Artist] = ()) -> None:
    """Add the heading above the panels, and a legend in as few lines as its labels allow below them."""
    width, height = figure.get_size_inches()
    height += _HEADING_IN + _LEGEND_LINE_IN * _draw_legend(figure, handles)
    figure.set_size_inches(width, height)
    layout: Any = figure.get_layout_engine()
    layout.set(rect=(0, 0, 1, 1 - _HEADING_IN / height), h_pad=0.06, w_pad=0.06, hspace=0.04)
    title = _write_above(figure, heading.title, 0.22, fontsize=10.5, fontweight="bold", color=INK)
    if heading.subtitle:
        _write_above(figure, heading.subtitle, 0.41, fontsize=8, color=QUIET)
    if heading.simulated:
        mark = _write_above(
            figure, f"{heading.mark} for {heading.simulated}", 0.22, fontsize=9, fontweight="bold", color=SIMULATED
        )
        mark.set(x=1 - _MARGIN_IN / width, ha="right")
        if mark.get_window_extent().x0 < title.get_window_extent().x1:
            mark.set_y(1 - 0.41 / height)


def _write_above(figure: Figure, text: str, below_top_in: float, **look: Any) -> Text:
    width, height = figure.get_size_inches()
    return figure.text(_MARGIN_IN / width, 1 - below_top_in / height, printable(text), in_layout=False, **look)


def _draw_legend(figure: Figure, handles: Sequence[Artist]) -> int:
    """Draw the legend, its entries in reading order, and return the number of its lines."""
    for lines in range(1, len(handles) + 1):
        columns = math.ceil(len(handles) / lines)
        legend = figure.legend(
            # A legend is filled column by column.
            handles=[handle for column in range(columns) for handle in handles[column::columns]],
            loc="outside lower center",
            frameon=False,
            fontsize=8,
            labelcolor=INK,
            ncols=columns,
            borderpad=0.2,
            columnspacing=1.4,
            handlelength=1.8,
        )
        if legend.get_window_extent().width < figure.bbox.width:
            return lines
        if columns > 1:
            legend.remove()
    return len(handles)


@dataclass(frozen=True)
class Box:
    """A rectangle in data coordinates."""

    left: float
    bottom: float
    width: float
    height: float
    colour: str


def draw_boxes(axes: Axes, boxes: Sequence[Box], hatch: str = "", edge: float = 0.3) -> None:
    """Draw many rectangles as one collection, which is an order of magnitude faster than drawing bars."""
    from matplotlib.collections import PolyCollection

    if not boxes:
        return
    corners = [
        [
            (box.left, box.bottom),
            (box.left + box.width, box.bottom),
            (box.left + box.width, box.bottom + box.height),
            (box.left, box.bottom + box.height),
        ]
        for box in boxes
    ]
    drawn = PolyCollection(
        corners,
        facecolors=[box.colour for box in boxes],
        edgecolors="white",
        linewidths=edge,
        hatch=hatch or None,
        zorder=2,
    )
    axes.add_collection(drawn, autolim=False)


def set_group_ticks(axes: Axes, ticks: Sequence[str]) -> None:
    """Place the tick labels of groups of bars at 0, 1, 2, …, with wide margins if there are only a few groups."""
    room = 0.55 + max(0, _MIN_GROUPS - len(ticks)) / 2
    axes.set_xticks(range(len(ticks)), list(ticks))
    axes.set_xlim(-room, len(ticks) - 1 + room)
    axes.tick_params(axis="x", length=0)


_MIN_GROUPS: Final = 4


MIN_TICKS: Final = 3
MAX_TICKS: Final = 8


def readable_ticks(low: float, high: float, unit: units.Unit) -> list[float]:
    """Return the ticks of a logarithmic axis between two positive values: at least three, however short the range.

    Ticks are powers of 2 (bytes) or 10; over a short range, also twice and five times these; else evenly spaced.
    """
    from matplotlib.ticker import LogLocator, MaxNLocator

    base, subdivisions = (2, [(1.0,)]) if unit == "bytes" else (10, [(1.0,), (1.0, 2.0, 5.0)])
    for factors in subdivisions:
        locator = LogLocator(base, factors, numticks=MAX_TICKS)
        within = [float(tick) for tick in locator.tick_values(low, high) if low <= tick <= high]
        if len(within) >= MIN_TICKS:
            return within
    factor = units.shared_scale(unit, [low]).factor
    even = MaxNLocator(MAX_TICKS - 2).tick_values(low / factor, high / factor)
    return [float(tick) * factor for tick in even if low <= tick * factor <= high]


def style_axes(
    axes: Axes, *, title: str = "", x: str = "", y: str = "", lines: Literal["x", "y", "both", ""] = "y"
) -> None:
    """Apply the common style to a panel; `lines` names the axes with grid lines."""
    if title:
        axes.set_title(printable(title), fontsize=9, color=INK, loc="left", pad=5)
    axes.set_xlabel(x, color=INK, fontsize=8.5)
    axes.set_ylabel(y, color=INK, fontsize=8.5)
    axes.tick_params(colors=QUIET, labelsize=8, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    if lines:
        axes.grid(axis=lines, color=GRID, linewidth=0.6)


# --- stacked bars

HATCHES: Final = ("", "////", "\\\\\\\\", "xxx")
"""Hatches that distinguish bars of different series."""

LIMIT: Final = "#c1121f"
"""Colour of the memory limit, and of bars that exceed it."""


@dataclass(frozen=True)
class Mark:
    """A mark on the axis in place of a bar."""

    text: str
    size: float
    rise: float
    """Height above the axis, in points."""
    colour: str = LIMIT
    weight: str = "normal"


@dataclass(frozen=True)
class Bar:
    """One stacked bar: its parts from bottom to top, or a mark if it has no parts."""

    tick: str
    series: str
    """Name of the bar's series, which also determines the position of the bar at the tick."""
    parts: Mapping[str, float]
    absent: Mark | None = None
    excluded: bool = False
    """Whether cautions exclude the bar's cell from findings: it has a mark above it."""

    @property
    def height(self) -> float:
        """Sum of all parts."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class BarPanel:
    """A panel of stacked bars."""

    title: str
    ticks: tuple[str, ...]
    bars: tuple[Bar, ...]
    limit: float | None = None
    """Height of a horizontal line that is always visible."""

    @property
    def highest(self) -> float:
        """Height of the highest bar; 0 if there are no bars."""
        return max((bar.height for bar in self.bars), default=0.0)


def series_handles(names: Sequence[str]) -> list[Artist]:
    """Return legend entries for the hatches of several series; none for a single series."""
    from matplotlib.patches import Patch

    return [
        Patch(facecolor="white", edgecolor=QUIET, hatch=HATCHES[number], label=printable(name))
        for number, name in enumerate(names if len(names) > 1 else ())
    ]


def cross_handle(label: str) -> Line2D:
    """Return the legend entry for the cross that marks out-of-memory cells."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=LIMIT, linestyle="none", marker="x", markersize=5, label=label)


def draw_stacked(
    axes: Axes,
    panel: BarPanel,
    names: Sequence[str],
    colours: Mapping[str, str],
    unit: units.Unit,
    top: float,
    headroom: float,
    x: str,
) -> None:
    """Draw a panel of stacked bars; bars of several series (`names`) are drawn side by side.

    The vertical axis ends at `top` · `headroom`; `x` is the label of the horizontal axis.
    """
    scale = units.shared_scale(unit, [float(top) or 1.0])
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        boxes = []
        for bar in (bar for bar in panel.bars if bar.series == name):
            where, below = panel.ticks.index(bar.tick) + (number - (len(names) - 1) / 2) * width, 0.0
            for part, colour in colours.items():
                height = bar.parts.get(part, 0) / scale.factor
                if height:
                    boxes.append(Box(where - 0.46 * width, below, 0.92 * width, height, colour))
                below += height
            mark = Mark("!", size=8, rise=5, weight="bold") if bar.excluded and bar.parts else bar.absent
            if mark is not None:
                axes.annotate(
                    mark.text, (where, below), (0, mark.rise), textcoords="offset points", fontsize=mark.size,
                    fontweight=mark.weight, color=mark.colour, ha="center", va="center",
                )  # fmt: skip
        draw_boxes(axes, boxes, HATCHES[number])
    if panel.limit:
        axes.axhline(panel.limit / scale.factor, color=LIMIT, linewidth=1, linestyle=(0, (5, 2)), zorder=3)
    axes.set_ylim(0, top / scale.factor * headroom or 1.0)
    style_axes(axes, title=panel.title, x=x, y=scale.symbol)
    set_group_ticks(axes, panel.ticks)


# --- lines


@dataclass(frozen=True)
class LineStyle:
    """Style of a line."""

    colour: str
    marker: str
    dashes: object = "-"
    """Line style as matplotlib accepts it."""

    @property
    def line(self) -> dict[str, Any]:
        """Keyword arguments for matplotlib's line functions."""
        return {"color": self.colour, "linestyle": self.dashes, "marker": self.marker}


Point = tuple[float, float, float | None, float | None]
"""A position, a value, and the bounds of the value's interval, if any."""


def draw_error_bars(axes: Axes, points: Sequence[Point], colour: str, cap: float, zorder: float) -> None:
    """Draw an error bar for every point that has an interval."""
    bars = [(x, y, low, high) for x, y, low, high in points if low is not None and high is not None]
    if bars:
        axes.errorbar(
            [x for x, *_ in bars],
            [y for _, y, *_ in bars],
            # An interval of the median may lie entirely on one side of the plotted value.
            yerr=[[max(y - low, 0.0) for _, y, low, _ in bars], [max(high - y, 0.0) for _, y, _, high in bars]],
            fmt="none",
            ecolor=colour,
            elinewidth=1,
            capsize=cap,
            zorder=zorder,
        )


EXCLUDED_NOTE: Final = "Open markers and !: excluded from findings because of cautions."


def draw_excluded(axes: Axes, points: Sequence[tuple[float, float]], style: LineStyle, size: float) -> None:
    """Draw open markers over those of excluded cells, so that no trend is read from them."""
    axes.plot(
        [x for x, _ in points], [y for _, y in points], linestyle="none", marker=style.marker, markersize=size,
        markerfacecolor="white", markeredgecolor=style.colour, zorder=5,
    )  # fmt: skip


def draw_crosses(axes: Axes, at: float, colours: Sequence[str], size: float, spacing: float, zorder: float) -> None:
    """Draw crosses side by side near the upper edge, one for each line that ends at `at` because memory ran out."""
    for number, colour in enumerate(colours):
        axes.annotate(
            "×", (at, 0.93), ((number - (len(colours) - 1) / 2) * spacing, 0), xycoords=("data", "axes fraction"),
            textcoords="offset points", fontsize=size, fontweight="bold", color=colour, ha="center", va="center",
            zorder=zorder,
        )  # fmt: skip
