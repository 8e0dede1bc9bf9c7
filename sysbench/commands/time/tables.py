"""Tables of `sysbench time`.

A table is left out if the run lacks its data: for example, a comparison needs two values of its axis.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.time import predicted
from sysbench.commands.time.fold import COUNTER_UPDATE_S, MIN_COUNTED_S
from sysbench.commands.time.record import FORWARD_BACKWARD, CeilingRecord, TimeCellRecord, TimeRecord
from sysbench.commands.time.spec import TimeSpec
from sysbench.commands.time.training_table import TRAINING
from sysbench.log.outcomes import MEASURED
from sysbench.log.predictions import MARK
from sysbench.log.records import PhaseRecord, Samples
from sysbench.render import phase_rows
from sysbench.render.axis_columns import axis_values
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
from sysbench.render.remarks import cautions, outcome_word, outcomes, own_models
from sysbench.render.table import EMPTY_CELL, Cell, Measure, Sheet, Table, Tone, Word, mean_of
from sysbench.spec.options import flag_of
from sysbench.spec.run import Selection
from sysbench.statistics import Ratio, direction, ratio
from sysbench.units import Unit

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


def _mean_and_std(values_s: Sequence[float] | None) -> Cell:
    if not values_s:
        return None
    return Measure(statistics.fmean(values_s), statistics.stdev(values_s) if len(values_s) > 1 else None)


def _phase_mean(cell: TimeCellRecord, phase: str) -> Cell:
    return mean_of(measured_samples(cell, phase))


def _median(cell: TimeCellRecord, phase: str = "step") -> float | None:
    found = measured_samples(cell, phase)
    return found.median_s if found else None


def _sum_of_phases(cell: TimeCellRecord, phases: Sequence[str], required: str) -> list[float] | None:
    return cell.sum_of_phases(phases) if required in cell.phases and cell.outcome in MEASURED else None


_forward = partial(_sum_of_phases, phases=("forward",), required="forward")
_forward_backward = partial(_sum_of_phases, phases=FORWARD_BACKWARD, required="backward")
_full_step = partial(_sum_of_phases, phases=("step",), required="optimizer")


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
    peaks = {
        (cell.cell.compute_precision, cell.rates.peak_flops_per_s, cell.rates.peak_source): None
        for cell in record.cells
        if cell.rates and cell.rates.peak_flops_per_s is not None
    }
    peaks_listed = "; ".join(f"{units.flop_rate(rate)} in {precision}, {source}" for precision, rate, source in peaks)
    return (
        "MFU: FLOPs of a step divided by (mean step time × peak); B·[L(8Td² + 4T²d + 6T·d·d_ff) + 2TdV] FLOPs for "
        "forward and twice that for backward, without a discount for causality and without recomputation; "
        f"peak: {peaks_listed or 'unknown for this device'}"
    )


def _energy_note(record: TimeRecord) -> str:
    counted = [cell.energy for cell in record.cells if cell.energy]
    if not counted:
        return "energy: no energy counter was read; NVIDIA's driver has one for Volta and later"
    description = (
        "energy: read from NVML's counter during the measured steps, for the whole GPU, including idle power and "
        f"other processes; the counter is updated every {0.02:g} to {COUNTER_UPDATE_S:g} s"
    )
    shares = [each.uncertainty_share for each in counted if each.uncertainty_share is not None]
    uncertainty = f", so the uncertainty is ± {units.share(max(shares))}" if shares else ""
    withheld = [each for each in counted if each.withheld]
    if not withheld:
        return description + uncertainty
    needed = [each.steps_needed for each in withheld if each.steps_needed]
    remedy = f"; use --steps {max(needed)}" if needed else ""
    withheld_cells = f"{len(withheld)} cell{'' if len(withheld) == 1 else 's'}"
    return (
        f"{description}{uncertainty}; withheld for {withheld_cells}: {withheld[0].withheld} "
        f"({MIN_COUNTED_S:g} s is needed{remedy})"
    )


_optional_column = partial(Field, on_request=True)

_OPTIONAL_COLUMNS: tuple[Field | Each, ...] = (
    _optional_column("mfu", "MFU", "share", get=_rate("peak_share"), replaces="peak", note=_mfu_note),
    _optional_column("hfu", "HFU", "share", get=_rate("hardware_share"), note=predicted.HFU_NOTE),
    _optional_column("flops_per_s", "achieved", "flops_per_s", get=_rate("flops_per_s")),
    _optional_column("tokens_per_s", "throughput", "tokens_per_s", get=_rate("tokens_per_s")),
    _optional_column("step_flops", "step FLOPs", "flops", get=_rate("step_flops")),
    _optional_column("median", "median step", "s", get=_median),
    Each(
        "phase",
        (_optional_column("{phase}_median", "median {phase}", "s", get=_median),),
        values=lambda record: [phase for phase in phases_in(record.cells) if phase != "step"],
    ),
    _optional_column("energy_per_step", "per step", "joules", "energy", get=_energy("step_j"), note=_energy_note),
    _optional_column(
        "energy_per_token", "per token", "joules_per_token", "energy", get=_energy("token_j"), note=_energy_note
    ),
    _optional_column("power", "mean power", "watts", get=_energy("power_w"), note=_energy_note),
    _optional_column("parameters", "parameters", "count", get=attrgetter("model.parameters")),
    *(replace(column, optional=False, on_request=True) for column in adapter_columns(attrgetter("model"))),
)
"""Optional columns of every table with a row per cell."""

# --- several ranks

_IMPORTANCE = {"step": 0, "forward": 1, "backward": 2, "optimizer": 3, "loss": 10, "zero_grad": 11}


def _rank_steps_s(cell: TimeCellRecord) -> dict[int, float]:
    if cell.outcome not in MEASURED:
        return {}
    return {each.rank: each.median_step_s for each in cell.ranks if each.median_step_s is not None}


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
    rows=lambda record: [(cell, each) for cell in record.cells if cell.outcome in MEASURED for each in cell.ranks],
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

    def described(ceilings: Sequence[CeilingRecord]) -> str:
        rates = []
        for each in ceilings:
            place = f"{each.device} with {axes.phrase('threads', each.threads)}" if each.threads else each.device
            date = f" ({each.seen_at[:10]})" if each.seen_at else ""
            rates.append(f"{units.flop_rate(each.matmul_flops_per_s)} in {each.precision} on {place}{date}")
        return ", ".join(rates)

    reached = described([each for each in record.ceilings if not each.disturbed])
    disturbed = described([each for each in record.ceilings if each.disturbed])
    notes = (
        *([f"a large matrix product reached {reached}"] if reached else ()),
        *([f"other processes disturbed a large matrix product, so it is no ceiling: {disturbed}"] if disturbed else ()),
    )
    return f"matmul: {'; '.join(notes)}" if notes else ""


def _phase_notes(record: TimeRecord) -> Iterator[str]:
    phases = [phase for cell in record.cells for phase in cell.phases.values()]
    by_device = any(phase.wall is None and phase.device is not None for phase in phases)
    if by_device:
        yield "phases measured with device events, the step with the host's clock (--sync step)"
    if any(cell.cell.grad_accum > 1 for cell in record.cells):
        yield predicted.MICRO_BATCHES_NOTE


SUMMARY = DeclaredTable(
    "summary",
    "mean ± standard deviation",
    (
        Each(
            "phase",
            (Field("{phase}", unit="s", importance=lambda record, phase: _IMPORTANCE[phase], get=_phase_mean),),
            values=lambda record: phases_in(record.cells) or ("step",),
        ),
        Field("", "achieved", "flops_per_s", importance=5, get=_rate("flops_per_s")),
        Field("peak", "of peak", "share", importance=4, get=_share_of_limit("peak_share"), note=_peak_sources),
        Field(
            "matmul_ceiling", "of matmul", "share", importance=6, get=_share_of_limit("ceiling_share"), note=_ceilings
        ),
        Field("", "throughput", "tokens_per_s", importance=7, get=_rate("tokens_per_s")),
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
        _peak_column("peak_memory", "peak memory", importance=8, get=_peak_bytes),
        Field("compile", "compile", "s", importance=9, get=attrgetter("compile_s"), optional=True),
        *_OPTIONAL_COLUMNS,
    ),
    when=lambda record: not predicted.is_predicted(record),
    outcome_of=outcome,
    notes=_phase_notes,
    keep_empty=True,
    needs="measured times",
)
"""One row per cell: phases as mean ± std, achieved rates, and shares of the machine's limits."""


MEMORY = DeclaredTable(
    "memory",
    "peak memory",
    (
        _peak_column("allocated_peak", "allocated", get=attrgetter("memory.allocated_peak_bytes")),
        _peak_column("reserved_peak", "reserved", get=attrgetter("memory.reserved_peak_bytes")),
        _peak_column(
            "device_used_peak", "device, total", importance=1, get=attrgetter("memory.device_used_peak_bytes")
        ),
        _peak_column("host_rss_peak", "worker, host memory", get=attrgetter("memory.host_rss_peak_bytes")),
        *_OPTIONAL_COLUMNS,
    ),
    when=lambda record: any(peak is not None for cell in record.cells for peak in cell.memory.model_dump().values()),
    outcome_of=outcome,
    needs="a measured memory peak",
    about="memory",
)
"""Peaks of every cell: tensors, the allocator, the whole device, and the worker on the host."""


def _has_optimizer(record: TimeRecord) -> bool:
    return any("optimizer" in cell.phases for cell in record.cells)


def _ratio_to_forward(get: Callable[[TimeCellRecord], list[float] | None]) -> Value:
    def show(cell: TimeCellRecord) -> float | None:
        values_s, forward_s = get(cell), _forward(cell)
        return statistics.fmean(values_s) / statistics.fmean(forward_s) if values_s and forward_s else None

    return show


PHASE_TABLE = DeclaredTable(
    "phases",
    "phases, and their ratio to forward",
    (
        Field("parameters", unit="count", importance=3, get=attrgetter("model.parameters"), shown_with_outcome=True),
        *adapter_columns(attrgetter("model")),
        Field("forward", unit="s", get=lambda cell: _mean_and_std(_forward(cell))),
        Field("forward_backward", "fwd + bwd", "s", get=lambda cell: _mean_and_std(_forward_backward(cell))),
        Field("forward_backward", "to forward", "ratio", get=_ratio_to_forward(_forward_backward)),
        Field(
            "step",
            "full step",
            "s",
            importance=1,
            get=lambda cell: _mean_and_std(_full_step(cell)),
            when=_has_optimizer,
        ),
        Field("step", "to forward", "ratio", importance=1, get=_ratio_to_forward(_full_step), when=_has_optimizer),
        *_OPTIONAL_COLUMNS,
    ),
    rows=lambda record: [cell for cell in record.cells if "forward" in cell.phases or not cell.phases],
    when=lambda record: any("backward" in cell.phases for cell in record.cells),
    outcome_of=outcome,
    notes=("fwd + bwd: forward, loss and backward, excluding zero_grad and the optimizer step",),
    needs="a backward pass that is timed as a phase of its own",
)
"""Forward, forward + loss + backward, the full step if there is an optimizer, and their ratios to forward."""

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
            if len(cells) < 2:  # nothing to compare, for example because a strategy has its own options
                continue
            comparisons = {
                (phase, arm): _ComparedPhase.of(cells.get(self.values[0]), cells.get(arm), phase)
                for phase in self.phases
                for arm in self.values[1:]
            }
            yield _ArmsRow(self.phases[-1] if self.phases else "", cells, comparisons)

    def importance(self, phase: str, arm: object) -> int:
        return 0 if phase == self.phases[-1] else 2 if phase == self.phases[0] else 5


@dataclass(frozen=True)
class _ComparedPhase:
    before_s: float
    after_s: float
    speedup: Ratio

    @classmethod
    def of(cls, base: TimeCellRecord | None, other: TimeCellRecord | None, phase: str) -> _ComparedPhase | None:
        if base is None or other is None or base.outcome != "ok" or other.outcome != "ok":
            return None
        before, after = base.samples(phase), other.samples(phase)
        if before is None or after is None:
            return None
        return cls(before.median_s, after.median_s, ratio(before.samples_s, after.samples_s))

    def measure(self, value: float, low: float | None = None, high: float | None = None) -> Measure:
        tones: dict[int, Tone] = {1: "good", 0: "plain", -1: "bad"}
        return Measure(value, low=low, high=high, tone=tones[direction(self.speedup)])


@dataclass(frozen=True)
class _ArmsRow:
    last_phase: str
    cells: Mapping[object, TimeCellRecord]
    comparisons: Mapping[tuple[str, object], _ComparedPhase | None]

    def median(self, phase: str, arm: object) -> Cell:
        """Return the median, on which speed-ups are based."""
        cell = self.cells.get(arm)
        if cell is None:
            return None
        if (word := outcome(cell)) is not None:
            return word if phase == self.last_phase else EMPTY_CELL
        median_s = _median(cell, phase)
        return Measure(median_s) if median_s is not None else None

    def speedup(self, phase: str, arm: object) -> Cell:
        found = self.comparisons[phase, arm]
        return found.measure(found.speedup.value, found.speedup.low, found.speedup.high) if found else EMPTY_CELL


def _is_not_baseline(arms: _Arms, phase: str, arm: object) -> bool:
    return bool(arm != arms.values[0])


def _change_column(key: str, unit: Unit, importance: int, show: Callable[[_ComparedPhase], Measure]) -> Field:
    return Field(
        f"{{phase}}_{{arm}}_{key}",
        key,
        unit,
        "{phase}",
        lambda arms, phase, arm: importance if phase == arms.phases[-1] else importance + 1,
        get=lambda row, phase, arm: show(found) if (found := row.comparisons[phase, arm]) else EMPTY_CELL,
        when=_is_not_baseline,
        signed=True,
    )


_ARM_COLUMNS = (
    Field("{phase}_{arm}", "{arm}", "s", "{phase}", _Arms.importance, get=_ArmsRow.median),
    _change_column("difference", "s", 8, lambda each: Measure(each.after_s - each.before_s)),
    _change_column("change", "share", 6, lambda each: each.measure(each.after_s / each.before_s - 1)),
    Field(
        "{phase}_{arm}_speedup",
        "speed-up",
        "ratio",
        "{phase}",
        _Arms.importance,
        get=_ArmsRow.speedup,
        when=_is_not_baseline,
        note="medians, and speed-up with 95% CI",
    ),
)


def arms_table(axis: str) -> DeclaredTable:
    """Declare a table of times for each value of an axis, with difference, relative change and speed-up."""
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


# --- devices in columns

_NAMES = {"cpu": "CPU", "mps": "MPS", "cuda": "CUDA"}


def device_name(cell: TimeCellRecord) -> str:
    """Return the kind of device that a cell ran on: CPU, MPS, CUDA, CUDA:1."""
    if cell.device is None:
        return cell.cell.device
    return _NAMES[cell.device.type] + (f":{cell.device.index}" if cell.device.index else "")


@dataclass(frozen=True)
class _ModelsOnDevices:
    record: TimeRecord
    devices: tuple[str, ...]
    row_axes: tuple[str, ...]
    rows: tuple[Mapping[str, TimeCellRecord], ...]
    """The cells of one model by device; they agree on all axes but `device`."""

    @classmethod
    def of(cls, record: TimeRecord) -> _ModelsOnDevices:
        row_axes = tuple(axis for axis in axes.varying(record.cells) if axis not in ("device", "size"))
        rows: dict[str, dict[str, TimeCellRecord]] = {}
        for cell in record.cells:
            key = str((*axis_values(cell, row_axes), cell.cell.size, cell.cell.model))
            rows.setdefault(key, {})[device_name(cell)] = cell
        return cls(record, tuple(dict.fromkeys(map(device_name, record.cells))), row_axes, tuple(rows.values()))


def _any_cell(row: Mapping[str, TimeCellRecord]) -> TimeCellRecord:
    return next(iter(row.values()))


def _on_device(
    get: Callable[[TimeCellRecord], Cell], show_outcome: bool
) -> Callable[[Mapping[str, TimeCellRecord], str], Cell]:
    """Return a function that shows the cell's value on a device."""

    def show(row: Mapping[str, TimeCellRecord], device: str) -> Cell:
        if device not in row:
            return EMPTY_CELL
        missing = outcome(row[device])
        return (missing if show_outcome else EMPTY_CELL) if missing is not None else get(row[device])

    return show


DEVICES = DeclaredTable(
    "devices",
    "device comparison, mean ± standard deviation",
    (
        Each(
            "device",
            (
                Field(
                    "{device}_forward",
                    "forward",
                    "s",
                    "{device}",
                    get=_on_device(partial(_phase_mean, phase="forward"), show_outcome=True),
                ),
                Field(
                    "{device}_forward_backward",
                    "fwd + bwd",
                    "s",
                    "{device}",
                    get=_on_device(lambda cell: _mean_and_std(_forward_backward(cell)), show_outcome=False),
                ),
            ),
            values=lambda part: part.devices,
        ),
    ),
    rows=lambda part: part.rows,
    leading=(
        leading_fields(
            Field("size", get=lambda row: _any_cell(row).cell.size),
            *(
                Field(name, importance=3, get=lambda row, name=name: getattr(_any_cell(row).cell.shape, name, None))
                for name in ("d_model", "d_ff", "layers", "heads")
            ),
            Field("parameters", unit="count", importance=2, get=lambda row: _any_cell(row).model.parameters),
        ),
        leading_axes(lambda part: part.row_axes, cells_of=lambda row: row.values()),
    ),
    parts=lambda record: (_ModelsOnDevices.of(record),),
    when=lambda part: len({device_name(cell) for cell in part.record.cells if cell.device}) > 1,
    notes=lambda part: (
        *(
            f"{head}: {name}"
            for head, name in {device_name(cell): cell.device.name for cell in part.record.cells if cell.device}.items()
        ),
        "fwd + bwd: forward, loss and backward, without the optimizer",
    ),
    needs="measured times on several devices",
)
"""Models with dimensions and parameters in rows; devices in columns, each with forward and forward + backward."""

# --- numbers of warm-up steps

SamplesRow = tuple[TimeCellRecord, str, Samples | None]
"""A cell, one of its phases, and its samples."""


def _outcome_if_unmeasured(row: SamplesRow) -> Word | None:
    cell, _, found = row
    return (outcome(cell) or Word(cell.outcome, "bad")) if found is None else None


def _other_axes(record: TimeRecord) -> list[str]:
    return [axis for axis in axes.varying(record.cells) if axis != "warmup"]


def _warmup_rows(record: TimeRecord) -> Iterator[SamplesRow]:
    others = _other_axes(record)
    phases = [phase for phase in phases_in(record.cells) if phase in ("forward", "backward", "step")]
    for cell in sorted(record.cells, key=lambda cell: [str(cell.axes.get(axis)) for axis in others]):
        found = [(cell, phase, measured_samples(cell, phase)) for phase in phases if measured_samples(cell, phase)]
        yield from found or [(cell, phases[-1] if phases else "step", None)]


WARMUP = DeclaredTable(
    "warmup",
    "effect of the warm-up",
    (
        Field("minimum", "min", "s", get=lambda row: row[2].min_s),
        Field("maximum", "max", "s", get=lambda row: row[2].max_s),
        Field("mean", "avg", "s", get=lambda row: row[2].mean_s),
        Field("deviation", "std", "s", get=lambda row: row[2].std_s),
    ),
    rows=_warmup_rows,
    leading=(
        leading_axes(lambda record: [*_other_axes(record), "warmup"], cells_of=lambda row: row[:1]),
        leading_fields(Field("phase", get=lambda row: row[1])),
    ),
    when=lambda record: not predicted.is_predicted(record),
    needs="measured times",
    outcome_of=_outcome_if_unmeasured,
    keep_empty=True,
    about="warm-up",
)
"""Min, max, mean and std for each number of warm-up steps."""

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
    found = cell.prediction
    time = (found.step if phase == "step" else found.phase(phase or "")) if found else None
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

# --- all tables

TABLES: dict[str, DeclaredTable] = {
    table.name: table
    for table in (
        SUMMARY,
        RANKS,
        *(arms_table(axis) for axis in axes.CHOICES),
        DEVICES,
        PHASE_TABLE,
        WARMUP,
        MEMORY,
        CELLS,
        *predicted.TABLES.values(),
        TRAINING,
    )
}
"""All tables by name."""

COMPARISONS: dict[str, str] = {"warmup": "warmup", "device": "devices", **{axis: axis for axis in axes.CHOICES}}
"""Comparison table of each axis; the default is the table for the first axis that varies."""

MAX_SUMMARY_ROWS = 24
"""Largest number of summary rows shown next to a comparison, which repeats the same times."""


def tables_for(record: TimeRecord, names: Iterable[str] = ()) -> list[Table]:
    """Return the tables called `names`; by default the summary and the comparison of the first axis that varies."""
    if chosen := tuple(names):
        return build_tables(TABLES, record, chosen)
    if predicted.is_predicted(record):
        return [*predicted.default_tables(record), *TRAINING(record)]
    differing = axes.varying(record.cells)
    default_comparison = next((table for axis, table in COMPARISONS.items() if axis in differing), None)
    comparison = TABLES[default_comparison](record) if default_comparison else []
    if comparison and len(record.cells) > MAX_SUMMARY_ROWS:
        return [*comparison, *TRAINING(record)]
    ranks = RANKS(record) if sum(len(cell.ranks) for cell in record.cells) <= MAX_SUMMARY_ROWS else []
    return [*SUMMARY(record), *ranks, *comparison, *TRAINING(record)]


def sheet(record: TimeRecord, names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    hardware = tuple(dict.fromkeys(cell.device.name for cell in record.cells if cell.device))
    about = (*hardware, *axes.effort(record.cells))
    if predicted.is_predicted(record):
        about = (MARK, *predicted.gpu_title(record.cells))
    return Sheet(
        subject=(*axes.subject(record.cells), *about, *record.environment.software),
        tables=tuple(tables_for(record, names)),
        remarks=(*outcomes(record), *cautions(record), *own_models(record)),
    )


def usual(spec: TimeSpec) -> tuple[str, ...]:
    training = ("training",) if spec.tokens is not None else ()
    if spec.simulate:
        has_choices = any(len(getattr(spec, axis)) > 1 for axis in axes.CHOICES)
        return (
            "predicted",
            "gpus",
            *(("choices",) if has_choices else ()),
            *(("scaling",) if max(spec.ranks) > 1 else ()),
            *training,
        )
    return (
        "summary",
        *(("ranks",) if max(spec.ranks) > 1 else ()),
        *(COMPARISONS[axis] for axis in (*axes.CHOICES, "warmup", "device") if len(getattr(spec, axis)) > 1),
        *training,
    )
