"""Measure a loop in the process that runs it: sysbench calls the step, or the program runs its own loop.

The measuring code shares the process with the measured code, so it only reads clocks within a step. Between steps it
creates events, reports progress, and takes a sensor reading once a second.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import torch
from torch.profiler import record_function

from sysbench import marks
from sysbench.commands.loop.fold import fold
from sysbench.commands.loop.record import LoopRecord
from sysbench.commands.loop.spec import STEP, LoopSpec, validated_phase_name
from sysbench.engine.plan import resolve_device
from sysbench.engine.sensors.host import host_info
from sysbench.engine.sensors.sampler import Sampler
from sysbench.errors import OutputError, UsageError, description_of
from sysbench.interpreter import gc_paused, with_roomy_stack
from sysbench.lab.clocks import StepTimes, SynchronizedClock, clock_for, sum_of
from sysbench.lab.devices import available_devices, torch_device, torch_info
from sysbench.lab.memory import allocator
from sysbench.log import storage
from sysbench.log.events import (
    CellFinished,
    CellStarted,
    DeviceInfo,
    Event,
    MemoryMeasured,
    PhaseSample,
    RunFinished,
    RunStarted,
    Stage,
    StageEntered,
    StepMeasured,
    WorkerReady,
)
from sysbench.log.outcomes import Outcome, RunStatus
from sysbench.package import VERSION, source_digest
from sysbench.statistics import has_enough_samples

if TYPE_CHECKING:
    from sysbench.spec.steps import Sync

READING_INTERVAL_S = 1.0

Progress = Callable[[Event], object]
Call = Callable[[], object]


_PhaseTimes = tuple[str, int, int, int, int]
"""A finished phase: its name; host times in ns of its beginning, its last launch and its end; and the number of its
first mark on the device's timeline. It is a plain tuple because it is made within the step."""


class Stopwatch:
    """Times steps between `begin` and `end`, and phases of a step between `enter` and `leave`.

    With sync `phase`, the device is idle whenever a phase begins or ends, and phases are timed by the host's clock.
    With sync `step`, the device is idle only when a step begins or ends, and phases are timed on the device. A CPU
    needs no synchronization. Only clocks are read within a step; samples are computed after it.
    """

    def __init__(self, clock: SynchronizedClock, sync: Sync, declared: Sequence[str]) -> None:
        self._clock = clock
        self._asynchronous = clock.launches_ahead
        """Whether the device runs asynchronously; otherwise there is no synchronization and no second clock."""
        self._phases_synchronized = sync == "phase" or not self._asynchronous
        self._declared_phases = declared
        self._thread = threading.get_ident()
        self._phases: dict[str, _Phase] = {}
        self._finished_phases: list[_PhaseTimes] = []
        self._step_began_ns = self._phase_began_ns = 0
        self.current_phase: str | None = None
        """The current phase."""
        self.emits_ranges = False
        """Whether steps and phases are also ranges for torch.profiler."""
        self._step_range, self._phase_range = ExitStack(), ExitStack()

    @contextmanager
    def activated(self, what: str) -> Iterator[None]:
        """Direct this thread's marks to this stopwatch; raises UsageError inside another recording or measurement."""
        if marks.active is not None:
            raise UsageError(
                f"{what} begins inside another recording or measurement of this process; end the other one first"
            )
        marks.active = self
        try:
            yield
        finally:
            marks.active = None

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return a context manager for a phase, a no-op in other threads; raises UsageError for an invalid name."""
        if threading.get_ident() != self._thread:
            return marks.NULL_CONTEXT
        phase = self._phases.get(name) if isinstance(name, str) else None
        if phase is None:
            try:
                phase = self._phases[name] = _Phase(self, validated_phase_name(name, self._declared_phases))
            except ValueError as error:
                raise UsageError(str(error)) from None
        return phase

    def step(self) -> None:
        """Do nothing, because the caller already marks the end of the step."""

    def begin(self) -> None:
        """Begin a step, discarding a step that has not ended."""
        self._finished_phases.clear()
        if self.emits_ranges:
            self._step_range.close()
            self._step_range.enter_context(record_function(STEP))
        self._clock.synchronize()
        self._step_began_ns = self._clock.now_ns()
        self._clock.marks.place(0)

    def enter(self, name: str) -> None:
        """Begin a phase; raises UsageError inside another phase."""
        if self.current_phase is not None:
            raise UsageError(f"the phase {name} begins inside the phase {self.current_phase}: phases cannot be nested")
        self.current_phase = name
        if self.emits_ranges:
            self._phase_range.enter_context(record_function(name))
        if self._asynchronous and self._phases_synchronized:
            self._clock.synchronize()
        self._phase_began_ns = self._clock.now_ns()
        if self._asynchronous:
            self._clock.marks.place(2 * len(self._finished_phases) + 1)

    def leave(self, name: str, *, failed: bool = False) -> None:
        """End a phase; a `failed` phase is not timed. Raises UsageError if the phase has not begun."""
        if self.current_phase != name:
            raise UsageError(f"the phase {name} ends without having begun")
        if not failed:
            mark = 2 * len(self._finished_phases) + 1
            if self._asynchronous:
                self._clock.marks.place(mark + 1)
            launched_ns = finished_ns = self._clock.now_ns()
            if self._asynchronous and self._phases_synchronized:
                self._clock.synchronize()
                finished_ns = self._clock.now_ns()
            self._finished_phases.append((name, self._phase_began_ns, launched_ns, finished_ns, mark))
        if self.emits_ranges:
            self._phase_range.close()
        self.current_phase = None

    def end(self, *, summed: bool = False) -> StepTimes:
        """End the step and return its times; if `summed`, the step time is the sum of its synchronized phases."""
        last = 2 * len(self._finished_phases) + 1
        self._clock.marks.place(last)
        launched_ns = self._clock.now_ns()
        self._clock.synchronize()
        finished_ns = self._clock.now_ns()
        self._step_range.close()
        phases = self.finished_phase_times()
        if phases and self._phases_synchronized:  # the host waited within the step, so only the wall time is meaningful
            step = sum_of(phases.values()) if summed else PhaseSample(wall_s=(finished_ns - self._step_began_ns) / 1e9)
        else:
            step = self._sample(self._step_began_ns, launched_ns, finished_ns, 0, last)
        return StepTimes(phases, step)

    def finished_phase_times(self) -> dict[str, PhaseSample]:
        """Return the times of the phases that have ended in this step; repeated phases are summed."""
        parts: dict[str, list[PhaseSample]] = {}
        for name, began_ns, launched_ns, finished_ns, mark in self._finished_phases:
            sample = self._sample(began_ns, launched_ns, finished_ns, mark, mark + 1)
            parts.setdefault(name, []).append(
                sample if self._phases_synchronized else PhaseSample(wall_s=None, device_s=sample.device_s)
            )
        return {name: sum_of(samples) for name, samples in parts.items()}

    def _sample(self, began_ns: int, launched_ns: int, finished_ns: int, first: int, last: int) -> PhaseSample:
        return PhaseSample(
            wall_s=(finished_ns - began_ns) / 1e9,
            enqueue_s=(launched_ns - began_ns) / 1e9 if self._clock.launches_ahead else None,
            device_s=self._clock.marks.between_s(first, last),
        )


class _Phase:
    __slots__ = ("_name", "_stopwatch")

    def __init__(self, stopwatch: Stopwatch, name: str) -> None:
        self._stopwatch, self._name = stopwatch, name

    def __enter__(self) -> None:
        self._stopwatch.enter(self._name)

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._stopwatch.leave(self._name, failed=kind is not None)


class EventCollector:
    """Context manager that collects the events of a loop, and folds them into a record at the end."""

    def __init__(self, spec: LoopSpec, save: Path | None, progress: Progress | None) -> None:
        """Raise UsageError for an unavailable device or a non-.json file, and OutputError for an unwritable file."""
        if save is not None:
            if save.suffix != ".json":
                raise UsageError(f"{save} must end in .json, because it will hold a record")
            storage.refuse_unwritable(save)
        self.spec, self._save, self._progress = spec, save, progress
        self.cell = next(spec.cells())
        self._devices = available_devices()
        self._device_info = _find_device(spec.device[0], self._devices)
        self.device = torch_device(self._device_info)
        self.record: LoopRecord | None = None
        self.remark: str | None = None
        """Remark on a loop that ended without an error, saved as its detail."""
        self._events: list[Event] = []
        self._sampler = Sampler()
        self._last_reading_s = 0.0

    def __enter__(self) -> EventCollector:
        host, spec, device = host_info(), self.spec.model_dump(mode="json"), self._device_info
        started = RunStarted(
            at_s=time.time(), kind="loop", sysbench_version=VERSION, source_digest=source_digest(), spec=spec,
            host=host, driver=self._sampler.driver, cells=1,
        )  # fmt: skip
        self.add_event(started)
        self.add_event(WorkerReady(at_s=time.time(), pid=os.getpid(), torch=torch_info(None), devices=self._devices))
        axes = self.cell.model_dump(mode="json")
        self.add_event(CellStarted(at_s=time.time(), cell=self.cell.key, index=0, axes=axes, device=device))
        self._sampler.watch(os.getpid())
        self._sampler.use(device)
        self.read_sensors()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.read_sensors()
        for failure in self._sampler.failures():
            self.add_event(failure)
        self._sampler.close()
        outcome, status = _outcome_and_status(error)
        finished = CellFinished(
            at_s=time.time(), cell=self.cell.key, outcome=outcome,
            detail=self.remark if error is None else description_of(error),
            traceback=None if error is None else "".join(traceback.format_exception(error))[-20_000:],
        )  # fmt: skip
        self.add_event(finished)
        self.add_event(RunFinished(at_s=time.time(), status=status))
        self.record = fold(self._events)
        try:
            if self._save is not None:
                storage.write_atomically(self._save, self.record.model_dump_json(indent=1).encode() + b"\n")
        except OutputError as write_error:
            if error is None:
                raise
            error.add_note(f"sysbench: {write_error}")
        else:
            if error is not None:
                saved = "" if self._save is None else f"; the record is in {self._save}"
                error.add_note(f"sysbench: {self.record.cells[0].steps} steps were measured before this{saved}")

    def add_event(self, event: Event) -> None:
        self._events.append(event)
        if self._progress is not None:
            self._progress(event)

    def enter_stage(self, stage: Stage) -> None:
        self.add_event(StageEntered(at_s=time.time(), cell=self.cell.key, stage=stage))

    def add_step(self, index: int, times: StepTimes, *, warmup: bool) -> None:
        """Add a step, and take a sensor reading if one is due."""
        self.add_event(
            StepMeasured(
                at_s=time.time(), cell=self.cell.key, index=index, warmup=warmup, phases=times.phases, step=times.step
            )
        )
        self.read_sensors_when_due()

    def read_sensors_when_due(self) -> None:
        if time.monotonic() - self._last_reading_s > READING_INTERVAL_S:
            self.read_sensors()

    def read_sensors(self) -> None:
        self.add_event(self._sampler.read(time.time()))
        self._last_reading_s = time.monotonic()

    def add_memory_peaks(self) -> None:
        """Add an event with the memory peaks since they were last reset."""
        peaks = allocator.peaks(self.device)
        self.add_event(
            MemoryMeasured(
                at_s=time.time(), cell=self.cell.key, allocated_peak_bytes=peaks.allocated_bytes,
                reserved_peak_bytes=peaks.reserved_bytes, host_rss_peak_bytes=peaks.host_rss_bytes,
            )
        )  # fmt: skip


def _find_device(name: str, devices: Sequence[DeviceInfo]) -> DeviceInfo:
    if name in ("auto", "cuda") and torch.cuda.is_available():
        name = f"cuda:{torch.cuda.current_device()}"
    try:
        return resolve_device(name, devices)
    except UsageError as error:
        raise UsageError(str(error).removeprefix("--")) from None


def _outcome_and_status(error: BaseException | None) -> tuple[Outcome, RunStatus]:
    """Return how the loop and the run ended; Ctrl-C and exits count as interruptions, other exceptions as failures."""
    if error is None:
        return "ok", "complete"
    if isinstance(error, Exception):
        return "oom" if allocator.is_out_of_memory(error) else "crashed", "complete"
    return "interrupted", "interrupted"


@with_roomy_stack
def measure_loop(
    step: Call | Mapping[str, Call], spec: LoopSpec, save: Path | None = None, progress: Progress | None = None
) -> LoopRecord:
    """Call the step for warm-up, then measure it until its times are precise enough, and return the record.

    Raises UsageError for an invalid step or device, OutputError for a file that cannot be written, and any exception
    raised by the step; steps before the exception are saved. Garbage is collected before the measured steps, but not
    during them.
    """
    phases = _phase_functions(step, spec)
    collector = EventCollector(spec, save, progress)
    cell, stopwatch = collector.cell, Stopwatch(clock_for(collector.device), spec.sync, spec.phases)

    def run_step() -> StepTimes:
        stopwatch.begin()
        for name, call in phases.items():
            with stopwatch.phase(name):
                call()
        if callable(step):
            step()
        return stopwatch.end(summed=bool(phases))

    with stopwatch.activated("sysbench.measure"), collector:
        if cell.warmup:
            collector.enter_stage("warming-up")
        for index in range(cell.warmup):
            collector.add_step(index, run_step(), warmup=True)
        collector.enter_stage("measuring")
        with gc_paused(collect_first=True):
            allocator.reset_peaks(collector.device)
            steps_s: list[float] = []
            try:
                while not has_enough_samples(steps_s, cell.steps or 1, cell.until, cell.max_steps):
                    times = run_step()
                    collector.add_step(len(steps_s), times, warmup=False)
                    steps_s.append(times.wall_s)
            finally:
                collector.add_memory_peaks()
    assert collector.record is not None
    return collector.record


def _phase_functions(step: object, spec: LoopSpec) -> dict[str, Call]:
    if not isinstance(step, Mapping):
        if not callable(step):
            raise UsageError(
                f"a step must be a function, or a mapping of phases to functions, not {type(step).__name__}"
            )
        return {}
    if spec.phases:
        raise UsageError("phases= names the marks inside a function, but a mapping already names its phases")
    if not step:
        raise UsageError("the mapping has no phases")
    for name, call in step.items():
        try:
            validated_phase_name(name)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if not callable(call):
            raise UsageError(f"the phase {name} must be a function, not {type(call).__name__}")
    return dict(step)
