"""Tables, findings and figures of predicted times: `sysbench time --simulate`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.time.record import TimeCellRecord, TimeRecord
from sysbench.log.predictions import INTERVAL, MARK, PredictedConstant, PredictedRatio, PredictionRecord, step_ratio
from sysbench.render.declared import DeclaredTable, Each, Field, leading_axes, leading_fields
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
from sysbench.render.table import Cell, Measure, Table, Word, sentence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOWER_BOUND_NOTE = "lower bound: at data-sheet rates, assuming zero host time; a bound, not a prediction"

EXPOSED_NOTE = "exposed: time that collectives add to the step on the device, excluding overlap"

AUTOTUNE_NOTE = "compiled-autotune is predicted as compiled-graphs: the kernels that its search finds are unknown"
COMPILED_NOTE = "compiled cells are less certain: fusion is a guess; memory is that of the eager step, which needs more"

TYPICAL_HOST = "a typical host"
"""Title of the host in profiles/hosts/typical.toml, whose speed may differ from the user's by a factor of three."""

MAX_CANDIDATES = 3
"""Largest number of GPUs that a finding names."""

MAX_CHOICES = 6
"""Largest number of choices that a finding compares."""

MAX_SETTINGS = 4
"""Largest number of settings shown by default."""

PHASES = ("zero_grad", "forward", "loss", "backward", "optimizer")

IMPORTANCE = {"zero_grad": 12, "forward": 5, "loss": 11, "backward": 6, "optimizer": 7}


def is_predicted(record: TimeRecord) -> bool:
    """Whether the cells of the run are predicted: either all or none are."""
    return any(cell.cell.simulate for cell in record.cells)


def gpu_title(cells: Iterable[TimeCellRecord]) -> tuple[str, ...]:
    """Return the name of the GPU for which all cells are predicted; empty if there are several."""
    titles = dict.fromkeys(cell.prediction.gpu for cell in cells if cell.prediction)
    return tuple(titles) if len(titles) == 1 else ()


def _prediction(cell: TimeCellRecord) -> PredictionRecord | None:
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


def _timed(cells: Iterable[TimeCellRecord]) -> list[tuple[TimeCellRecord, PredictionRecord]]:
    return [(cell, prediction) for cell in cells if (prediction := _prediction(cell)) and prediction.step is not None]


def _interval_note(cells: Iterable[TimeCellRecord]) -> tuple[str, ...]:
    return (INTERVAL,) if _timed(cells) else ()


def _notes(record: TimeRecord) -> Iterator[str]:
    timed = _timed(record.cells)
    yield from _interval_note(record.cells)
    if hosts := dict.fromkeys(prediction.host for _, prediction in timed):
        yield f"issued by {join_words(list(hosts))}"
    if any(prediction.less_certain for cell in record.cells if (prediction := _prediction(cell))):
        yield COMPILED_NOTE
    if any(cell.cell.execution == "compiled-autotune" for cell, _ in timed):
        yield AUTOTUNE_NOTE
    if any(cell.cell.grad_accum > 1 for cell, _ in timed):
        yield MICRO_BATCHES_NOTE


def _sum_over_phases(name: str) -> Callable[[TimeCellRecord], float | None]:
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


HFU_NOTE = "HFU: like MFU, with the FLOPs that activation checkpointing computes again, counted by operator"

_COMMON_COLUMNS = (
    Field("limit", "limited by", get=limit, importance=1),
    Field("tokens_per_s", "throughput", "tokens_per_s", get=_prediction_field("tokens_per_s"), importance=3),
    Field("flops_per_s", "achieved", "flops_per_s", get=_prediction_field("flops_per_s"), importance=8),
    Field("mfu", "MFU", "share", get=_prediction_field("peak_share"), importance=4),
    Field("hfu", "HFU", "share", get=_prediction_field("hardware_share"), optional=True, importance=5, note=HFU_NOTE),
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
    for group in axes.group_ignoring(record.cells, "simulate"):
        if len(group) > 1 and _timed(group):
            yield _best_first(group)


def _are_compared_by_cost(cells: Iterable[TimeCellRecord]) -> bool:
    return sum(prediction.price_per_million_tokens is not None for _, prediction in _timed(cells)) > 1


def _best_first(cells: Sequence[TimeCellRecord]) -> list[TimeCellRecord]:
    by_cost = _are_compared_by_cost(cells)
    unknown = float("inf")

    def order(cell: TimeCellRecord) -> tuple[bool, float, float]:
        prediction = _prediction(cell)
        cost = prediction.price_per_million_tokens if prediction and by_cost else None
        step = prediction.step if prediction else None
        return (step is None, cost if cost is not None else unknown, step.point_s if step else unknown)

    return sorted(cells, key=order)


class _ComparedCell(NamedTuple):
    cell: TimeCellRecord
    ratio: PredictedRatio | None


def _compare(group: Sequence[TimeCellRecord]) -> list[_ComparedCell]:
    ordered, by_cost = _best_first(group), _are_compared_by_cost(group)
    return [_ComparedCell(cell, _relative(_prediction(cell), _prediction(ordered[0]), by_cost)) for cell in ordered]


def _relative(this: PredictionRecord | None, best: PredictionRecord | None, by_cost: bool) -> PredictedRatio | None:
    ratio = step_ratio(this, best) if this and best else None
    if this is None or best is None or ratio is None or not by_cost:
        return ratio
    cost, best_cost = this.price_per_million_tokens, best.price_per_million_tokens
    return PredictedRatio(*(each * cost / best_cost / ratio.point for each in ratio)) if cost and best_cost else None


def _compared_settings(record: TimeRecord) -> Iterator[list[_ComparedCell]]:
    return map(_compare, _cells_by_setting(record))


def _gpus_title(gpus: Sequence[_ComparedCell]) -> str:
    cells = [gpu.cell for gpu in gpus]
    order = ", cheapest first" if _are_compared_by_cost(cells) else ", fastest first"
    return f"{MARK}: GPU comparison{order if len(_timed(cells)) > 1 else ''}"


def _gpus_notes(gpus: Sequence[_ComparedCell]) -> Iterator[str]:
    cells = [gpu.cell for gpu in gpus]
    yield ", ".join(axes.subject([cells[0]]))
    yield from _interval_note(cells)
    if len(_timed(cells)) < 2:
        return
    by_cost = _are_compared_by_cost(cells)
    yield f"ratio: {'cost' if by_cost else 'step time'} relative to the first row, {_with_which_host(cells)}"
    if any(cell.cell.ranks > 1 and prediction.price_per_hour for cell, prediction in _timed(cells)):
        yield "per hour: of one GPU; per million tokens: of all ranks"
    if by_cost:
        return
    if any(prediction.price_per_hour for _, prediction in _timed(cells)):
        yield "sorted by step time, because only one GPU with a predicted time has a price"
    else:
        yield f"use --price {cells[0].cell.simulate}=2.5,… to sort by cost per token"


def _with_which_host(cells: Iterable[TimeCellRecord]) -> str:
    hosts = {prediction.host for _, prediction in _timed(cells)}
    return "with the same host" if len(hosts) == 1 else "each with its own host"


def _ratio(gpu: _ComparedCell) -> Cell:
    if gpu.ratio is None:
        return None
    point, low, high = gpu.ratio
    return Measure(1.0) if low == high == 1 else Measure(point, low=low, high=high)  # 1 is the first row itself


def _cost(cell: TimeCellRecord) -> Cell:
    prediction = _prediction(cell)
    cost = prediction.price_per_million_tokens if prediction else None
    return Measure(cost, text=units.with_digits(cost)) if cost is not None else None


def _of_cell(get: Callable[[TimeCellRecord], object], gpu: _ComparedCell) -> object:
    return get(gpu.cell)


GPUS = DeclaredTable(
    "gpus",
    _gpus_title,
    (
        Field("step", unit="s", get=lambda gpu: _step(gpu.cell)),
        Field("ratio", unit="number", get=_ratio),
        Field(
            "price",
            "per hour",
            "number",
            get=lambda gpu: _prediction_field("price_per_hour")(gpu.cell),
            optional=True,
            importance=2,
        ),
        Field("million_tokens", "per million tokens", "number", get=lambda gpu: _cost(gpu.cell), optional=True),
        *(replace(column, get=partial(_of_cell, column.get)) for column in _COMMON_COLUMNS),
    ),
    rows=lambda gpus: gpus,
    leading=leading_fields(Field("gpu", "GPU", get=lambda gpu: gpu.cell.cell.simulate)),
    parts=_compared_settings,
    outcome_of=lambda gpu: missing_time_reason(gpu.cell),
    notes=_gpus_notes,
    needs="predicted times on several GPUs (--simulate h100,rtx-4090)",
)
"""One table per setting, one row per GPU."""


def _choice_groups(cells: Sequence[TimeCellRecord]) -> list[list[TimeCellRecord]]:
    """Return the cells that differ only in how the step is computed, in the order of the run."""
    return [group for group in axes.group_ignoring(cells, *axes.CHOICES) if len(group) > 1 and _timed(group)]


def _choices_notes(rows: Sequence[_ComparedCell]) -> Iterator[str]:
    cells = [row.cell for row in rows]
    yield ", ".join((*gpu_title(cells), *axes.subject(cells)))
    yield from _interval_note(cells)
    if len(_timed(cells)) > 1:
        yield "ratio: step time relative to the first row"


CHOICES = DeclaredTable(
    "choices",
    f"{MARK}: choices, fastest first",
    (
        Field("step", unit="s", get=lambda row: _step(row.cell)),
        Field("ratio", unit="number", get=_ratio),
        *(replace(column, get=partial(_of_cell, column.get)) for column in _COMMON_COLUMNS),
    ),
    rows=lambda rows: rows,
    leading=leading_axes(
        lambda rows: [axis for axis in axes.varying([row.cell for row in rows]) if axis in axes.CHOICES],
        cells_of=lambda row: (row.cell,),
    ),
    parts=lambda record: map(_compare, _choice_groups(record.cells) if is_predicted(record) else ()),
    outcome_of=lambda row: missing_time_reason(row.cell),
    notes=_choices_notes,
    needs="predicted times for several values of an option such as --precision or --attention",
)
"""One table per GPU and setting, one row per combination of precision, attention, optimizer and the like."""


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
    cell: TimeCellRecord
    base: TimeCellRecord

    @property
    def speedup(self) -> float | None:
        throughput, base_throughput = (_prediction_field("tokens_per_s")(each) for each in (self.cell, self.base))
        return throughput / base_throughput if throughput and base_throughput else None

    @property
    def efficiency(self) -> float | None:
        return self.speedup and self.speedup * self.base.cell.ranks / self.cell.cell.ranks

    @property
    def gains_from_sharded_optimizer(self) -> bool:
        taken_s, base_s = (
            prediction.phase("optimizer") if (prediction := _prediction(each)) else None
            for each in (self.cell, self.base)
        )
        return round(self.efficiency or 0.0, 2) > 1 and bool(taken_s and base_s and taken_s.point_s < base_s.point_s)


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


def _scaling_notes(rows: Sequence[_ScaledCell]) -> Iterator[str]:
    cells = [row.cell for row in rows]
    yield ", ".join((*gpu_title(cells), *axes.subject(cells)))
    if any(row.speedup for row in rows):
        yield "speed-up: throughput relative to the fewest ranks; efficiency: speed-up per rank"
    if any(row.gains_from_sharded_optimizer for row in rows):
        yield "efficiency above 100 %: each rank updates only its own shard of the parameters, in less time"
    if any(row.cell.cell.interconnect for row in rows):
        yield "between nodes: assumed values; no network was measured"
        yield (
            "left out: ranks that wait for a slower one, power that all GPUs of a node share, and the host's work for "
            "collectives. Real runs on several nodes are slower than the point, and rarely more efficient than one node"
        )


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
        Field("efficiency", unit="share", get=lambda row: row.efficiency),
        Field("interconnect", "between nodes", get=lambda row: row.cell.cell.interconnect, optional=True),
    ),
    rows=lambda rows: rows,
    leading=leading_fields(Field("ranks", get=lambda row: row.cell.cell.ranks)),
    parts=_scaling_groups,
    outcome_of=lambda row: missing_time_reason(row.cell),
    notes=_scaling_notes,
    needs="predicted times for several numbers of ranks (--simulate h100 --ranks 1,2,4)",
)
"""One table per setting and strategy, one row per number of ranks."""

TABLES = {table.name: table for table in (PREDICTED, GPUS, CHOICES, SCALING, CONSTANTS)}


def default_tables(record: TimeRecord) -> list[Table]:
    comparisons = [table(record) for table in (GPUS, CHOICES, SCALING)]
    return [*PREDICTED(record), *(each for tables in comparisons if len(tables) <= MAX_SETTINGS for each in tables)]


_LIMIT_NAMES: Final = {"host": "the host", "matmul": "matrix products", "elementwise": "elementwise kernels"}
"""Names in sentences of what limits a step; the others are nouns already."""


def _comparison_sentence(group: Sequence[TimeCellRecord]) -> str:
    """Return which GPU is predicted to be the best, or which ones may be; empty if fewer than two can be compared."""
    compared = [gpu for gpu in _compare(group) if gpu.ratio]
    if len(compared) < 2:
        return ""
    candidates = [gpu for gpu in compared if gpu.ratio and gpu.ratio.low <= 1]
    among = _among_phrase(len(compared), len(_timed(group)), len(group)) if len(candidates) < len(compared) else ""
    best, by_cost = compared[0].cell, _are_compared_by_cost(group)
    if len(candidates) == 1:
        return f"{_best_gpu_sentence(best, among, by_cost=by_cost)} {_behind_best(compared[1:2], best, by_cost)}"
    named = [str(gpu.cell.cell.simulate) for gpu in candidates[:MAX_CANDIDATES]]
    if len(candidates) > len(named):
        named = [*named[:-1], f"{len(candidates) - len(named) + 1} others"]
    return (
        f"the predictions do not decide which of {join_words(named)} is the {'cheapest' if by_cost else 'fastest'}"
        f"{among}. {_behind_best(candidates[1:MAX_CANDIDATES], best, by_cost)}"
    )


def _among_phrase(compared: int, timed: int, gpus: int) -> str:
    missing = ["a price"] * (compared < timed) + ["a predicted time"] * (timed < gpus)
    return f" of the {compared} GPUs with {' and '.join(missing)}" if missing else ""


def _best_gpu_sentence(best: TimeCellRecord, among: str, *, by_cost: bool) -> str:
    prediction = _prediction(best)
    assert prediction is not None
    assert prediction.step is not None
    cost, step = prediction.price_per_million_tokens, prediction.step
    what = f"the fastest{among}"
    if by_cost and cost:
        low, high = (units.with_digits(cost / step.point_s * end) for end in (step.low_s, step.high_s))
        what = f"the cheapest{among}, at {units.with_digits(cost)} per million tokens (90 % interval {low} to {high})"
    limit = _LIMIT_NAMES.get(prediction.limited_by, prediction.limited_by)
    return (
        f"{best.cell.simulate} is predicted to be {what}. A step takes {units.seconds(step.point_s)} "
        f"(90 % interval {units.seconds(step.low_s)} to {units.seconds(step.high_s)}) and is limited by {limit}."
    )


def _behind_best(gpus: Sequence[_ComparedCell], best: TimeCellRecord, by_cost: bool) -> str:
    ratios = [
        f"{gpu.ratio.point:.2f}× (90 % interval {gpu.ratio.low:.2f} to {gpu.ratio.high:.2f})"
        f" as {'much' if by_cost else 'long'} on {gpu.cell.cell.simulate}"
        for gpu in gpus
        if gpu.ratio
    ]
    host = _with_which_host([best, *(gpu.cell for gpu in gpus)])
    return sentence(f"{host}, a step {'costs' if by_cost else 'takes'} {join_words(ratios)} as on {best.cell.simulate}")


def _choice_sentence(group: Sequence[TimeCellRecord]) -> str:
    """Return by how much each single choice changes the step of the first cell with a time, the shortest step first."""
    timed, choices = _timed(group), [axis for axis in axes.varying(group) if axis in axes.CHOICES]
    if not timed:
        return ""
    first, base = timed[0]
    ratios: list[tuple[PredictedRatio, str]] = []
    for cell, prediction in timed[1:]:
        changed = [axis for axis in choices if cell.axes.get(axis) != first.axes.get(axis)]
        if len(changed) == 1 and (ratio := step_ratio(prediction, base)) is not None:
            ratios.append((ratio, axes.phrase(changed[0], cell.axes.get(changed[0]))))
    if not ratios:
        return ""
    shown = [
        f"{ratio.point:.2f}× (90 % interval {ratio.low:.2f} to {ratio.high:.2f}) as long for {phrase}"
        for ratio, phrase in sorted(ratios)[:MAX_CHOICES]
    ]
    return f"compared with {axes.label(first, choices)}, a step is predicted to take {join_words(shown)}."


def prediction_findings(cells: Sequence[TimeCellRecord]) -> Iterator[Statement]:
    """Yield the best GPU for each setting, what each choice changes, and the cells that are limited by the host."""
    for group in axes.group_ignoring(cells, "simulate")[:MAX_SETTINGS]:
        where = namer(cells, ("simulate",))(group[0])
        if text := _comparison_sentence(group):
            yield Statement(f"{f'{where}: ' if where else ''}{text}", group)
    choice_groups = _choice_groups(cells)
    for group in choice_groups[:MAX_SETTINGS]:
        where = namer(cells, axes.CHOICES)(group[0]) if len(choice_groups) > 1 else ""
        if text := _choice_sentence(group):
            yield Statement(f"{f'{where}: ' if where else ''}{text}", group)
    yield from _host_limits(cells)


def _host_limits(cells: Sequence[TimeCellRecord]) -> Iterator[Statement]:
    """Yield which cells the host limits, and how much time a faster GPU would save at most."""
    timed = _timed(cells)
    limited = [(cell, prediction) for cell, prediction in timed if prediction.limited_by == "host"]
    if not limited:
        return
    with_time = "" if len(timed) == len(cells) else " with a predicted time"
    sole_cell = f"the only cell{with_time}" if with_time else "this cell"
    many = f"{len(limited)} of {len(timed)} cells{with_time}" if len(timed) > 1 else sole_cell
    saved = units.share(max(1 - prediction.limited_share for _, prediction in limited))
    steps, intervals = ("the step", "The interval is") if len(limited) == 1 else ("these steps", "Their intervals are")
    text = (
        f"the host is predicted to limit {many}; with the same host, a faster GPU would shorten {steps} by at most "
        f"{saved}."
    )
    if any(cell.cell.host is None and prediction.host == TYPICAL_HOST for cell, prediction in limited):
        text += f" {intervals} wide because host speeds differ; to reduce this uncertainty, calibrate the host "
        text += "(--host FILE)."
    yield Statement(text, tuple(cell for cell, _ in limited))


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
        about = (*subject(group), *gpu_title(group))
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
