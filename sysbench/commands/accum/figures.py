"""Figures of rounding experiments, one per experiment."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sysbench.commands.accum.findings import finding, mixed_format, short
from sysbench.commands.accum.record import AccumCellRecord, AccumRecord
from sysbench.commands.accum.spec import Experiment
from sysbench.log.records import RunRecord
from sysbench.render import plots as picture_file
from sysbench.render.plots import INK, QUIET, LazyFigure, printable
from sysbench.rounding import FORMATS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE_IN: Final = (10.0, 5.0)
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
_GRID: Final = "#d5d5d5"
_SMALLEST_DRAWN: Final = 1e-12
"""Smallest error that is drawn, because a logarithmic axis cannot show 0."""
_LINE_CHARACTERS: Final = 106
_FLOOR: Final = 0.21
"""Lower edge of the axes, which leaves room for the finding below."""


def write(path: Path, record: RunRecord[AccumCellRecord]) -> Iterator[Path]:
    """Draw a figure for each experiment with results, and yield the path of each file.

    If the run has several experiments, file names include the experiment: `x-norm.png`. Raises UsageError for an
    unknown picture format, and OutputError for a file that cannot be written.
    """
    cells = [cell for cell in record.cells if cell.outcome == "ok"]
    for cell in cells:
        words = [str(word) for word in (cell.experiment, cell.axes.get("size")) if word]
        target = path.with_stem("-".join([path.stem, *words]).replace("/", "_")) if len(record.cells) > 1 else path
        picture_file.write(target, lambda cell=cell: draw(cell))  # type: ignore[misc]
        yield target


def draw(cell: AccumCellRecord) -> Figure:
    """Draw the figure of one experiment, 10 × 5 inches."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE_IN, facecolor="white")
    drawings: dict[Experiment, Callable[[Figure, AccumCellRecord], None]] = {
        "sums": _draw_sums,
        "autocast": _draw_types,
        "norm": _draw_norm,
        "scaling": _draw_gradients,
        "matmul": _draw_products,
    }
    drawings[cell.experiment](figure, cell)
    device = cell.device.name if cell.device else ""
    figure.text(0.985, 0.945, printable(device), fontsize=9, color=QUIET, ha="right")
    for number, line in enumerate(textwrap.wrap(finding(cell) or "", _LINE_CHARACTERS)[:3]):
        figure.text(0.075, 0.075 - 0.028 * number, printable(line), fontsize=7.5, color=QUIET)
    return figure


_CAPTIONS: Final[Mapping[Experiment, str]] = {
    "sums": "Running sums of {value:g}, added {count} times, and their relative errors.",
    "autocast": "Dtypes in {size} under autocast, on this device and as simulated under CUDA's rules.",
    "norm": "Errors of layer norm over {width} values by scale of the inputs.",
    "scaling": "Gradients of {size} by magnitude in fp32, and the share lost in 16 bits at each loss scale.",
    "matmul": "Errors of matrix products relative to fp64, by length of the dot products (K).",
}


def _title(figure: Figure, text: str) -> None:
    figure.text(0.075, 0.945, printable(text), fontsize=11, fontweight="bold", color=INK)


def _style_axes(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    axes.tick_params(colors=QUIET)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=_GRID, linewidth=0.5, zorder=0)


def _logarithmic(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


# --- sums


def _draw_sums(figure: Figure, cell: AccumCellRecord) -> None:
    """Draw running sums and their errors: each format alone, and the narrow format with fp32 or Kahan summation."""
    value, count, narrow = float(cell.axes["value"]), int(cell.axes["count"]), mixed_format(cell)
    _title(figure, f"s += {value:g}, {count} times")
    left, right = figure.add_axes((0.075, _FLOOR, 0.38, 0.67)), figure.add_axes((0.55, _FLOOR, 0.27, 0.67))
    left.plot([0, count], [0, value * count], color=INK, linewidth=0.8, linestyle=(0, (1, 2)), label="exactly")
    for drift in cell.drift:
        kahan, is_pure = drift.order == "kahan", drift.accumulator == drift.addend
        if not (is_pure and drift.order == "sequential") and (drift.addend != narrow or drift.upcast):
            continue
        name = drift.addend if is_pure else f"{drift.accumulator} += {drift.addend}"
        style: dict[str, Any] = {
            "color": COLOURS[drift.addend],
            "linestyle": ":" if kahan else "-" if is_pure else "--",
            "linewidth": 1.5,
            "label": f"{name}, Kahan" if kahan else name,
        }
        points = [(step, total) for step, total in zip(drift.steps, drift.sums, strict=True) if math.isfinite(total)]
        left.plot([step for step, _ in points], [total for _, total in points], **style)
        errors = [(step, abs(total / (value * step) - 1)) for step, total in points]
        visible = [(step, error) for step, error in errors if error > _SMALLEST_DRAWN]
        right.plot([step for step, _ in visible], [error for _, error in visible], **style)
    _logarithmic(right)
    _style_axes(left, "step", "s")
    _style_axes(right, "step", "relative error of s")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper left", bbox_to_anchor=(0.83, 0.9), frameon=False, fontsize=8)


# --- dtypes


def _draw_types(figure: Figure, cell: AccumCellRecord) -> None:
    """Draw the dtypes as coloured fields, with this device and CUDA side by side."""
    from matplotlib.patches import Rectangle

    _title(figure, f"dtypes in {cell.cell.size} under autocast")
    here = cell.device.type if cell.device else "here"
    precisions = list(dict.fromkeys(each.precision for each in cell.dtypes))
    places = list(dict.fromkeys((each.part, each.name) for each in cell.dtypes))
    dtype_of = {(each.precision, each.part, each.name): each for each in cell.dtypes}
    axes = figure.add_axes((0.3, 0.13, 0.66, 0.7))
    for row, (part, name) in enumerate(places):
        for group, precision in enumerate(precisions):
            found = dtype_of.get((precision, part, name))
            for column, dtype in enumerate((found.here, found.on_cuda) if found else (), 2 * group):
                colour = COLOURS.get(short(dtype), QUIET)
                axes.add_patch(Rectangle((column + 0.03, row + 0.06), 0.94, 0.88, facecolor=colour, edgecolor="none"))
                label = printable(short(dtype))
                axes.text(column + 0.5, row + 0.5, label, color="white", fontsize=8, ha="center", va="center")
    axes.set_xlim(0, 2 * len(precisions))
    axes.set_ylim(len(places), 0)
    axes.set_yticks([row + 0.5 for row in range(len(places))])
    axes.set_yticklabels([printable(f"{part} {name}".strip()) for part, name in places], fontsize=8)
    axes.set_xticks([column + 0.5 for column in range(2 * len(precisions))])
    headings = [f"{precision}: {where}" for precision in precisions for where in (here, "CUDA, simulated")]
    axes.set_xticklabels(headings, fontsize=8)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, colors=INK)
    axes.spines[:].set_visible(False)


# --- layer norm


def _draw_norm(figure: Figure, cell: AccumCellRecord) -> None:
    _title(figure, f"layer norm of {cell.cell.width} values")
    axes = figure.add_axes((0.075, _FLOOR, 0.7, 0.67))
    for each in cell.norms:
        points = [
            (math.log2(scale), max(error, _SMALLEST_DRAWN) if error < 1 else 1.0)
            for scale, error in zip(each.scales, each.relative_errors, strict=True)
        ]
        inside = f", {each.statistics} inside" if each.statistics != each.dtype else ""
        axes.plot(
            [exponent for exponent, _ in points],
            [error for _, error in points],
            color=COLOURS[each.dtype],
            linestyle="--" if inside else "-",
            linewidth=1.5,
            label=f"{each.dtype}{inside}",
        )
    _logarithmic(axes)
    _style_axes(
        axes, "scale of the inputs, as a power of 2", "relative error of the outputs; at 1, no digit is correct"
    )
    figure.legend(loc="upper left", bbox_to_anchor=(0.79, 0.9), frameon=False, fontsize=8)


# --- gradients


def _draw_gradients(figure: Figure, cell: AccumCellRecord) -> None:
    """Draw a histogram of the gradients with the limits of fp16, and the share lost at each loss scale."""
    _title(figure, f"gradients of {cell.cell.size}")
    left, right = figure.add_axes((0.075, _FLOOR, 0.42, 0.65)), figure.add_axes((0.58, _FLOOR, 0.28, 0.65))
    if cell.gradients is not None:
        counts = cell.gradients.by_exponent
        left.bar(list(counts), list(counts.values()), width=0.9, color=COLOURS["fp32"], zorder=2)
        _logarithmic(left)
        fp16 = FORMATS["fp16"]
        zero = fp16.min_exponent - fp16.significant_bits
        for name, exponent in (("← subnormal in fp16", fp16.min_exponent), ("← 0 in fp16", zero)):
            # A bar covers the magnitudes from its power of two to the next power.
            left.axvline(exponent - 0.5, color=COLOURS["fp16"], linewidth=1, linestyle="--", zorder=3)
            left.annotate(
                name, (exponent - 0.5, 1), (-2, -2), xycoords=("data", "axes fraction"), textcoords="offset points",
                fontsize=7, color=COLOURS["fp16"], va="top", ha="right",
            )  # fmt: skip
    _style_axes(left, "magnitude in fp32, as a power of 2", "gradients")
    for precision in dict.fromkeys(each.precision for each in cell.scaled):
        rows = [each for each in cell.scaled if each.precision == precision]
        scales = [math.log2(each.scale) for each in rows]
        colour = COLOURS[precision]
        lost = [each.lost_share * 100 for each in rows]
        right.plot(scales, lost, "o-", color=colour, label=f"{precision} lost")
        overflowed = [each.overflowed_share * 100 for each in rows]
        right.plot(scales, overflowed, "x--", color=colour, label=f"{precision} overflowed")
    right.set_yscale("symlog", linthresh=1e-5)
    right.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    right.set_ylim(bottom=0)
    _style_axes(right, "loss scale, as a power of 2", "% of the gradients")
    figure.legend(loc="upper left", bbox_to_anchor=(0.86, 0.9), frameon=False, fontsize=7)


# --- products


def _draw_products(figure: Figure, cell: AccumCellRecord) -> None:
    """Plot the errors against the length of the dot products on logarithmic axes."""
    _title(figure, "matrix products vs. fp64")
    axes = figure.add_axes((0.075, _FLOOR, 0.68, 0.67))
    names = {"as it is": "", "narrow": ", every sum rounded", "reduced": ", reduced", "not reduced": ", not reduced"}
    for dtype, accumulation in dict.fromkeys((each.dtype, each.accumulation) for each in cell.products):
        rows = [each for each in cell.products if (each.dtype, each.accumulation) == (dtype, accumulation)]
        points = [(each.k, each.total_error) for each in rows if _SMALLEST_DRAWN < each.total_error < math.inf]
        suffix = "-like" if rows[0].source == "rounded" else ""
        axes.plot(
            [k for k, _ in points],
            [error for _, error in points],
            marker="o",
            markersize=3,
            color=COLOURS[dtype],
            linestyle=_DASHES[list(names).index(accumulation)],
            linewidth=1.5,
            label=f"{dtype}{suffix}{names[accumulation]}",
        )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    _logarithmic(axes)
    _style_axes(axes, "length of the dot products, K", "relative error")
    figure.legend(loc="upper left", bbox_to_anchor=(0.765, 0.9), frameon=False, fontsize=8)


def of_run(record: AccumRecord) -> Iterator[LazyFigure]:
    """Yield a figure for each experiment with results."""
    for cell in record.cells:
        if cell.outcome == "ok":
            name = " ".join(filter(None, (cell.cell.experiment, cell.cell.size)))
            caption = _CAPTIONS[cell.experiment].format(**cell.axes)
            yield LazyFigure(name, caption, partial(draw, cell), (cell,))
