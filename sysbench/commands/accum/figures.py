"""Figures of rounding experiments, one per experiment: charts of lines, a histogram, or fields of dtypes."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sysbench.commands.accum.findings import finding, mixed_format, short
from sysbench.commands.accum.record import AccumCellRecord, AccumRecord
from sysbench.commands.accum.spec import Experiment
from sysbench.log.records import RunRecord
from sysbench.render import plots
from sysbench.render.plots import INK, QUIET, Heading, LazyFigure, LineStyle, PanelLayout, printable, style_axes
from sysbench.rounding import FORMATS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS: Final[Mapping[str, str]] = {
    "fp32": "#1f4e79",
    "tf32": "#5b9bd5",
    "fp16": "#c55a11",
    "bf16": "#548235",
    "fp8-e4m3": "#7b4fa3",
    "fp8-e5m2": "#b58bd1",
    "int64": "#999999",
    "fp64": "#444444",
}
"""Colours of the formats in all figures."""
_DASHES: Final = ("-", "--", ":", "-.")
_SMALLEST_DRAWN: Final = 1e-12
"""Smallest error that is drawn, because a logarithmic axis cannot show 0."""
_LINE_CHARACTERS: Final = 118
_MAX_FINDING_LINES: Final = 3


@dataclass(frozen=True)
class Line:
    """A line of a chart; lines with the same label have the same style."""

    label: str
    style: LineStyle
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Chart:
    """Lines in the same axes."""

    x: str
    y: str
    lines: Sequence[Line] = ()
    y_scale: Mapping[str, Any] | None = None
    """Arguments of matplotlib's `set_yscale`; None for a linear axis."""
    draw_more: Callable[[Axes], None] = lambda axes: None


def write(path: Path, record: RunRecord[AccumCellRecord]) -> Iterator[Path]:
    """Draw a figure for each experiment with results, and yield the path of each file."""
    cells = [cell for cell in record.cells if cell.outcome == "ok"]
    for cell in cells:
        words = [str(word) for word in (cell.experiment, cell.axes.get("size")) if word]
        target = path.with_stem("-".join([path.stem, *words]).replace("/", "_")) if len(record.cells) > 1 else path
        plots.write(target, lambda cell=cell: draw(cell))  # type: ignore[misc]
        yield target


def draw(cell: AccumCellRecord) -> Figure:
    title, charts = _CHARTS[cell.experiment](cell)
    heading = Heading(title, cell.device.name if cell.device else "")
    return _draw_types(cell, heading) if cell.experiment == "autocast" else _draw_charts(cell, heading, charts)


def _draw_charts(cell: AccumCellRecord, heading: Heading, charts: Sequence[Chart]) -> Figure:
    from matplotlib.lines import Line2D

    styles = {line.label: line.style for chart in charts for line in chart.lines}
    handles = [Line2D([], [], markersize=3, label=printable(label), **style.line) for label, style in styles.items()]
    rows, words = plots.arrange_handles(handles), _finding_lines(cell)
    layout = PanelLayout(len(charts), 3.0, 0.75, legend_lines=len(rows) + len(words))
    figure, panels = plots.create_panels(layout, len(charts), heading)
    for axes, chart in zip(panels, charts, strict=True):
        for line in chart.lines:
            x, y = [point[0] for point in line.points], [point[1] for point in line.points]
            axes.plot(x, y, linewidth=1.5, markersize=3, **line.style.line)
        if chart.y_scale is not None:
            axes.set_yscale(**chart.y_scale)
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        chart.draw_more(axes)
        style_axes(axes, x=chart.x, y=chart.y, lines="both")
    plots.draw_legend(figure, *rows)
    _draw_finding(figure, words, len(rows))
    return figure


def _finding_lines(cell: AccumCellRecord) -> list[str]:
    return textwrap.wrap(finding(cell) or "", _LINE_CHARACTERS)[:_MAX_FINDING_LINES]


def _draw_finding(figure: Figure, lines: Sequence[str], lines_below: int) -> None:
    _, height = figure.get_size_inches()
    for number, line in enumerate(reversed(lines)):
        bottom = (0.12 + (lines_below + number) * plots.LEGEND_LINE_IN) / height
        figure.text(0.1 / plots.WIDTH_IN, bottom, printable(line, _LINE_CHARACTERS), fontsize=7.5, color=QUIET)


_CAPTIONS: Final[Mapping[Experiment, str]] = {
    "sums": "Running sums of {value:g}, added {count} times, and their relative errors.",
    "autocast": "Dtypes in {size} under autocast, on this device and as simulated under CUDA's rules.",
    "norm": "Errors of layer norm over {width} values by scale of the inputs.",
    "scaling": "Gradients of {size} by magnitude in fp32, and the share lost in 16 bits at each loss scale.",
    "matmul": "Errors of matrix products relative to fp64, by length of the dot products (K).",
}


_LOGARITHMIC: Final = {"value": "log"}


def _sums(cell: AccumCellRecord) -> tuple[str, list[Chart]]:
    value, count, narrow = float(cell.axes["value"]), int(cell.axes["count"]), mixed_format(cell)
    sums = [Line("exactly", LineStyle(INK, "", (0, (1, 2))), [(0, 0), (count, value * count)])]
    errors = []
    for drift in cell.drift:
        kahan, is_pure = drift.order == "kahan", drift.accumulator == drift.addend
        if not (is_pure and drift.order == "sequential") and (drift.addend != narrow or drift.upcast):
            continue
        name = drift.addend if is_pure else f"{drift.accumulator} += {drift.addend}"
        style = LineStyle(COLOURS[drift.addend], "", ":" if kahan else "-" if is_pure else "--")
        points = [(step, total) for step, total in zip(drift.steps, drift.sums, strict=True) if math.isfinite(total)]
        relative = [(step, abs(total / (value * step) - 1)) for step, total in points]
        label = f"{name}, Kahan" if kahan else name
        sums.append(Line(label, style, points))
        errors.append(Line(label, style, _visible(relative)))
    charts = [Chart("step", "s", sums), Chart("step", "relative error of s", errors, _LOGARITHMIC)]
    return f"s += {value:g}, {count} times", charts


def _visible(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if _SMALLEST_DRAWN < y < math.inf]


def _norm(cell: AccumCellRecord) -> tuple[str, list[Chart]]:
    lines = []
    for each in cell.norms:
        inside = f", {each.statistics} inside" if each.statistics != each.dtype else ""
        points = [
            (math.log2(scale), max(error, _SMALLEST_DRAWN) if error < 1 else 1.0)
            for scale, error in zip(each.scales, each.relative_errors, strict=True)
        ]
        lines.append(Line(f"{each.dtype}{inside}", LineStyle(COLOURS[each.dtype], "", "--" if inside else "-"), points))
    x, y = "scale of the inputs, as a power of 2", "relative error of the outputs; at 1, no digit is correct"
    return f"layer norm of {cell.cell.width} values", [Chart(x, y, lines, _LOGARITHMIC)]


def _gradients(cell: AccumCellRecord) -> tuple[str, list[Chart]]:
    lost = []
    for precision in dict.fromkeys(each.precision for each in cell.scaled):
        rows = [each for each in cell.scaled if each.precision == precision]
        for name, marker, dashes in (("lost", "o", "-"), ("overflowed", "x", "--")):
            points = [(math.log2(each.scale), getattr(each, f"{name}_share") * 100) for each in rows]
            lost.append(Line(f"{precision} {name}", LineStyle(COLOURS[precision], marker, dashes), points))
    histogram = partial(_draw_histogram, cell)
    symlog = {"value": "symlog", "linthresh": 1e-5}
    charts = [
        Chart("magnitude in fp32, as a power of 2", "gradients", y_scale=_LOGARITHMIC, draw_more=histogram),
        Chart("loss scale, as a power of 2", "% of the gradients", lost, symlog, _start_at_0),
    ]
    return f"gradients of {cell.cell.size}", charts


def _start_at_0(axes: Axes) -> None:
    axes.set_ylim(bottom=0)


def _draw_histogram(cell: AccumCellRecord, axes: Axes) -> None:
    if cell.gradients is None:
        return
    counts = cell.gradients.by_exponent
    axes.bar(list(counts), list(counts.values()), width=0.9, color=COLOURS["fp32"], zorder=2)
    fp16 = FORMATS["fp16"]
    zero = fp16.min_exponent - fp16.significant_bits
    for name, exponent, lower in (("← subnormal in fp16", fp16.min_exponent, 2), ("← 0 in fp16", zero, 11)):
        # A bar covers the magnitudes from its power of two to the next power.
        axes.axvline(exponent - 0.5, color=COLOURS["fp16"], linewidth=1, linestyle="--", zorder=3)
        axes.annotate(
            name, (exponent - 0.5, 1), (-2, -lower), xycoords=("data", "axes fraction"), textcoords="offset points",
            fontsize=7, color=COLOURS["fp16"], va="top", ha="right",
        )  # fmt: skip


def _products(cell: AccumCellRecord) -> tuple[str, list[Chart]]:
    names = {"as it is": "", "narrow": ", every sum rounded", "reduced": ", reduced", "not reduced": ", not reduced"}
    lines = []
    for dtype, accumulation in dict.fromkeys((each.dtype, each.accumulation) for each in cell.products):
        rows = [each for each in cell.products if (each.dtype, each.accumulation) == (dtype, accumulation)]
        suffix = "-like" if rows[0].source == "rounded" else ""
        style = LineStyle(COLOURS[dtype], "o", _DASHES[list(names).index(accumulation)])
        points = _visible([(each.k, each.total_error) for each in rows])
        lines.append(Line(f"{dtype}{suffix}{names[accumulation]}", style, points))
    chart = Chart("length of the dot products, K", "relative error", lines, _LOGARITHMIC, _powers_of_2)
    return "matrix products vs. fp64", [chart]


def _powers_of_2(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")


_CHARTS: Final[Mapping[Experiment, Callable[[AccumCellRecord], tuple[str, list[Chart]]]]] = {
    "sums": _sums,
    "autocast": lambda cell: (f"dtypes in {cell.cell.size} under autocast", []),
    "norm": _norm,
    "scaling": _gradients,
    "matmul": _products,
}


def _draw_types(cell: AccumCellRecord, heading: Heading) -> Figure:
    here = cell.device.type if cell.device else "here"
    precisions = list(dict.fromkeys(each.precision for each in cell.dtypes))
    places = list(dict.fromkeys((each.part, each.name) for each in cell.dtypes))
    dtype_of = {(each.precision, each.part, each.name): each for each in cell.dtypes}
    words = _finding_lines(cell)
    layout = PanelLayout(1, 0.24 * max(len(places), 1), 2.2, 0.1, legend_lines=len(words))
    figure, (axes,) = plots.create_panels(layout, 1, heading)
    boxes = []
    for row, (part, name) in enumerate(places):
        for group, precision in enumerate(precisions):
            found = dtype_of.get((precision, part, name))
            for column, dtype in enumerate((found.here, found.on_cuda) if found else (), 2 * group):
                boxes.append(plots.Box(column + 0.03, row + 0.06, 0.94, 0.88, COLOURS.get(short(dtype), QUIET)))
                label = printable(short(dtype))
                axes.text(column + 0.5, row + 0.5, label, color="white", fontsize=8, ha="center", va="center")
    plots.draw_boxes(axes, boxes)
    axes.set_xlim(0, 2 * len(precisions))
    axes.set_ylim(len(places), 0)
    names = [printable(f"{part} {name}".strip()) for part, name in places]
    axes.set_yticks([row + 0.5 for row in range(len(places))], names, fontsize=8)
    headings = [f"{precision}: {where}" for precision in precisions for where in (here, "CUDA, simulated")]
    axes.set_xticks([column + 0.5 for column in range(2 * len(precisions))], headings, fontsize=8)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, colors=INK)
    axes.spines[:].set_visible(False)
    _draw_finding(figure, words, 0)
    return figure


def of_run(record: AccumRecord) -> Iterator[LazyFigure]:
    for cell in record.cells:
        if cell.outcome == "ok":
            name = " ".join(filter(None, (cell.cell.experiment, cell.cell.size)))
            caption = _CAPTIONS[cell.experiment].format(**cell.axes)
            yield LazyFigure(name, caption, partial(draw, cell), (cell,))
