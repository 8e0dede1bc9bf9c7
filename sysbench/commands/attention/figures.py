"""Figures of an attention sweep: times and memory over the sequence length, one figure per setting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sysbench import cells as axes_of_cells
from sysbench import units
from sysbench.commands.attention.findings import (
    NAMES,
    QUANTITIES,
    SWEPT,
    Cells,
    Quantity,
    frontier,
    implementations,
    predicted,
    samples,
    subject_of,
    usual_dim,
    value,
)
from sysbench.commands.attention.record import AttentionCellRecord, AttentionRecord
from sysbench.render import plots
from sysbench.render.plots import Heading, LazyFigure, LineStyle, Point
from sysbench.render.sentences.phrases import join_words
from sysbench.units import Unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_HEIGHT_IN: Final = 3.0

_STYLES: Final = (
    LineStyle("#000000", "o"),
    LineStyle("#d55e00", "s"),
    LineStyle("#56b4e9", "v"),
    LineStyle("#009e73", "D"),
    LineStyle("#0072b2", "^"),
    LineStyle("#cc79a7", "P"),
    LineStyle("#e69f00", "X"),
    LineStyle("#7b4fa3", "p"),
)
"""Okabe and Ito's colours, which are distinct under all common kinds of colour blindness, and a violet."""


def of_run(record: AttentionRecord) -> Iterator[LazyFigure]:
    groups = axes_of_cells.group_ignoring(record.cells, *SWEPT)
    for number, group in enumerate(groups, 1):
        cells = [cell for cell in group if cell.cell.dim == usual_dim(group)]
        shown = [quantity for quantity in QUANTITIES if any(value(cell, quantity) for cell in cells)]
        if not shown:
            continue
        heading = _heading(cells, record.environment.software)
        excluded = any(cell.excluding_cautions(subject_of(quantity)) for cell in cells for quantity in shown)
        text = f"Attention over the sequence length: {join_words([NAMES[quantity] for quantity in shown])}"
        marked = [f"{heading.mark.lower()} for {heading.simulated}"] if heading.simulated else []
        caption = plots.caption_text(
            text, [heading.title, heading.subtitle, *marked], plots.EXCLUDED_NOTE if excluded else ""
        )
        name = f"curves-{number}" if len(groups) > 1 else "curves"
        yield LazyFigure(name, caption, partial(draw, cells, shown, heading), tuple(cells))


def write(path: Path, record: AttentionRecord) -> Iterator[Path]:
    """Write one file per setting, and yield its path."""
    for figure in of_run(record):
        target = path.with_stem(path.stem + figure.name.removeprefix("curves"))
        plots.write(target, figure.draw)
        yield target


def _heading(cells: Cells, software: Sequence[str]) -> Heading:
    first = cells[0].cell
    is_predicted = any(cell.source == "predicted" for cell in cells)
    gpus = dict.fromkeys(cell.gpu.title for cell in cells if cell.gpu)
    return Heading(
        title=" · ".join(["attention", *plots.subject(cells), "causal" if first.causal else "not causal"]),
        subtitle=" · ".join(
            [
                *software,
                "bars: 90% interval" if is_predicted else "medians, bars: 95% CI",
                *["cold caches"] * first.cold,
            ]
        ),
        simulated=", ".join(gpus),
        mark="PREDICTED" if is_predicted else "SIMULATED",
    )


def draw(cells: Cells, shown: Sequence[Quantity], heading: Heading) -> Figure:
    """Draw a panel per quantity on logarithmic axes; crosses at the top mark sequences that do not fit."""
    from matplotlib.lines import Line2D

    looks = {name: _STYLES[number % len(_STYLES)] for number, name in enumerate(implementations(cells))}
    handles = [Line2D([], [], markersize=5, label=plots.printable(name), **style.line) for name, style in looks.items()]
    if any(limit.beyond is not None for limit in frontier(cells)):
        handles.append(plots.cross_handle("does not fit"))
    lengths = sorted({cell.cell.seq for cell in cells})
    figure, panels = plots.create_panels(len(shown), 2, PANEL_HEIGHT_IN)
    for axes, quantity in zip(panels, shown, strict=True):
        unit: Unit = "bytes" if quantity == "saved" else "s"
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2 if unit == "bytes" else 10)
        axes.margins(y=0.2)  # leave room at the top for crosses
        for name, style in looks.items():
            _draw_line(axes, [cell for cell in cells if cell.cell.implementation == name], quantity, style)
        beyond: dict[int, list[str]] = {}
        for limit in frontier(cells):
            if limit.beyond is not None:
                beyond.setdefault(limit.beyond.cell.seq, []).append(looks[limit.beyond.cell.implementation].colour)
        for length, colours in beyond.items():
            plots.draw_crosses(axes, length, colours, size=14, spacing=11, zorder=6)
        plots.style_axes(axes, title=NAMES[quantity], x="sequence length N", lines="both")
        axes.set_xlim(lengths[0] / 1.25, lengths[-1] * 1.25)
        axes.set_xticks(lengths, [str(length) for length in lengths])
        axes.minorticks_off()
        axes.tick_params(axis="x", labelrotation=45)
        axes.set_yticks(plots.readable_ticks(*axes.get_ylim(), unit))
        axes.yaxis.set_major_formatter(partial(_tick, unit))
    plots.complete(figure, heading, handles)
    return figure


def _tick(unit: Unit, value: float, _: object) -> str:
    number, _, symbol = units.quantity(unit, value).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {symbol}"


def _draw_line(axes: Axes, cells: Cells, quantity: Quantity, style: LineStyle) -> None:
    ordered = sorted(cells, key=lambda cell: cell.cell.seq)
    points = [point for cell in ordered if (point := _point(cell, quantity)) is not None]
    excluded = [
        (cell.cell.seq, found)
        for cell in ordered
        if cell.excluding_cautions(subject_of(quantity)) and (found := value(cell, quantity))
    ]
    axes.plot([x for x, *_ in points], [y for _, y, *_ in points], alpha=0.8, markersize=5, zorder=4, **style.line)
    plots.draw_error_bars(axes, points, style.colour, cap=2, zorder=3)
    plots.draw_excluded(axes, excluded, style, 5)


def _point(cell: AttentionCellRecord, quantity: Quantity) -> Point | None:
    timed, instead = samples(cell, quantity), predicted(cell, quantity)
    low, high = (instead.low_s, instead.high_s) if instead else (timed and timed.ci95_s) or (None, None)
    found = value(cell, quantity)
    return (cell.cell.seq, found, low, high) if found else None
