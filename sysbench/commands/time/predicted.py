"""Tables, findings and figures of predicted times: `sysbench time --simulate`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.time.record import TimeCellRecord, TimeRecord
from sysbench.log.predictions import INTERVAL, MARK, PredictedConstant, PredictedTime, PredictionRecord
from sysbench.render.declared import DeclaredTable, Each, Field, leading_fields
from sysbench.render.findings import Statement, join_words, namer
from sysbench.render.plots import (
    WIDTH_IN,
    Heading,
    LazyFigure,
    caption_text,
    draw_heading,
    draw_legend,
    printable,
    style_axes,
    subject,
)
from sysbench.render.remarks import outcome_word
from sysbench.render.table import Cell, Measure, Table, Word

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOWER_BOUND_NOTE = "lower bound: at data-sheet rates, assuming zero host time; a bound, not a prediction"

EXPOSED_NOTE = "exposed: time that collectives add to the step on the device, excluding overlap"

COMPILED_NOTE = "compiled cells are less certain: fusion is a guess; memory is that of the eager step, which needs more"

MAX_SETTINGS = 4
"""Largest number of settings shown by default."""

PHASES = ("zero_grad", "forward", "loss", "backward", "optimizer")

IMPORTANCE = {"zero_grad": 12, "forward": 5, "loss": 11, "backward": 6, "optimizer": 7}


def is_predicted(record: TimeRecord) -> bool:
    """Whether the cells of the run are predicted: either all or none are."""
    return any(cell.cell.simulate for cell in record.cells)


def _prediction(cell: TimeCellRecord) -> PredictionRecord | None:
    """Return the prediction of a cell; None unless its outcome is `ok`."""
    return cell.prediction if cell.outcome == "ok" else None


def missing_time_reason(cell: TimeCellRecord) -> Word | None:
    """Return the reason why a cell has no predicted time: its outcome (`oom`), or `withheld`; None if it has a time."""
    if cell.outcome != "ok":
        return outcome_word(cell.outcome)
    return Word("withheld", "bad") if cell.prediction is None or cell.prediction.step is None else None


def _step(cell: TimeCellRecord) -> Cell:
    step = prediction.step if (prediction := _prediction(cell)) else None
    return Measure(step.point_s, low=step.low_s, high=step.high_s) if step else None


def taken_s(cell: TimeCellRecord) -> float | None:
    """Return the seconds that measuring the cell would take; 0 if it does not fit, None without a prediction."""
    step = prediction.step if (prediction := _prediction(cell)) else None
    if cell.outcome == "oom":
        return 0.0
    return (cell.cell.warmup + cell.cell.steps) * step.point_s if step else None


def _phase(cell: TimeCellRecord, name: str) -> Cell:
    prediction = _prediction(cell)
    return (
        next((Measure(each.point_s) for each in prediction.phases if each.name == name), None) if prediction else None
    )


def limit(cell: TimeCellRecord) -> str:
    """Return what limits the step, and its share of the time: `host 96 %`."""
    prediction = _prediction(cell)
    return f"{prediction.limited_by} {units.share(prediction.limited_share)}" if prediction else ""


def _prediction_field(name: str) -> Callable[[TimeCellRecord], float | None]:
    def get(cell: TimeCellRecord) -> float | None:
        prediction = _prediction(cell)
        value: float | None = getattr(prediction, name) if prediction else None
        return value

    return get


def _memory_bytes(cell: TimeCellRecord) -> int | None:
    return prediction.reserved_peak_bytes if (prediction := _prediction(cell)) else None


def _phases(record: TimeRecord) -> tuple[str, ...]:
    present = {each.name for cell in record.cells if cell.prediction for each in cell.prediction.phases}
    return tuple(phase for phase in PHASES if phase in present) if len(present) > 1 else ()


MICRO_BATCHES_NOTE = "grad accum: micro-batches per step; forward, loss and backward are sums over all micro-batches"


def _notes(record: TimeRecord) -> tuple[str, ...]:
    hosts = dict.fromkeys(cell.prediction.host for cell in record.cells if cell.prediction)
    host_note = (f"issued by {join_words(list(hosts))}",) if hosts else ()
    uncertain = any(cell.prediction and cell.prediction.less_certain for cell in record.cells)
    accumulates = any(cell.cell.grad_accum > 1 for cell in record.cells)
    return (
        INTERVAL,
        *host_note,
        *((COMPILED_NOTE,) if uncertain else ()),
        *((MICRO_BATCHES_NOTE,) if accumulates else ()),
    )


def _sum_over_phases(name: str) -> Callable[[TimeCellRecord], float | None]:
    """Return a function that sums a field over the phases of a cell; it returns None if there is no communication."""

    def get(cell: TimeCellRecord) -> float | None:
        prediction = _prediction(cell)
        if (
            prediction is None
            or prediction.step is None
            or not any(phase.communication_s for phase in prediction.phases)
        ):
            return None
        return math.fsum(getattr(phase, name) for phase in prediction.phases)

    return get


_COMMON_COLUMNS = (
    Field("limit", "limited by", get=limit, importance=1),
    Field("tokens_per_s", "throughput", "tokens_per_s", get=_prediction_field("tokens_per_s"), importance=3),
    Field("flops_per_s", "achieved", "flops_per_s", get=_prediction_field("flops_per_s"), importance=8),
    Field("mfu", "MFU", "share", get=_prediction_field("peak_share"), importance=4),
    Field(
        "lower_bound", "lower bound", "s", get=_prediction_field("lower_bound_s"), importance=9, note=LOWER_BOUND_NOTE
    ),
    Field("reserved_peak", "memory", "bytes", get=_memory_bytes, importance=10, shown_with_outcome=True),
)

PREDICTED = DeclaredTable(
    "predicted",
    f"{MARK}: step time and phases",
    (
        Each(
            "phase",
            (Field("{phase}", unit="s", importance=lambda record, phase: IMPORTANCE[phase], get=_phase),),
            values=_phases,
        ),
        Field("step", unit="s", get=_step),
        Field("communication", unit="s", get=_sum_over_phases("communication_s"), optional=True, importance=6),
        Field("exposed", unit="s", get=_sum_over_phases("exposed_s"), optional=True, importance=3, note=EXPOSED_NOTE),
        *_COMMON_COLUMNS,
    ),
    when=is_predicted,
    outcome_of=missing_time_reason,
    notes=_notes,
    needs="predicted times (--simulate h100)",
)
"""One row per cell."""


def _cells_by_setting(record: TimeRecord) -> Iterator[list[TimeCellRecord]]:
    """Yield the cells of each setting with several GPUs, the best GPU first (see `_best_first`)."""
    for group in axes.group_ignoring(record.cells, "simulate"):
        if len(group) > 1:
            yield sorted(group, key=_best_first)


def _best_first(cell: TimeCellRecord) -> tuple[bool, float, float]:
    """Return the sort key: cells with a predicted step first, then by cost per million tokens, then by step time."""
    prediction = _prediction(cell)
    cost = prediction.price_per_million_tokens if prediction else None
    step = prediction.step if prediction else None
    unknown = float("inf")
    return (step is None, cost if cost is not None else unknown, step.point_s if step else unknown)


def _gpus_title(cells: Sequence[TimeCellRecord]) -> str:
    priced = any(cell.prediction and cell.prediction.price_per_million_tokens for cell in cells)
    return f"{MARK}: GPU comparison, {'cheapest' if priced else 'fastest'} first"


def _gpus_notes(cells: Sequence[TimeCellRecord]) -> tuple[str, ...]:
    common = (", ".join(axes.subject(axes.axes_of([cells[0]]))), INTERVAL)
    priced = any(cell.prediction and cell.prediction.price_per_hour for cell in cells)
    return common if priced else (*common, "use --price h100=2.5 to sort by cost per token")


def _cost(cell: TimeCellRecord) -> Cell:
    prediction = _prediction(cell)
    cost = prediction.price_per_million_tokens if prediction else None
    return Measure(cost, text=f"{cost:.3g}") if cost is not None else None


GPUS = DeclaredTable(
    "gpus",
    _gpus_title,
    (
        Field("step", unit="s", get=_step),
        Field("price", "per hour", "number", get=_prediction_field("price_per_hour"), optional=True, importance=2),
        Field("million_tokens", "per million tokens", "number", get=_cost, optional=True),
        *_COMMON_COLUMNS,
    ),
    rows=lambda cells: cells,
    leading=leading_fields(Field("gpu", "GPU", get=lambda cell: cell.cell.simulate)),
    parts=_cells_by_setting,
    outcome_of=missing_time_reason,
    notes=_gpus_notes,
    needs="predicted times on several GPUs (--simulate h100,rtx-4090)",
)
"""One table per setting, one row per GPU."""


def _constants_by_gpu(record: TimeRecord) -> Iterator[tuple[str, PredictedConstant]]:
    seen: dict[tuple[str, str], PredictedConstant] = {}
    for cell in record.cells:
        for each in cell.prediction.constants if cell.prediction else ():
            seen.setdefault((cell.cell.simulate or "", each.name), each)
    for (gpu, _), each in seen.items():
        yield gpu, each


CONSTANTS = DeclaredTable(
    "constants",
    "constants used for predictions",
    (
        Field("value", unit="number", get=lambda row: Measure(row[1].value, text=f"{row[1].value:.4g}")),
        Field("spread", "spread", "share", get=lambda row: row[1].spread),
        Field("basis", get=lambda row: row[1].basis),
        Field("source", get=lambda row: row[1].source, elastic=True),
    ),
    rows=_constants_by_gpu,
    leading=leading_fields(Field("gpu", "GPU", get=lambda row: row[0]), Field("constant", get=lambda row: row[1].name)),
    notes=("in FLOP/s, bytes/s, elements/s and seconds; spread: standard deviation of the logarithm",),
    needs="predicted times (--simulate h100)",
)
"""All rates of each GPU and its host, with their sources."""


class _ScaledCell(NamedTuple):
    """A cell, and its baseline: the cell with the fewest ranks."""

    cell: TimeCellRecord
    base: TimeCellRecord

    @property
    def speedup(self) -> float | None:
        throughput, base_throughput = (_prediction_field("tokens_per_s")(each) for each in (self.cell, self.base))
        return throughput / base_throughput if throughput and base_throughput else None


def _scaling_groups(record: TimeRecord) -> Iterator[list[_ScaledCell]]:
    """Yield the cells of each setting and strategy by number of ranks; single-rank cells belong to every strategy."""
    for group in axes.group_ignoring(record.cells, "ranks", "strategy", "interconnect"):
        for strategy in dict.fromkeys(cell.cell.strategy for cell in group if cell.cell.strategy):
            row = sorted(
                (each for each in group if each.cell.strategy in (None, strategy)), key=lambda each: each.cell.ranks
            )
            if len(row) > 1:
                yield [_ScaledCell(each, row[0]) for each in row]


def _scaling_title(row: Sequence[_ScaledCell]) -> str:
    last = row[-1].cell.cell
    kind = "strong scaling, fixed total batch" if last.strategy == "tp" else "weak scaling, fixed batch per rank"
    return f"{MARK}: {last.strategy}, {kind}"


SCALING = DeclaredTable(
    "scaling",
    _scaling_title,
    (
        Field("step", unit="s", get=lambda row: _step(row.cell)),
        Field(
            "exposed",
            unit="s",
            get=lambda row: _sum_over_phases("exposed_s")(row.cell),
            optional=True,
            note=EXPOSED_NOTE,
        ),
        Field(
            "tokens_per_s", "throughput", "tokens_per_s", get=lambda row: _prediction_field("tokens_per_s")(row.cell)
        ),
        Field("speedup", "speed-up", "number", get=lambda row: row.speedup),
        Field(
            "efficiency",
            unit="share",
            get=lambda row: row.speedup and row.speedup * row.base.cell.ranks / row.cell.cell.ranks,
        ),
        Field("interconnect", "between nodes", get=lambda row: row.cell.cell.interconnect, optional=True),
    ),
    rows=lambda rows: rows,
    leading=leading_fields(Field("ranks", get=lambda row: row.cell.cell.ranks)),
    parts=_scaling_groups,
    outcome_of=lambda row: missing_time_reason(row.cell),
    notes=lambda rows: (
        ", ".join(axes.subject(axes.axes_of([rows[0].cell]))),
        "speed-up: throughput relative to the fewest ranks; efficiency: speed-up per rank",
        *(
            ("between nodes: assumed values; no network was measured",)
            if any(row.cell.cell.interconnect for row in rows)
            else ()
        ),
    ),
    needs="predicted times for several numbers of ranks (--simulate h100 --ranks 1,2,4)",
)
"""One table per setting and strategy, one row per number of ranks."""

TABLES = {table.name: table for table in (PREDICTED, GPUS, SCALING, CONSTANTS)}


def default_tables(record: TimeRecord) -> list[Table]:
    """Return the default tables."""
    gpu_tables = GPUS(record)
    scaling_tables = SCALING(record)
    return [
        *PREDICTED(record),
        *(gpu_tables if len(gpu_tables) <= MAX_SETTINGS else ()),
        *(scaling_tables if len(scaling_tables) <= MAX_SETTINGS else ()),
    ]


_LIMIT_NAMES: Final = {"host": "the host", "matmul": "matrix products", "elementwise": "elementwise kernels"}
"""Names in sentences of what limits a step; the others are nouns already."""


class _Candidate(NamedTuple):
    """A GPU with its predicted step, and the range of what GPUs are compared by: cost if there are prices, or time."""

    gpu: str | None
    prediction: PredictionRecord
    step: PredictedTime
    low: float
    high: float


def _candidates(group: Sequence[TimeCellRecord]) -> list[_Candidate]:
    """Return the GPUs that may be the best, in the order of `_best_first`; empty if no GPU has a predicted time.

    A GPU may be the best if its 90 % interval begins below the end of every other one. Of GPUs with and without prices,
    only those with prices are compared.
    """
    ordered = [
        (cell.cell.simulate, prediction, prediction.step, prediction.price_per_million_tokens)
        for cell in sorted(group, key=_best_first)
        if (prediction := _prediction(cell)) and prediction.step is not None
    ]
    priced = any(cost for *_, cost in ordered)
    compared: list[_Candidate] = []
    for gpu, prediction, step, cost in ordered:
        if bool(cost) == priced:
            scale = cost / step.point_s if cost else 1.0
            compared.append(_Candidate(gpu, prediction, step, step.low_s * scale, step.high_s * scale))
    first_end = min((each.high for each in compared), default=0.0)
    return [each for each in compared if each.low <= first_end]


def _best_gpu_sentence(best: _Candidate) -> str:
    cost, step = best.prediction.price_per_million_tokens, best.step
    what = "the fastest"
    if cost:
        what = f"the cheapest, at {cost:.3g} per million tokens (90 % interval {best.low:.3g} to {best.high:.3g})"
    limit = _LIMIT_NAMES.get(best.prediction.limited_by, best.prediction.limited_by)
    return (
        f"{best.gpu} is predicted to be {what}. A step takes {units.seconds(step.point_s)} "
        f"(90 % interval {units.seconds(step.low_s)} to {units.seconds(step.high_s)}) and is limited by {limit}."
    )


def _undecided_sentence(candidates: Sequence[_Candidate]) -> str:
    priced = any(each.prediction.price_per_million_tokens for each in candidates)
    ranges = [
        f"{cost:.3g} ({each.low:.3g} to {each.high:.3g})"
        if (cost := each.prediction.price_per_million_tokens)
        else f"{units.seconds(each.step.point_s)} ({units.seconds(each.low)} to {units.seconds(each.high)})"
        for each in candidates
    ]
    return (
        f"the predictions do not decide which of {join_words([str(each.gpu) for each in candidates])} is the "
        f"{'cheapest' if priced else 'fastest'}, because their 90 % intervals overlap: {join_words(ranges)} per "
        f"{'million tokens' if priced else 'step'}."
    )


def prediction_findings(cells: Sequence[TimeCellRecord]) -> Iterator[Statement]:
    """Yield the best GPU for each setting, and the cells that are limited by the host."""
    for group in axes.group_ignoring(cells, "simulate")[:MAX_SETTINGS]:
        where = namer(cells, ("simulate",))(group[0])
        candidates = _candidates(group)
        if len(group) > 1 and candidates:
            text = _best_gpu_sentence(candidates[0]) if len(candidates) == 1 else _undecided_sentence(candidates)
            yield Statement(f"{f'{where}: ' if where else ''}{text}", group)
    with_times = [
        (cell, prediction) for cell in cells if (prediction := _prediction(cell)) and prediction.step is not None
    ]
    host_limited = [cell for cell, prediction in with_times if prediction.limited_by == "host"]
    if host_limited:
        with_time = "" if len(with_times) == len(cells) else " with a predicted time"
        sole_cell = f"the only cell{with_time}" if with_time else "this cell"
        many = f"{len(host_limited)} of {len(with_times)} cells{with_time}" if len(with_times) > 1 else sole_cell
        intervals = "The interval is" if len(host_limited) == 1 else "Their intervals are"
        yield Statement(
            f"the host is predicted to limit {many}; a faster GPU would not help there. {intervals} wide because host "
            "speeds differ; to reduce this uncertainty, calibrate the host (--host FILE).",
            tuple(host_limited),
        )


# --- figures

_POINT_COLOUR, _BOUND_COLOUR, _MISSING_COLOUR = "#0072b2", "#009e73", "#c1121f"


def figures(record: TimeRecord) -> Iterator[LazyFigure]:
    """Yield a GPU comparison per setting, in the order of the table; with a single GPU, a figure of all cells."""
    groups = list(_cells_by_setting(record))
    if not groups and any(_prediction(cell) for cell in record.cells):
        groups = [list(record.cells)]
    for number, group in enumerate(groups[:MAX_SETTINGS]):
        if not any((prediction := _prediction(cell)) and prediction.step for cell in group):
            continue
        about = subject(group)
        heading = Heading(f"{MARK}: step time with 90 % interval", " · ".join(about))
        caption = caption_text(
            "Predicted step times with their 90 % intervals, and lower bounds; nothing was measured", about
        )
        name = "predicted" if number == 0 else f"predicted-{number + 1}"
        yield LazyFigure(name, caption, partial(draw_predictions, group, heading), tuple(group))


def draw_predictions(cells: Sequence[TimeCellRecord], heading: Heading) -> Figure:
    """Draw a row per cell with its predicted time, interval and lower bound, or with the reason for a missing time."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator

    name_of = namer(cells)
    labels = [printable(name_of(cell)) for cell in cells]
    row_in, above_in, below_in = 0.26, 0.58, 0.78
    height = above_in + below_in + row_in * len(cells)
    figure = Figure(figsize=(WIDTH_IN, height), facecolor="white")
    left_in = min(2.6, 0.35 + 0.065 * max(map(len, labels)))
    ax = figure.add_axes(
        (left_in / WIDTH_IN, below_in / height, 1 - (left_in + 0.3) / WIDTH_IN, row_in * len(cells) / height)
    )
    ax.set_xscale("log")
    for row, cell in enumerate(cells):
        prediction = _prediction(cell)
        if prediction is None or prediction.step is None:
            word = missing_time_reason(cell)
            ax.annotate(
                word.text if word else "", (0.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=8,
                color=_MISSING_COLOUR,
            )  # fmt: skip
            continue
        step = prediction.step
        ax.plot(
            [step.low_s, step.high_s], [row, row], color=_POINT_COLOUR, linewidth=2, alpha=0.45, solid_capstyle="butt"
        )
        ax.plot(step.point_s, row, marker="o", markersize=4.5, color=_POINT_COLOUR)
        ax.plot(prediction.lower_bound_s, row, marker="|", markersize=8, color=_BOUND_COLOUR)
    ax.set_ylim(len(cells) - 0.5, -0.5)
    ax.set_yticks(range(len(cells)), labels)
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(lambda value, _: units.seconds(value))
    ax.xaxis.set_minor_formatter(lambda value, _: "")
    style_axes(ax, x="step", lines="x")
    draw_heading(figure, heading)
    draw_legend(
        figure,
        [
            Line2D(
                [], [], marker="o", markersize=4.5, linewidth=2, color=_POINT_COLOUR, label="predicted, 90 % interval"
            ),
            Line2D([], [], marker="|", markersize=8, linestyle="none", color=_BOUND_COLOUR, label="lower bound"),
        ],
    )
    return figure
