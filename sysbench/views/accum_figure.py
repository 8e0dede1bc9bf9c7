"""Pictures of what rounding does: one for each experiment."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sysbench.analysis.accum_findings import finding, mixed_format, short
from sysbench.records import AccumCellRecord, DriftRecord, RunRecord
from sysbench.rounding import FORMATS
from sysbench.specs.accum import Experiment
from sysbench.views import picture_file
from sysbench.views.picture_file import INK, QUIET, printable

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
"""One for each format, the same in every picture. Lines differ in dashes or markers, too."""
_DASHES: Final = ("-", "--", ":", "-.")
_GRID: Final = "#d5d5d5"
_SMALLEST_DRAWN: Final = 1e-12
"""On a logarithmic axis, where no error is drawn as that."""


def write(path: Path, record: RunRecord[AccumCellRecord]) -> Iterator[Path]:
    """Draw every experiment that has something to show; yields each file.

    Several experiments are drawn into files with their names in them: `x-norm.png`. Raises UsageError and OutputError.
    """
    cells = [cell for cell in record.cells if cell.outcome == "ok"]
    for cell in cells:
        words = [str(word) for word in (cell.experiment, cell.axes.get("size")) if word]
        target = path.with_stem("-".join([path.stem, *words]).replace("/", "_")) if len(record.cells) > 1 else path
        picture_file.write(target, lambda cell=cell: draw(cell))  # type: ignore[misc]
        yield target


def draw(cell: AccumCellRecord) -> Figure:
    """The picture of one experiment, 10 × 5 inches."""
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
    figure.text(0.075, 0.025, printable(finding(cell) or ""), fontsize=7.5, color=QUIET)
    return figure


def _title(figure: Figure, text: str) -> None:
    figure.text(0.075, 0.945, printable(text), fontsize=11, fontweight="bold", color=INK)


def _dressed(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    axes.tick_params(colors=QUIET)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color=_GRID, linewidth=0.5, zorder=0)


# --- sums


def _draw_sums(figure: Figure, cell: AccumCellRecord) -> None:
    """The running sums on their way, and how far each is from where it should be."""
    value, count = float(cell.axes["value"]), int(cell.axes["count"])
    _title(figure, f"s += {value:g}, {count} times")
    left, right = figure.add_axes((0.075, 0.16, 0.38, 0.72)), figure.add_axes((0.55, 0.16, 0.27, 0.72))
    left.plot([0, count], [0, value * count], color=INK, linewidth=0.8, linestyle=(0, (1, 2)), label="exactly")
    for drift in _drawn(cell):
        style: dict[str, Any] = {
            "color": COLOURS[drift.addend],
            "linestyle": _dashes(drift),
            "linewidth": 1.5,
            "label": _named(drift),
        }
        points = [(step, total) for step, total in zip(drift.steps, drift.sums, strict=True) if math.isfinite(total)]
        left.plot([step for step, _ in points], [total for _, total in points], **style)
        errors = [max(abs(total / (value * step) - 1), _SMALLEST_DRAWN) for step, total in points]
        right.plot([step for step, _ in points], errors, **style)
    right.set_yscale("log")
    _dressed(left, "step", "s")
    _dressed(right, "step", "relative error of s")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper left", bbox_to_anchor=(0.83, 0.9), frameon=False, fontsize=8)


def _drawn(cell: AccumCellRecord) -> Iterator[DriftRecord]:
    """Every format by itself, the narrow one in fp32, and Kahan's sum of it."""
    narrow = mixed_format(cell)
    for drift in cell.drift:
        alone = drift.accumulator == drift.addend and drift.order == "sequential"
        if alone or (drift.addend == narrow and not drift.upcast):
            yield drift


def _dashes(drift: DriftRecord) -> str:
    return ":" if drift.order == "kahan" else "--" if drift.accumulator != drift.addend else "-"


def _named(drift: DriftRecord) -> str:
    name = f"{drift.accumulator} += {drift.addend}"
    return f"{name}, Kahan" if drift.order == "kahan" else name


# --- types


def _draw_types(figure: Figure, cell: AccumCellRecord) -> None:
    """One coloured field for every type; where this device and CUDA differ, the fields do."""
    _title(figure, f"types in {cell.axes['size']} under autocast")
    here = cell.device.type if cell.device else "here"
    precisions = list(dict.fromkeys(each.precision for each in cell.dtypes))
    places = list(dict.fromkeys((each.part, each.name) for each in cell.dtypes))
    by_place = {(each.precision, each.part, each.name): each for each in cell.dtypes}
    axes = figure.add_axes((0.3, 0.1, 0.66, 0.72))
    for row, (part, name) in enumerate(places):
        for group, precision in enumerate(precisions):
            found = by_place.get((precision, part, name))
            for column, dtype in enumerate((found.here, found.on_cuda) if found else ()):
                _field(axes, 2 * group + column, row, short(dtype))
    axes.set_xlim(0, 2 * len(precisions))
    axes.set_ylim(len(places), 0)
    axes.set_yticks([row + 0.5 for row in range(len(places))])
    axes.set_yticklabels([printable(f"{part} {name}".strip()) for part, name in places], fontsize=8)
    axes.set_xticks([column + 0.5 for column in range(2 * len(precisions))])
    heads = [f"{precision}: {where}" for precision in precisions for where in (here, "CUDA, simulated")]
    axes.set_xticklabels(heads, fontsize=8)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, colors=INK)
    axes.spines[:].set_visible(False)


def _field(axes: Axes, column: float, row: float, name: str) -> None:
    from matplotlib.patches import Rectangle

    colour = COLOURS.get(name, QUIET)
    axes.add_patch(Rectangle((column + 0.03, row + 0.06), 0.94, 0.88, facecolor=colour, edgecolor="none"))
    axes.text(column + 0.5, row + 0.5, printable(name), color="white", fontsize=8, ha="center", va="center")


# --- layer norm


def _draw_norm(figure: Figure, cell: AccumCellRecord) -> None:
    """The error of the outputs over the scale of the inputs."""
    _title(figure, f"layer norm of {cell.axes['width']} numbers")
    axes = figure.add_axes((0.075, 0.16, 0.7, 0.72))
    for each in cell.norms:
        points = [
            (math.log2(scale), min(max(error, _SMALLEST_DRAWN), 1e3))
            for scale, error in zip(each.scales, each.relative_errors, strict=True)
            if not math.isnan(error)
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
    axes.set_yscale("log")
    _dressed(axes, "scale of the inputs, as a power of 2", "relative error of the outputs")
    figure.legend(loc="upper left", bbox_to_anchor=(0.79, 0.9), frameon=False, fontsize=8)


# --- gradients


def _draw_gradients(figure: Figure, cell: AccumCellRecord) -> None:
    """How large the gradients are in fp32, with where fp16 ends; and what each scale of the loss leaves of them."""
    _title(figure, f"gradients of {cell.axes['size']}")
    left, right = figure.add_axes((0.075, 0.16, 0.42, 0.7)), figure.add_axes((0.58, 0.16, 0.28, 0.7))
    if cell.gradients is not None:
        counts = cell.gradients.by_exponent
        left.bar(list(counts), list(counts.values()), width=0.9, color=COLOURS["fp32"], zorder=2)
        left.set_yscale("log")
        half = FORMATS["fp16"]
        ends = {
            "fp16 normal": half.least_exponent,
            "fp16 above 0": half.least_exponent - half.significant_bits,
        }
        for name, exponent in ends.items():
            left.axvline(exponent, color=COLOURS["fp16"], linewidth=1, linestyle="--", zorder=3)
            left.annotate(
                name,
                (exponent, 1),
                (2, -2),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                fontsize=7,
                color=COLOURS["fp16"],
                va="top",
            )
    _dressed(left, "magnitude in fp32, as a power of 2", "gradients")
    for precision in dict.fromkeys(each.precision for each in cell.scaled):
        rows = [each for each in cell.scaled if each.precision == precision]
        scales = [math.log2(each.scale) for each in rows]
        colour = COLOURS[precision]
        right.plot(
            scales, _percentages([each.lost_share for each in rows]), "o-", color=colour, label=f"{precision} lost"
        )
        overflowed = _percentages([each.overflowed_share for each in rows])
        right.plot(scales, overflowed, "x--", color=colour, label=f"{precision} overflowed")
    right.set_yscale("symlog", linthresh=1e-5)
    right.set_ylim(bottom=0)
    _dressed(right, "loss ×, as a power of 2", "% of the gradients")
    figure.legend(loc="upper left", bbox_to_anchor=(0.86, 0.9), frameon=False, fontsize=7)


def _percentages(shares: Sequence[float]) -> list[float]:
    return [share * 100 for share in shares]


# --- products


def _draw_products(figure: Figure, cell: AccumCellRecord) -> None:
    """Errors over the length of the sums, both logarithmic."""
    _title(figure, "matrix products against fp64")
    axes = figure.add_axes((0.075, 0.16, 0.68, 0.72))
    names = {"as it is": "", "narrow": ", every sum rounded", "reduced": ", reduced", "not reduced": ", not reduced"}
    for dtype, way in dict.fromkeys((each.dtype, each.accumulation) for each in cell.products):
        rows = [each for each in cell.products if (each.dtype, each.accumulation) == (dtype, way)]
        points = [(each.k, max(each.total_error, _SMALLEST_DRAWN)) for each in rows if math.isfinite(each.total_error)]
        like = "-like" if rows[0].source == "rounded" else ""
        axes.plot(
            [k for k, _ in points],
            [error for _, error in points],
            marker="o",
            markersize=3,
            color=COLOURS[dtype],
            linestyle=_DASHES[list(names).index(way)],
            linewidth=1.5,
            label=f"{dtype}{like}{names[way]}",
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    _dressed(axes, "length of the sums, k", "relative error")
    figure.legend(loc="upper left", bbox_to_anchor=(0.765, 0.9), frameon=False, fontsize=8)
