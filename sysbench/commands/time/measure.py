"""Worker side of `sysbench time`: measure the phases of a training step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import torch

from sysbench.commands.building import built_step
from sysbench.commands.own_models import counted_work
from sysbench.commands.time.spec import TimeCell
from sysbench.garbage import gc_paused
from sysbench.lab.clocks import Clock, StepTimes, clock_for
from sysbench.lab.compilation import fresh_compiler, stage_entered
from sysbench.lab.devices import disturbed, preemptions, torch_device, using_threads
from sysbench.lab.memory import allocator
from sysbench.lab.precision import matmul_precision
from sysbench.lab.step import TrainingStep
from sysbench.lab.strategies import max_over_ranks
from sysbench.log.events import DeviceInfo, Event, MemoryMeasured, StepChecked, StepMeasured, ThreadsTried
from sysbench.statistics import has_enough_samples

FEWER_THREADS_STEPS = 3
"""Number of steps on fewer threads, after one that is discarded."""


def run(
    cell: TimeCell, device: DeviceInfo, artifact: Path | None = None, *, clock: Clock | None = None
) -> Iterator[Event]:
    """Build the cell's model on `device`, warm it up and measure its steps; everything is freed at the end.

    A cell with `simulate` is predicted instead. Events are yielded between steps, when nothing is timed; nothing is
    written to `artifact`. Raises UnavailableError for a combination that the device does not support, and any error
    from a step (`is_out_of_memory` recognizes out-of-memory errors).
    """
    if cell.simulate is not None:
        from sysbench.predict.simulated_step import SimulatedStep  # imported here, because few runs predict

        yield from SimulatedStep(
            cell,
            cell.simulate,
            cell.host,
            sync_per_step=cell.sync == "step",
            interconnect=cell.interconnect,
            host_link=cell.host_link,
        ).events()
        return
    target = torch_device(device)
    try:
        with ExitStack() as settings:
            settings.enter_context(matmul_precision(cell.precision))
            if cell.is_compiled or cell.attention == "flex":
                settings.enter_context(fresh_compiler())
            yield from _run_stages(cell, target, clock or clock_for(target))
    finally:
        allocator.release(target)


def _run_stages(cell: TimeCell, device: torch.device, clock: Clock) -> Iterator[Event]:
    allocator.release(device)  # memory left by an earlier cell would count towards the peak of this one
    step = yield from built_step(cell, device, lambda step: _measure_step(step, cell, clock).wall_s)
    if cell.warmup:
        yield stage_entered(cell.key, "warming-up")
    for index in range(cell.warmup):
        yield _step_event(cell, index, _measure_step(step, cell, clock), warmup=True)

    yield stage_entered(cell.key, "measuring")
    with gc_paused(collect_first=True):
        yield from _measure_steps(cell, step, device, clock)


def _measure_steps(cell: TimeCell, step: TrainingStep, device: torch.device, clock: Clock) -> Iterator[Event]:
    step.forget()
    before = step.fingerprint()
    allocator.reset_peaks(device)
    preemptions_before = preemptions()
    steps_s: list[float] = []
    while not has_enough_samples(steps_s, cell.steps, cell.until, cell.max_steps):
        times = _measure_step(step, cell, clock)
        yield _step_event(cell, len(steps_s), times, warmup=False)
        if not steps_s:
            after = step.fingerprint()
            yield StepChecked(
                at_s=time.time(),
                cell=cell.key,
                gradients_present=step.gradients_present,
                parameters_changed=None if before is None or after is None else not torch.equal(before, after),
                loss=step.loss,
                attention_kernel=step.work.attention_kernel,
            )
            yield from counted_work(cell, step)
        steps_s.append(max_over_ranks(times.wall_s))
    threads = torch.get_num_threads()
    is_disturbed = disturbed(steps_s, preemptions() - preemptions_before, threads)
    peaks = allocator.peaks(device)
    yield MemoryMeasured(
        at_s=time.time(),
        cell=cell.key,
        allocated_peak_bytes=peaks.allocated_bytes,
        reserved_peak_bytes=peaks.reserved_bytes,
        host_rss_peak_bytes=peaks.host_rss_bytes,
    )
    # Compiled code has a fixed number of threads: trying another number would recompile the step.
    compiles = cell.is_compiled or cell.attention == "flex"
    if device.type == "cpu" and threads > 1 and is_disturbed and not compiles and cell.ranks == 1:
        yield _measure_on_fewer_threads(cell, step, median(steps_s), clock)


def _measure_on_fewer_threads(cell: TimeCell, step: TrainingStep, median_s: float, clock: Clock) -> ThreadsTried:
    """Measure a few steps on half the threads; if these are faster, the threads have been waiting for each other."""
    threads = torch.get_num_threads()
    tried_s: list[float] = []
    with using_threads(threads // 2):
        _measure_step(step, cell, clock)
        while len(tried_s) < FEWER_THREADS_STEPS and (not tried_s or tried_s[-1] < median_s):
            tried_s.append(_measure_step(step, cell, clock).wall_s)
    return ThreadsTried(at_s=time.time(), cell=cell.key, before=threads, threads=threads // 2, wall_s=tried_s)


def _measure_step(step: TrainingStep, cell: TimeCell, clock: Clock) -> StepTimes:
    """Measure one step, after freeing the outputs and the graph of the previous step."""
    step.forget()
    max_over_ranks()
    return clock.measure(step.phases, cell.sync)


def _step_event(cell: TimeCell, index: int, times: StepTimes, *, warmup: bool) -> StepMeasured:
    return StepMeasured(
        at_s=time.time(), cell=cell.key, index=index, warmup=warmup, phases=times.phases, step=times.step
    )
