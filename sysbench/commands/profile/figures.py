"""The figure of profiles, shares of kernel classes, and the colours of classes and phases, as in flame graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from sysbench.commands.profile.findings import RANGES, class_shares, covers
from sysbench.commands.profile.record import ProfileCellRecord, ProfileRecord
from sysbench.render.plots import (
    INK,
    Heading,
    LazyFigure,
    caption_text,
    complete,
    create_panels,
    printable,
    style_axes,
    subject,
    text_colour_on,
)
from sysbench.render.sentences.phrases import Namer, marked, namer
from sysbench.trace.summary import KernelClass

if TYPE_CHECKING:
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

_MIN_LABELLED_SHARE: Final = 0.06
"""Minimum share at which a part has room for its number."""

_BAR_IN, _TICKS_IN = 0.24, 0.35
"""Height of a bar, and of the tick labels below all bars."""


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


def _class_bars(cells: Sequence[ProfileCellRecord], name: Namer) -> dict[str, dict[KernelClass, float]]:
    """Return the share of each class by the label of a bar: a cell and a range."""
    return {
        f"{f'{name(cell)}, ' if len(cells) > 1 else ''}{what}": shares
        for cell in cells
        for what, (phases, _) in RANGES.items()
        if covers(cell, what) and (shares := class_shares(cell, phases))
    }


def draw_bars(bars: Mapping[str, Mapping[KernelClass, float]], heading: Heading) -> Figure:
    from matplotlib.patches import Patch

    present = [kind for kind in CLASS_COLOURS if any(kind in shares for shares in bars.values())]
    figure, (axes,) = create_panels(1, 1, len(bars) * _BAR_IN + _TICKS_IN)
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
    axes.set_yticks(range(len(bars)), [printable(label, 40) for label in bars])
    style_axes(axes, lines="")
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.spines["left"].set_visible(False)
    complete(figure, heading, [Patch(facecolor=CLASS_COLOURS[kind], label=kind) for kind in present])
    return figure
