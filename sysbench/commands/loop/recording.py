"""Record the steps of a program's own loop, using the marks in the program."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType

from sysbench import marks
from sysbench.commands.loop.measure import EventCollector, Stopwatch
from sysbench.commands.loop.record import LoopTraced
from sysbench.commands.loop.spec import LoopSpec
from sysbench.errors import UsageError
from sysbench.lab.clocks import StepTimes, clock_for, sum_of
from sysbench.lab.memory import allocator
from sysbench.lab.recorder import TorchRecorder
from sysbench.log import storage
from sysbench.log.events import PhaseSample

TRACED_STEPS = 3
"""Number of steps in a trace: enough to see one step between two others."""

NO_MARKS = "neither sysbench.phase nor sysbench.step was called in the recording thread"


class Recorder(Stopwatch):
    """Context manager for a program's own loop; it derives the steps from marks in the program.

    A step begins with a phase and ends when this phase begins again. Once `step` has been called, only calls to `step`
    end a step, and everything before the first call is one step. A step with a failed phase is not counted. After
    `max_steps` measured steps, marks do nothing.
    """

    def __init__(self, spec: LoopSpec, save: Path | None, trace: Path | None) -> None:
        """Raise the same exceptions as `EventCollector`; the trace file is checked like the record file."""
        if trace is not None:
            if not trace.name.endswith((".json", ".json.gz")):
                raise UsageError(f"{trace} must end in .json or .json.gz, because it will hold a trace")
            if save is not None and os.path.realpath(trace) == os.path.realpath(save):
                raise UsageError(f"{trace} is already the file of the record: give the trace its own file")
            storage.refuse_unwritable(trace)
        self.collector = EventCollector(spec, save, None)
        super().__init__(clock_for(self.collector.device), spec.sync, spec.phases)
        self._trace, self._profiler = trace, TorchRecorder(self.collector.device, shapes=True) if trace else None
        self._profiling = ExitStack()
        self._unmeasured_steps = spec.warmup + (TRACED_STEPS if trace else 0)
        self._step_limit = self._unmeasured_steps + spec.max_steps
        self._recorded_steps: list[StepTimes] = []
        self._first_phase: str | None = None
        self._has_step_marks = self._step_failed = self._limit_reached = False
        self._contexts = ExitStack()

    def __enter__(self) -> Recorder:
        with ExitStack() as opened:
            opened.enter_context(self.activated("sysbench.record"))
            opened.enter_context(self.collector)
            opened.push(self._add_recorded_steps)
            self._begin_next_step()
            self._contexts = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._contexts.__exit__(kind, error, trace)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return a context manager for a phase, a no-op after the last step; raises UsageError for an invalid name."""
        return marks.NULL_CONTEXT if self._limit_reached else super().phase(name)

    def enter(self, name: str) -> None:
        """Begin a phase, and also a step if this phase starts one; raises UsageError inside another phase."""
        if self.current_phase is None and not self._has_step_marks and self._first_phase in (None, name):
            if self._first_phase is not None and not self._step_failed:
                self._recorded_steps.append(self.end())
            self._begin_next_step()
            self._first_phase, self._step_failed = name, False
        super().enter(name)

    def leave(self, name: str, *, failed: bool = False) -> None:
        """End a phase; if the phase failed, its step is not counted."""
        super().leave(name, failed=failed)
        self._step_failed = self._step_failed or failed

    def step(self) -> None:
        """End a step, and begin the next one; raises UsageError inside a phase."""
        if self._limit_reached or threading.get_ident() != self._thread:
            return
        if self.current_phase is not None:
            raise UsageError(f"sysbench.step() is inside the phase {self.current_phase}: a step ends between phases")
        times = self.end()
        if not self._has_step_marks:
            times, self._recorded_steps, self._has_step_marks = _merge_steps([*self._recorded_steps, times]), [], True
        if not self._step_failed:
            self._recorded_steps.append(times)
        self._step_failed = False
        self._begin_next_step()

    def _begin_next_step(self) -> None:
        count = len(self._recorded_steps)
        if self._profiler is not None and not self.emits_ranges and count >= self.collector.spec.warmup:
            self._profiling.enter_context(self._profiler.recording())
            self.emits_ranges = True
        if count == self._unmeasured_steps:
            self._end_trace()
            allocator.reset_peaks(self.collector.device)
        if count == self._step_limit:
            self._limit_reached = True
            self.collector.add_memory_peaks()
        self.collector.read_sensors_when_due()
        self.begin()

    def _end_trace(self) -> None:
        if self._profiler is None or self._trace is None or not self.emits_ranges:
            return
        self.emits_ranges = False
        self._step_range.close()
        self._profiling.close()
        steps = min(TRACED_STEPS, len(self._recorded_steps) - self.collector.spec.warmup)
        if steps > 0:
            self._profiler.write(self._trace)
            self.collector.add_event(
                LoopTraced(at_s=time.time(), cell=self.collector.cell.key, path=str(self._trace), steps=steps)
            )
        self._profiler = None

    def _add_recorded_steps(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._limit_reached:
            if not self._has_step_marks and self._first_phase is None:
                self.collector.remark = NO_MARKS
            if error is None and not self._has_step_marks and not self._step_failed and self._first_phase is not None:
                # The end of the last step is unknown, but its phases have ended.
                if len(self._recorded_steps) <= self._unmeasured_steps:
                    self._clock.synchronize()
                    self._recorded_steps.append(StepTimes(self.finished_phase_times(), PhaseSample(wall_s=None)))
                self.collector.remark = "the last step does not count, because only sysbench.step() would mark its end"
            self._end_trace()
            if len(self._recorded_steps) > self._unmeasured_steps:
                self.collector.add_memory_peaks()
        warmup = self.collector.spec.warmup
        for index, times in enumerate(self._recorded_steps):
            if index < warmup:
                self.collector.add_step(index, times, warmup=True)
            elif index >= self._unmeasured_steps:
                self.collector.add_step(index - self._unmeasured_steps, times, warmup=False)


def _merge_steps(steps: Sequence[StepTimes]) -> StepTimes:
    names = dict.fromkeys(name for step in steps for name in step.phases)
    phases = {name: sum_of(step.phases[name] for step in steps if name in step.phases) for name in names}
    return StepTimes(phases, sum_of(step.step for step in steps))
