"""From records to tables: pure functions, one per question that people ask of a run.

`TABLES` has them all by name. A builder returns no table when the run does not carry what it shows (one precision
only, say), and several when it takes more than one to show it.

The table that answers the question: how long each phase takes, and how far that is from what the machine can do.

Peaks of memory, each said of what.

Everything in one long table, a row per cell and phase, for data frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.time import times
from sysbench.commands.time.arms import CATEGORICAL, arms_table, devices, first_steps, grid, phases, spread, warmup
from sysbench.commands.time.record import PhaseRecord, TimeCellRecord, TimeRecord
from sysbench.commands.time.times import offers
from sysbench.errors import UsageError, unknown
from sysbench.log.records import Samples
from sysbench.render.plan import plan
from sysbench.render.remarks import cautions, outcomes
from sysbench.render.table import Cell, Column, Measure, Sheet, Table, Word
from sysbench.spec.run import Selection

_IMPORTANCE = {"step": 0, "forward": 1, "backward": 2, "optimizer": 3, "loss": 10, "zero_grad": 11}


def summary(record: TimeRecord) -> list[Table]:
    """One row per cell: its phases as mean ± std, what that achieves, and the shares of the machine's limits."""
    cells = record.cells
    named = axes.varying(axes.axes_of(cells)) or ("size",)
    phases = times.phases_in(cells) or ("step",)
    columns = (
        *axes.columns(named),
        *(Column(phase, phase, "s", importance=_IMPORTANCE[phase]) for phase in phases),
        *(column for column, _ in _rates(record)),
    )
    rows = tuple((*axes.values(cell.axes, named), *_times(cell, phases), *_rate_values(cell, record)) for cell in cells)
    title, more = "mean ± standard deviation", offers(cells, columns)
    return [Table("summary", title, columns, rows, len(named), _notes(cells), more)]


def _times(cell: TimeCellRecord, phases: Sequence[str]) -> list[Cell]:
    whole = times.whole(phases)
    return [times.or_outcome(cell, times.mean(times.samples(cell, phase)), here=phase == whole) for phase in phases]


def _rates(record: TimeRecord) -> list[tuple[Column, str]]:
    """The columns after the times, each with the name of what it shows; what no cell has is left out."""
    cells = record.cells
    columns = [
        (Column("", "achieved", "flops_per_s", importance=5), "flops_per_s"),
        (Column("peak", "of peak", "share", importance=4, note=_peak(cells)), "peak_share"),
        (Column("matmul_ceiling", "of matmul", "share", importance=6, note=_ceiling(record)), "ceiling_share"),
        (Column("", "throughput", "tokens_per_s", importance=7), "tokens_per_s"),
    ]
    if any(_peak_bytes(cell) is not None for cell in cells):
        columns.append((Column("peak_memory", "peak memory", "bytes", importance=8), "memory"))
    if any(cell.compile_s is not None for cell in cells):
        columns.append((Column("compile", "compile", "s", importance=9), "compile_s"))
    return columns


def _rate_values(cell: TimeCellRecord, record: TimeRecord) -> list[Cell]:
    return [times.or_outcome(cell, _rate_value(cell, name), here=False) for _, name in _rates(record)]


def _rate_value(cell: TimeCellRecord, name: str) -> Cell:
    value: float | None
    if name == "memory":
        value = _peak_bytes(cell)
    elif name == "compile_s":
        value = cell.compile_s
    else:
        value = getattr(cell.rates, name) if cell.rates else None
    if value is None:
        return Word("unknown", "quiet") if name in ("peak_share", "ceiling_share") else None
    return Measure(value)


def _peak_bytes(cell: TimeCellRecord) -> int | None:
    """Allocated on the device, or where no allocator tells, the worker's resident memory."""
    memory = cell.memory
    return memory.allocated_peak_bytes if memory.allocated_peak_bytes is not None else memory.host_rss_peak_bytes


def _notes(cells: Sequence[TimeCellRecord]) -> tuple[str, ...]:
    """By whose clock, where it is not the host's throughout."""
    phases = [phase for cell in cells for phase in cell.phases.values()]
    if any(phase.wall is None and phase.device is not None for phase in phases):
        return ("phases by device events, step by the host's clock (--sync step)",)
    return ()


def _peak(cells: Sequence[TimeCellRecord]) -> str:
    sources = dict.fromkeys(cell.rates.peak_source for cell in cells if cell.rates and cell.rates.peak_source)
    return f"peak: {'; '.join(sources)}" if sources else "peak: unknown for this device"


def _ceiling(record: TimeRecord) -> str:
    reached = (
        f"{units.flop_rate(each.matmul_flops_per_s)} in {each.precision} on {each.device}" for each in record.ceilings
    )
    return f"matmul: a large matrix product reached {', '.join(reached)}" if record.ceilings else ""


_PEAKS = {
    "allocated_peak_bytes": Column("allocated_peak", "allocated", "bytes"),
    "reserved_peak_bytes": Column("reserved_peak", "reserved", "bytes"),
    "device_used_peak_bytes": Column("device_used_peak", "device, all programs", "bytes", importance=1),
    "host_rss_peak_bytes": Column("host_rss_peak", "worker, host memory", "bytes"),
}


def memory(record: TimeRecord) -> list[Table]:
    """The peaks of every cell: tensors, what the allocator holds, the whole device, and the worker on the host."""
    known = [name for name in _PEAKS if any(getattr(cell.memory, name) is not None for cell in record.cells)]
    if not known:
        return []
    named = axes.varying(axes.axes_of(record.cells)) or ("size",)
    columns = (*axes.columns(named), *(_PEAKS[name] for name in known))
    rows = tuple((*axes.values(cell.axes, named), *_row(cell, known)) for cell in record.cells)
    return [Table("memory", "peak memory", columns, rows, len(named), offers=offers(record.cells, columns))]


def _row(cell: TimeCellRecord, known: list[str]) -> list[Cell]:
    peaks = [getattr(cell.memory, name) for name in known]
    return [
        times.or_outcome(cell, Measure(peak) if peak is not None else None, here=position == 0)
        for position, peak in enumerate(peaks)
    ]


_DIMENSIONS = ("d_model", "d_ff", "layers", "heads", "vocab")
_STATISTICS = ("mean", "std", "median", "min", "max", "p5", "p25", "p75", "p95", "mad")
_CLOCKS = ("wall", "device")


def cells(record: TimeRecord) -> list[Table]:
    """One row per cell and phase: all axes, the outcome, every statistic by both clocks, rates, memory, cautions.

    A cell without samples has one row, with its outcome and no numbers. Rates and memory belong to the cell, not to
    the phase, and stand only in the rows of `step`, so that they can be summed.
    """
    columns = (
        *axes.columns(axes.known(axes.axes_of(record.cells))),
        *(Column(name, name) for name in _DIMENSIONS),
        Column("device_name", "device name"),
        Column("parameters", "parameters", "count"),
        Column("outcome", "outcome"),
        Column("phase", "phase"),
        Column("samples", "samples"),
        *(Column(f"{clock}_{name}", f"{clock} {name}", "s") for clock in _CLOCKS for name in _STATISTICS),
        *(Column(f"wall_ci95_{end}", f"wall 95 % {end}", "s") for end in ("low", "high")),
        Column("enqueue_median", "enqueue median", "s"),
        Column("step", "step FLOPs", "flops"),
        Column("", "rate", "flops_per_s"),
        Column("", "tokens", "tokens_per_s"),
        Column("peak", "of peak", "share"),
        Column("matmul_ceiling", "of matmul", "share"),
        *(Column(name, name.replace("_", " "), "bytes") for name in _LONG_PEAKS),
        Column("compile", "compile", "s"),
        Column("energy_per_step", "energy per step", "joules"),
        Column("energy_per_token", "energy per token", "joules_per_token"),
        Column("power", "mean power", "watts"),
        Column("cautions", "cautions"),
    )
    rows = tuple(row for cell in record.cells for row in _rows(cell))
    return [Table("cells", "all cells and phases", columns, rows, len(axes.known(axes.axes_of(record.cells))))]


_LONG_PEAKS = ("allocated_peak", "reserved_peak", "device_used_peak", "host_rss_peak")


def _rows(cell: TimeCellRecord) -> Iterator[tuple[Cell, ...]]:
    model = cell.axes["model"]
    leading: tuple[Cell, ...] = (
        *axes.values(cell.axes, axes.known([cell.axes])),
        *(model[name] for name in _DIMENSIONS),
        cell.device.name if cell.device else None,
        Measure(cell.model.parameters),
        cell.outcome,
    )
    for phase, found in cell.phases.items():
        yield (*leading, phase, *_phase(found), *_of_the_cell(cell, phase == "step"))
    if not cell.phases:
        yield (*leading, None, *_phase(PhaseRecord(wall=None, device=None, enqueue_median_s=None)), *_of_the_cell(cell))


def _phase(found: PhaseRecord) -> list[Cell]:
    first = found.wall or found.device
    low, high = (found.wall.ci95_s if found.wall else None) or (None, None)
    return [
        len(first.samples_s) if first else 0,
        *_statistics(found.wall),
        *_statistics(found.device),
        *(_measure(value) for value in (low, high, found.enqueue_median_s)),
    ]


def _statistics(found: Samples | None) -> list[Cell]:
    return [_measure(getattr(found, f"{name}_s") if found else None) for name in _STATISTICS]


def _of_the_cell(cell: TimeCellRecord, here: bool = True) -> list[Cell]:
    rates, memory, energy = cell.rates, cell.memory, cell.energy
    values = [
        *([rates.step_flops, rates.flops_per_s, rates.tokens_per_s] if rates else [None] * 3),
        *([rates.peak_share, rates.ceiling_share] if rates else [None] * 2),
        *(getattr(memory, f"{name}_bytes") for name in _LONG_PEAKS),
        cell.compile_s,
        *([energy.step_j, energy.token_j, energy.power_w] if energy else [None] * 3),
    ]
    return [*(_measure(value if here else None) for value in values), " ".join(each.code for each in cell.cautions)]


def _measure(value: float | None) -> Cell:
    return Measure(value) if value is not None else None


__all__ = ["TABLES", "cautions", "outcomes", "plan", "sheet", "tables_for"]

Builder = Callable[[TimeRecord], list[Table]]

TABLES: dict[str, Builder] = {
    "summary": summary,
    "grid": grid,
    **{axis: arms_table(axis) for axis in CATEGORICAL},
    "devices": devices,
    "phases": phases,
    "warmup": warmup,
    "first-steps": first_steps,
    "spread": spread,
    "memory": memory,
    "cells": cells,
}
"""Every table that a record can be shown as."""

COMPARISONS: dict[str, str] = {"warmup": "warmup", "device": "devices", **{axis: axis for axis in CATEGORICAL}}
"""The table that an axis asks for by varying; the first one that varies is shown without being asked for."""

SUMMARY_ROWS = 24
"""A longer summary does not fit a screen together with a comparison that shows the same times again."""


def tables_for(record: TimeRecord, names: Iterable[str] = ()) -> list[Table]:
    """The tables called `names`, or without any the summary and the one comparison that the run was made for.

    Raises UsageError for a name that is not a table, and for one that this record cannot fill.
    """
    chosen = tuple(names)
    if not chosen:
        return _implied(record)
    return [table for name in chosen for table in _named(record, name)]


def sheet(record: TimeRecord, names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    """Everything that is shown of a record at the end of a run."""
    specs = axes.axes_of(record.cells)
    hardware = tuple(dict.fromkeys(cell.device.name for cell in record.cells if cell.device))
    torch = (f"torch {record.environment.torch.torch}",) if record.environment.torch else ()
    return Sheet(
        subject=(*axes.subject(specs), *hardware, *axes.effort(specs), *torch),
        tables=tuple(tables_for(record, names)),
        remarks=(*outcomes(record), *cautions(record)),
    )


def _named(record: TimeRecord, name: str) -> list[Table]:
    if name not in TABLES:
        raise UsageError(unknown(name, "a table", TABLES))
    found = TABLES[name](record)
    if not found:
        raise UsageError(f"this run has nothing to show as the table {name}: it takes other axes")
    return found


def _implied(record: TimeRecord) -> list[Table]:
    differing = axes.varying(axes.axes_of(record.cells))
    name = next((table for axis, table in COMPARISONS.items() if axis in differing), None)
    comparison = TABLES[name](record) if name else []
    if comparison and len(record.cells) > SUMMARY_ROWS:
        return comparison
    return [*summary(record), *comparison]
