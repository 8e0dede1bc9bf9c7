"""Rank 0's side: connections to all other ranks, and to the workers that they run.

Commands and events are JSON, validated against a class, never pickled. The two ends authenticate each other with
SYSBENCH_KEY. Without a key, anyone who can reach the port can connect, as with torch's own rendezvous; but a rank runs
only cells of its own command line.
"""

from __future__ import annotations

import errno
import select
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

from pydantic import ValidationError

from sysbench.engine import protocol
from sysbench.engine.interrupts import catch_interrupts, request_stop
from sysbench.engine.process import (
    KILL_TIMEOUT_S,
    TERMINATION_TIMEOUT_S,
    InvalidMessageError,
    WorkerGoneError,
    reads_limited,
)
from sysbench.errors import SysbenchError, UsageError
from sysbench.log.events import Event, WorkerExited, WorkerReady, decode
from sysbench.spec.frozen import Frozen
from sysbench.spec.quantities import Size

FIRST_PORT = 29_500

HIGHEST_PORT = 65_535


@dataclass(frozen=True)
class LaunchedRank:
    """One of several processes that a launcher has started together."""

    rank: int
    ranks: int
    local_rank: int
    """Number of the rank on its node, which is the index of its GPU."""
    address: str
    port: int
    key: bytes
    on_one_node: bool = False


def launched_rank(environment: Mapping[str, str]) -> LaunchedRank | None:
    """Return the rank of this process and the address of rank 0; None if the process was started alone.

    torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; an srun step sets SLURM_ variables. The
    engine listens on SYSBENCH_PORT, by default MASTER_PORT + 1, because torchrun's own rendezvous uses MASTER_PORT.
    Raises UsageError if a variable is invalid.
    """
    if "RANK" in environment:
        rank, ranks, local_rank = "RANK", "WORLD_SIZE", "LOCAL_RANK"
    else:
        rank, ranks, local_rank = "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"
    if rank not in environment or ranks not in environment:
        return None
    count = _number(environment, ranks, 1, 1)
    if count == 1:
        return None
    address = environment.get("MASTER_ADDR") or _first_host(environment)
    if not address:
        raise UsageError(f"{rank} and {ranks} indicate several ranks; set MASTER_ADDR to the address of rank 0")
    port = _number(environment, "MASTER_PORT", FIRST_PORT, 1, HIGHEST_PORT) + 1
    return LaunchedRank(
        rank=_number(environment, rank, 0, 0, count - 1),
        ranks=count,
        local_rank=_number(environment, local_rank, 0, 0),
        address=address,
        port=_number(environment, "SYSBENCH_PORT", min(port, HIGHEST_PORT), 1, HIGHEST_PORT),
        key=environment.get("SYSBENCH_KEY", "").encode(),
        on_one_node=environment.get("LOCAL_WORLD_SIZE") == str(count) or environment.get("SLURM_STEP_NUM_NODES") == "1",
    )


_MAX_DIGITS = 9


def _number(environment: Mapping[str, str], name: str, default: int, least: int, most: int | None = None) -> int:
    text = environment.get(name) or str(default)
    if not text.isdecimal() or len(text) > _MAX_DIGITS or int(text) < least or (most is not None and int(text) > most):
        allowed = f"{least} to {most}" if most is not None else f"{least} or more"
        raise UsageError(f"{name}={text} is not a number that a launcher sets: it must be {allowed}")
    return int(text)


def _first_host(environment: Mapping[str, str]) -> str:
    nodes = environment.get("SLURM_STEP_NODELIST")
    if not nodes:
        return ""
    try:
        told = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return next(iter(told.stdout.split()), "")


class Hello(Frozen):
    """Message with which a rank introduces itself to rank 0."""

    rank: Size
    ranks: Size
    host: str
    version: str
    digest: str
    spec: str


LAUNCH, CLOSE, DISMISS, FOR_THE_WORKER = b"l", b"c", b"d", b"w"
"""First byte of a message from the engine. A rank is to start a worker; to end it, by force after the seconds that
follow, and to answer with a WorkerExited; to exit, because the run is over; or to forward a command to its worker."""

STOPPED = b"s"
"""The last message of a rank that its user has stopped; all its other messages are events."""


def connected(taken: socket.socket) -> Connection:
    """Convert a connected socket to a message connection."""
    taken.setblocking(True)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(taken.detach())


GATHERING_S = 60.0
"""Longest wait for the other ranks: they import what rank 0 imports, on machines that may be slower."""

_POLL_S = 0.2


class RankConnections:
    """Rank 0's connections to all other ranks."""

    def __init__(self, own: LaunchedRank, connections: dict[int, Connection], hosts: dict[int, str]) -> None:
        self._own = own
        self._connections = connections
        self._hosts = hosts

    @property
    def ranks(self) -> int:
        """Number of ranks, including rank 0."""
        return self._own.ranks

    @property
    def on_one_node(self) -> bool:
        """Whether all ranks are on one node, so that rank 0 could start all workers itself."""
        return self._own.on_one_node

    def worker(self, rank: int) -> RemoteWorker:
        """Make a rank start a worker, and return the worker; raises SysbenchError if the rank has disconnected."""
        return RemoteWorker(self._connections[rank], f"rank {rank} on {self._hosts[rank]}")

    def meeting_point(self) -> str:
        """Return an address where the workers of a cell can rendezvous: a free port on rank 0's node."""
        with socket.create_server((self._own.address, 0)) as free:
            port = free.getsockname()[1]
        return f"tcp://{f'[{self._own.address}]' if ':' in self._own.address else self._own.address}:{port}"


@contextmanager
def connect_ranks(own: LaunchedRank, hello: Hello, timeout_s: float) -> Iterator[RankConnections]:
    """Wait until all other ranks have connected; dismiss them at the end of the context."""
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
        yield RankConnections(own, connections, hosts)


def _listening(own: LaunchedRank) -> socket.socket:
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
    taken: socket.socket, own: LaunchedRank, hello: Hello, connections: dict[int, Connection], hosts: dict[int, str]
) -> None:
    """Accept a rank; ignore a client that is not a rank."""
    connection = connected(taken)
    try:
        with reads_limited(connection):
            deliver_challenge(connection, own.key)
            answer_challenge(connection, own.key)
            theirs = Hello.model_validate_json(connection.recv_bytes(protocol.MESSAGE_LIMIT_BYTES))
    except (AuthenticationError, EOFError, OSError, ValidationError):
        connection.close()
        return
    refused = _objection(hello, theirs)
    if refused is None and theirs.rank in connections:
        refused = f"rank {theirs.rank} was started twice, on {hosts[theirs.rank]} and on {theirs.host}"
    connection.send_bytes((refused or "").encode())
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
            connection.send_bytes(DISMISS)
            connection.close()


class RemoteWorker:
    """A worker on another rank, reached through that rank; same interface as `engine.process.WorkerProcess`."""

    ranks = 1
    name = "the worker"
    pids: tuple[int, ...] = ()
    """Empty: the processes are on another machine, so their memory is not sampled."""
    sentinel = None

    def __init__(self, connection: Connection, who: str) -> None:
        """Make the rank start a worker; raises SysbenchError if the rank has disconnected."""
        self._connection = connection
        self._exited: WorkerExited | None = None
        self._lost = False
        self.connected = False
        self.pid = 0
        self.torch: str | None = None
        try:
            connection.send_bytes(LAUNCH)
        except OSError as error:
            raise SysbenchError(f"{who} disconnected: {(error.strerror or str(error)).lower()}") from error

    @property
    def source(self) -> int:
        """File descriptor that becomes readable when a message has arrived."""
        return self._connection.fileno()

    @property
    def alive(self) -> bool:
        """Whether the rank is connected and has not reported the end of the worker."""
        return self._exited is None and not self._lost

    def receive(self) -> Event | None:
        """Return the next event."""
        try:
            message = self._connection.recv_bytes(protocol.MESSAGE_LIMIT_BYTES)
        except (EOFError, OSError) as error:
            self._lost = True
            raise WorkerGoneError from error
        if message == STOPPED:
            self._lost = True
            request_stop()
            raise WorkerGoneError
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
        """Send a command to the worker; raises WorkerGoneError if its rank has disconnected."""
        try:
            self._connection.send_bytes(FOR_THE_WORKER + protocol.encode(command))
        except OSError as error:
            raise WorkerGoneError from error

    def end(self, patience_s: float) -> WorkerExited:
        """Stop the worker, and return its exit status; `lost` is set if the rank does not respond in time."""
        if self.alive:
            with suppress(OSError):
                self._connection.send_bytes(CLOSE + str(patience_s).encode())
        deadline_s = time.monotonic() + patience_s + TERMINATION_TIMEOUT_S + KILL_TIMEOUT_S
        while self.alive and time.monotonic() < deadline_s:
            if select.select([self.source], [], [], _POLL_S)[0]:
                with suppress(WorkerGoneError, InvalidMessageError):
                    self.receive()
        return self._exited or WorkerExited(at_s=time.time(), pid=self.pid, exit_code=None, signal=None, lost=True)
