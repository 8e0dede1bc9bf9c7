"""How long the phases of a training step take."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch

from sysbench.events import (
    Compiled,
    DeviceInfo,
    Event,
    MemoryMeasured,
    ModelBuilt,
    Stage,
    StageEntered,
    StepChecked,
    StepMeasured,
)
from sysbench.instruments import allocator
from sysbench.instruments.clocks import Clock, StepTimes, clock_for
from sysbench.instruments.compilation import compilation, count_from_zero, fresh_compiler
from sysbench.instruments.device import synchronize, torch_device
from sysbench.instruments.precision import matmul_precision
from sysbench.specs.time import TimeCell
from sysbench.statistics import settled
from sysbench.workload.step import TrainingStep


def run(
    cell: TimeCell, device: DeviceInfo, artifact: Path | None = None, *, clock: Clock | None = None
) -> Iterator[Event]:
    """Build the cell on `device`, warm it up and measure its steps; afterwards everything is freed.

    Events are yielded between steps, where nothing is timed. Raises UnavailableError for a combination that does
    not exist there, and whatever a step raises: `is_out_of_memory` tells when that means a lack of memory. Nothing is
    left at `artifact`: times are small enough for events.
    """
    target = torch_device(device)
    try:
        with ExitStack() as settings:
            settings.enter_context(matmul_precision(cell.precision))
            if cell.execution == "compiled" or cell.attention == "flex":
                settings.enter_context(fresh_compiler())
            yield from _stages(cell, target, clock or clock_for(target))
    finally:
        allocator.release(target)


def _stages(cell: TimeCell, device: torch.device, clock: Clock) -> Iterator[Event]:
    yield _entered(cell, "building")
    allocator.release(device)  # what an earlier cell may have left would count towards this one's peak
    started_s = time.perf_counter()
    step = TrainingStep(cell, device)
    synchronize(device)
    yield _built(cell, step, time.perf_counter() - started_s)

    if cell.execution == "compiled":
        yield _entered(cell, "compiling")
        yield _compiled(cell, step, clock)

    if cell.warmup:
        yield _entered(cell, "warming-up")
    for index in range(cell.warmup):
        yield _measured(cell, index, _take(step, cell, clock), warmup=True)

    yield _entered(cell, "measuring")
    with _garbage_collection_paused():
        yield from _measured_steps(cell, step, device, clock)


def _measured_steps(cell: TimeCell, step: TrainingStep, device: torch.device, clock: Clock) -> Iterator[Event]:
    step.forget()
    before = step.fingerprint()
    allocator.reset_peaks(device)
    taken: list[float] = []
    while not _enough(cell, taken):
        times = _take(step, cell, clock)
        yield _measured(cell, len(taken), times, warmup=False)
        if not taken:
            yield _checked(cell, step, before)
        taken.append(times.wall_s)
    yield _memory(cell, device)


def _take(step: TrainingStep, cell: TimeCell, clock: Clock) -> StepTimes:
    """One step. Outputs of the one before are dropped first, outside the timed window, as are their graphs."""
    step.forget()
    return clock.measure(step.phases, cell.sync)


def _enough(cell: TimeCell, taken_s: list[float]) -> bool:
    """Whether the steps that were asked for are there: a number of them, or a narrow enough interval."""
    if len(taken_s) < cell.steps:
        return False
    return cell.until is None or len(taken_s) >= cell.max_steps or settled(taken_s, cell.until)


@contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Python collects its garbage now, and then not before the end: a collection takes as long as a small step."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _entered(cell: TimeCell, stage: Stage) -> StageEntered:
    return StageEntered(at_s=time.time(), cell=cell.key, stage=stage)


def _built(cell: TimeCell, step: TrainingStep, build_s: float) -> ModelBuilt:
    return ModelBuilt(
        at_s=time.time(),
        cell=cell.key,
        parameters=step.model.parameter_count,
        parameters_without_lm_head=step.model.parameter_count - step.model.lm_head.weight.numel(),
        build_s=build_s,
    )


def _compiled(cell: TimeCell, step: TrainingStep, clock: Clock) -> Compiled:
    """Take the step that compiles; it is neither a warm-up nor measured."""
    count_from_zero()
    times = clock.measure(step.phases, "step")
    made = compilation()
    return Compiled(
        at_s=time.time(),
        cell=cell.key,
        compile_s=times.wall_s,
        graphs=made.graphs,
        graph_breaks=made.graph_breaks,
        fell_back=made.fell_back,
        detail=made.detail,
    )


def _measured(cell: TimeCell, index: int, times: StepTimes, *, warmup: bool) -> StepMeasured:
    return StepMeasured(
        at_s=time.time(), cell=cell.key, index=index, warmup=warmup, phases=times.phases, step=times.step
    )


def _checked(cell: TimeCell, step: TrainingStep, before: torch.Tensor | None) -> StepChecked:
    """What the step that was just measured has left behind."""
    after = step.fingerprint()
    return StepChecked(
        at_s=time.time(),
        cell=cell.key,
        gradients_present=step.gradients_present,
        parameters_changed=None if before is None or after is None else not torch.equal(before, after),
        loss=step.loss,
        attention_kernel=step.attention_kernel,
    )


def _memory(cell: TimeCell, device: torch.device) -> MemoryMeasured:
    peaks = allocator.peaks(device)
    return MemoryMeasured(
        at_s=time.time(),
        cell=cell.key,
        allocated_peak_bytes=peaks.allocated_bytes,
        reserved_peak_bytes=peaks.reserved_bytes,
        host_rss_peak_bytes=peaks.host_rss_bytes,
    )
