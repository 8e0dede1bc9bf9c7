"""The workers of one cell's ranks, which the engine treats as one worker."""

from __future__ import annotations

import select
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from sysbench.engine import protocol
from sysbench.engine.plan import device_of_rank
from sysbench.engine.process import POLL_S, Launcher, WorkerGoneError, WorkerProcess
from sysbench.errors import SysbenchError
from sysbench.log.events import CellFinished, DeviceInfo, Event, OfRank, WorkerExited, WorkerReady
from sysbench.log.file_names import path_of_rank
from sysbench.log.outcomes import Outcome
from sysbench.log.storage import ScratchDirectory

if TYPE_CHECKING:
    from sysbench.engine.rendezvous.rank_zero import RankConnections, RemoteWorker

OTHER_RANKS_TIMEOUT_S = 1.0
"""Time to wait for reports from the other ranks after one has failed: the first to report may have failed because of
another."""

COLLECTIVE_TIMEOUT_SHARE = 0.7
"""Timeout of collective operations, as a share of --timeout. Because it is shorter than the engine's own, the waiting
ranks report it first, which identifies the ranks that did not join.
"""


_CAUSE_ORDER: Mapping[Outcome, int] = {"oom": 0, "timeout": 2}
"""Sort key of outcomes, from cause to consequence, default 1. Running out of memory is never the consequence of another
rank's failure; a timeout usually is."""


class Team:
    """One worker for each rank of a cell, each with its own connection.

    Commands to a team go to every rank. Events of rank 0 arrive like events of a single worker, events of the other
    ranks as `OfRank`. A cell is finished when every rank has finished it, or when one rank has failed.
    """

    def __init__(
        self,
        first: WorkerProcess,
        launcher: Launcher,
        ranks: int,
        timeout_s: float,
        links: RankConnections | None = None,
    ) -> None:
        """Launch workers for all ranks except rank 0, which is `first`; raises SysbenchError if a launch fails."""
        self._workers: list[WorkerProcess | RemoteWorker] = [first]
        self._links = links
        self._timeout_s = timeout_s
        self._folder = ScratchDirectory(ignore_cleanup_errors=True)
        self._cells = 0
        self._devices: Sequence[DeviceInfo] = ()
        self._finished: dict[int, CellFinished] = {}
        self._event_counts = [0] * ranks
        self._ready_rank = 0
        self._disconnected: int | None = None
        try:
            while len(self._workers) < ranks:
                self._workers.append(links.worker(len(self._workers)) if links else WorkerProcess(launcher))
        except SysbenchError:
            self._end_all_but(first)
            raise
        self._unready = {rank for rank, worker in enumerate(self._workers) if not worker.connected}

    @property
    def ranks(self) -> int:
        """Number of workers."""
        return len(self._workers)

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of the processes on this machine, by rank."""
        return tuple(pid for worker in self._workers for pid in worker.pids)

    @property
    def alive(self) -> bool:
        """Whether all processes are running."""
        return all(worker.alive for worker in self._workers)

    @property
    def name(self) -> str:
        """Names of the ranks that have sent the fewest events, for use in messages."""
        fewest = min(self._event_counts)
        return _rank_names([rank for rank, count in enumerate(self._event_counts) if count == fewest])

    def wait(self, also: int | None, timeout_s: float) -> bool:
        """Wait until a message from any rank can be received; see `WorkerProcess.wait`."""
        poll = select.poll()
        rank_by_descriptor = {}
        for rank, worker in enumerate(self._workers):
            rank_by_descriptor[worker.source] = rank
            poll.register(worker.source, select.POLLIN)
            if worker.sentinel is not None:
                poll.register(worker.sentinel, select.POLLIN)
            else:
                timeout_s = min(timeout_s, POLL_S)
        if also is not None:
            poll.register(also, select.POLLIN)
        readable = [descriptor for descriptor, _ in poll.poll(timeout_s * 1000)]
        ready_ranks = [rank_by_descriptor[descriptor] for descriptor in readable if descriptor in rank_by_descriptor]
        if ready_ranks:
            self._ready_rank = min(ready_ranks, key=lambda rank: self._event_counts[rank])
        return bool(ready_ranks)

    def receive(self) -> Event | None:
        """Receive one event; return the team's event that results from it, or None."""
        rank = self._ready_rank
        match event := self._receive_event():
            case WorkerReady():
                if rank == 0 or self._links is None:
                    self._devices = event.devices
                self._check_torch_version(rank)
                self._unready.discard(rank)
                return None if self._unready else event
            case CellFinished():
                self._finished[rank] = event
                if event.outcome != "ok":
                    self._wait_for_other_ranks()
                    return self._combined_outcome()
                return self._combined_outcome() if len(self._finished) == self.ranks else None
        cell = getattr(event, "cell", None)
        if event is None or cell is None or rank == 0:
            return event
        return OfRank(at_s=event.at_s, cell=cell, rank=rank, said=event)

    def send(self, command: protocol.Command) -> None:
        """Send a command to every rank; raises WorkerGoneError if a rank is gone."""
        self._finished = {}
        self._event_counts = [0] * self.ranks
        self._cells += 1
        file = Path(self._folder.name) / str(self._cells)
        store = self._links.meeting_point() if self._links else file.as_uri()
        for number, worker in enumerate(self._workers):
            if isinstance(command, protocol.Measure):
                rank = protocol.Rank(
                    number=number,
                    store=store,
                    patience_s=COLLECTIVE_TIMEOUT_SHARE * self._timeout_s,
                )
                device = command.device if self._links else device_of_rank(number, command.device, self._devices)
                artifact = path_of_rank(command.artifact, number) if command.artifact is not None else None
                worker.send(command.model_copy(update={"rank": rank, "device": device, "artifact": artifact}))
            else:
                worker.send(command)

    def end(self, patience_s: float) -> WorkerExited:
        """End all processes; return the WorkerExited event of the rank that disconnected or died, or else of rank 0."""
        ended = self._disconnected
        if ended is None:
            ended = next((rank for rank, worker in enumerate(self._workers) if not worker.alive), 0)
        exited = self._workers[ended].end(patience_s)
        self._end_all_but(self._workers[ended])
        return exited.model_copy(update={"rank": ended})

    def _check_torch_version(self, rank: int) -> None:
        first, here = self._workers[0].torch, self._workers[rank].torch
        if first is not None and here != first:
            raise SysbenchError(
                f"rank {rank} has torch {here}, but rank 0 has torch {first}: install one version for all"
            )

    def _end_all_but(self, excepted: WorkerProcess | RemoteWorker) -> None:
        for worker in self._workers:
            if worker is not excepted:
                worker.end(0)
        self._folder.cleanup()

    def _receive_event(self) -> Event | None:
        try:
            event = self._workers[self._ready_rank].receive()
        except WorkerGoneError:
            self._disconnected = self._ready_rank
            raise
        self._event_counts[self._ready_rank] += event is not None
        return event

    def _wait_for_other_ranks(self) -> None:
        """Receive from unfinished ranks for up to OTHER_RANKS_TIMEOUT_S; raises WorkerGoneError if a rank has died."""
        deadline_s = time.monotonic() + OTHER_RANKS_TIMEOUT_S
        while len(self._finished) < self.ranks and (left_s := deadline_s - time.monotonic()) > 0:
            if self.wait(None, left_s):
                if isinstance(event := self._receive_event(), CellFinished):
                    self._finished[self._ready_rank] = event
            elif not self.alive:
                raise WorkerGoneError

    def _combined_outcome(self) -> CellFinished:
        """Return the CellFinished of rank 0 or, after a failure, of the failed rank that most likely caused it."""
        failed = {rank: event for rank, event in self._finished.items() if event.outcome != "ok"}
        unreported = [rank for rank in range(self.ranks) if rank not in self._finished]
        if not failed:
            return self._finished[0]
        if unreported and all(event.outcome == "timeout" for event in failed.values()):
            rank, traceback = min(failed), None
            others = _rank_names(sorted(failed))
            detail: str | None = f"{_rank_names(unreported)} did not join a collective operation; {others} waited"
            detail = f"{detail} for {COLLECTIVE_TIMEOUT_SHARE * self._timeout_s:g} s (--timeout)"
        else:
            rank = min(failed, key=lambda each: (_CAUSE_ORDER.get(failed[each].outcome, 1), failed[each].at_s))
            detail, traceback = failed[rank].detail, failed[rank].traceback
            if unreported or any(event.detail != detail for event in self._finished.values()):
                detail = f"{_rank_names([rank])}: {detail or failed[rank].outcome}"
        return failed[rank].model_copy(update={"detail": detail, "traceback": traceback})


Worker: TypeAlias = WorkerProcess | Team
"""The worker of a cell, or the team of workers if the cell has several ranks."""


def _rank_names(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
