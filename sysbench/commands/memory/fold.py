"""Fold the event log of `sysbench memory` into its record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from sysbench import formulas
from sysbench.commands.memory.record import (
    CandidateTried,
    LargestAllocations,
    LargestFound,
    LargestRecord,
    MemoryCellRecord,
    MemoryRecord,
    ModulesMeasured,
    PeakMeasured,
    PhaseMemoryMeasured,
    PhasePeakRecord,
    RankRecord,
    SnapshotWritten,
    VerdictReached,
    VerdictRecord,
    find_fullest_rank,
)
from sysbench.commands.memory.spec import MemoryCell
from sysbench.log import cautions
from sysbench.log import collect as run_record
from sysbench.log.collect import CellEvents, Run, fold_cells
from sysbench.log.events import Event, GpuSimulated, SimulatedGpuRecord
from sysbench.log.outcomes import Caution
from sysbench.spec.knobs import FP8


def fold(events: Iterable[Event]) -> MemoryRecord:
    run, cells = fold_cells(events, _cell_record)
    return MemoryRecord(**run_record.run_fields(run), cells=cells)


def _cell_record(cell: MemoryCell, seen: CellEvents, _: Run) -> MemoryCellRecord:
    ranks: list[RankRecord] = []
    if seen.ranks:
        # Readings cover all ranks together and the first rank's GPU, so they belong to no single rank.
        events_by_rank = {0: replace(seen, readings=[]), **seen.ranks}
        ranks = [
            RankRecord(rank=rank, **_common_fields(cell, events)) for rank, events in sorted(events_by_rank.items())
        ]
        seen = replace(events_by_rank[find_fullest_rank(ranks).rank], started=seen.started, finished=seen.finished)
    found = _search_result(seen)
    reported_cell = found.applied_to(cell) if found is not None else cell
    largest, modules = seen.last(LargestAllocations), seen.last(ModulesMeasured)
    return MemoryCellRecord(
        **run_record.model_cell_fields(cell, seen),
        **_common_fields(cell, seen),
        cautions=list(_cautions(cell, seen)),
        source="simulated" if cell.simulated else "measured",
        gpu=seen.record_of(GpuSimulated, SimulatedGpuRecord),
        device_used_peak_bytes=None if cell.simulated else seen.device_used_peak_bytes,
        largest=largest.groups if largest else [],
        modules=modules.modules if modules else [],
        residual_bytes=formulas.residual_stream_bytes(reported_cell.shape, reported_cell.ctx, reported_cell.batch)
        if reported_cell.shape is not None
        else None,
        found=found,
        ranks=ranks,
    )


def _search_result(seen: CellEvents) -> LargestRecord | None:
    found = seen.last(LargestFound)
    if found is None:
        return None
    return found.as_record(LargestRecord, tried=[tried.value for tried in seen.all(CandidateTried)])


def _common_fields(cell: MemoryCell, seen: CellEvents) -> dict[str, object]:
    peak, gpu = seen.last(PeakMeasured), seen.last(GpuSimulated)
    snapshot = seen.last(SnapshotWritten)
    # Combine the operating system's maximum with the sampled one, because sampling misses short peaks.
    resident = [reading.host_rss_bytes for reading in seen.readings] + [peak.host_rss_peak_bytes if peak else None]
    resident_peak = max((size_bytes for size_bytes in resident if size_bytes is not None), default=None)
    # What is in use outside the allocator is the context only if no other program uses the GPU.
    is_shared = any(reading.other_processes for reading in seen.readings)
    context_bytes = peak.outside_bytes if peak else gpu.context_bytes if gpu else None
    return {
        "peak_allocated_bytes": peak.allocated_peak_bytes if peak else None,
        "peak_reserved_bytes": peak.reserved_peak_bytes if peak else None,
        "peak_phase": peak.phase if peak else None,
        "host_rss_peak_bytes": None if cell.simulated else resident_peak,
        "context_bytes": None if is_shared else context_bytes,
        "alloc_retries": peak.alloc_retries if peak else None,
        "by_category": peak.by_category if peak else {},
        "peaks_by_phase": {phase.phase: phase.as_record(PhasePeakRecord) for phase in seen.all(PhaseMemoryMeasured)},
        "snapshot": snapshot.path if snapshot else None,
        "verdict": seen.record_of(VerdictReached, VerdictRecord),
    }


def _cautions(cell: MemoryCell, seen: CellEvents) -> Iterator[Caution]:
    yield from cautions.assumptions(cell, seen)
    if cell.precision in FP8 and not cell.simulated:
        yield from cautions.emulation(cell.precision, seen)
    peak, gpu, verdict = seen.last(PeakMeasured), seen.last(GpuSimulated), seen.last(VerdictReached)
    if peak is None or verdict is None or not verdict.fits:
        return  # an allocator always retries before it runs out of memory, so this caution would add nothing
    simulated_bytes = gpu.memory_bytes if gpu is not None else None
    yield from cautions.memory_pressure(peak.alloc_retries or 0, verdict.margin_bytes, simulated_bytes)
