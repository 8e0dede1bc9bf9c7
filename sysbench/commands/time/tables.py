"""Tables of `sysbench time`.

A table is left out if the run lacks its data: for example, a comparison needs two values of its axis.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.time import predicted
from sysbench.commands.time.fold import COUNTER_UPDATE_S, MIN_COUNTED_S
from sysbench.commands.time.record import TimeCellRecord, TimeRecord
from sysbench.commands.time.spec import TimeSpec
from sysbench.log.outcomes import MEASURED
from sysbench.log.predictions import INTERVAL, MARK
from sysbench.log.records import PhaseRecord, Samples
from sysbench.render import phase_rows, training_columns
from sysbench.render.declared import (
    DeclaredTable,
    Each,
    Field,
    adapter_columns,
    build_tables,
    leading_axes,
    leading_fields,
)
from sysbench.render.phase_rows import in_step_row
from sysbench.render.sentences.cautions import cautions_of
from sysbench.render.sentences.notes import outcome_word, outcomes, own_models
from sysbench.render.table import EMPTY_CELL, Cell, Measure, Remark, Sheet, Table, Tone, Word, mean_of
from sysbench.spec.options import flag_of
from sysbench.spec.quantities import time_limit_word
from sysbench.spec.run import Selection
from sysbench.statistics import direction, ratio, too_few

# --- times of a cell

PHASES = ("zero_grad", "forward", "loss", "backward", "optimizer", "step")
"""Phases in the order of a step; `step` is their sum."""


def measured_samples(cell: TimeCellRecord, phase: str) -> Samples | None:
    """Return the samples of a phase; None if the cell failed."""
    return cell.samples(phase) if cell.outcome in MEASURED else None


def phases_in(cells: Sequence[TimeCellRecord]) -> tuple[str, ...]:
    """Return the phases with samples in any of these cells; `step` only if there are several other phases."""
    found = tuple(phase for phase in PHASES if any(measured_samples(cell, phase) for cell in cells))
    return found[:-1] if len(found) == 2 and found[-1] == "step" else found


def outcome(cell: TimeCellRecord) -> Word | None:
    """Return the outcome of a cell without numbers; None for a cell with numbers."""
    if cell.outcome in MEASURED and cell.phases:
        return None
    return outcome_word(cell.outcome)


def _phase_mean(cell: TimeCellRecord, phase: str) -> Cell:
    return mean_of(measured_samples(cell, phase))


def _median(cell: TimeCellRecord, phase: str = "step") -> Cell:
    """Return the median with its interval."""
    samples = measured_samples(cell, phase)
    low_s, high_s = (samples.ci95_s if samples else None) or (None, None)
    return Measure(samples.median_s, low=low_s, high=high_s) if samples else None


def _processor(cell: TimeCellRecord) -> float | None:
    step = cell.phases.get("step")
    return step.processor_median_s if step is not None and cell.outcome in MEASURED else None


# --- values of a whole cell

Value = Callable[[TimeCellRecord], float | None]


def _rate(name: str) -> Value:
    return lambda cell: getattr(cell.rates or cell.prediction, name, None)


def _energy(name: str) -> Value:
    return lambda cell: getattr(cell.energy, name) if cell.energy else None


def _share_of_limit(name: str) -> Callable[[TimeCellRecord], Cell]:
    return lambda cell: Measure(value) if (value := _rate(name)(cell)) is not None else Word("unknown", "quiet")


def _peak_bytes(cell: TimeCellRecord) -> int | None:
    """Return the peak of allocated bytes; if the device has no allocator, the worker's peak resident memory."""
    memory = cell.memory
    return memory.allocated_peak_bytes if memory.allocated_peak_bytes is not None else memory.host_rss_peak_bytes


def _mfu_note(record: TimeRecord) -> str:
    peaks = dict.fromkeys(
        f"{units.flop_rate(cell.rates.peak_flops_per_s)} in {cell.cell.compute_precision}, {cell.rates.peak_source}"
        for cell in record.cells
        if cell.rates and cell.rates.peak_flops_per_s is not None
    )
    return (
        "MFU: FLOPs of a step divided by (mean step time × peak); B·[L(8Td² + 4T²d + 6T·d·d_ff) + 2TdV] FLOPs for "
        "forward and twice that for backward, without a discount for causality and without recomputation; "
        f"peak: {'; '.join(peaks) or 'unknown for this device'}"
    )


def _energy_note(record: TimeRecord) -> str:
    counted = [cell.energy for cell in record.cells if cell.energy]
    if not counted:
        return "energy: no energy counter was read; NVIDIA's driver has one for Volta and later"
    note = (
        "energy: read from NVML's counter during the measured steps, for the whole GPU, including idle power and "
        f"other processes; the counter is updated every 0.02 to {COUNTER_UPDATE_S:g} s"
    )
    if shares := [energy.uncertainty_share for energy in counted if energy.uncertainty_share is not None]:
        note += f", so the uncertainty is ± {units.share(max(shares))}"
    if withheld := [energy for energy in counted if energy.withheld]:
        needed = max((energy.steps_needed or 0 for energy in withheld), default=0)
        remedy = f"; use --steps {needed}" if needed else ""
        note += f"; withheld: {withheld[0].withheld} ({MIN_COUNTED_S:g} s is needed{remedy})"
    return note


_on_request = partial(Field, on_request=True)

_ON_REQUEST: tuple[Field | Each, ...] = (
    _on_request("mfu", "MFU", "share", get=_rate("peak_share"), replaces="peak", note=_mfu_note),
    _on_request("hfu", "HFU", "share", get=_rate("hardware_share"), note=predicted.HFU_NOTE),
    _on_request("step_flops", "step FLOPs", "flops", get=_rate("step_flops")),
    Each(
        "phase",
        (_on_request("{phase}_median", "median {phase}", "s", get=_median),),
        values=lambda record: [phase for phase in phases_in(record.cells) if phase != "step"],
    ),
    _on_request("energy_per_step", "per step", "joules", "energy", get=_energy("step_j"), note=_energy_note),
    _on_request(
        "energy_per_token", "per token", "joules_per_token", "energy", get=_energy("token_j"), note=_energy_note
    ),
    _on_request("power", "mean power", "watts", get=_energy("power_w"), note=_energy_note),
    _on_request("parameters", "parameters", "count", get=attrgetter("model.parameters")),
    *(replace(column, optional=False, on_request=True) for column in adapter_columns(attrgetter("model"))),
)
"""Columns of the summary that are shown if they are asked for."""

# --- several ranks

_IMPORTANCE = {"step": 0, "forward": 1, "backward": 2, "optimizer": 3, "loss": 10, "zero_grad": 11}


def _rank_steps_s(cell: TimeCellRecord) -> dict[int, float]:
    if cell.outcome not in MEASURED:
        return {}
    return {rank.rank: rank.median_step_s for rank in cell.ranks if rank.median_step_s is not None}


def _rank_spread(cell: TimeCellRecord) -> float | None:
    steps_s = _rank_steps_s(cell)
    if not steps_s:
        return None
    return (max(steps_s.values()) - min(steps_s.values())) / statistics.median(steps_s.values())


_RANKS_NOTE = (
    "times are those of the slowest rank in each step; median rank: median over ranks of their median steps; "
    "spread: (slowest - fastest rank) / median rank; throughput: all ranks together"
)


_peak_column = partial(Field, unit="bytes", optional=True)

RANKS = DeclaredTable(
    "ranks",
    "ranks, mean ± standard deviation",
    (
        Each(
            "phase",
            (
                Field(
                    "{phase}",
                    unit="s",
                    importance=lambda record, phase: _IMPORTANCE[phase],
                    get=lambda row, phase: mean_of(found.times) if (found := row[1].phases.get(phase)) else None,
                ),
            ),
            values=lambda record: phases_in(record.cells) or ("step",),
        ),
        Field("median", "median step", "s", importance=4, get=lambda row: row[1].median_step_s),
        Field(
            "loss",
            importance=12,
            get=lambda row: f"{row[1].loss:.4f}" if row[1].loss is not None else None,
            optional=True,
        ),
        _peak_column("allocated_peak", "allocated peak", importance=5, get=lambda row: row[1].allocated_peak_bytes),
        _peak_column("reserved_peak", "reserved peak", importance=8, get=lambda row: row[1].reserved_peak_bytes),
        _peak_column(
            "host_rss_peak",
            "host memory",
            importance=6,
            note="host memory: peak resident memory of the rank's process; except on Linux, since its start",
            get=lambda row: row[1].host_rss_peak_bytes,
        ),
    ),
    rows=lambda record: [(cell, rank) for cell in record.cells if cell.outcome in MEASURED for rank in cell.ranks],
    leading=(
        leading_axes(cells_of=lambda row: row[:1]),
        leading_fields(Field("rank", get=lambda row: str(row[1].rank))),
    ),
    needs="times of several ranks (--ranks 2)",
)
"""One row per rank of each cell with several ranks: phases and peak memory."""

# --- one row per cell


def _peak_sources(record: TimeRecord) -> str:
    rated = [cell.rates for cell in record.cells if cell.rates]
    sources = dict.fromkeys(rates.peak_source for rates in rated if rates.peak_source)
    return f"peak: {'; '.join(sources) or 'unknown for this device'}" if rated else ""


def _ceilings(record: TimeRecord) -> str:
    if not any(cell.rates for cell in record.cells):
        return ""

    rates: dict[bool, list[str]] = {}
    for ceiling in record.ceilings:
        threads = f" with {axes.phrase('threads', ceiling.threads)}" if ceiling.threads else ""
        date = f" ({ceiling.seen_at[:10]})" if ceiling.seen_at else ""
        shown = (
            f"{units.flop_rate(ceiling.matmul_flops_per_s)} in {ceiling.precision} on {ceiling.device}{threads}{date}"
        )
        rates.setdefault(ceiling.disturbed, []).append(shown)
    words = {
        False: "a large matrix product reached",
        True: "other processes disturbed a large matrix product, so it is no ceiling:",
    }
    notes = [f"{words[disturbed]} {', '.join(found)}" for disturbed, found in sorted(rates.items())]
    return f"matmul: {'; '.join(notes)}" if notes else ""


def _phase_notes(record: TimeRecord) -> Iterator[str]:
    phases = [phase for cell in record.cells for phase in cell.phases.values()]
    by_device = any(phase.wall is None and phase.device is not None for phase in phases)
    if by_device:
        yield "phases measured with device events, the step with the host's clock (--sync step)"
    if any(cell.cell.grad_accum > 1 for cell in record.cells):
        yield predicted.MICRO_BATCHES_NOTE


def _median_importance(record: TimeRecord) -> int:
    """Return that of the median step: it comes before the share of a peak where none is known, as on a CPU."""
    return 6 if any(_rate("peak_share")(cell) is not None for cell in record.cells) else 4


_MEDIAN_NOTE = "median step: in brackets its 95% interval, wider where a caution doubts it"
_PROCESSOR_NOTE = "CPU time: of all threads, for the median step"

SUMMARY = DeclaredTable(
    "summary",
    "mean ± standard deviation",
    (
        Each(
            "phase",
            (Field("{phase}", unit="s", importance=lambda record, phase: _IMPORTANCE[phase], get=_phase_mean),),
            values=lambda record: phases_in(record.cells) or ("step",),
        ),
        Field("median", "median step", "s", importance=_median_importance, get=_median, note=_MEDIAN_NOTE),
        Field("processor", "CPU time", "s", importance=5, get=_processor, optional=True, note=_PROCESSOR_NOTE),
        Field("", "achieved", "flops_per_s", importance=6, get=_rate("flops_per_s")),
        Field("peak", "of peak", "share", importance=5, get=_share_of_limit("peak_share"), note=_peak_sources),
        Field(
            "matmul_ceiling", "of matmul", "share", importance=7, get=_share_of_limit("ceiling_share"), note=_ceilings
        ),
        Field("", "throughput", "tokens_per_s", importance=8, get=_rate("tokens_per_s")),
        Field(
            "median_rank",
            "median rank",
            "s",
            importance=1,
            get=lambda cell: statistics.median(steps_s.values()) if (steps_s := _rank_steps_s(cell)) else None,
            optional=True,
            note=_RANKS_NOTE,
        ),
        Field(
            "slowest_rank",
            "slowest rank",
            importance=2,
            get=lambda cell: (
                f"rank {max(steps_s, key=steps_s.__getitem__)}" if (steps_s := _rank_steps_s(cell)) else None
            ),
            optional=True,
        ),
        Field("rank_spread", "rank spread", "share", importance=1, get=_rank_spread, optional=True),
        _peak_column("peak_memory", "peak memory", importance=9, get=_peak_bytes),
        Field("compile", "compile", "s", importance=10, get=attrgetter("compile_s"), optional=True),
        *_ON_REQUEST,
    ),
    when=lambda record: not predicted.is_predicted(record),
    outcome_of=outcome,
    notes=_phase_notes,
    keep_empty=True,
    needs="measured times",
)
"""One row per cell: phases as mean ± std, achieved rates, and shares of the machine's limits."""


# --- comparison of values of an axis


@dataclass(frozen=True)
class _Arms:
    record: TimeRecord
    axis: str

    @cached_property
    def values(self) -> list[object]:
        """Values of the axis; the first is the baseline. A cell without a value is not compared."""
        return [value for value in axes.values_along(self.record.cells, self.axis) if value is not None]

    @cached_property
    def phases(self) -> list[str]:
        found = [
            phase for phase in phases_in(self.record.cells) if phase in ("forward", "backward", "optimizer", "step")
        ]
        return [phase for phase in found if phase in found[-1:] or (phase == "optimizer") == (self.axis == "optimizer")]

    def rows(self) -> Iterator[_ArmsRow]:
        for alike in axes.group_ignoring(self.record.cells, self.axis):
            cells = {value: cell for cell in alike if (value := cell.axis_value(self.axis)) is not None}
            if len(cells) > 1:  # otherwise there is nothing to compare, for example if a strategy has its own options
                yield _ArmsRow(self, cells)

    def importance(self, phase: str, arm: object) -> int:
        return 0 if phase == self.phases[-1] else 2 if phase == self.phases[0] else 5


@dataclass(frozen=True)
class _ArmsRow:
    arms: _Arms
    cells: Mapping[object, TimeCellRecord]

    def median(self, phase: str, arm: object) -> Cell:
        """Return the median, on which speed-ups are based."""
        cell = self.cells.get(arm)
        if cell is None:
            return None
        if (word := outcome(cell)) is not None:
            return word if phase == self.arms.phases[-1] else EMPTY_CELL
        samples = measured_samples(cell, phase)
        return Measure(samples.median_s) if samples else None

    def speedup(self, phase: str, arm: object) -> Cell:
        base, other = (self.cells.get(value) for value in (self.arms.values[0], arm))
        if base is None or other is None or base.outcome != "ok" or other.outcome != "ok":
            return EMPTY_CELL
        before, after = base.samples(phase), other.samples(phase)
        if before is None or after is None:
            return EMPTY_CELL
        found = ratio(before.estimate, after.estimate)
        tones: dict[int, Tone] = {1: "good", 0: "plain", -1: "bad"}
        return Measure(found.value, low=found.low, high=found.high, tone=tones[direction(found)])


_ARM_COLUMNS = (
    Field("{phase}_{arm}", "{arm}", "s", "{phase}", _Arms.importance, get=_ArmsRow.median),
    Field(
        "{phase}_{arm}_speedup",
        "speed-up",
        "ratio",
        "{phase}",
        _Arms.importance,
        get=_ArmsRow.speedup,
        when=lambda arms, phase, arm: bool(arm != arms.values[0]),
        note="medians, and speed-up with 95% CI",
    ),
)


def arms_table(axis: str) -> DeclaredTable:
    """Declare a table of times for each value of an axis, with the speed-up over the first value."""
    format_value = axes.AXES[axis].format_value if axes.AXES[axis].is_count else str
    each_arm = Each(
        "arm", _ARM_COLUMNS, values=lambda arms: arms.values, possible_values=axis, format_value=format_value
    )
    return DeclaredTable(
        axis,
        lambda arms: f"{format_value(arms.values[0])} vs. {', '.join(map(format_value, arms.values[1:]))}",
        (Each("phase", (each_arm,), values=lambda arms: arms.phases),),
        rows=_Arms.rows,
        leading=leading_axes(
            lambda arms: [name for name in axes.varying(arms.record.cells) if name != axis],
            cells_of=lambda row: row.cells.values(),
        ),
        parts=lambda record: (_Arms(record, axis),),
        when=lambda arms: bool(arms.phases) and any(arms.rows()),
        needs=f"measured times for several values of {flag_of(axis)}",
    )


# --- everything

_DIMENSIONS = ("d_model", "d_ff", "layers", "heads", "vocab")
PhaseRow = tuple[TimeCellRecord, str | None, PhaseRecord]


def _phase_rows(record: TimeRecord) -> Iterator[PhaseRow]:
    nothing = PhaseRecord(wall=None, device=None, enqueue_median_s=None)
    for cell in record.cells:
        yield from ((cell, phase, found) for phase, found in cell.phases.items())
        found = cell.prediction
        if found and found.step:
            yield from ((cell, name, nothing) for name in (*(phase.name for phase in found.phases), "step"))
        elif not cell.phases:
            yield cell, None, nothing


_prediction_column = partial(Field, when=predicted.is_predicted)


def _predicted_s(row: PhaseRow, name: str) -> float | None:
    cell, phase, _ = row
    prediction = cell.prediction
    time = (prediction.step if phase == "step" else prediction.phase(phase or "")) if prediction else None
    return getattr(time, name, None)


CELLS = DeclaredTable(
    "cells",
    "all cells and phases",
    (
        Each("name", (Field("{name}", get=lambda row, name: getattr(row[0].cell.shape, name, None)),), _DIMENSIONS),
        *phase_rows.cell_columns(),
        phase_rows.PHASE,
        _prediction_column("source", get=lambda row: "predicted"),
        _prediction_column("predicted", unit="s", get=lambda row: _predicted_s(row, "point_s")),
        _prediction_column("predicted_low", "predicted 90% low", "s", get=lambda row: _predicted_s(row, "low_s")),
        _prediction_column("predicted_high", "predicted 90% high", "s", get=lambda row: _predicted_s(row, "high_s")),
        Field("samples", get=lambda row: len(found.samples_s) if (found := row[2].wall or row[2].device) else 0),
        *phase_rows.phase_columns(),
        Field("step", "step FLOPs", "flops", get=in_step_row(_rate("step_flops"))),
        Field("", "rate", "flops_per_s", get=in_step_row(_rate("flops_per_s"))),
        Field("", "tokens", "tokens_per_s", get=in_step_row(_rate("tokens_per_s"))),
        Field("peak", "of peak", "share", get=in_step_row(_rate("peak_share"))),
        Field("matmul_ceiling", "of matmul", "share", get=in_step_row(_rate("ceiling_share"))),
        *phase_rows.peak_columns(lambda cell: cell.prediction or cell.memory),
        Field("compile", unit="s", get=in_step_row(attrgetter("compile_s"))),
        Field("energy_per_step", "energy per step", "joules", get=in_step_row(_energy("step_j"))),
        Field("energy_per_token", "energy per token", "joules_per_token", get=in_step_row(_energy("token_j"))),
        Field("power", "mean power", "watts", get=in_step_row(_energy("power_w"))),
        Field("cautions", get=phase_rows.cautions),
    ),
    rows=_phase_rows,
    leading=leading_axes(lambda record: axes.present_axes(record.cells), cells_of=lambda row: row[:1]),
    keep_empty=True,
)
"""One row per cell and phase: all axes, the outcome, every statistic for both clocks, rates, memory, cautions."""

# --- the whole training


def _training_rows(record: TimeRecord) -> list[TimeCellRecord]:
    """Return the cells, the cheapest first, then the fastest; cells without a time come last."""

    def order(cell: TimeCellRecord) -> tuple[float, float]:
        training = cell.training
        cost, duration_s = (training.cost, training.duration_s.point) if training else (None, math.inf)
        return (cost.point if cost else math.inf, duration_s)

    return sorted(record.cells, key=order)


def _training_title(record: TimeRecord) -> str:
    trainings = [cell.training for cell in record.cells if cell.training]
    tokens = f"training on {units.count(trainings[0].tokens)} tokens"
    order = "cheapest first" if any(training.cost for training in trainings) else "fastest first"
    return (
        f"{MARK if predicted.is_predicted(record) else 'not measured'}: {tokens}{f', {order}' * (len(trainings) > 1)}"
    )


def _training_notes(record: TimeRecord) -> Iterator[str]:
    if not predicted.is_predicted(record):
        yield "training: as many steps as that takes, each as long as the median step; in brackets: its 95% CI"
        return
    yield INTERVAL
    timed = [cell for cell in record.cells if cell.training]
    priced = {cell.cell.simulate or "" for cell in timed if cell.training and cell.training.cost}
    yield from training_columns.missing_prices(priced, [cell.cell.simulate or "" for cell in timed])


def _missing_training(cell: TimeCellRecord) -> Word | None:
    if cell.training:
        return None
    return predicted.missing_time_reason(cell) if cell.cell.simulate else outcome_word(cell.outcome)


TRAINING = DeclaredTable(
    "training",
    _training_title,
    (
        Field("steps", unit="count", get=lambda cell: math.ceil(cell.training.steps), wide_range=True),
        *training_columns.fields(lambda cell: cell.training),
    ),
    rows=_training_rows,
    when=lambda record: any(cell.training for cell in record.cells),
    outcome_of=_missing_training,
    notes=_training_notes,
    needs="the tokens of the training (--tokens 1B) and a step time",
)
"""One row per cell: the steps that the training takes, its hours, and its cost if the GPU has a price."""

# --- all tables

COMPARED_AXES = ("device", *axes.CHOICES)
"""Axes with a table that compares their values, called like the axis."""

TABLES: dict[str, DeclaredTable] = {
    table.name: table for table in (SUMMARY, RANKS, *map(arms_table, COMPARED_AXES), CELLS, *predicted.TABLES, TRAINING)
}
"""All tables by name."""

MAX_SUMMARY_ROWS = 24
"""Largest number of summary rows shown next to a comparison, which repeats the same times."""

MAX_SETTINGS = 4
"""Largest number of settings for which a comparison of predictions is shown by default."""


def tables_for(record: TimeRecord, names: Iterable[str] = ()) -> list[Table]:
    """Return the tables called `names`; by default the summary and the comparison of the first axis that varies."""
    if chosen := tuple(names):
        return build_tables(TABLES, record, chosen)
    if predicted.is_predicted(record):
        comparisons = [table(record) for table in predicted.TABLES[1:]]
        shown = [table for tables in comparisons if len(tables) <= MAX_SETTINGS for table in tables]
        return [*predicted.PREDICTED(record), *shown, *TRAINING(record)]
    differing = axes.varying(record.cells)
    compared = next((axis for axis in COMPARED_AXES if axis in differing), None)
    comparison = TABLES[compared](record) if compared else []
    if comparison and len(record.cells) > MAX_SUMMARY_ROWS:
        return [*comparison, *TRAINING(record)]
    ranks = RANKS(record) if sum(len(cell.ranks) for cell in record.cells) <= MAX_SUMMARY_ROWS else []
    return [*SUMMARY(record), *ranks, *comparison, *TRAINING(record)]


def sheet(record: TimeRecord, names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    hardware = tuple(dict.fromkeys(cell.device.name for cell in record.cells if cell.device))
    about = (*hardware, *_effort(record))
    if predicted.is_predicted(record):
        about = (MARK, *predicted.gpu_title(record.cells))
    return Sheet(
        subject=(*axes.subject(record.cells), *about, *record.environment.software),
        tables=tuple(tables_for(record, names)),
        remarks=(*outcomes(record), *_provisional(record), *cautions_of(record), *own_models(record)),
    )


def _effort(record: TimeRecord) -> Iterator[str]:
    """Yield the numbers of warm-ups and steps that were taken, if a time limit or a stop may have changed them."""
    cells = [cell for cell in record.cells if any(cell.steps_taken)]
    if not cells:
        return
    if all(cell.effort is None and cell.outcome == "ok" for cell in cells):
        yield from axes.effort(record.cells)
        return
    for axis, counts in zip(("warmup", "steps"), zip(*(cell.steps_taken for cell in cells), strict=True), strict=True):
        fewest, most = min(counts), max(counts)
        yield axes.phrase(axis, most) if fewest == most else f"{fewest} to {axes.phrase(axis, most)}"
    limits = {cell.effort.max_time_s for cell in cells if cell.effort and "time" in cell.effort.ends}
    if len(limits) == 1:
        yield f"within {time_limit_word(limits.pop())}"


def _provisional(record: TimeRecord) -> Iterator[Remark]:
    """Yield what was measured of cells that were stopped, or had time for too few steps."""
    differing = axes.varying(record.cells)
    for cell in record.cells:
        warmups, steps = cell.steps_taken
        is_cut = cell.outcome in ("interrupted", "unfinished") or (cell.effort and cell.effort.steps_end == "time")
        samples = measured_samples(cell, "step")
        if not (is_cut and warmups + steps) or (samples and not too_few(samples.samples_s)):
            continue
        taken = [(axes.phrase("warmup", warmups), warmups), (axes.phrase("steps", steps), steps)]
        counted = ", ".join(phrase for phrase, count in taken if count)
        median_s = samples.median_s if samples else statistics.median(cell.warmup_samples_s)
        interval = samples.ci95_s if samples else None
        shown = units.seconds_with_interval(median_s, *interval) if interval else units.seconds(median_s)
        what = f"{'median ' if (steps or warmups) > 1 else ''}{'step' if samples else 'warm-up step'}"
        sure = "provisional" if interval else "provisional, no interval"
        text = f"{axes.label(cell, differing)}: {counted}; {what} {shown} ({sure})"
        yield Remark("note", text)


def usual(spec: TimeSpec) -> tuple[str, ...]:
    """Return the names of the tables that a run shows by default."""
    training = ("training",) if spec.tokens is not None else ()
    several_ranks = max(spec.ranks) > 1
    if spec.simulate:
        has_choices = any(len(getattr(spec, axis)) > 1 for axis in axes.CHOICES)
        return (
            "predicted",
            "gpus",
            *(("choices",) if has_choices else ()),
            *(("scaling",) if several_ranks else ()),
            *training,
        )
    compared = (axis for axis in COMPARED_AXES if len(getattr(spec, axis)) > 1)
    return ("summary", *(("ranks",) if several_ranks else ()), *compared, *training)
