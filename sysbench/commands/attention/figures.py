"""Figures of an attention sweep: curves against sequence length, and heat maps.

Both kinds show where memory runs out. An implementation has the same colour, marker and dashes in all figures. `Panel`
(curves against N at one head dimension) and `HeatMap` (one quantity over d and N) hold the data to draw.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sysbench import cells as axes_of_cells
from sysbench import units
from sysbench.commands.attention.findings import (
    QUANTITIES,
    SWEPT,
    Quantity,
    dims,
    frontier,
    growth,
    implementations,
    predicted,
    samples,
    subject_of,
    usual_dim,
    value,
)
from sysbench.commands.attention.record import AttentionCellRecord, AttentionRecord
from sysbench.commands.attention.tables import status
from sysbench.render import plots
from sysbench.render.findings import exponent, join_words
from sysbench.render.plots import (
    EXCLUDED_NOTE,
    INK,
    LIMIT,
    QUIET,
    Heading,
    LazyFigure,
    LineStyle,
    PanelLayout,
    Point,
    draw_crosses,
    draw_error_bars,
    draw_excluded,
    printable,
    style_axes,
    text_colour_on,
)
from sysbench.statistics import PowerLaw
from sysbench.units import Unit

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_STYLES: Final = {
    "naive": LineStyle("#000000", "o"),
    "compiled": LineStyle("#d55e00", "s"),
    "sdpa-math": LineStyle("#56b4e9", "v"),
    "sdpa-efficient": LineStyle("#009e73", "D"),
    "sdpa-flash": LineStyle("#0072b2", "^"),
    "sdpa-cudnn": LineStyle("#cc79a7", "P"),
    "flex": LineStyle("#e69f00", "X"),
    "flash-attn": LineStyle("#7b4fa3", "p"),
}
"""Okabe and Ito's colours, which are distinct under all common kinds of colour blindness, and a violet."""

_USER_STYLES: Final = (
    LineStyle("#882255", "h", (0, (4, 2))),
    LineStyle("#117733", "*", (0, (4, 2))),
    LineStyle("#999933", "<", (0, (4, 2))),
    LineStyle("#888888", ">", (0, (4, 2))),
)
"""Styles for the user's own functions, in order of appearance."""


def look(implementation: str, everything: Sequence[str]) -> LineStyle:
    if implementation in _STYLES:
        return _STYLES[implementation]
    own = [name for name in everything if name not in _STYLES]
    return _USER_STYLES[own.index(implementation) % len(_USER_STYLES)]


_MISSING: Final = "#f2f2f2"
_MAP: Final = "cividis"
"""A colour map that is perceptually uniform, even for colour-blind readers."""
_MAX_COLUMNS: Final = 4
_MAX_LEVEL_TICKS: Final = 6
"""Largest number of sequence lengths with horizontal tick labels."""
_MIN_WIDTH_IN: Final = 6.4
_GUIDES: Final = ((1, "N"), (2, "N²"))


@dataclass(frozen=True)
class Curve:
    """Curve of one implementation against sequence length."""

    implementation: str
    points: tuple[Point, ...]
    """Sequence length, value, and the two bounds of the value's interval (None if it has no interval)."""
    beyond: int | None = None
    """Length of the shortest sequence that does not fit."""
    growth: str = ""
    """Fitted power law: `N^1.97 ± 0.03`; empty if there is none."""
    modelled: str = ""
    """`simulated` or `predicted`; empty for measured values."""
    excluded: tuple[tuple[float, float], ...] = ()
    """The points that cautions exclude from findings, and from the growth."""


@dataclass(frozen=True)
class Panel:
    """Curves of one quantity, drawn in the same axes."""

    title: str
    unit: Unit
    curves: tuple[Curve, ...]
    limit: float | None = None
    """Position of a horizontal line: the device's memory."""


@dataclass(frozen=True)
class HeatMap:
    """One quantity of one implementation over head dimension and sequence length."""

    implementation: str
    quantity: str
    unit: Unit
    dims: tuple[int, ...]
    lengths: tuple[int, ...]
    values: Mapping[tuple[int, int], float]
    """Values by head dimension and sequence length."""
    words: Mapping[tuple[int, int], str]
    """Reasons for missing values."""
    beyond: frozenset[tuple[int, int]] = frozenset()
    """Pairs of head dimension and sequence length that do not fit into memory; a line is drawn around them."""
    modelled: str = ""
    """`simulated` or `predicted`; empty for measured values."""


def draw_curves(panels: Sequence[Panel], caption: Heading) -> Figure:
    """Draw panels with logarithmic axes; crosses at the top mark sequence lengths that do not fit."""
    names = list(dict.fromkeys(curve.implementation for panel in panels for curve in panel.curves))
    rows = _legend(panels, names)
    crowded = any(len(_all_lengths(panel)) > _MAX_LEVEL_TICKS for panel in panels)
    layout = PanelLayout(2, 2.3, below_in=0.75 if crowded else 0.5, legend_lines=len(rows))
    figure, places = plots.create_panels(layout, len(panels), caption)
    for axes, panel in zip(places, panels, strict=True):
        _draw_panel(axes, panel, names)
    plots.draw_legend(figure, *rows)
    return figure


def _draw_panel(axes: Axes, panel: Panel, names: Sequence[str]) -> None:
    from matplotlib.ticker import LogLocator

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for curve in panel.curves:
        _draw_curve(axes, curve, names)
    lengths = _all_lengths(panel)
    axes.set_xlim(lengths[0] / 1.25, lengths[-1] * 1.25)
    values = [value for curve in panel.curves for _, value, _, _ in curve.points]
    if panel.limit is not None and values and max(values) > panel.limit / 64:
        axes.axhline(panel.limit, color=LIMIT, linewidth=1, linestyle=(0, (5, 2)), zorder=2)
        label = f"device memory, {units.quantity(panel.unit, panel.limit)}"
        axes.annotate(
            label,
            (0.02, panel.limit),
            (0, 3),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            fontsize=7,
            color=LIMIT,
        )
        values.append(panel.limit * 1.2)
    low, high = (min(values), max(values)) if values else (0.5, 2.0)
    decades = max(math.log10(high / low), 0.5)
    # Leave room at the top for crosses.
    axes.set_ylim(low / 10 ** (0.08 * decades), high * 10 ** (0.2 * decades))
    _draw_guides(axes, lengths, low, high)
    _draw_beyond(axes, panel.curves, names)
    style_axes(axes, title=panel.title, x="sequence length N", lines="both")
    axes.set_xticks(lengths, [str(n) for n in lengths])
    axes.minorticks_off()
    if len(lengths) > _MAX_LEVEL_TICKS:
        axes.tick_params(axis="x", labelrotation=45)
    axes.yaxis.set_major_formatter(lambda value, _: _tick(panel.unit, value))
    # Bytes have ticks at powers of 2 and their multiples, times at powers of 10.
    if panel.unit == "bytes":
        bottom, top = axes.get_ylim()
        steps = math.log2(top / bottom)
        base = next(base for base in (2, 4, 16, 64, 1024) if steps / math.log2(base) <= 9 or base == 1024)
        axes.yaxis.set_major_locator(LogLocator(base=base, numticks=40))
    else:
        axes.yaxis.set_major_locator(LogLocator(base=10, numticks=12))


def _all_lengths(panel: Panel) -> list[int]:
    lengths = {int(n) for curve in panel.curves for n, *_ in curve.points}
    return sorted(lengths | {curve.beyond for curve in panel.curves if curve.beyond is not None})


def _draw_curve(axes: Axes, curve: Curve, names: Sequence[str]) -> None:
    style = look(curve.implementation, names)
    # Later curves are thinner, so that overlapping curves all stay visible.
    emphasis = 1 - names.index(curve.implementation) / max(len(names) - 1, 1) if len(names) > 1 else 0
    x = [n for n, *_ in curve.points]
    y = [value for _, value, _, _ in curve.points]
    axes.plot(
        x,
        y,
        color=style.colour,
        linewidth=1.3 + 1.2 * emphasis,
        linestyle=style.dashes,
        marker=style.marker,
        markersize=4.5 + 2.5 * emphasis,
        markerfacecolor="white" if curve.modelled else style.colour,
        markeredgecolor=style.colour,
        zorder=4,
    )
    draw_error_bars(axes, curve.points, style.colour, cap=2, zorder=3)
    draw_excluded(axes, curve.excluded, style, 4.5 + 2.5 * emphasis)


def _draw_beyond(axes: Axes, curves: Sequence[Curve], names: Sequence[str]) -> None:
    """Draw a cross at the top for each curve that runs out of memory; crosses at the same N are side by side."""
    curves_by_length: dict[int, list[Curve]] = {}
    for curve in curves:
        if curve.beyond is not None:
            curves_by_length.setdefault(curve.beyond, []).append(curve)
    for n, stopped in curves_by_length.items():
        colours = [look(curve.implementation, names).colour for curve in stopped]
        draw_crosses(axes, n, colours, size=14, spacing=11, zorder=6)
        axes.axvline(n, color=LIMIT, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)


def _draw_guides(axes: Axes, lengths: Sequence[int], low: float, high: float) -> None:
    first, last = lengths[0], lengths[-1]
    if last <= first:
        return
    for power, name in _GUIDES:
        end = min(last, first * (high / low) ** (1 / power))
        x = np.array([first, end])
        axes.plot(x, low * (x / first) ** power, color="#bdbdbd", linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
        axes.annotate(
            name,
            (end, low * (end / first) ** power),
            (3, -2),
            textcoords="offset points",
            fontsize=7.5,
            color="#9a9a9a",
            ha="left",
            va="top",
        )


def _tick(unit: Unit, value: float) -> str:
    number, _, symbol = units.quantity(unit, value).partition(" ")
    return f"{number.rstrip('0').rstrip('.') if '.' in number else number} {symbol}"


def _legend(panels: Sequence[Panel], names: Sequence[str]) -> list[list[Artist]]:
    from matplotlib.lines import Line2D

    handles: list[Artist] = []
    for name in names:
        style = look(name, names)
        curves = [(panel, curve) for panel in panels for curve in panel.curves if curve.implementation == name]
        modelled = list(dict.fromkeys(curve.modelled for _, curve in curves if curve.modelled))
        growth = [f"{panel.title.split(',')[0]} {curve.growth}" for panel, curve in curves if curve.growth]
        label = f"{name} ({', '.join(modelled)})" if modelled else name
        if growth:
            label += f":  {'  ·  '.join(growth)}"
        face = "white" if modelled else style.colour
        handles.append(Line2D([], [], markersize=5, markerfacecolor=face, label=printable(label), **style.line))
    if any(curve.beyond is not None for panel in panels for curve in panel.curves):
        handles.append(Line2D([], [], color=QUIET, linestyle="none", marker="x", markersize=6, label="does not fit"))
    has_growth = any(":" in str(handle.get_label()) for handle in handles)
    return [[handle] for handle in handles] if has_growth else plots.arrange_handles(handles)


# --- heat maps


def draw_heat_maps(maps: Sequence[HeatMap], caption: Heading) -> Figure:
    """Draw heat maps with quantities in rows and implementations in columns; each row has its own colour scale."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    quantities = list(dict.fromkeys(each.quantity for each in maps))
    names = list(dict.fromkeys(each.implementation for each in maps))
    maps_per_row = min(len(names), _MAX_COLUMNS)
    bands = math.ceil(len(names) / maps_per_row)
    lines = [(quantity, band) for quantity in quantities for band in range(bands)]
    columns = max(len(each.lengths) for each in maps)
    map_width, map_height = max(1.9, 0.62 * columns), 0.36 * max(len(each.dims) for each in maps)
    left, top, gap_x, gap_y, right = 0.75, 0.75, 0.3, 0.78, 0.95
    # The title needs this width even if the maps are small.
    width = max(_MIN_WIDTH_IN, left + maps_per_row * (map_width + gap_x) + right)
    height = top + len(lines) * (map_height + gap_y)
    figure = Figure(figsize=(width, height), facecolor="white")
    for row, (quantity, band) in enumerate(lines):
        same = [each for each in maps if each.quantity == quantity]
        values = [value for each in same for value in each.values.values()]
        low, high = (min(values), max(values)) if values else (1.0, 2.0)
        high = high if high > low else low * 2
        norm = LogNorm(low, high)
        bottom = (height - top - (row + 1) * map_height - row * gap_y - 0.3) / height
        shown = same[band * maps_per_row : (band + 1) * maps_per_row]
        for column, each in enumerate(shown):
            left_edge = (left + column * (map_width + gap_x)) / width
            axes = figure.add_axes((left_edge, bottom, map_width / width, map_height / height))
            _draw_map(axes, each, norm, labelled=column == 0)
        left_edge = (left + len(shown) * (map_width + gap_x) - gap_x + 0.12) / width
        scale = figure.add_axes((left_edge, bottom, 0.1 / width, map_height / height))
        bar = figure.colorbar(ScalarMappable(norm, _MAP), cax=scale)
        scale.minorticks_off()
        bar.set_ticks([low, high], labels=[units.short(same[0].unit, end) for end in (low, high)])
        bar.outline.set_visible(False)
        scale.tick_params(length=0, labelsize=7.5, colors=QUIET)
    plots.draw_heading(figure, caption)
    return figure


def _draw_map(axes: Axes, each: HeatMap, norm: Any, *, labelled: bool) -> None:
    from matplotlib.colors import to_hex
    from matplotlib.patches import Rectangle

    grid = np.full((len(each.dims), len(each.lengths)), np.nan)
    for (dim, n), cell_value in each.values.items():
        grid[each.dims.index(dim), each.lengths.index(n)] = cell_value
    axes.set_facecolor(_MISSING)
    image = axes.imshow(np.ma.masked_invalid(grid), cmap=_MAP, norm=norm, aspect="auto", origin="lower")
    for row, dim in enumerate(each.dims):
        for column, n in enumerate(each.lengths):
            if (dim, n) in each.values:
                cell_value = each.values[dim, n]
                colour, text = text_colour_on(to_hex(image.cmap(norm(cell_value)))), units.short(each.unit, cell_value)
            else:
                colour, text = QUIET, each.words.get((dim, n), "")
                corner = (column - 0.5, row - 0.5)
                axes.add_patch(Rectangle(corner, 1, 1, fill=False, hatch="////", edgecolor="#d9d9d9", linewidth=0))
            axes.annotate(text, (column, row), ha="center", va="center", fontsize=7, color=colour)
    _draw_frontier(axes, each)
    axes.set_xticks(range(len(each.lengths)), [str(n) for n in each.lengths])
    axes.set_yticks(range(len(each.dims)), [str(dim) for dim in each.dims] if labelled else [])
    axes.tick_params(length=0, colors=QUIET, labelsize=7.5)
    axes.spines[:].set_visible(False)
    mark = f", {each.modelled}" if each.modelled else ""
    axes.set_title(printable(f"{each.implementation}, {each.quantity}{mark}"), fontsize=8.5, color=INK, loc="left")
    axes.set_xlabel("N", fontsize=8, color=QUIET, labelpad=1)
    if labelled:
        axes.set_ylabel("d", fontsize=8, color=QUIET)


def _draw_frontier(axes: Axes, each: HeatMap) -> None:
    def does_not_fit(row: int, column: int) -> bool | None:
        if not (0 <= row < len(each.dims) and 0 <= column < len(each.lengths)):
            return None
        return (each.dims[row], each.lengths[column]) in each.beyond

    for row in range(len(each.dims)):
        for column in range(len(each.lengths)):
            if not does_not_fit(row, column):
                continue
            x, y = column - 0.5, row - 0.5
            if does_not_fit(row, column - 1) is False:
                axes.plot([x, x], [y, y + 1], color=LIMIT, linewidth=2, zorder=5, solid_capstyle="projecting")
            for other, edge in ((row - 1, y), (row + 1, y + 1)):
                if does_not_fit(other, column) is False:
                    axes.plot([x, x + 1], [edge, edge], color=LIMIT, linewidth=2, zorder=5)
    axes.set_xlim(-0.5, len(each.lengths) - 0.5)
    axes.set_ylim(-0.5, len(each.dims) - 0.5)


TITLES: dict[Quantity, str] = {"forward": "forward", "backward": "backward", "saved": "kept for backward"}


def of_run(record: AttentionRecord) -> Iterator[LazyFigure]:
    groups = axes_of_cells.group_ignoring(record.cells, *SWEPT)
    for number, cells in enumerate(groups, 1):
        part = record.model_copy(update={"cells": cells})
        maps = _heat_maps(part) if len(dims(cells)) > 1 else None
        for name, found in (("curves", _curves(part)), ("heat-maps", maps)):
            if found is not None:
                yield replace(found, name=f"{name}-{number}" if len(groups) > 1 else name)


def write(record: AttentionRecord, curves: Path | None = None, heat_map: Path | None = None) -> Iterator[Path]:
    """Write the requested figures, one file per setting, and yield the path of each file."""
    groups = axes_of_cells.group_ignoring(record.cells, *SWEPT)
    for number, cells in enumerate(groups, 1):
        part = record.model_copy(update={"cells": cells})
        for path, make in ((curves, _curves), (heat_map, _heat_maps)):
            target = path.with_stem(f"{path.stem}-{number}") if path is not None and len(groups) > 1 else path
            figure = make(part) if target is not None else None
            if target is not None and figure is not None:
                plots.write(target, figure.draw)
                yield target


def _curves(record: AttentionRecord) -> LazyFigure | None:
    dim = usual_dim(record.cells)
    cells = [cell for cell in record.cells if cell.cell.dim == dim]
    panels = [found for quantity in QUANTITIES if (found := panel(cells, quantity)) is not None]
    if not panels:
        return None
    caption = _caption(record, f"d {dim}", "medians, bars: 95 % CI")
    shown = join_words([each.title for each in panels])
    text = f"Attention over the sequence length: {shown}. {_caption_text(caption)}."
    if any(curve.excluded for each in panels for curve in each.curves):
        text += f" {EXCLUDED_NOTE}"
    return LazyFigure("curves", text, lambda: draw_curves(panels, caption), tuple(cells))


def _heat_maps(record: AttentionRecord) -> LazyFigure | None:
    maps = [
        found
        for quantity in QUANTITIES
        if any(value(cell, quantity) is not None for cell in record.cells)
        for name in implementations(record.cells)
        if (found := heat_map(record.cells, name, quantity)) is not None
    ]
    if not maps:
        return None
    caption = _caption(record, "", "medians")
    shown = join_words(list(dict.fromkeys(each.quantity for each in maps)))
    text = f"Attention over head dimension and sequence length: {shown}. {_caption_text(caption)}."
    return LazyFigure("heat-maps", text, lambda: draw_heat_maps(maps, caption), tuple(record.cells))


def _caption_text(caption: Heading) -> str:
    simulated = f"{caption.mark.lower()} for {caption.simulated}" if caption.simulated else ""
    return " · ".join(part for part in (caption.title, caption.subtitle, simulated) if part)


def _caption(record: AttentionRecord, where: str, values: str) -> Heading:
    first = record.cells[0].cell
    machine = next((cell.device.name for cell in record.cells if cell.device and cell.source == "measured"), None)
    modelled = any(cell.source == "predicted" for cell in record.cells)
    inputs = [*axes_of_cells.subject(record.cells), "causal" if first.causal else "not causal"]
    subtitle = [
        *([machine, f"{first.repeats} repeats"] if machine else []),
        *record.environment.software,
        *(["cold caches"] if first.cold else []),
        *([values] if any(cell.forward for cell in record.cells) else []),
        *(["bars: 90 % interval"] if modelled and "bars" in values else []),
    ]
    simulated = {cell.gpu.title for cell in record.cells if cell.gpu}
    all_simulated = all(cell.cell.simulated for cell in record.cells)
    return Heading(
        title=" · ".join(["attention", *([where] if where and where not in inputs else []), *inputs]),
        subtitle=" · ".join(subtitle),
        simulated=", ".join(sorted(simulated)) if all_simulated else "",
        mark="PREDICTED" if modelled else "SIMULATED",
    )


def panel(cells: Sequence[AttentionCellRecord], quantity: Quantity) -> Panel | None:
    """Return the curves of one quantity; None if there are no values."""
    curves = tuple(curve for name in implementations(cells) if (curve := _curve(cells, name, quantity)) is not None)
    if not any(curve.points for curve in curves):
        return None
    unit: Unit = "bytes" if quantity == "saved" else "s"
    limits = {
        cell.gpu.memory_bytes if cell.gpu else cell.device.memory_bytes if cell.device else None for cell in cells
    } - {None}
    limit = limits.pop() if quantity == "saved" and len(limits) == 1 else None
    return Panel(TITLES[quantity], unit, curves, limit)


def _curve(cells: Sequence[AttentionCellRecord], name: str, quantity: Quantity) -> Curve | None:
    own_cells = sorted((cell for cell in cells if cell.cell.implementation == name), key=lambda cell: cell.cell.seq)
    points = []
    for cell in own_cells:
        if found := value(cell, quantity):
            timed, instead = samples(cell, quantity), predicted(cell, quantity)
            low, high = timed.ci95_s if timed is not None and timed.ci95_s is not None else (None, None)
            if instead is not None:
                low, high = instead.low_s, instead.high_s
            points.append((cell.cell.seq, found, low, high))
    beyond = [each.beyond for each in frontier(own_cells) if each.beyond is not None]
    if not points and not beyond:
        return None
    laws = [each.law for each in growth(own_cells, "seq", (quantity,))]
    return Curve(
        implementation=name,
        points=tuple(points),
        beyond=beyond[0].cell.seq if beyond else None,
        growth=next((exponent(law, "N") for law in laws if isinstance(law, PowerLaw)), ""),
        modelled=_modelled(own_cells, quantity),
        excluded=tuple(
            (cell.cell.seq, found)
            for cell in own_cells
            if cell.excluding_cautions(subject_of(quantity)) and (found := value(cell, quantity))
        ),
    )


def _modelled(cells: Sequence[AttentionCellRecord], quantity: Quantity) -> str:
    return "" if not any(cell.cell.simulated for cell in cells) else "simulated" if quantity == "saved" else "predicted"


def heat_map(cells: Sequence[AttentionCellRecord], name: str, quantity: Quantity) -> HeatMap | None:
    own_cells = [cell for cell in cells if cell.cell.implementation == name]
    if not any(value(cell, quantity) is not None or cell.lacks_memory for cell in own_cells):
        return None
    places = {(cell.cell.dim, cell.cell.seq): cell for cell in own_cells}
    known = {place: found for place, cell in places.items() if (found := value(cell, quantity)) is not None}
    return HeatMap(
        implementation=name,
        quantity=TITLES[quantity],
        unit="bytes" if quantity == "saved" else "s",
        dims=tuple(dims(cells)),
        lengths=tuple(sorted({cell.cell.seq for cell in cells})),
        values=known,
        words={place: status(cell).text for place, cell in places.items() if place not in known},
        beyond=frozenset(place for place, cell in places.items() if cell.lacks_memory),
        modelled=_modelled(own_cells, quantity),
    )
