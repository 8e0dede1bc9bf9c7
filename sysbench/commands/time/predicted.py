"""Tables of predicted times: `sysbench time --simulate`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.time.record import TimeCellRecord, TimeRecord
from sysbench.log.predictions import INTERVAL, MARK, PredictedRatio, PredictionRecord, step_ratio
from sysbench.render.declared import DeclaredTable, Each, Field, leading_axes, leading_fields
from sysbench.render.sentences.notes import outcome_word
from sysbench.render.sentences.phrases import join_words
from sysbench.render.table import PREDICTED_DIGITS, Cell, Measure, Word

LOWER_BOUND_NOTE = "lower bound: at data-sheet rates, assuming zero host time; a bound, not a prediction"
EXPOSED_NOTE = "exposed: time that collectives add to the step on the device, excluding overlap"
AUTOTUNE_NOTE = "compiled-autotune is predicted as compiled-graphs: the kernels that its search finds are unknown"
COMPILED_NOTE = "compiled cells: kernels and memory of the code that torch.compile writes for this GPU"
GRAPHS_NOTE = "memory of cells with CUDA graphs is without the pool of the graphs, which comes on top"
MICRO_BATCHES_NOTE = "grad accum: micro-batches per step; forward, loss and backward are sums over all micro-batches"
HFU_NOTE = "HFU: like MFU, with the FLOPs that activation checkpointing computes again, counted by operator"

TYPICAL_HOST = "a typical host"
"""Title of the host in profiles/hosts/typical.toml, whose speed may differ from the user's by a factor of three."""

IMPORTANCE = {"zero_grad": 12, "forward": 5, "loss": 11, "backward": 6, "optimizer": 7}
"""Importance of the columns of phases, in the order of a step."""

Timed = tuple[TimeCellRecord, PredictionRecord]


def is_predicted(record: TimeRecord) -> bool:
    """Whether the cells of the run are predicted: either all or none are."""
    return any(cell.cell.simulate for cell in record.cells)


def gpu_title(cells: Iterable[TimeCellRecord]) -> tuple[str, ...]:
    """Return the name of the GPU for which all cells are predicted; empty if there are several."""
    titles = dict.fromkeys(cell.prediction.gpu for cell in cells if cell.prediction)
    return tuple(titles) if len(titles) == 1 else ()


def missing_time_reason(cell: TimeCellRecord) -> Word | None:
    """Return the reason why a cell has no predicted time: its outcome (`oom`), or `withheld`; None if it has a time."""
    if cell.outcome != "ok":
        return outcome_word(cell.outcome)
    return Word("withheld", "bad") if cell.prediction is None or cell.prediction.step is None else None


def taken_s(cell: TimeCellRecord) -> float | None:
    """Return the seconds that measuring the cell would take; 0 if it does not fit, None without a prediction."""
    if cell.outcome == "oom":
        return 0.0
    step = cell.prediction.step if cell.outcome == "ok" and cell.prediction else None
    return (cell.cell.warmup + cell.cell.steps) * step.point_s if step else None


def timed(cells: Iterable[TimeCellRecord]) -> list[Timed]:
    """Return the cells with a predicted time, each with its prediction."""
    return [
        (cell, cell.prediction) for cell in cells if cell.outcome == "ok" and cell.prediction and cell.prediction.step
    ]


class PredictedRow(NamedTuple):
    """A cell, and the cell that it is compared with."""

    cell: TimeCellRecord
    base: TimeCellRecord
    by_cost: bool = False

    @property
    def prediction(self) -> PredictionRecord | None:
        return self.cell.prediction if self.cell.outcome == "ok" else None

    @property
    def ratio(self) -> PredictedRatio | None:
        """The step time relative to the base, or the cost; None if either is unknown."""
        both = timed([self.cell, self.base])
        if len(both) < 2:
            return None
        this, base = (prediction for _, prediction in both)
        ratio = step_ratio(this, base)
        if ratio is None or not self.by_cost:
            return ratio
        cost, base_cost = this.price_per_million_tokens, base.price_per_million_tokens
        return (
            PredictedRatio(*(each * cost / base_cost / ratio.point for each in ratio)) if cost and base_cost else None
        )

    @property
    def speedup(self) -> float | None:
        """The throughput relative to the base."""
        throughput, base = (_value("tokens_per_s")(row) for row in (self, self._replace(cell=self.base)))
        return throughput / base if throughput and base else None

    @property
    def efficiency(self) -> float | None:
        return self.speedup and self.speedup * self.base.cell.ranks / self.cell.cell.ranks


# --- columns


def _value(name: str) -> Callable[[PredictedRow], float | None]:
    def get(row: PredictedRow) -> float | None:
        value: float | None = getattr(row.prediction, name, None)
        return value

    return get


def _step(row: PredictedRow) -> Cell:
    step = row.prediction.step if row.prediction else None
    return Measure(step.point_s, low=step.low_s, high=step.high_s) if step else None


def _phase(row: PredictedRow, name: str) -> Cell:
    phase = row.prediction.phase(name) if row.prediction else None
    return Measure(phase.point_s) if phase else None


def _limit(row: PredictedRow) -> str:
    """Return what limits the step, and its share of the time: `host 96%`."""
    return f"{row.prediction.limited_by} {units.share(row.prediction.limited_share)}" if row.prediction else ""


def _of_collectives(name: str) -> Callable[[PredictedRow], float | None]:
    def get(row: PredictedRow) -> float | None:
        prediction = row.prediction
        if (
            prediction is None
            or prediction.step is None
            or not any(phase.communication_s for phase in prediction.phases)
        ):
            return None
        return math.fsum(getattr(phase, name) for phase in prediction.phases)

    return get


def _ratio(row: PredictedRow) -> Cell:
    if row.ratio is None:
        return None
    return Measure(1.0) if row.cell is row.base else Measure(row.ratio.point, low=row.ratio.low, high=row.ratio.high)


def _cost(row: PredictedRow) -> Cell:
    cost = _value("price_per_million_tokens")(row)
    return Measure(cost, text=units.with_digits(cost)) if cost is not None else None


_STEP = Field("step", unit="s", get=_step)
_RATIO = Field("ratio", unit="number", get=_ratio)
_EXPOSED = Field("exposed", unit="s", get=_of_collectives("exposed_s"), optional=True, importance=3, note=EXPOSED_NOTE)
_RATES = (
    Field("limit", "limited by", get=_limit, importance=1),
    Field("tokens_per_s", "throughput", "tokens_per_s", get=_value("tokens_per_s"), importance=3),
    Field("flops_per_s", "achieved", "flops_per_s", get=_value("flops_per_s"), importance=8),
    Field("mfu", "MFU", "share", get=_value("peak_share"), importance=4),
    Field("hfu", "HFU", "share", get=_value("hardware_share"), optional=True, importance=5, note=HFU_NOTE),
    Field(
        "lower_bound",
        "lower bound",
        "s",
        get=_value("lower_bound_s"),
        optional=True,
        importance=9,
        note=LOWER_BOUND_NOTE,
    ),
    Field(
        "reserved_peak", "memory", "bytes", get=_value("reserved_peak_bytes"), importance=10, shown_with_outcome=True
    ),
)


def _missing(row: PredictedRow) -> Word | None:
    return missing_time_reason(row.cell)


def _interval_note(cells: Iterable[TimeCellRecord]) -> tuple[str, ...]:
    return (INTERVAL,) if timed(cells) else ()


# --- every cell


def _phases(record: TimeRecord) -> tuple[str, ...]:
    present = {phase.name for cell in record.cells if cell.prediction for phase in cell.prediction.phases}
    return tuple(phase for phase in IMPORTANCE if phase in present) if len(present) > 1 else ()


def _notes(record: TimeRecord) -> Iterator[str]:
    found = timed(record.cells)
    yield from _interval_note(record.cells)
    if hosts := dict.fromkeys(prediction.host for _, prediction in found):
        yield f"issued by {join_words(list(hosts))}"
    if any(cell.cell.is_compiled for cell, _ in found):
        yield COMPILED_NOTE
    if any(cell.cell.uses_cuda_graphs for cell, _ in found):
        yield GRAPHS_NOTE
    if any(cell.cell.execution == "compiled-autotune" for cell, _ in found):
        yield AUTOTUNE_NOTE
    if any(cell.cell.grad_accum > 1 for cell, _ in found):
        yield MICRO_BATCHES_NOTE


PREDICTED = DeclaredTable(
    "predicted",
    f"{MARK}: step time and phases",
    (
        Each(
            "phase",
            (Field("{phase}", unit="s", importance=lambda record, phase: IMPORTANCE[phase], get=_phase),),
            values=_phases,
        ),
        _STEP,
        Field("communication", unit="s", get=_of_collectives("communication_s"), optional=True, importance=6),
        _EXPOSED,
        *_RATES,
    ),
    rows=lambda record: [PredictedRow(cell, cell) for cell in record.cells],
    leading=leading_axes(cells_of=lambda row: (row.cell,)),
    when=is_predicted,
    outcome_of=_missing,
    notes=_notes,
    needs="predicted times (--simulate h100)",
    digits=PREDICTED_DIGITS,
)
"""One row per cell."""


# --- GPUs, and choices


def are_compared_by_cost(cells: Iterable[TimeCellRecord]) -> bool:
    return sum(prediction.price_per_million_tokens is not None for _, prediction in timed(cells)) > 1


def compare(cells: Sequence[TimeCellRecord]) -> list[PredictedRow]:
    """Return the cells in order of cost if several have a price, otherwise of step time, compared with the first."""
    by_cost = are_compared_by_cost(cells)

    def order(cell: TimeCellRecord) -> tuple[bool, float, float]:
        for _, prediction in timed([cell]):
            cost = prediction.price_per_million_tokens if by_cost else None
            step_s = prediction.step.point_s if prediction.step else math.inf
            return False, math.inf if cost is None else cost, step_s
        return True, math.inf, math.inf

    ordered = sorted(cells, key=order)
    return [PredictedRow(cell, ordered[0], by_cost) for cell in ordered]


def cells_by_setting(record: TimeRecord) -> Iterator[list[PredictedRow]]:
    """Yield the cells that differ only in the GPU, if several do, the best first."""
    for group in axes.group_ignoring(record.cells, "simulate"):
        if len(group) > 1 and timed(group):
            yield compare(group)


def choice_groups(cells: Sequence[TimeCellRecord]) -> list[list[TimeCellRecord]]:
    """Return the cells that differ only in how the step is computed, in the order of the run."""
    return [group for group in axes.group_ignoring(cells, *axes.CHOICES) if len(group) > 1 and timed(group)]


def with_which_host(cells: Iterable[TimeCellRecord]) -> str:
    hosts = {prediction.host for _, prediction in timed(cells)}
    return "with the same host" if len(hosts) == 1 else "each with its own host"


def _gpus_title(rows: Sequence[PredictedRow]) -> str:
    order = ", cheapest first" if rows[0].by_cost else ", fastest first"
    return f"{MARK}: GPU comparison{order if len(timed(row.cell for row in rows)) > 1 else ''}"


def _gpus_notes(rows: Sequence[PredictedRow]) -> Iterator[str]:
    cells = [row.cell for row in rows]
    yield ", ".join(axes.subject(cells[:1]))
    yield from _interval_note(cells)
    if len(timed(cells)) < 2:
        return
    by_cost = rows[0].by_cost
    yield f"ratio: {'cost' if by_cost else 'step time'} relative to the first row, {with_which_host(cells)}"
    if any(cell.cell.ranks > 1 and prediction.price_per_hour for cell, prediction in timed(cells)):
        yield "per hour: of one GPU; per million tokens: of all ranks"
    if not by_cost:
        yield f"use --price {cells[0].cell.simulate}=2.5,… to sort by cost per token"


GPUS = DeclaredTable(
    "gpus",
    _gpus_title,
    (
        _STEP,
        _RATIO,
        Field("price", "per hour", "number", get=_value("price_per_hour"), optional=True, importance=2),
        Field("million_tokens", "per million tokens", "number", get=_cost, optional=True),
        *_RATES,
    ),
    rows=lambda rows: rows,
    leading=leading_fields(Field("gpu", "GPU", get=lambda row: row.cell.cell.simulate)),
    parts=cells_by_setting,
    outcome_of=_missing,
    notes=_gpus_notes,
    needs="predicted times on several GPUs (--simulate h100,rtx-4090)",
    digits=PREDICTED_DIGITS,
)
"""One table per setting, one row per GPU."""


def _choices(record: TimeRecord) -> Iterator[list[PredictedRow]]:
    for group in choice_groups(record.cells) if is_predicted(record) else ():
        yield [row._replace(by_cost=False) for row in compare(group)]


def _choices_notes(rows: Sequence[PredictedRow]) -> Iterator[str]:
    cells = [row.cell for row in rows]
    yield ", ".join((*gpu_title(cells), *axes.subject(cells)))
    yield from _interval_note(cells)
    if len(timed(cells)) > 1:
        yield "ratio: step time relative to the first row"


CHOICES = DeclaredTable(
    "choices",
    f"{MARK}: choices, fastest first",
    (_STEP, _RATIO, *_RATES),
    rows=lambda rows: rows,
    leading=leading_axes(
        lambda rows: [axis for axis in axes.varying([row.cell for row in rows]) if axis in axes.CHOICES],
        cells_of=lambda row: (row.cell,),
    ),
    parts=_choices,
    outcome_of=_missing,
    notes=_choices_notes,
    needs="predicted times for several values of an option such as --precision or --attention",
    digits=PREDICTED_DIGITS,
)
"""One table per GPU and setting, one row per combination of precision, attention, optimizer and the like."""


# --- numbers of ranks


def _scaling_groups(record: TimeRecord) -> Iterator[list[PredictedRow]]:
    """Yield the cells of each setting and strategy by number of ranks; single-rank cells belong to every strategy."""
    for group in axes.group_ignoring(record.cells, "ranks", "strategy", "interconnect"):
        for strategy in dict.fromkeys(cell.cell.strategy for cell in group if cell.cell.strategy):
            row = sorted(
                (each for each in group if each.cell.strategy in (None, strategy)), key=lambda each: each.cell.ranks
            )
            if len(row) > 1:
                yield [PredictedRow(each, row[0]) for each in row]


def _scaling_title(rows: Sequence[PredictedRow]) -> str:
    strategy = rows[-1].cell.cell.strategy
    kind = "strong scaling, fixed total batch" if strategy == "tp" else "weak scaling, fixed batch per rank"
    return f"{MARK}: {strategy}, {kind}"


def _scaling_notes(rows: Sequence[PredictedRow]) -> Iterator[str]:
    cells = [row.cell for row in rows]
    yield ", ".join((*gpu_title(cells), *axes.subject(cells)))
    if any(row.speedup for row in rows):
        yield "speed-up: throughput relative to the fewest ranks; efficiency: speed-up per rank"
    if any(cell.cell.interconnect for cell in cells):
        yield "between nodes: assumed values; no network was measured"
        yield (
            "left out: ranks that wait for a slower one, power that all GPUs of a node share, and the host's work for "
            "collectives. Real runs on several nodes are slower than the point, and rarely more efficient than one node"
        )


SCALING = DeclaredTable(
    "scaling",
    _scaling_title,
    (
        _STEP,
        _EXPOSED,
        Field("tokens_per_s", "throughput", "tokens_per_s", get=_value("tokens_per_s")),
        Field("speedup", "speed-up", "number", get=lambda row: row.speedup),
        Field("efficiency", unit="share", get=lambda row: row.efficiency),
        Field("interconnect", "between nodes", get=lambda row: row.cell.cell.interconnect, optional=True),
    ),
    rows=lambda rows: rows,
    leading=leading_fields(Field("ranks", get=lambda row: row.cell.cell.ranks)),
    parts=_scaling_groups,
    outcome_of=_missing,
    notes=_scaling_notes,
    needs="predicted times for several numbers of ranks (--simulate h100 --ranks 1,2,4)",
    digits=PREDICTED_DIGITS,
)
"""One table per setting and strategy, one row per number of ranks."""

TABLES = (PREDICTED, GPUS, CHOICES, SCALING)
