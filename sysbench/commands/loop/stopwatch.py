"""Stopwatch for consecutive steps and for the phases marked in them, using the clocks of `sysbench.lab.clocks`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING

from torch.profiler import record_function

from sysbench import marks
from sysbench.commands.loop.spec import STEP, validated_phase_name
from sysbench.errors import UsageError
from sysbench.lab.clocks import StepTimes, SynchronizedClock, sum_of
from sysbench.log.events import PhaseSample

if TYPE_CHECKING:
    from sysbench.spec.model import Sync


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
        found = self._phases.get(name) if isinstance(name, str) else None
        if found is None:
            try:
                found = self._phases[name] = _Phase(self, validated_phase_name(name, self._declared_phases))
            except ValueError as error:
                raise UsageError(str(error)) from None
        return found

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
