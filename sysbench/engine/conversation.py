"""The conversation with a worker: a request, followed by events, the last of which is the answer.

This is the only place where a run waits, in a single thread: for the worker's next message or exit, for Ctrl-C, or
until the next sensor reading is due.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator
from typing import TypeVar

from sysbench.engine import protocol
from sysbench.engine.interrupts import Interrupts
from sysbench.engine.process import InvalidMessageError, WorkerGoneError
from sysbench.engine.sensors.sampler import Sampler
from sysbench.engine.team import Worker
from sysbench.log.events import Event, OfRank, StepMeasured
from sysbench.log.outcomes import Outcome
from sysbench.spec.frozen import Frozen

EXIT_TIMEOUT_S = 10.0
"""Longest time that a worker may take to end after a request to exit, or after closing its connection."""

START_TIMEOUT_S = 120.0
"""Minimum time limit for a worker to import torch and report, even if --timeout, meant for hanging cells, is shorter.
From a cold network disk, the import takes a minute or two.
"""

LAST_EVENTS_S = 0.5
"""Longest time for which events that have arrived are received after the user has asked to stop."""

BATCH_INTERVAL_S = 0.1
"""Steps shorter than this are received in batches at this interval: waking the parent for each step would disturb the
next one if the CPU is being measured.
"""

Answer = TypeVar("Answer", bound=Frozen)


class StoppedByUserError(Exception):
    """The user stopped the run."""


class LostWorkerError(Exception):
    """The worker cannot complete the request."""

    def __init__(self, outcome: Outcome, detail: str | None = None, patience_s: float = 0.0) -> None:
        super().__init__(detail)
        self.outcome = outcome
        self.detail = detail
        """None if the reason is only known once the process has ended."""
        self.patience_s = patience_s
        """How long to wait for the process to end before killing it."""


class Conversation:
    """The engine's side of the conversation; it takes sensor readings while it waits for the worker."""

    def __init__(self, sampler: Sampler, interrupts: Interrupts, timeout_s: float) -> None:
        self._sampler = sampler
        self._interrupts = interrupts
        self._timeout_s = timeout_s
        self._next_reading_s = 0.0
        self._last_step_at_s = 0.0
        self._steps_are_fast = False
        self._stop_at_s = math.inf

    def ask(self, worker: Worker, command: protocol.Command) -> None:
        """Send a command; raises LostWorkerError if the worker is gone."""
        try:
            worker.send(command)
        except WorkerGoneError as error:
            raise _lost_worker() from error

    def wait_for(self, worker: Worker, *kinds: type[Answer], at_least_s: float = 0.0) -> Generator[Event, None, Answer]:
        """Yield all events before the first event of these kinds, and return that event."""
        while True:
            event = yield from self._next_event(worker, max(self._timeout_s, at_least_s))
            if isinstance(event, kinds):
                return event
            yield event

    def remaining_events(self, worker: Worker) -> Iterator[Event]:
        """Yield the worker's remaining events, until it disconnects or sends nothing for `EXIT_TIMEOUT_S`."""
        while True:
            try:
                event = yield from self._next_event(worker, EXIT_TIMEOUT_S)
            except LostWorkerError:
                return
            yield event

    def wait_for_exit(self, worker: Worker) -> None:
        """After a worker's last event, wait up to --timeout for its process to end; raises StoppedByUserError."""
        deadline_s = time.monotonic() + self._timeout_s
        while worker.alive and time.monotonic() < deadline_s:
            self.check_interrupts()
            self._interrupts.sleep(BATCH_INTERVAL_S)
            self._interrupts.drain()

    def check_interrupts(self) -> None:
        """Raise StoppedByUserError if the user has asked to stop."""
        if self._interrupts.requested:
            raise StoppedByUserError

    def _is_late(self) -> bool:
        """Whether the request to stop is so old that no more events are received: finished steps are not lost."""
        self._stop_at_s = min(self._stop_at_s, time.monotonic() + LAST_EVENTS_S)
        return time.monotonic() >= self._stop_at_s

    def _next_event(self, worker: Worker, timeout_s: float) -> Generator[Event, None, Event]:
        """Return the worker's next event; until then, yield sensor readings when they are due."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            yield from self._readings_due()
            if self._interrupts.requested and (self._is_late() or not worker.wait(self._interrupts.fileno(), 0)):
                raise StoppedByUserError
            if self._steps_are_fast and not worker.wait(self._interrupts.fileno(), 0):
                self._interrupts.sleep(BATCH_INTERVAL_S)
            now_s = time.monotonic()
            patience_s = max(0.0, min(self._next_reading_s, deadline_s) - now_s)
            if worker.wait(self._interrupts.fileno(), patience_s):
                event = _receive(worker)
                if event is not None:
                    self._update_pace(event)
                    return event
            elif not worker.alive:
                raise _lost_worker()
            if now_s >= deadline_s:
                option = " (--timeout)" if timeout_s == self._timeout_s else ""
                raise LostWorkerError("timeout", f"{worker.name} sent no message for {timeout_s:g} s{option}")
            self._interrupts.drain()

    def _readings_due(self) -> Iterator[Event]:
        now_s = time.monotonic()
        if now_s >= self._next_reading_s:
            self._next_reading_s = now_s + self._sampler.interval_s
            yield self._sampler.read(time.time())
            yield from self._sampler.failures()

    def _update_pace(self, event: Event) -> None:
        if isinstance(event, OfRank):
            return  # rank 0 sets the pace
        self._steps_are_fast = False
        if isinstance(event, StepMeasured):
            self._steps_are_fast = event.at_s - self._last_step_at_s < BATCH_INTERVAL_S
            self._last_step_at_s = event.at_s


def _receive(worker: Worker) -> Event | None:
    try:
        return worker.receive()
    except WorkerGoneError as error:
        raise _lost_worker() from error
    except InvalidMessageError as error:
        raise LostWorkerError("crashed", f"{worker.name} sent an invalid event: {error}") from error


def _lost_worker() -> LostWorkerError:
    return LostWorkerError("crashed", patience_s=EXIT_TIMEOUT_S)
