"""Record the steps of a program's own loop, using the marks in the program."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType

from sysbench import marks
from sysbench.commands.loop.measure import Account
from sysbench.commands.loop.record import LoopTraced
from sysbench.commands.loop.spec import LoopSpec
from sysbench.commands.loop.stopwatch import Stopwatch
from sysbench.errors import UsageError
from sysbench.lab import allocator
from sysbench.lab.clocks import StepTimes, clock_for, sum_of
from sysbench.lab.recorder import TorchRecorder
from sysbench.log import storage
from sysbench.log.events import PhaseSample

TRACED = 3
"""Number of steps in a trace: enough to see one step between two others."""

NO_MARKS = "neither sysbench.phase nor sysbench.step was called in the recording thread"


class Recorder(Stopwatch):
    """Context manager for a program's own loop; it derives the steps from marks in the program.

    A step begins with a phase and ends when this phase begins again. Once `step` has been called, only calls to `step`
    end a step, and everything before the first call is one step. A step with a failed phase is not counted. After
    `max_steps` measured steps, marks do nothing.
    """

    def __init__(self, spec: LoopSpec, save: Path | None, trace: Path | None) -> None:
        """Raise the same exceptions as `Account`; the trace file is checked like the record file."""
        if trace is not None:
            if not trace.name.endswith((".json", ".json.gz")):
                raise UsageError(f"{trace} must end in .json or .json.gz, because it will hold a trace")
            if save is not None and trace.resolve() == save.resolve():
                raise UsageError(f"{trace} is already the file of the record: give the trace its own file")
            storage.refuse_unwritable(trace)
        self.account = Account(spec, save, None)
        super().__init__(clock_for(self.account.device), spec.sync, spec.phases)
        self._trace, self._profiler = trace, TorchRecorder(self.account.device, shapes=True) if trace else None
        self._profiling = ExitStack()
        self._counted_from = spec.warmup + (TRACED if trace else 0)
        self._most = self._counted_from + spec.max_steps
        self._taken: list[StepTimes] = []
        self._first: str | None = None
        self._explicit = self._spoiled = self._done = False
        self._open = ExitStack()

    def __enter__(self) -> Recorder:
        with ExitStack() as opened:
            opened.enter_context(self.told("sysbench.record"))
            opened.enter_context(self.account)
            opened.push(self._close)
            self._next()
            self._open = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.__exit__(kind, error, trace)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return a context manager for a phase, a no-op after the last step; raises UsageError for an invalid name."""
        return marks.NULL_CONTEXT if self._done else super().phase(name)

    def enter(self, name: str) -> None:
        """Begin a phase, and also a step if this phase starts one; raises UsageError inside another phase."""
        if self.inside is None and not self._explicit and self._first in (None, name):
            if self._first is not None and not self._spoiled:
                self._taken.append(self.end())
            self._next()
            self._first, self._spoiled = name, False
        super().enter(name)

    def leave(self, name: str, *, failed: bool = False) -> None:
        """End a phase; if the phase failed, its step is not counted."""
        super().leave(name, failed=failed)
        self._spoiled = self._spoiled or failed

    def step(self) -> None:
        """End a step, and begin the next one; raises UsageError inside a phase."""
        if self._done or threading.get_ident() != self._thread:
            return
        if self.inside is not None:
            raise UsageError(f"sysbench.step() is inside the phase {self.inside}: a step ends between phases")
        times = self.end()
        if not self._explicit:
            times, self._taken, self._explicit = _together([*self._taken, times]), [], True
        if not self._spoiled:
            self._taken.append(times)
        self._spoiled = False
        self._next()

    def _next(self) -> None:
        """Start or end tracing and measuring if due, and begin the next step."""
        count = len(self._taken)
        if self._profiler is not None and not self.visible and count >= self.account.spec.warmup:
            self._profiling.enter_context(self._profiler.recording())
            self.visible = True
        if count == self._counted_from:
            self._end_trace()
            allocator.reset_peaks(self.account.device)
        if count == self._most:
            self._done = True
            self.account.tell_peaks()
        self.account.read_when_due()
        self.begin()

    def _end_trace(self) -> None:
        """Stop tracing, and write the trace if it contains a whole step."""
        if self._profiler is None or self._trace is None or not self.visible:
            return
        self.visible = False
        self._range_of_step.close()
        self._profiling.close()
        steps = min(TRACED, len(self._taken) - self.account.spec.warmup)
        if steps > 0:
            self._profiler.write(self._trace)
            self.account.tell(
                LoopTraced(at_s=time.time(), cell=self.account.cell.key, path=str(self._trace), steps=steps)
            )
        self._profiler = None

    def _close(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Pass the warm-up steps and the measured steps to the account."""
        if not self._done:
            if not self._explicit and self._first is None:
                self.account.remark = NO_MARKS
            if error is None and not self._explicit and not self._spoiled and self._first is not None:
                # The end of the last step is unknown, but its phases have ended.
                if len(self._taken) <= self._counted_from:
                    self._clock.synchronize()
                    self._taken.append(StepTimes(self.phases_now(), PhaseSample(wall_s=None)))
                self.account.remark = "the last step does not count, because only sysbench.step() would mark its end"
            self._end_trace()
            if len(self._taken) > self._counted_from:
                self.account.tell_peaks()
        warmup = self.account.spec.warmup
        for index, times in enumerate(self._taken):
            if index < warmup:
                self.account.take(index, times, warmup=True)
            elif index >= self._counted_from:
                self.account.take(index - self._counted_from, times, warmup=False)


def _together(steps: Sequence[StepTimes]) -> StepTimes:
    names = dict.fromkeys(name for step in steps for name in step.phases)
    phases = {name: sum_of(step.phases[name] for step in steps if name in step.phases) for name in names}
    return StepTimes(phases, sum_of(step.step for step in steps))
