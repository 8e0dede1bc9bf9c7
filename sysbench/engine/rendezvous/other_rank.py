"""The side of every rank except 0: a worker on this node, and forwarding of messages between it and rank 0's engine."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

from sysbench.engine import protocol
from sysbench.engine.interrupts import catch_interrupts
from sysbench.engine.process import InvalidMessageError, Launcher, WorkerGoneError, WorkerProcess, reads_limited
from sysbench.engine.rendezvous.rank_zero import (
    CLOSE,
    DISMISS,
    FOR_THE_WORKER,
    GATHERING_S,
    LAUNCH,
    STOPPED,
    Hello,
    LaunchedRank,
    connected,
)
from sysbench.errors import SysbenchError, UsageError
from sysbench.log.events import DeviceInfo, WorkerReady, encode
from sysbench.spec.cell import RunCell

GOODBYE_S = 10.0
"""Maximum time that a worker may take to exit after it has closed its connection."""

_RETRY_S = 0.2


def serve(
    own: LaunchedRank, hello: Hello, cells: Mapping[str, RunCell], timeout_s: float, launcher: Launcher | None = None
) -> None:
    """Serve as one rank of a run until rank 0 dismisses this process."""
    patience_s = min(GATHERING_S, timeout_s)
    connection = _connection(own, patience_s)
    try:
        with reads_limited(connection, patience_s):
            answer_challenge(connection, own.key)
            deliver_challenge(connection, own.key)
            connection.send_bytes(hello.model_dump_json().encode())
            refused = connection.recv_bytes(protocol.MESSAGE_LIMIT_BYTES).decode()
    except (AuthenticationError, EOFError, OSError, ValueError) as error:
        raise UsageError(
            f"the process that listens at {own.address} port {own.port} is not rank 0 of this run, or has another "
            "SYSBENCH_KEY"
        ) from error
    if refused:
        raise UsageError(refused)
    relay = _WorkerRelay(connection, own, cells, launcher or Launcher())
    with catch_interrupts() as interrupts:
        try:
            while not interrupts.requested and relay.relay_next():
                pass
            if interrupts.requested:
                with suppress(OSError):
                    connection.send_bytes(STOPPED)
                raise KeyboardInterrupt
        finally:
            relay.close()


def _connection(own: LaunchedRank, patience_s: float) -> Connection:
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            return connected(socket.create_connection((own.address, own.port), timeout=patience_s))
        except socket.gaierror as error:
            raise UsageError(f"MASTER_ADDR={own.address} is not a known host: {error.strerror}") from None
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise UsageError(
                    f"rank 0 does not answer at {own.address} port {own.port} after {patience_s:g} s: "
                    f"{(error.strerror or str(error)).lower()}"
                ) from None
            time.sleep(_RETRY_S)


class _WorkerRelay:
    """One rank: its connection to rank 0, and its worker while there is one."""

    def __init__(
        self, connection: Connection, own: LaunchedRank, cells: Mapping[str, RunCell], launcher: Launcher
    ) -> None:
        self._launcher = launcher
        self._connection = connection
        self._own = own
        self._cells = cells
        self._worker: WorkerProcess | None = None
        self._devices: list[DeviceInfo] = []

    def relay_next(self) -> bool:
        """Wait up to a second for a message from rank 0 or the worker; process it. Return False once dismissed."""
        worker = self._worker
        waiting = [self._connection.fileno()]
        if worker is not None:
            waiting += [worker.source, *([worker.sentinel] if worker.sentinel is not None else [])]
        ready, _, _ = select.select(waiting, [], [], 1.0)
        if worker is not None and worker.source in ready:
            self._forward_event(worker)
        elif worker is not None and not worker.alive:
            self._report_end(0)
        if self._connection.fileno() in ready:
            return self._follow_order()
        return True

    def close(self) -> None:
        if self._worker is not None:
            self._worker.end(0)
        self._connection.close()

    def _forward_event(self, worker: WorkerProcess) -> None:
        try:
            event = worker.receive()
        except (WorkerGoneError, InvalidMessageError):
            self._report_end(GOODBYE_S)
            return
        if isinstance(event, WorkerReady):
            self._devices = event.devices
        if event is not None:
            self._send(encode(event))

    def _report_end(self, patience_s: float) -> None:
        if self._worker is not None:
            exited, self._worker = self._worker.end(patience_s), None
            self._send(encode(exited))

    def _send(self, message: bytes) -> None:
        try:
            self._connection.send_bytes(message)
        except OSError as error:
            raise self._lost_rank_zero() from error

    def _follow_order(self) -> bool:
        try:
            message = self._connection.recv_bytes(protocol.MESSAGE_LIMIT_BYTES)
        except (EOFError, OSError) as error:
            raise self._lost_rank_zero() from error
        order, content = message[:1], message[1:]
        if order == FOR_THE_WORKER and self._worker is not None:
            self._command(self._worker, protocol.decode(content))
        elif order == LAUNCH:
            self._report_end(0)
            self._worker = WorkerProcess(self._launcher)
        elif order == CLOSE:
            self._report_end(float(content))
        elif order not in (FOR_THE_WORKER, DISMISS):
            raise SysbenchError("rank 0 sent a message that is not a command")
        return order != DISMISS

    def _command(self, worker: WorkerProcess, command: protocol.Command) -> None:
        """Forward a command from rank 0 to the worker."""
        if isinstance(command, protocol.Measure):
            cell = self._cells.get(command.cell.key)
            if cell is None:
                raise SysbenchError("rank 0 requested a cell that is not in the command line of this rank")
            command = command.model_copy(update={"cell": cell, "device": self._device(command), "artifact": None})
        elif not isinstance(command, protocol.Exit):
            raise SysbenchError("rank 0 requested an operation that only rank 0 does")
        try:
            worker.send(command)
        except WorkerGoneError:
            self._report_end(GOODBYE_S)

    def _device(self, command: protocol.Measure) -> DeviceInfo:
        alike = [device for device in self._devices if device.type == command.device.type]
        if not alike:
            raise SysbenchError(f"rank {self._own.rank} has no {command.device.type} device, on which rank 0 measures")
        if command.device.type != "cuda" or len(alike) == 1:  # srun may make a single GPU visible to each process
            return alike[0]
        if self._own.local_rank >= len(alike):
            raise SysbenchError(
                f"rank {self._own.rank} has local rank {self._own.local_rank}, but its node has {len(alike)} GPUs"
            )
        return alike[self._own.local_rank]

    def _lost_rank_zero(self) -> SysbenchError:
        return SysbenchError(f"rank 0 at {self._own.address} disconnected")
