"""Rank 0's side: the connections to all other ranks, and the workers that they run."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

from pydantic import ValidationError

from sysbench.engine import protocol
from sysbench.engine.interrupts import catch_interrupts
from sysbench.engine.nodes.launched import Launched
from sysbench.engine.nodes.wire import (
    FOR_THE_RANK,
    FOR_THE_WORKER,
    ORDER,
    Close,
    Dismiss,
    Hello,
    Launch,
    Order,
    Welcome,
    connected,
    limited,
)
from sysbench.engine.process import KILL_TIMEOUT_S, TERMINATION_TIMEOUT_S, InvalidMessageError, WorkerGoneError
from sysbench.errors import SysbenchError, UsageError
from sysbench.log.events import Event, WorkerExited, WorkerReady, decode

GATHERING_S = 60.0
"""Longest wait for the other ranks: they import what rank 0 imports, on machines that may be slower."""

_POLL_S = 0.2


class Links:
    """Connections to all other ranks, by rank."""

    def __init__(self, own: Launched, connections: dict[int, Connection], hosts: dict[int, str]) -> None:
        self._own = own
        self._connections = connections
        self._hosts = hosts

    @property
    def ranks(self) -> int:
        """Number of processes that were started, including rank 0."""
        return self._own.ranks

    @property
    def on_one_node(self) -> bool:
        """Whether rank 0 could start the workers of all ranks itself."""
        return self._own.on_one_node

    def worker(self, rank: int) -> RemoteWorker:
        """Make a rank start a worker; raises SysbenchError if the rank is gone."""
        return RemoteWorker(self._connections[rank], f"rank {rank} on {self._hosts[rank]}")

    def meeting_point(self) -> str:
        """Return where the workers of a cell can rendezvous: a port on rank 0's node that is free now."""
        with socket.create_server((self._own.address, 0)) as free:
            port = free.getsockname()[1]
        return f"tcp://{f'[{self._own.address}]' if ':' in self._own.address else self._own.address}:{port}"


@contextmanager
def gathered(own: Launched, hello: Hello, timeout_s: float) -> Iterator[Links]:
    """Wait for all other ranks, and dismiss them at the end.

    `hello` describes this process: the others must agree with it. Raises UsageError for a port in use and for a rank
    with different code or a different command line, and SysbenchError for a rank that does not connect.
    """
    with ExitStack() as closing:
        listener = closing.enter_context(_listening(own))
        connections: dict[int, Connection] = {}
        closing.callback(_dismissed, connections)
        hosts: dict[int, str] = {}
        deadline_s = time.monotonic() + min(GATHERING_S, timeout_s)
        with catch_interrupts() as interrupts:
            while missing := sorted({*range(1, own.ranks)} - connections.keys()):
                if interrupts.requested:
                    raise KeyboardInterrupt
                if time.monotonic() > deadline_s:
                    which = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing[:8]))}"
                    more = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
                    raise SysbenchError(
                        f"{which}{more} did not connect to {own.address} port {own.port} within "
                        f"{min(GATHERING_S, timeout_s):g} s: start every rank with this command line"
                    )
                if not select.select([listener.fileno(), interrupts.fileno()], [], [], _POLL_S)[0]:
                    continue
                with suppress(BlockingIOError):
                    _admit(listener.accept()[0], own, hello, connections, hosts)
        yield Links(own, connections, hosts)


def _listening(own: Launched) -> socket.socket:
    try:
        listener = socket.create_server((own.address, own.port), backlog=own.ranks)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"port {own.port} of {own.address} is in use: set SYSBENCH_PORT to another port for all ranks"
            ) from None
        raise UsageError(
            f"MASTER_ADDR={own.address} is not an address of this machine, on which rank 0 was started: "
            f"{(error.strerror or str(error)).partition(' (')[0].lower()}"
        ) from None
    listener.setblocking(False)
    return listener


def _admit(
    taken: socket.socket, own: Launched, hello: Hello, connections: dict[int, Connection], hosts: dict[int, str]
) -> None:
    """Accept a rank, or reject it with the reason; ignore a client that is not a rank."""
    connection = connected(taken)
    try:
        with limited(connection):
            deliver_challenge(connection, own.key)
            answer_challenge(connection, own.key)
            theirs = Hello.model_validate_json(connection.recv_bytes(protocol.MESSAGE_LIMIT_BYTES))
    except (AuthenticationError, EOFError, OSError, ValidationError):
        connection.close()
        return
    refused = _objection(hello, theirs)
    if refused is None and theirs.rank in connections:
        refused = f"rank {theirs.rank} was started twice, on {hosts[theirs.rank]} and on {theirs.host}"
    connection.send_bytes(Welcome(refused=refused).model_dump_json().encode())
    if refused is not None:
        connection.close()
        raise UsageError(refused)
    connections[theirs.rank], hosts[theirs.rank] = connection, theirs.host


def _objection(ours: Hello, theirs: Hello) -> str | None:
    who = f"rank {theirs.rank} on {theirs.host}"
    if theirs.version != ours.version:
        return f"{who} runs sysbench {theirs.version}, but rank 0 runs {ours.version}: install one version for all"
    if theirs.digest != ours.digest:
        return f"{who} runs different code of sysbench {ours.version} from rank 0: install one version for all"
    if theirs.ranks != ours.ranks or theirs.rank >= ours.ranks:
        return f"{who} is one of {theirs.ranks} ranks, but rank 0 is one of {ours.ranks}"
    if theirs.spec != ours.spec:
        return f"{who} was started with different options from rank 0: give all ranks the same command line"
    return None


def _dismissed(connections: dict[int, Connection]) -> None:
    for connection in connections.values():
        with suppress(OSError):
            _order(connection, Dismiss())
            connection.close()


def _order(connection: Connection, order: Order) -> None:
    connection.send_bytes(FOR_THE_RANK + ORDER.dump_json(order))


class RemoteWorker:
    """A worker on another rank, which runs it and forwards its messages; see `engine.process.WorkerProcess`."""

    ranks = 1
    name = "the worker"
    pids: tuple[int, ...] = ()
    """Return no process ids: they are on another machine, so its memory is not sampled."""
    sentinel = None

    def __init__(self, connection: Connection, who: str) -> None:
        """Make the rank start it; raises SysbenchError if the rank is gone."""
        self._connection = connection
        self._exited: WorkerExited | None = None
        self._lost = False
        self.connected = False
        """Whether it has reported that it is ready."""
        self.pid = 0
        self.torch: str | None = None
        """The worker's version of torch, once it is ready."""
        try:
            _order(connection, Launch())
        except OSError as error:
            raise SysbenchError(f"{who} disconnected: {(error.strerror or str(error)).lower()}") from error

    @property
    def source(self) -> int:
        """Descriptor that becomes readable when there is something to receive."""
        return self._connection.fileno()

    @property
    def alive(self) -> bool:
        """Whether its end has not been reported."""
        return self._exited is None and not self._lost

    def receive(self) -> Event | None:
        """Return the received event; raises WorkerGoneError and InvalidMessageError."""
        try:
            message = self._connection.recv_bytes(protocol.MESSAGE_LIMIT_BYTES)
        except (EOFError, OSError) as error:
            self._lost = True
            raise WorkerGoneError from error
        try:
            event = decode(message)
        except ValueError as error:
            raise InvalidMessageError(repr(message[:60])) from error
        if isinstance(event, WorkerExited):
            self._exited = event
            raise WorkerGoneError
        if isinstance(event, WorkerReady):
            self.connected, self.pid, self.torch = True, event.pid, event.torch.torch
        return event

    def send(self, command: protocol.Command) -> None:
        """Send a command; raises WorkerGoneError."""
        try:
            self._connection.send_bytes(FOR_THE_WORKER + protocol.encode(command))
        except OSError as error:
            raise WorkerGoneError from error

    def end(self, patience_s: float) -> WorkerExited:
        """Stop it, and return how it ended; a rank that does not respond is given up."""
        self.close(patience_s)
        return self._exited or WorkerExited(at_s=time.time(), pid=self.pid, exit_code=None, signal=None, lost=True)

    def close(self, patience_s: float) -> None:
        """Stop it, and ignore its remaining messages."""
        if not self.alive:
            return
        with suppress(OSError):
            _order(self._connection, Close(patience_s=patience_s))
        deadline_s = time.monotonic() + patience_s + TERMINATION_TIMEOUT_S + KILL_TIMEOUT_S
        while self.alive and time.monotonic() < deadline_s:
            if select.select([self.source], [], [], _POLL_S)[0]:
                with suppress(WorkerGoneError, InvalidMessageError):
                    self.receive()
