"""Measures the cells of a run one after the other, in a worker that is replaced if a cell may have affected it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from sysbench.engine import protocol
from sysbench.engine.admission import Admission
from sysbench.engine.conversation import (
    EXIT_TIMEOUT_S,
    START_TIMEOUT_S,
    Conversation,
    LostWorkerError,
    StoppedByUserError,
)
from sysbench.engine.interrupts import Interrupts, catch_interrupts
from sysbench.engine.plan import PlacedCell, devices_of_other_ranks, place
from sysbench.engine.process import Launcher, WorkerProcess, get_worker, keep_for_reuse, launch_ahead
from sysbench.engine.provisions import Provisions
from sysbench.engine.sensors import ceilings
from sysbench.engine.sensors.sampler import Sampler
from sysbench.engine.team import Team, Worker
from sysbench.errors import SysbenchError
from sysbench.log.events import (
    CeilingFailed,
    CeilingMeasured,
    CellFinished,
    CellStarted,
    DeviceInfo,
    Event,
    Reading,
    ThreadsProbe,
    ThreadsProbed,
    WorkerExited,
    WorkerReady,
)
from sysbench.log.outcomes import REASONS, Outcome, Reason
from sysbench.spec.cell import RunCell
from sysbench.spec.run import RunOptions
from sysbench.spec.steps import Precision

if TYPE_CHECKING:
    from sysbench.engine.rendezvous.rank_zero import RankConnections

REUSABLE_OUTCOMES: frozenset[Outcome] = frozenset({"ok", "invalid", "skipped"})

Placement = Callable[[WorkerReady], Sequence[PlacedCell]]
"""Returns the cells to measure, given the first worker's report; raises UsageError."""


@dataclass
class Supervisor:
    """Provides a worker for every cell, sends the worker one request at a time, and acts on the outcome.

    A measured run always starts with a new worker: in a worker reused from a run with a larger context, the first step
    took 40% less time, and the peak of host memory was 1.9 times as high.
    """

    launcher: Launcher
    sampler: Sampler
    admission: Admission
    interrupts: Interrupts
    timeout_s: float
    provisions: Provisions = field(default_factory=Provisions)
    ceilings: bool = True
    threads_probe: ThreadsProbe | None = None
    """Choice of CPU threads by an earlier part of the same measurement."""
    links: RankConnections | None = None
    shares_worker: bool = False
    """Whether to share one worker with the runs before and after, all of which only simulate."""

    def __post_init__(self) -> None:
        self._launched_by = self.launcher
        self._devices: Sequence[DeviceInfo] = ()
        self._conversation = Conversation(self.sampler, self.interrupts, self.timeout_s)
        self._worker: Worker | None = None
        self._ceilings: set[tuple[str, str, int | None]] = set()
        self._threads: int | None = None
        """Number of threads for cells on the CPU that set none; None before the first of them."""
        self._default_threads, self._torch = 1, ""

    def run(self, placement: Placement) -> Iterator[Event]:
        """Measure every cell that `placement` returns; raises UsageError, SysbenchError or StoppedByUserError."""
        _, ready = yield from self._start_worker(self.launcher)
        self._default_threads, self._torch = ready.torch.threads, ready.torch.torch
        cells = placement(ready)
        for placed in cells:
            self._conversation.check_interrupts()
            refusal = self.admission.refusal(placed)
            if refusal is not None:
                yield _finished(placed.cell, refusal.outcome, str(refusal.refusal), refusal.reason)
            else:
                yield from self._run_cell(placed)
        yield from self._shut_down_worker()

    def devices(self) -> Sequence[DeviceInfo]:
        """Return the devices that a worker reports, and set the worker aside for the first run."""
        for event in self._start_worker(self.launcher):
            worker = self._worker
            if isinstance(event, WorkerReady) and isinstance(worker, WorkerProcess):
                self._worker = None
                keep_for_reuse(worker)
                return event.devices
        raise AssertionError("a worker becomes ready, or that raises")

    def stop(self) -> list[WorkerExited]:
        """End the worker at once, if there is one, and return its WorkerExited event."""
        return [self._end_worker(self._worker)] if self._worker is not None else []

    def _run_cell(self, placed: PlacedCell) -> Iterator[Event]:
        if self._threads is None and _leaves_threads_open(placed):
            yield from self._choose_threads()
        if self.ceilings and placed.cell.ceiling_precision is not None:
            yield from self._measure_ceiling(placed, placed.cell.ceiling_precision)
        timed_cell = placed.cell.reference_time_cell
        if timed_cell is not None:
            timed = yield from self._measure(replace(placed, cell=timed_cell))
            yield from self._replace_worker()
            if timed.outcome != "ok":
                if timed.outcome == "oom":
                    self.admission.remember_too_large(placed)
                detail = f"without a profiler: {timed.detail or timed.outcome}"
                yield _finished(placed.cell, timed.outcome, detail, timed.reason)
                return
        finished = yield from self._measure(placed)
        if placed.cell.simulated and finished.outcome == "oom":
            return  # no real memory ran out
        if finished.outcome == "oom":
            self.admission.remember_too_large(placed)
        # After a failure, other ranks may still be waiting for the failed one, even if its process is unharmed.
        unusable = finished.outcome != "ok" if placed.cell.workers > 1 else finished.outcome not in REUSABLE_OUTCOMES
        if unusable or placed.cell.needs_fresh_worker:
            yield from self._replace_worker()

    def _measure(self, placed: PlacedCell) -> Generator[Event, None, CellFinished]:
        """Measure a cell and yield its events; CellFinished comes last, after the cell's artifact has been read."""
        launcher = self.provisions.launchers.get(placed.cell.key, self.launcher)
        worker = yield from self._ensure_worker(launcher, placed.cell.workers)
        self.sampler.use(placed.device, devices_of_other_ranks(placed, self._devices))
        yield CellStarted(
            at_s=time.time(),
            cell=placed.cell.key,
            index=placed.index,
            axes=placed.cell.model_dump(mode="json"),
            device=placed.device,
            keeps_steps=bool(placed.earlier_s),
        )
        # Counting processes is too slow during a measurement.
        other_processes = self.sampler.count_other_processes()
        if other_processes is not None:
            yield Reading(at_s=time.time(), other_processes=other_processes)
        artifact = self.provisions.artifacts.get(placed.cell.key)
        try:
            request = protocol.Measure(
                cell=placed.cell,
                device=placed.device,
                artifact=artifact,
                threads=self._threads if _leaves_threads_open(placed) else None,
                earlier_s=placed.earlier_s,
            )
            self._conversation.ask(worker, request)
            finished = yield from self._conversation.wait_for(worker, CellFinished)
            if artifact is not None and finished.outcome == "ok":
                finished = yield from self._read(placed, artifact, finished)
        except LostWorkerError as lost:
            exited = self._end_worker(worker, lost.patience_s)
            hanging = _hanging_collective(exited)
            outcome: Outcome = "timeout" if hanging else lost.outcome
            finished = _finished(placed.cell, outcome, lost.detail or hanging or _describe_exit(exited))
            yield exited
            self._conversation.check_interrupts()  # the user may have stopped the lost rank
        yield finished
        return finished

    def _read(self, placed: PlacedCell, artifact: Path, finished: CellFinished) -> Generator[Event, None, CellFinished]:
        stderr_tail = None
        if self._launched_by.wraps:
            for event in self._shut_down_worker():
                stderr_tail = event.stderr_tail if isinstance(event, WorkerExited) else stderr_tail
                yield event
            self._conversation.check_interrupts()
        try:
            yield from self.provisions.read(placed, artifact)
        except SysbenchError as error:
            said = last_words(stderr_tail or "")
            return _finished(placed.cell, "crashed", f"{error}; {said}" if said else str(error))
        return finished

    def _choose_threads(self) -> Iterator[Event]:
        """Let the worker find out how many threads the cells on the CPU should use; they run even if it fails."""
        worker = yield from self._ensure_worker(self.launcher)
        self._threads = self._default_threads
        if self.threads_probe is not None:
            probed = ThreadsProbed(at_s=time.time(), **self.threads_probe.model_dump(exclude={"event", "at_s"}))
        elif self._default_threads == 1:
            return
        else:
            try:
                self._conversation.ask(worker, protocol.ProbeThreads())
                probed = yield from self._conversation.wait_for(worker, ThreadsProbed)
            except LostWorkerError as lost:
                yield self._end_worker(worker, lost.patience_s)
                return
        self._threads = probed.threads
        yield probed

    def _measure_ceiling(self, placed: PlacedCell, precision: Precision) -> Iterator[Event]:
        """Measure the matmul ceiling once for the cell's device, precision and threads; cells run even if it fails."""
        device, threads = placed.device, placed.cell.threads
        if (device.torch_name, precision, threads) in self._ceilings:
            return
        self._ceilings.add((device.torch_name, precision, threads))
        worker = yield from self._ensure_worker(self.launcher)
        if device.type == "cuda":
            self.sampler.use(device)
        try:
            self._conversation.ask(worker, protocol.MeasureCeiling(device=device, precision=precision, threads=threads))
            event = yield from self._conversation.wait_for(worker, CeilingMeasured, CeilingFailed)
            if isinstance(event, CeilingMeasured):
                is_shared = device.type == "cuda" and bool(self.sampler.count_other_processes())
                measured = event.model_copy(update={"disturbed": event.disturbed or is_shared})
                yield ceilings.best(measured, device, self._torch, self._default_threads)
            else:
                yield event
                yield from self._replace_worker()
        except LostWorkerError as lost:
            exited = self._end_worker(worker, lost.patience_s)
            detail = lost.detail or _describe_exit(exited)
            yield exited
            yield CeilingFailed(at_s=time.time(), device=device.torch_name, precision=precision, detail=detail)

    def _ensure_worker(self, launcher: Launcher, ranks: int = 1) -> Generator[Event, None, Worker]:
        """Return a worker from `launcher` for `ranks` ranks: the current one if alive and matching, else a new one."""
        worker = self._worker
        if worker is not None and (
            not worker.alive or self._launched_by is not launcher or worker.ranks not in (1, ranks)
        ):
            yield from self._replace_worker()
        if self._worker is not None and self._worker.ranks == ranks:
            return self._worker
        started, _ = yield from self._start_worker(launcher, ranks)
        return started

    def _start_worker(
        self, launcher: Launcher, ranks: int = 1, *, is_retry: bool = False
    ) -> Generator[Event, None, tuple[Worker, WorkerReady]]:
        self._conversation.check_interrupts()
        self._launched_by = launcher
        self._worker = worker = self._worker or get_worker(launcher, simulates=self.shares_worker)
        if ranks > 1 and isinstance(worker, WorkerProcess):
            self._worker = worker = Team(worker, launcher, ranks, self.timeout_s, self.links)
        self.sampler.watch(*worker.pids)
        if isinstance(worker, WorkerProcess) and worker.ready is not None:
            ready = worker.ready.model_copy(update={"at_s": time.time()})
            self._devices = ready.devices
            yield ready
            return worker, ready
        try:
            ready = yield from self._conversation.wait_for(worker, WorkerReady, at_least_s=START_TIMEOUT_S)
            self._devices = ready.devices
            yield ready
            return worker, ready
        except LostWorkerError as lost:
            exited = self._end_worker(worker, lost.patience_s)
            yield exited
            if exited.signal is not None and ranks == 1 and not is_retry:
                return (yield from self._start_worker(launcher, is_retry=True))  # it was killed, which may be chance
            raise SysbenchError(f"no worker could be started: {lost.detail or _describe_exit(exited)}") from lost

    def _replace_worker(self) -> Iterator[Event]:
        if self._worker is not None:
            yield self._end_worker(self._worker)

    def _shut_down_worker(self) -> Iterator[Event]:
        worker = self._worker
        if worker is None:
            return
        if self.shares_worker and isinstance(worker, WorkerProcess):
            worker.has_simulated, self._worker = True, None
            self.sampler.watch()
            keep_for_reuse(worker)
            return
        # Everything is measured: neither a worker that takes too long nor a Ctrl-C now makes the run incomplete.
        with suppress(LostWorkerError, StoppedByUserError):
            self._conversation.ask(worker, protocol.Exit(orderly=self._launched_by.wraps))
            yield from self._conversation.remaining_events(worker)
            if self._launched_by.wraps:
                self._conversation.wait_for_exit(worker)
        yield self._end_worker(worker, 0 if self.interrupts.requested else EXIT_TIMEOUT_S)

    def _end_worker(self, worker: Worker, patience_s: float = 0.0) -> WorkerExited:
        exited = worker.end(patience_s)
        self._worker = None
        self.sampler.watch()
        return exited


def _leaves_threads_open(placed: PlacedCell) -> bool:
    return placed.device.type == "cpu" and placed.cell.threads is None and placed.cell.simulated is None


def _finished(cell: RunCell, outcome: Outcome, detail: str, reason: Reason | None = None) -> CellFinished:
    reason = reason or REASONS.get(outcome)
    return CellFinished(at_s=time.time(), cell=cell.key, outcome=outcome, detail=detail, reason=reason)


def _describe_exit(exited: WorkerExited) -> str:
    worker = "the worker" if exited.rank is None else f"rank {exited.rank}"
    if exited.lost:
        return f"{worker} is lost: its process, on this node or another, has exited or is unreachable"
    if exited.signal == "SIGKILL":
        return f"{worker} was killed by SIGKILL; the kernel does that when host memory runs out"
    if exited.signal is not None:
        end = f"{worker} was killed by {exited.signal}"
    elif exited.exit_code is not None:
        end = f"{worker} exited with code {exited.exit_code}"
    else:
        end = f"{worker} closed its connection and could not be killed"
    last_line = last_words(exited.stderr_tail or "")
    return f"{end}: {last_line}" if last_line else end


_CRASH_REPORT = re.compile(
    r"Fatal Python error|(Current )?[Tt]hread 0x|  File \"|  Binary file|  <|Extension modules:|Current thread's C"
    r"|Exception raised from |frame #\d+: "
)
"""Lines that Python's faulthandler and PyTorch's C++ write of where a process ended, after they have said why."""

_CPP_REASON = "  what():"
"""Begins the message of a C++ exception that nothing caught, which may have further lines of advice."""

_WATCHDOG = re.compile(r"\[Rank (\d+)\].*?Watchdog caught collective operation timeout: (.*)")


def last_words(stderr: str) -> str | None:
    """Return the line of a worker's output that says why it ended: not the report of where each thread was."""
    lines = [line for line in stderr.splitlines() if line.strip() and not _CRASH_REPORT.match(line)]
    reasons = [line.removeprefix(_CPP_REASON) for line in lines if line.startswith(_CPP_REASON)]
    return (reasons or lines)[-1].strip() if lines else None


def _hanging_collective(exited: WorkerExited) -> str | None:
    """Return what PyTorch's watchdog said of a collective that did not end, if that is why the worker was aborted."""
    found = _WATCHDOG.search(exited.stderr_tail or "") if exited.signal == "SIGABRT" else None
    return f"rank {found[1]}: a collective did not end: {found[2]}" if found else None


def simulate_aside(cell: RunCell, launcher: Launcher | None = None) -> Sequence[Event]:
    """Return the events of a simulated cell that is no part of a run, while a worker starts for the run that follows.

    It runs in the worker that `list_devices` has set aside, which does not measure afterwards. Raises SysbenchError if
    no worker can be started, KeyboardInterrupt on Ctrl-C.
    """
    options, launcher = RunOptions(), launcher or Launcher()

    def placement(ready: WorkerReady) -> Sequence[PlacedCell]:
        launch_ahead(launcher)
        return place([cell], ready.devices)

    with closing(Sampler()) as sampler, catch_interrupts() as interrupts:
        admission = Admission(options, sampler.free_bytes)
        supervisor = Supervisor(launcher, sampler, admission, interrupts, options.timeout_s, shares_worker=True)
        try:
            return list(supervisor.run(placement))
        except StoppedByUserError:
            raise KeyboardInterrupt from None
        finally:
            supervisor.stop()


def list_devices(launcher: Launcher | None = None) -> Sequence[DeviceInfo]:
    """List the devices of this machine, beginning with the one that `auto` selects; takes as long as importing torch.

    Only the answer of a worker is reliable: a GPU may be present without a driver, or with a torch for another device.
    The worker is set aside for the next run. Raises SysbenchError if none can be started, KeyboardInterrupt on Ctrl-C.
    """
    options = RunOptions()
    with closing(Sampler()) as sampler, catch_interrupts() as interrupts:
        admission = Admission(options, sampler.free_bytes)
        supervisor = Supervisor(launcher or Launcher(), sampler, admission, interrupts, options.timeout_s)
        try:
            return supervisor.devices()
        except StoppedByUserError:
            raise KeyboardInterrupt from None
        finally:
            supervisor.stop()
