"""What other commands compare of the memory of a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sysbench.commands.memory.findings import cells_with_peak
from sysbench.commands.memory.record import MemoryCellRecord
from sysbench.log.measures import Measures, StepNumber, peaks
from sysbench.log.records import PeakRecord
from sysbench.render.sentences.findings import reliable
from sysbench.spec.hardware import slug_of


def measures(cell: MemoryCellRecord) -> Measures:
    memory = PeakRecord(
        allocated_peak_bytes=cell.peak_allocated_bytes,
        reserved_peak_bytes=cell.peak_reserved_bytes,
        device_used_peak_bytes=cell.device_used_peak_bytes,
        host_rss_peak_bytes=cell.host_rss_peak_bytes,
    )
    return Measures(amounts=peaks(memory))


def step_numbers(cells: Sequence[MemoryCellRecord]) -> Iterator[StepNumber]:
    """Yield the peaks that were measured on a GPU, and those that were simulated for one."""
    for cell in cells_with_peak(reliable(cells, "memory")):
        device, simulated, mode = cell.device, cell.cell.simulated, cell.cell.mode
        if simulated is not None:
            yield StepNumber(cell, "peak", "simulated", cell.peak_bytes, simulated, mode)
        elif cell.source == "measured" and device is not None and device.type == "cuda":
            slug = slug_of(device.name, device.memory_bytes)
            yield StepNumber(cell, "peak", "measured", cell.peak_bytes, slug, mode)
