"""Measure the memory of a cell on a CUDA device, and record the complete allocation history."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from sysbench.commands.memory.record import (
    AllocationGroup,
    CodeLine,
    LargestAllocations,
    ModulesMeasured,
    PeakMeasured,
    PhaseMemoryMeasured,
    VerdictReached,
)
from sysbench.commands.memory.simulate import FRAMES, modules, write
from sysbench.commands.memory.spec import PROCEDURES, MemoryCell
from sysbench.commands.own_models import own_model_ran
from sysbench.lab import allocator
from sysbench.lab.allocator import History, Peaks
from sysbench.lab.compilation import stage_entered
from sysbench.lab.devices import synchronize, torch_device
from sysbench.lab.precision import matmul_precision
from sysbench.lab.step import TrainingStep
from sysbench.lab.strategies import max_over_ranks, mesh_of
from sysbench.log.events import DeviceInfo, Event, OwnModelBuilt
from sysbench.simulate.memory import MAX_GROUPS
from sysbench.simulate.recording import phases_of
from sysbench.snapshot import snapshot as snapshots
from sysbench.snapshot.categories import from_snapshot
from sysbench.snapshot.timeline import Timeline


class _Measured:
    """Peaks of each phase of the measured step, as reported by the allocator."""

    def __init__(self) -> None:
        self.peaks: dict[str, tuple[int, int]] = {}
        """(allocated, reserved) bytes by phase."""
        self.failed: tuple[int, str] | None = None
        """Step and phase in which memory ran out."""
        self.error: str | None = None

    def reached(self, phase: str, peaks: Peaks) -> None:
        """Record the peaks of one occurrence of a phase. The highest peak over all occurrences is kept."""
        before_allocated, before_reserved = self.peaks.get(phase, (0, 0))
        now_allocated, now_reserved = peaks.allocated_bytes or 0, peaks.reserved_bytes or 0
        self.peaks[phase] = max(before_allocated, now_allocated), max(before_reserved, now_reserved)


def run(cell: MemoryCell, device: DeviceInfo, artifact: Path | None) -> Iterator[Event]:
    """Measure the cell; see `sysbench.commands.memory.measure.run`.

    When memory runs out, the history so far is written before torch.OutOfMemoryError is raised.
    """
    target = torch_device(device)
    history = History(target)
    measured = _Measured()
    yield stage_entered(cell.key, "measuring")
    with history.recording(), matmul_precision(cell.precision):
        yield from _carry_out(cell, target, history, measured)
        content = history.snapshot(device.name, cell.mode, cell.model_dump(mode="json"))
    timeline = from_snapshot(snapshots.of(content), target.index)
    yield from _findings(cell, target, timeline, measured)
    if artifact is not None:
        yield write(artifact, content, cell.key)
    if measured.error is not None:
        raise torch.OutOfMemoryError(measured.error)


def _carry_out(
    cell: MemoryCell, device: torch.device, history: History, measured: _Measured
) -> Iterator[PhaseMemoryMeasured | OwnModelBuilt]:
    """Run the protocol and yield the peak of each phase of the measured step, without categories.

    If memory runs out, only the error's message is kept in `measured`, because the error itself would keep tensors
    alive.
    """
    last = PROCEDURES[cell.mode].earlier_steps
    at = (-1, "build")
    try:
        step = TrainingStep(cell.step, device, mesh_of(cell.strategy, cell.ranks, "cuda") if cell.strategy else None)
        gc.collect()  # checking which attention kernel runs may leave reference cycles that hold its tensors
        history.categorize_initial_blocks(step)
        yield from own_model_ran(cell.key, step)
        with history.annotating_modules(step.work.model):
            for number, phase, run in phases_of(step, cell.mode):
                at = (number, phase)
                allocator.reset_peaks(device)
                with history.phase(number, phase, step):
                    run()
                    synchronize(device)
                peaks = allocator.peaks(device)
                if number == last:
                    measured.reached(phase, peaks)
                    yield _phase(cell, phase, measured.peaks[phase], {})
        max_over_ranks()  # if a rank left the group early, the last collective of the others would fail
        yield from own_model_ran(cell.key, step)  # the loss is known only now
    except Exception as error:
        if not allocator.is_out_of_memory(error):
            raise
        measured.failed, measured.error = at, str(error)
        measured.reached(at[1], allocator.peaks(device))


def _findings(cell: MemoryCell, device: torch.device, timeline: Timeline, measured: _Measured) -> Iterator[Event]:
    """Yield the peaks reported by the allocator, with their breakdown from the allocation history."""
    # For each phase, the state at its peak in the last step that contains the phase.
    occurrences: dict[str, list[int]] = {}
    for phase in timeline.phases:
        peak = phase.first + int(timeline.allocated_bytes[phase.first : phase.end].argmax())
        occurrences.setdefault(phase.name, []).append(peak)
    states = {
        name: max(peaks[-cell.occurrences(name) :], key=lambda state: timeline.allocated_bytes[state])
        for name, peaks in occurrences.items()
    }
    for name, (allocated_bytes, reserved_bytes) in measured.peaks.items():
        state = states.get(name)
        yield _phase(cell, name, (allocated_bytes, reserved_bytes), _categories(timeline, state, allocated_bytes))
    fullest = max(measured.peaks, key=lambda phase: measured.peaks[phase][0])
    state = states.get(fullest, timeline.peak.state)
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    outside_bytes = total_bytes - free_bytes - torch.cuda.memory_reserved(device)
    reserved_peak_bytes = max(reserved for _, reserved in measured.peaks.values())
    yield PeakMeasured(
        at_s=time.time(),
        cell=cell.key,
        source="measured",
        phase=fullest,
        allocated_peak_bytes=measured.peaks[fullest][0],
        reserved_peak_bytes=reserved_peak_bytes,
        host_rss_peak_bytes=allocator.peaks(device).host_rss_bytes,
        outside_bytes=outside_bytes,
        alloc_retries=int(torch.cuda.memory_stats(device)["num_alloc_retries"]),
        by_category=_categories(timeline, state, measured.peaks[fullest][0]),
    )
    groups = []
    for group in timeline.groups(state)[:MAX_GROUPS]:
        paths = [".".join(module) for module in group.modules]
        groups.append(
            AllocationGroup(
                count=group.count,
                size_bytes=group.size_bytes,
                category=group.category,
                modules=list(dict.fromkeys([*paths[:1], *paths[-1:]])),
                phase=None,
                stack=[CodeLine(**frame._asdict()) for frame in timeline.stacks.of(group.stack)[:FRAMES]],
            )
        )
    yield LargestAllocations(at_s=time.time(), cell=cell.key, source="measured", groups=groups)
    tree = modules(timeline.tree_at(state))
    yield ModulesMeasured(at_s=time.time(), cell=cell.key, source="measured", modules=tree)
    yield VerdictReached(
        at_s=time.time(),
        cell=cell.key,
        source="measured",
        fits=measured.failed is None,
        failed_phase=measured.failed[1] if measured.failed else None,
        failed_step=measured.failed[0] if measured.failed else None,
        margin_bytes=total_bytes - outside_bytes - reserved_peak_bytes if measured.failed is None else None,
        detail=measured.error,
    )


def _phase(
    cell: MemoryCell, phase: str, peaks_bytes: tuple[int, int], by_category: dict[str, int]
) -> PhaseMemoryMeasured:
    allocated_bytes, reserved_bytes = peaks_bytes
    return PhaseMemoryMeasured(
        at_s=time.time(),
        cell=cell.key,
        source="measured",
        phase=phase,
        allocated_peak_bytes=allocated_bytes,
        reserved_peak_bytes=reserved_bytes,
        by_category=by_category,
    )


def _categories(timeline: Timeline, state: int | None, allocated_bytes: int) -> dict[str, int]:
    """Return live bytes by category. Bytes that the allocator reports beyond the history's total count as unknown."""
    found = timeline.categories_at(state) if state is not None else {}
    beyond = allocated_bytes - sum(found.values())
    return {**found, "unknown": found.get("unknown", 0) + beyond} if beyond > 0 else found
