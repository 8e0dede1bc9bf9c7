"""Measures the cells of a run, one after the other, in a worker that is replaced whenever it may be spoilt."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from sysbench import protocol
from sysbench.engine.admission import Admission
from sysbench.engine.conversation import GOODBYE_S, Conversation, LostWorkerError, StoppedByUserError
from sysbench.engine.interrupts import Interrupts
from sysbench.engine.launchers import Launcher
from sysbench.engine.plan import PlacedCell
from sysbench.engine.process import WorkerProcess
from sysbench.engine.sampler import Sampler
from sysbench.errors import SysbenchError
from sysbench.events import (
    CeilingFailed,
    CeilingMeasured,
    CellFinished,
    CellStarted,
    Event,
    MemoryForeseen,
    Reading,
    WorkerExited,
    WorkerReady,
)
from sysbench.outcomes import Outcome
from sysbench.specs.kinds import Cell
from sysbench.specs.model import Precision

HARMLESS: frozenset[Outcome] = frozenset({"ok", "invalid"})
"""Outcomes after which a worker is as good as new."""

Placement = Callable[[WorkerReady], Sequence[PlacedCell]]
"""From what the first worker found to the cells that are to be measured; raises UsageError."""


class Supervisor:
    """Finds a worker for every cell, asks it for one thing at a time, and draws the consequences."""

    def __init__(
        self,
        launcher: Launcher,
        sampler: Sampler,
        admission: Admission,
        interrupts: Interrupts,
        timeout_s: float,
        artifacts: Mapping[str, Path] | None = None,
    ) -> None:
        """`artifacts` says for cells, by their keys, where their worker leaves what is too large for events."""
        self._artifacts = artifacts or {}
        self._launcher = launcher
        self._sampler = sampler
        self._admission = admission
        self._interrupts = interrupts
        self._conversation = Conversation(sampler, interrupts, timeout_s)
        self._worker: WorkerProcess | None = None
        self._ceilings: set[tuple[str, str]] = set()

    def run(self, placement: Placement) -> Iterator[Event]:
        """Measure every cell that `placement` names.

        Raises UsageError when the cells cannot be placed, SysbenchError when no worker can be started, and
        StoppedByUserError. Then, and whenever the iteration is given up, `stop` must be called.
        """
        _, ready = yield from self._start_worker()
        cells = placement(ready)
        yield from self._look_ahead(cells)
        for placed in cells:
            self._conversation.heed_interrupts()
            refusal = self._admission.refusal(placed)
            if refusal is not None:
                yield _finished(placed.cell, *refusal)
            else:
                yield from self._attend(placed)
        yield from self._say_goodbye()

    def stop(self) -> list[WorkerExited]:
        """End the worker, if there is one, at once; a second Ctrl-C does not cut that short."""
        self._interrupts.ignore_impatience()
        return [self._dismiss(self._worker)] if self._worker is not None else []

    def _attend(self, placed: PlacedCell) -> Iterator[Event]:
        """One cell that is worth it, and what came before and comes after."""
        if placed.cell.against_ceiling is not None:
            yield from self._measure_ceiling(placed, placed.cell.against_ceiling)
        finished = yield from self._measure(placed)
        if placed.cell.simulated and finished.outcome == "oom":
            return  # nothing ran out here
        if finished.outcome == "oom":
            self._admission.remember_too_large(placed)
        if finished.outcome not in HARMLESS or placed.cell.needs_fresh_worker:
            yield from self._replace_worker()

    def _look_ahead(self, cells: Sequence[PlacedCell]) -> Iterator[Event]:
        """Have simulated what may not fit, in a worker that measures nothing."""
        asked = False
        for placed, free_bytes in self._admission.doubtful(cells):
            self._conversation.heed_interrupts()
            worker = yield from self._ensure_worker()
            try:
                question = protocol.Foresee(cell=placed.cell, device=placed.device, free_bytes=free_bytes)
                self._conversation.ask(worker, question)
                answer = yield from self._conversation.until(worker, MemoryForeseen)
                self._admission.remember_foreseen(placed, answer)
            except LostWorkerError as lost:
                yield self._dismiss(worker, lost.patience_s)
            asked = True
        if asked:
            yield from self._replace_worker()

    def _measure(self, placed: PlacedCell) -> Generator[Event, None, CellFinished]:
        worker = yield from self._ensure_worker()
        self._sampler.use(placed.device)
        yield CellStarted(
            at_s=time.time(),
            cell=placed.cell.key,
            index=placed.index,
            axes=placed.cell.model_dump(mode="json"),
            device=placed.device,
        )
        yield from self._look_around()
        try:
            artifact = self._artifacts.get(placed.cell.key)
            self._conversation.ask(worker, protocol.Measure(cell=placed.cell, device=placed.device, artifact=artifact))
            return (yield from self._conversation.until(worker, CellFinished))
        except LostWorkerError as lost:
            exited = self._dismiss(worker, lost.patience_s)
            finished = _finished(placed.cell, lost.outcome, lost.detail or _epitaph(exited))
        yield exited
        yield finished
        return finished

    def _measure_ceiling(self, placed: PlacedCell, precision: Precision) -> Iterator[Event]:
        """What this device reaches at this precision, once; a cell is measured whether or not that is known."""
        device = placed.device
        if (device.torch_name, precision) in self._ceilings:
            return
        self._ceilings.add((device.torch_name, precision))
        worker = yield from self._ensure_worker()
        try:
            self._conversation.ask(worker, protocol.MeasureCeiling(device=device, precision=precision))
            answer = yield from self._conversation.until(worker, CeilingMeasured, CeilingFailed)
            if isinstance(answer, CeilingFailed):
                yield from self._replace_worker()
        except LostWorkerError as lost:
            exited = self._dismiss(worker, lost.patience_s)
            detail = lost.detail or _epitaph(exited)
            yield exited
            yield CeilingFailed(at_s=time.time(), device=device.torch_name, precision=precision, detail=detail)

    def _look_around(self) -> Iterator[Event]:
        """Count the processes that share the device: too slow a question for while something is measured."""
        other_processes = self._sampler.count_other_processes()
        if other_processes is not None:
            yield Reading(at_s=time.time(), other_processes=other_processes)

    def _ensure_worker(self) -> Generator[Event, None, WorkerProcess]:
        """The worker there is, or a new one when there is none or it has died while it was idle."""
        if self._worker is not None and not self._worker.alive:
            yield from self._replace_worker()
        if self._worker is not None:
            return self._worker
        worker, _ = yield from self._start_worker()
        return worker

    def _start_worker(self) -> Generator[Event, None, tuple[WorkerProcess, WorkerReady]]:
        self._conversation.heed_interrupts()
        self._worker = worker = WorkerProcess(self._launcher)
        self._sampler.watch(worker.pid)
        try:
            ready = yield from self._conversation.until(worker, WorkerReady)
            return worker, ready
        except LostWorkerError as lost:
            exited = self._dismiss(worker, lost.patience_s)
            yield exited
            raise SysbenchError(f"no worker could be started: {lost.detail or _epitaph(exited)}") from lost

    def _replace_worker(self) -> Iterator[Event]:
        """Let this worker go, if it has not gone by itself; the next cell that needs one starts another."""
        if self._worker is not None:
            yield self._dismiss(self._worker)

    def _say_goodbye(self) -> Iterator[Event]:
        worker = self._worker
        if worker is None:
            return
        # Everything is measured: neither a worker that lingers nor a Ctrl-C now makes the run less complete.
        with suppress(LostWorkerError, StoppedByUserError):
            self._conversation.ask(worker, protocol.Exit(orderly=self._launcher.wraps))
            yield from self._conversation.until_the_end(worker)
        yield self._dismiss(worker, 0 if self._interrupts.requested else GOODBYE_S)

    def _dismiss(self, worker: WorkerProcess, patience_s: float = 0.0) -> WorkerExited:
        exited = worker.end(patience_s)
        self._worker = None
        self._sampler.watch(None)
        return exited


def _finished(cell: Cell, outcome: Outcome, detail: str | None = None) -> CellFinished:
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
