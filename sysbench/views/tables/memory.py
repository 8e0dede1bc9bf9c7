"""Peaks of memory, each said of what."""

from __future__ import annotations

from sysbench.records import TimeCellRecord, TimeRecord
from sysbench.views.table import Cell, Column, Measure, Table
from sysbench.views.tables import axes, times
from sysbench.views.tables.offers import offers

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
