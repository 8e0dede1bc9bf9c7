"""The table that answers the question: how long each phase takes, and how far that is from what the machine can do."""

from __future__ import annotations

from collections.abc import Sequence

from sysbench import units
from sysbench.records import TimeCellRecord, TimeRecord
from sysbench.views.table import Cell, Column, Measure, Table, Word
from sysbench.views.tables import axes, times
from sysbench.views.tables.offers import offers

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
