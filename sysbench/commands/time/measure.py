"""Worker side of `sysbench time`: measure the phases of a training step."""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter  # by name: a model's code may replace time.perf_counter

import torch

from sysbench import units
from sysbench.commands.building import built_step
from sysbench.commands.own_models import counted_work
from sysbench.commands.time.effort import StepBudget, exceeds_limit
from sysbench.commands.time.spec import TimeCell
from sysbench.errors import OverBudgetError
from sysbench.interpreter import gc_paused
from sysbench.lab.clocks import Clock, StepTimes, clock_for, sum_of
from sysbench.lab.compilation import fresh_compiler, stage_entered
from sysbench.lab.devices import disturbed, preemptions, torch_device, using_threads
from sysbench.lab.estimate import estimated_step_s
from sysbench.lab.memory import allocator
from sysbench.lab.precision import matmul_precision
from sysbench.lab.step import TrainingStep
from sysbench.lab.strategies import max_over_ranks
from sysbench.log.events import (
    DeviceInfo,
    EffortChosen,
    Event,
    MemoryMeasured,
    PhaseEntered,
    PhaseSample,
    StepChecked,
    StepEstimated,
    StepMeasured,
    ThreadsTried,
)
from sysbench.spec.quantities import time_limit_word

ANNOUNCED_STEP_S = 5.0
"""Steps that take this long have a message before each phase, so that the user sees progress."""

JUMP_S = 1.0
"""Larger than what a time server corrects during a step."""

FEWER_THREADS_STEPS = 3
"""Number of steps on fewer threads, after one that is discarded."""


def run(
    cell: TimeCell,
    device: DeviceInfo,
    artifact: Path | None = None,
    *,
    earlier_s: Sequence[float] = (),
    clock: Clock | None = None,
) -> Iterator[Event]:
    """Build the cell's model on `device`, warm it up and measure its steps; everything is freed at the end.

    `earlier_s` are the times of steps that an earlier attempt has measured, which need not be measured again.
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
            yield from _run_stages(cell, target, clock or clock_for(target), earlier_s)
    finally:
        allocator.release(target)


def _run_stages(cell: TimeCell, device: torch.device, clock: Clock, earlier_s: Sequence[float]) -> Iterator[Event]:
    began_s = perf_counter()
    allocator.release(device)  # memory left by an earlier cell would count towards the peak of this one
    limit_s = cell.limit_s(device.type)
    expected_s = yield from _estimate(cell, device, limit_s)
    step = yield from built_step(cell, device, lambda step: _measure_step(step, cell, clock).wall_s)
    budget = StepBudget(cell, limit_s, lambda: max_over_ranks(perf_counter() - began_s))
    measuring = _Measuring(cell, step, clock, expected_s)
    only_step = yield from _warm_up(measuring, device, budget)
    yield stage_entered(cell.key, "measuring")
    with gc_paused(collect_first=only_step is None):
        yield from _measure_steps(measuring, device, budget, earlier_s, only_step)
    if limit_s is not None:
        ends = {"warmup_end": budget.warmup_end, "steps_end": budget.steps_end}
        yield EffortChosen(at_s=time.time(), cell=cell.key, max_time_s=limit_s, **ends)


@dataclass
class _WallClock:
    """The wall clock beside the clock that times steps; the former goes on while a machine is suspended, or is set."""

    ahead_s: float = field(default_factory=lambda: time.time() - perf_counter())

    def jump_s(self) -> float:
        """Return by how much the wall clock has gone ahead since the last call, if by more than JUMP_S; else 0."""
        before_s, self.ahead_s = self.ahead_s, time.time() - perf_counter()
        jump_s = self.ahead_s - before_s
        return jump_s if abs(jump_s) > JUMP_S else 0.0


@dataclass
class _Measuring:
    """Measures steps of a cell; says which phase begins if a step takes so long that people wait for it."""

    cell: TimeCell
    step: TrainingStep
    clock: Clock
    expected_s: float
    """Duration of the last step, or the estimated one before it."""
    wall_clock: _WallClock = field(init=False)

    def next_step(self) -> Generator[Event, None, StepTimes]:
        self.wall_clock = _WallClock()
        if self.expected_s < ANNOUNCED_STEP_S or self.cell.sync != "phase" or self.cell.ranks > 1:
            times = _measure_step(self.step, self.cell, self.clock)
        else:
            times = yield from self._announced_step()
        self.expected_s = times.wall_s
        return times

    def _announced_step(self) -> Generator[Event, None, StepTimes]:
        """Measure each phase by itself, which is what a step is with --sync phase, with a message before it."""
        self.step.forget()
        samples: dict[str, list[PhaseSample]] = {}
        for name, call in self.step.phases:
            yield PhaseEntered(at_s=time.time(), cell=self.cell.key, phase=name)
            samples.setdefault(name, []).append(self.clock.measure([(name, call)], "phase").phases[name])
        phases = {name: sum_of(each) for name, each in samples.items()}
        return StepTimes(phases, sum_of(phases.values()))


@dataclass(frozen=True)
class _OnlyStep:
    """A warm-up step that is the only one for which there is time, and the parameters before it."""

    times: StepTimes
    before: torch.Tensor | None


def _estimate(cell: TimeCell, device: torch.device, limit_s: float | None) -> Generator[Event, None, float]:
    """Say how long a step will take, if it may be long, and return it; 0 if that is unknown.

    Raises OverBudgetError if even one step would clearly exceed the limit.
    """
    if device.type != "cpu" or cell.ranks > 1 or (step_s := estimated_step_s(cell)) is None:
        return 0.0
    yield StepEstimated(at_s=time.time(), cell=cell.key, step_s=step_s, max_time_s=limit_s)
    if limit_s is not None and exceeds_limit(cell, step_s, limit_s):
        enough = time_limit_word(60.0 * math.ceil(2 * step_s / 60))
        raise OverBudgetError(
            f"a step takes about {units.duration(step_s)} here, longer than --max-time {time_limit_word(limit_s)}. "
            f"Measure one with --max-time {enough}, or predict it with --simulate h100",
            step_s,
        )
    return step_s


def _warm_up(
    measuring: _Measuring, device: torch.device, budget: StepBudget
) -> Generator[Event, None, _OnlyStep | None]:
    """Warm up; return the last step, instead of its event, if no other one fits into the time limit."""
    cell, warmup_s = measuring.cell, list[float]()
    if cell.warmup:
        yield stage_entered(cell.key, "warming-up")
        allocator.reset_peaks(device)
    while budget.wants_warmup(warmup_s):
        before = measuring.step.fingerprint() if budget.limit_s is not None else None
        times = yield from measuring.next_step()
        warmup_s.append(max_over_ranks(times.wall_s))
        if budget.is_last_step(warmup_s):
            return _OnlyStep(times, before)
        yield _step_event(measuring, len(warmup_s) - 1, times, warmup=True)
    return None


def _measure_steps(
    measuring: _Measuring,
    device: torch.device,
    budget: StepBudget,
    earlier_s: Sequence[float],
    only_step: _OnlyStep | None,
) -> Iterator[Event]:
    """Measure steps after those that an earlier attempt at the cell measured."""
    cell, step = measuring.cell, measuring.step
    if only_step is None:
        step.forget()
        before = step.fingerprint()
        allocator.reset_peaks(device)
    else:
        before = only_step.before
    preemptions_before = preemptions()
    steps_s = list(earlier_s)
    while only_step is not None or budget.wants_step(steps_s):
        times = (yield from measuring.next_step()) if only_step is None else only_step.times
        only_step = None
        yield _step_event(measuring, len(steps_s), times, warmup=False)
        if len(steps_s) == len(earlier_s):
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
    threads, new_s = torch.get_num_threads(), steps_s[len(earlier_s) :]
    is_disturbed = bool(new_s) and disturbed(new_s, preemptions() - preemptions_before, threads)
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
        median_s = median(steps_s)
        if (1 + FEWER_THREADS_STEPS) * median_s <= budget.left_s:
            yield _measure_on_fewer_threads(cell, step, median_s, measuring.clock)


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


def _step_event(measuring: _Measuring, index: int, times: StepTimes, *, warmup: bool) -> StepMeasured:
    return StepMeasured(
        at_s=time.time(),
        cell=measuring.cell.key,
        index=index,
        warmup=warmup,
        phases=times.phases,
        step=times.step,
        clock_jump_s=measuring.wall_clock.jump_s(),
    )
