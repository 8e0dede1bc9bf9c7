"""Figures of rounding experiments: charts of lines, and a histogram. Autocast has none: its table shows all dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sysbench.commands.accum.findings import mixed_format
from sysbench.commands.accum.record import AccumCellRecord, AccumRecord
from sysbench.commands.accum.spec import Experiment
from sysbench.log.records import RunRecord
from sysbench.render import plots
from sysbench.render.plots import INK, Heading, LazyFigure, LineStyle, PanelLayout, printable, style_axes
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
    for cell in _drawn(record):
        words = [str(word) for word in (cell.experiment, cell.axes.get("size")) if word]
        target = path.with_stem("-".join([path.stem, *words]).replace("/", "_")) if len(record.cells) > 1 else path
        plots.write(target, lambda cell=cell: draw(cell))  # type: ignore[misc]
        yield target


def _drawn(record: RunRecord[AccumCellRecord]) -> list[AccumCellRecord]:
    return [cell for cell in record.cells if cell.outcome == "ok" and cell.experiment in _CHARTS]


def draw(cell: AccumCellRecord) -> Figure:
    from matplotlib.lines import Line2D

    title, charts = _CHARTS[cell.experiment](cell)
    styles = {line.label: line.style for chart in charts for line in chart.lines}
    handles = [Line2D([], [], markersize=3, label=printable(label), **style.line) for label, style in styles.items()]
    rows = plots.arrange_handles(handles)
    layout = PanelLayout(len(charts), 3.0, 0.75, legend_lines=len(rows))
    heading = Heading(title, cell.device.name if cell.device else "")
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
    return figure


_CAPTIONS: Final[Mapping[Experiment, str]] = {
    "sums": "Running sums of {value:g}, added {count} times, and their relative errors.",
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
    "norm": _norm,
    "scaling": _gradients,
    "matmul": _products,
}


def of_run(record: AccumRecord) -> Iterator[LazyFigure]:
    for cell in _drawn(record):
        name = " ".join(filter(None, (cell.cell.experiment, cell.cell.size)))
        yield LazyFigure(name, _CAPTIONS[cell.experiment].format(**cell.axes), partial(draw, cell), (cell,))
