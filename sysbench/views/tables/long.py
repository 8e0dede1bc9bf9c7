"""Everything in one long table, a row per cell and phase, for data frames."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench.records import PhaseRecord, Samples, TimeCellRecord, TimeRecord
from sysbench.views.table import Cell, Column, Measure, Table
from sysbench.views.tables import axes

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
        *(Column(name, name.replace("_", " "), "bytes") for name in _PEAKS),
        Column("compile", "compile", "s"),
        Column("energy_per_step", "energy per step", "joules"),
        Column("energy_per_token", "energy per token", "joules_per_token"),
        Column("power", "mean power", "watts"),
        Column("cautions", "cautions"),
    )
    rows = tuple(row for cell in record.cells for row in _rows(cell))
    return [Table("cells", "all cells and phases", columns, rows, len(axes.known(axes.axes_of(record.cells))))]


_PEAKS = ("allocated_peak", "reserved_peak", "device_used_peak", "host_rss_peak")


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
        *(getattr(memory, f"{name}_bytes") for name in _PEAKS),
        cell.compile_s,
        *([energy.step_j, energy.token_j, energy.power_w] if energy else [None] * 3),
    ]
    return [*(_measure(value if here else None) for value in values), " ".join(each.code for each in cell.cautions)]


def _measure(value: float | None) -> Cell:
    return Measure(value) if value is not None else None
