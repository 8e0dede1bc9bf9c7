"""Folds the event log of `sysbench memory` into its record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sysbench import formulas, units
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
    SnapshotWritten,
    VerdictReached,
    VerdictRecord,
)
from sysbench.commands.memory.spec import MemoryCell, MemorySpec
from sysbench.log import collect as run_record
from sysbench.log.collect import CellEvents, collect
from sysbench.log.events import Event, GpuSimulated
from sysbench.log.outcomes import Caution
from sysbench.log.records import SimulatedGpuRecord

DOUBT = 0.02
"""Of a GPU's memory: a smaller margin is no promise. The context alone was seen to take 300 to 600 MiB, and simulated
peaks lay within 1 % of those of recorded snapshots."""


def fold(events: Iterable[Event]) -> MemoryRecord:
    """The record of a run, finished or not; raises LogError when the events hold no run."""
    run = collect(events)
    spec = MemorySpec.model_validate(run.started.spec)
    cells = [_cell(cell, run.cells.get(cell.key, CellEvents())) for cell in spec.cells()]
    return MemoryRecord(**run_record.of_run(run), cells=cells)


def _cell(cell: MemoryCell, seen: CellEvents) -> MemoryCellRecord:
    peak, gpu = seen.last(PeakMeasured), seen.last(GpuSimulated)
    largest, modules, snapshot = seen.last(LargestAllocations), seen.last(ModulesMeasured), seen.last(SnapshotWritten)
    found = _found(seen)
    used = max((each.device_used_bytes for each in seen.readings if each.device_used_bytes is not None), default=None)
    return MemoryCellRecord(
        **run_record.of_model_cell(cell, seen),
        cautions=list(_cautions(cell, seen)),
        source="simulated" if cell.simulated else "measured",
        gpu=SimulatedGpuRecord(**gpu.model_dump(exclude={"event", "at_s", "cell"})) if gpu else None,
        peak_allocated_bytes=peak.allocated_peak_bytes if peak else None,
        peak_reserved_bytes=peak.reserved_peak_bytes if peak else None,
        peak_phase=peak.phase if peak else None,
        host_rss_peak_bytes=None if cell.simulated else _host_rss(seen, peak),
        device_used_peak_bytes=None if cell.simulated else used,
        context_bytes=peak.outside_bytes if peak else gpu.context_bytes if gpu else None,
        alloc_retries=peak.alloc_retries if peak else None,
        by_category=peak.by_category if peak else {},
        peaks_by_phase={
            phase.phase: PhasePeakRecord(
                allocated_peak_bytes=phase.allocated_peak_bytes,
                reserved_peak_bytes=phase.reserved_peak_bytes,
                by_category=phase.by_category,
            )
            for phase in seen.all(PhaseMemoryMeasured)
        },
        largest=largest.groups if largest else [],
        modules=modules.modules if modules else [],
        residual_bytes=formulas.residual_stream_bytes(cell.model, found_ctx(cell, found), found_batch(cell, found)),
        snapshot=snapshot.path if snapshot else None,
        verdict=_verdict(seen),
        found=found,
    )


def found_ctx(cell: MemoryCell, found: LargestRecord | None) -> int:
    """The context that the cell's numbers are of."""
    return found.value if found and found.axis == "ctx" and found.value else cell.ctx


def found_batch(cell: MemoryCell, found: LargestRecord | None) -> int:
    """The batch that the cell's numbers are of."""
    return found.value if found and found.axis == "batch" and found.value else cell.batch


def _host_rss(seen: CellEvents, peak: PeakMeasured | None) -> int | None:
    """As the kernel counted it, and as it was sampled; sampling alone misses what comes and goes quickly."""
    sampled = [each.host_rss_bytes for each in seen.readings if each.host_rss_bytes is not None]
    counted = [peak.host_rss_peak_bytes] if peak and peak.host_rss_peak_bytes is not None else []
    return max([*sampled, *counted], default=None)


def _verdict(seen: CellEvents) -> VerdictRecord | None:
    verdict = seen.last(VerdictReached)
    return VerdictRecord(**verdict.model_dump(exclude={"event", "at_s", "cell", "source"})) if verdict else None


def _found(seen: CellEvents) -> LargestRecord | None:
    found = seen.last(LargestFound)
    if found is None:
        return None
    tried = [each.value for each in seen.all(CandidateTried)]
    return LargestRecord(axis=found.axis, value=found.value, beyond=found.beyond, tried=tried)


def _cautions(cell: MemoryCell, seen: CellEvents) -> Iterator[Caution]:
    peak = seen.last(PeakMeasured)
    verdict = seen.last(VerdictReached)
    if peak is None or verdict is None or not verdict.fits:
        return  # where memory runs out, giving everything back is tried first: it says nothing more
    if peak.alloc_retries:
        times = "once" if peak.alloc_retries == 1 else f"{peak.alloc_retries} times"
        yield Caution(
            code="allocator-retried",
            message=f"the allocator had to give back everything it had cached {times} to go on: "
            "steps stall there, and a little more would not fit",
            remedy="a smaller --batch, or PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        )
    gpu = seen.last(GpuSimulated)
    if gpu is not None and verdict.margin_bytes is not None and verdict.margin_bytes < DOUBT * gpu.memory_bytes:
        yield Caution(
            code="narrow-margin",
            message=f"only {units.size(verdict.margin_bytes)} to spare: closer than a simulation can tell "
            f"(CUDA's context is assumed; count on {DOUBT:.0%} of the memory, {units.size(DOUBT * gpu.memory_bytes)})",
            remedy="a little less, or measure it on the GPU itself",
        )
