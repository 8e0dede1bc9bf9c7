"""Measures the cells of a run, one after the other, in a worker that is replaced whenever it may be spoilt.

Everything happens in one thread around one wait: for the worker's next message, its end, a Ctrl-C, or the time of the
next reading.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from sysbench import protocol
from sysbench.engine.admission import Admission
from sysbench.engine.interrupts import Interrupts
from sysbench.engine.launchers import Launcher
from sysbench.engine.plan import PlacedCell
from sysbench.engine.process import GarbledError, WorkerGoneError, WorkerProcess
from sysbench.engine.sampler import Sampler
from sysbench.errors import SysbenchError
from sysbench.events import (
    CeilingFailed,
    CeilingMeasured,
    CellFinished,
    CellStarted,
    Event,
    Frozen,
    Reading,
    StepMeasured,
    WorkerExited,
    WorkerReady,
)
from sysbench.outcomes import Outcome
from sysbench.specs.time import TimeCell

GOODBYE_S = 10.0
"""How long a worker that was asked to leave, or has hung up, may take to be gone."""

REST_S = 0.1
"""Steps that follow each other more quickly than this are taken in together: a parent that woke up for each of them
would get in the way of the next, where the CPU is what is measured."""

HARMLESS: frozenset[Outcome] = frozenset({"ok", "invalid"})
"""Outcomes after which a worker is as good as new."""

Answer = TypeVar("Answer", bound=Frozen)

Placement = Callable[[WorkerReady], Sequence[PlacedCell]]
"""From what the first worker found to the cells that are to be measured; raises UsageError."""


class StoppedByUserError(Exception):
    """The user wants the run to end."""


class LostWorkerError(Exception):
    """The worker will not do what it was asked for."""

    def __init__(self, outcome: Outcome, detail: str | None = None, patience_s: float = 0.0) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.detail = detail
        """None when only the way the process ends will tell."""
        self.patience_s = patience_s
        """How long to wait for that end before bringing it about."""


class Supervisor:
    """Starts workers, asks them for one thing at a time, and watches."""

    def __init__(
        self, launcher: Launcher, sampler: Sampler, admission: Admission, interrupts: Interrupts, timeout_s: float
    ) -> None:
        self._launcher = launcher
        self._sampler = sampler
        self._admission = admission
        self._interrupts = interrupts
        self._timeout_s = timeout_s
        self._worker: WorkerProcess | None = None
        self._current: TimeCell | None = None
        self._ceilings: set[tuple[str, str]] = set()
        self._next_reading_s = 0.0
        self._last_step_at_s = 0.0
        self._steps_are_fast = False

    def run(self, placement: Placement) -> Iterator[Event]:
        """Measure every cell that `placement` names.

        Raises UsageError when the cells cannot be placed, SysbenchError when no worker can be started, and
        StoppedByUserError. Then, and whenever the iteration is given up, `stop` must be called.
        """
        _, ready = yield from self._start_worker()
        for placed in placement(ready):
            self._heed_interrupts()
            refusal = self._admission.refusal(placed)
            if refusal is not None:
                yield _finished(placed.cell, *refusal)
            else:
                yield from self._attend(placed)
        yield from self._say_goodbye()

    def stop(self) -> list[Event]:
        """End whatever is going on, at once; returns what there is left to say."""
        self._interrupts.ignore_impatience()
        last_words: list[Event] = []
        if self._worker is not None:
            last_words.append(self._dismiss(self._worker))
        if self._current is not None:
            last_words.append(_finished(self._current, "interrupted"))
            self._current = None
        return last_words

    def _attend(self, placed: PlacedCell) -> Iterator[Event]:
        """One cell, from finding a worker for it to drawing the consequences."""
        yield from self._measure_ceiling(placed)
        finished = yield from self._measure(placed)
        if finished.outcome == "oom":
            self._admission.remember_too_large(placed)
        if finished.outcome not in HARMLESS and self._worker is not None:
            yield self._dismiss(self._worker)

    def _measure(self, placed: PlacedCell) -> Generator[Event, None, CellFinished]:
        worker = yield from self._ensure_worker()
        self._sampler.use(placed.device)
        self._current = placed.cell
        yield CellStarted(
            at_s=time.time(),
            cell=placed.cell.key,
            index=placed.index,
            axes=placed.cell.model_dump(mode="json"),
            device=placed.device,
        )
        yield from self._look_around()
        try:
            self._ask(worker, protocol.MeasureTime(cell=placed.cell, device=placed.device))
            return (yield from self._await(worker, CellFinished))
        except LostWorkerError as lost:
            exited = self._dismiss(worker, lost.patience_s)
            finished = _finished(placed.cell, lost.outcome, lost.detail or _epitaph(exited))
        yield exited
        self._current = None
        yield finished
        return finished

    def _measure_ceiling(self, placed: PlacedCell) -> Iterator[Event]:
        """What this device reaches at this precision, once; a cell is measured whether or not that is known."""
        device, precision = placed.device, placed.cell.precision
        if (device.torch_name, precision) in self._ceilings:
            return
        self._ceilings.add((device.torch_name, precision))
        worker = yield from self._ensure_worker()
        try:
            self._ask(worker, protocol.MeasureCeiling(device=device, precision=precision))
            answer = yield from self._await(worker, CeilingMeasured, CeilingFailed)
            spoilt = isinstance(answer, CeilingFailed)
        except LostWorkerError as lost:
            exited = self._dismiss(worker, lost.patience_s)
            detail = lost.detail or _epitaph(exited)
            yield exited
            yield CeilingFailed(at_s=time.time(), device=device.torch_name, precision=precision, detail=detail)
            return
        if spoilt:
            yield self._dismiss(worker)

    def _ensure_worker(self) -> Generator[Event, None, WorkerProcess]:
        """The worker there is, or a new one when there is none or it has died while it was idle."""
        if self._worker is not None and not self._worker.alive:
            yield self._dismiss(self._worker)
        if self._worker is not None:
            return self._worker
        worker, _ = yield from self._start_worker()
        return worker

    def _start_worker(self) -> Generator[Event, None, tuple[WorkerProcess, WorkerReady]]:
        self._heed_interrupts()
        self._worker = worker = WorkerProcess(self._launcher)
        self._sampler.watch(worker.pid)
        try:
            ready = yield from self._await(worker, WorkerReady)
            return worker, ready
        except LostWorkerError as lost:
            exited = self._dismiss(worker, lost.patience_s)
            yield exited
            raise SysbenchError(f"no worker could be started: {lost.detail or _epitaph(exited)}") from lost

    def _say_goodbye(self) -> Iterator[Event]:
        worker = self._worker
        if worker is None:
            return
        # Everything is measured: neither a worker that lingers nor a Ctrl-C now makes the run less complete.
        with suppress(LostWorkerError, StoppedByUserError):
            self._ask(worker, protocol.Exit(orderly=self._launcher.wraps))
            while True:
                yield (yield from self._next_event(worker, GOODBYE_S))
        yield self._dismiss(worker, 0 if self._interrupts.requested else GOODBYE_S)

    def _dismiss(self, worker: WorkerProcess, patience_s: float = 0.0) -> WorkerExited:
        exited = worker.end(patience_s)
        self._worker = None
        self._sampler.watch(None)
        return exited

    def _ask(self, worker: WorkerProcess, command: protocol.Command) -> None:
        try:
            worker.send(command)
        except WorkerGoneError as error:
            raise LostWorkerError("crashed", patience_s=GOODBYE_S) from error

    def _await(self, worker: WorkerProcess, *kinds: type[Answer]) -> Generator[Event, None, Answer]:
        """Pass on everything the worker says until it is one of these."""
        while True:
            event = yield from self._next_event(worker, self._timeout_s)
            if isinstance(event, CellFinished):
                self._current = None
            yield event
            if isinstance(event, kinds):
                return event

    def _next_event(self, worker: WorkerProcess, timeout_s: float) -> Generator[Event, None, Event]:
        """What the worker says next; readings that fall due meanwhile are yielded.

        Raises LostWorkerError when nothing will come, or not in time, and StoppedByUserError.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            yield from self._readings_due()
            self._heed_interrupts()
            if self._steps_are_fast and not worker.wait(self._interrupts.fileno(), 0):
                self._interrupts.sleep(REST_S)
            now_s = time.monotonic()
            patience_s = max(0.0, min(self._next_reading_s, deadline_s) - now_s)
            if worker.wait(self._interrupts.fileno(), patience_s):
                event = _received(worker)
                if event is not None:
                    self._mind_the_pace(event)
                    return event
            elif not worker.alive:
                raise LostWorkerError("crashed", patience_s=GOODBYE_S)
            elif now_s >= deadline_s:
                raise LostWorkerError("timeout", f"the worker said nothing for {timeout_s:g} s (--timeout)")
            self._interrupts.drain()

    def _mind_the_pace(self, event: Event) -> None:
        self._steps_are_fast = False
        if isinstance(event, StepMeasured):
            self._steps_are_fast = event.at_s - self._last_step_at_s < REST_S
            self._last_step_at_s = event.at_s

    def _heed_interrupts(self) -> None:
        if self._interrupts.requested:
            raise StoppedByUserError

    def _readings_due(self) -> Iterator[Event]:
        now_s = time.monotonic()
        if now_s >= self._next_reading_s:
            self._next_reading_s = now_s + self._sampler.interval_s
            yield self._sampler.read(time.time())
            yield from self._sampler.failures()

    def _look_around(self) -> Iterator[Event]:
        """Count the processes that share the device: too slow a question for while something is measured."""
        other_processes = self._sampler.count_other_processes()
        if other_processes is not None:
            yield Reading(at_s=time.time(), other_processes=other_processes)


def _received(worker: WorkerProcess) -> Event | None:
    try:
        return worker.receive()
    except WorkerGoneError as error:
        raise LostWorkerError("crashed", patience_s=GOODBYE_S) from error
    except GarbledError as error:
        raise LostWorkerError("crashed", f"the worker sent something that is no event: {error}") from error


def _finished(cell: TimeCell, outcome: Outcome, detail: str | None = None) -> CellFinished:
    return CellFinished(at_s=time.time(), cell=cell.key, outcome=outcome, detail=detail)


def _epitaph(exited: WorkerExited) -> str:
    """How a worker died, in one line: the signal or the code, and the last thing it printed."""
    if exited.signal == "SIGKILL":
        return "the worker was ended by SIGKILL; the kernel does that when host memory runs out"
    if exited.signal is not None:
        end = f"the worker was ended by {exited.signal}"
    elif exited.exit_code is not None:
        end = f"the worker left with exit code {exited.exit_code}"
    else:
        end = "the worker hung up and could not be ended"
    last_line = exited.stderr_tail.splitlines()[-1] if exited.stderr_tail else None
    return f"{end}: {last_line}" if last_line else end
