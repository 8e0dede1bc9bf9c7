"""Measure the memory of a cell on a CUDA device, and record the complete allocation history."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch

from sysbench.commands.memory.breakdown import allocation_groups, phase_event, result_events, write_snapshot
from sysbench.commands.memory.record import PhasePeakRecord, VerdictReached
from sysbench.commands.memory.spec import MemoryCell
from sysbench.commands.own_models import own_model_ran
from sysbench.errors import message_of
from sysbench.lab.compilation import stage_entered
from sysbench.lab.devices import synchronize, torch_device
from sysbench.lab.memory import allocator
from sysbench.lab.memory.allocator import History, Peaks
from sysbench.lab.precision import matmul_precision
from sysbench.lab.step import TrainingStep
from sysbench.lab.strategies import max_over_ranks, mesh_of
from sysbench.log.events import DeviceInfo, Event
from sysbench.log.outcomes import ATTENTION_TRIAL, BUILD
from sysbench.simulate.memory import MAX_GROUPS
from sysbench.simulate.steps import phases_of
from sysbench.snapshot import snapshot as snapshots
from sysbench.snapshot.categories import from_snapshot
from sysbench.snapshot.timeline import Timeline
from sysbench.spec.steps import PROCEDURES


class _MeasuredPeaks:
    def __init__(self) -> None:
        self.peaks: dict[str, tuple[int, int]] = {}
        """(allocated, reserved) bytes by phase."""
        self.failed: tuple[int, str] | None = None
        """Step and phase in which memory ran out."""
        self.error: str | None = None

    def record(self, phase: str, peaks: Peaks) -> None:
        """Record the peaks of one occurrence of a phase. The highest peak over all occurrences is kept."""
        allocated_bytes, reserved_bytes = self.peaks.get(phase, (0, 0))
        self.peaks[phase] = (
            max(allocated_bytes, peaks.allocated_bytes or 0),
            max(reserved_bytes, peaks.reserved_bytes or 0),
        )


def run(cell: MemoryCell, device: DeviceInfo, artifact: Path | None) -> Iterator[Event]:
    """Measure the cell; see `sysbench.commands.memory.measure.run`.

    When memory runs out, the history so far is written before torch.OutOfMemoryError is raised.
    """
    target = torch_device(device)
    history = History(target)
    measured = _MeasuredPeaks()
    yield stage_entered(cell.key, "measuring")
    with history.recording(), matmul_precision(cell.precision):
        yield from _run_protocol(cell, target, history, measured)
        content = history.snapshot(device.name, cell.mode, cell.model_dump(mode="json"))
    timeline = from_snapshot(snapshots.of(content), target.index)
    yield from _result_events(cell, target, timeline, measured)
    if artifact is not None:
        yield write_snapshot(artifact, content, cell.key)
    if measured.error is not None:
        raise torch.OutOfMemoryError(measured.error)


def _run_protocol(
    cell: MemoryCell, device: torch.device, history: History, measured: _MeasuredPeaks
) -> Iterator[Event]:
    """Run the protocol and yield the peak of each phase of the measured step, without categories.

    If memory runs out, only the error's message is kept in `measured`, because the error itself would keep tensors
    alive.
    """
    measured_step = PROCEDURES[cell.mode].earlier_steps
    position = (-1, BUILD)

    @contextmanager
    def trial() -> Iterator[None]:
        nonlocal position
        position = (-1, ATTENTION_TRIAL)
        yield
        position = (-1, BUILD)

    try:
        mesh = mesh_of(cell.strategy, cell.ranks, "cuda") if cell.strategy else None
        step = TrainingStep(cell.step, device, mesh, trial)
        gc.collect()  # checking which attention kernel runs may leave reference cycles that hold its tensors
        history.categorize_initial_blocks(step)
        yield from own_model_ran(cell.key, step)
        with history.annotating_modules(step.work.model) if not cell.is_compiled else nullcontext():
            for number, phase, run in phases_of(step, cell.mode):
                position = (number, phase)
                allocator.reset_peaks(device)
                with history.phase(number, phase, step):
                    run()
                    synchronize(device)
                peaks = allocator.peaks(device)
                if number == measured_step:
                    measured.record(phase, peaks)
                    yield phase_event(cell.key, "measured", phase, _phase_peak(*measured.peaks[phase], {}))
        max_over_ranks()  # if a rank left the group early, the last collective of the others would fail
        yield from own_model_ran(cell.key, step)  # the loss is known only now
    except Exception as error:
        if not allocator.is_out_of_memory(error):
            raise
        measured.failed, measured.error = position, message_of(error)
        measured.record(position[1], allocator.peaks(device))


def _result_events(
    cell: MemoryCell, device: torch.device, timeline: Timeline, measured: _MeasuredPeaks
) -> Iterator[Event]:
    # For each phase, the state at its peak in the last step that contains the phase.
    peak_states: dict[str, list[int]] = {}
    for phase in timeline.phases:
        peak = phase.first + int(timeline.allocated_bytes[phase.first : phase.end].argmax())
        peak_states.setdefault(phase.name, []).append(peak)
    state_of_phase = {
        name: max(peaks[-cell.occurrences(name) :], key=lambda state: timeline.allocated_bytes[state])
        for name, peaks in peak_states.items()
    }
    whole_peak = timeline.peak.state  # of what is not a phase: the build
    phases = {
        name: _phase_peak(*peaks, _bytes_by_category(timeline, state_of_phase.get(name, whole_peak), peaks[0]))
        for name, peaks in measured.peaks.items()
    }
    highest = state_of_phase.get(max(measured.peaks, key=lambda phase: measured.peaks[phase][0]), whole_peak)
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    outside_bytes = total_bytes - free_bytes - torch.cuda.memory_reserved(device)
    reserved_peak_bytes = max(reserved for _, reserved in measured.peaks.values())
    yield from result_events(
        cell.key,
        "measured",
        phases,
        allocation_groups(timeline, highest, MAX_GROUPS),
        timeline.tree_at(highest),
        reserved_peak_bytes=reserved_peak_bytes,
        host_rss_peak_bytes=allocator.peaks(device).host_rss_bytes,
        outside_bytes=outside_bytes,
        alloc_retries=int(torch.cuda.memory_stats(device)["num_alloc_retries"]),
    )
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


def _phase_peak(allocated_bytes: int, reserved_bytes: int, by_category: dict[str, int]) -> PhasePeakRecord:
    return PhasePeakRecord(
        allocated_peak_bytes=allocated_bytes, reserved_peak_bytes=reserved_bytes, by_category=by_category
    )


def _bytes_by_category(timeline: Timeline, state: int, allocated_bytes: int) -> dict[str, int]:
    """Return live bytes by category. Bytes that the allocator reports beyond the history's total count as unknown."""
    by_category = timeline.categories_at(state)
    unattributed_bytes = allocated_bytes - sum(by_category.values())
    if unattributed_bytes > 0:
        by_category["unknown"] = by_category.get("unknown", 0) + unattributed_bytes
    return by_category
