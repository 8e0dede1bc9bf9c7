"""One worker process, from launch to end: its messages, its state, and its exit."""

from __future__ import annotations

import math
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sysbench import bootstrap
from sysbench.engine.interrupts import catch_interrupts, signal_name
from sysbench.errors import SysbenchError
from sysbench.log.storage import ScratchDirectory, reason

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from sysbench.engine import protocol
    from sysbench.log.events import Event, WorkerExited, WorkerReady

# Launching must be fast, because the first worker starts before anything else: other imports are local.

POLL_S = 0.2

TERMINATION_TIMEOUT_S = 2.0
"""Time that a process has to react to SIGTERM before SIGKILL."""

KILL_TIMEOUT_S = 10.0
"""Longest wait for a killed process to end: a process that hangs in a driver may never end, but the run must."""

TAIL_BYTES = 16_384

HANDSHAKE_S = 5.0
"""Maximum time that a client may be silent while it introduces itself, because everything else has to wait."""

_MAX_DIRECTORY_BYTES = 74
"""Longest temporary directory for a socket: its path is 29 bytes longer, and at most 103 on macOS and 107 on Linux."""


class WorkerGoneError(Exception):
    """The worker has closed its end of the connection; nothing more will arrive."""


class InvalidMessageError(Exception):
    """The worker sent something that is not an event."""


@dataclass
class Launcher:
    """Command line and environment of a worker, which runs with the Python and the sysbench of this process.

    The launched process must be the worker, or start one worker that inherits its environment, and must end when the
    worker ends.
    """

    prefix: tuple[str, ...] = ()
    """Words before the worker's command: `("nsys", "profile", "-t", "cuda,nvtx")`."""
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def wraps(self) -> bool:
        """Whether another program, such as a profiler, wraps the worker; the worker is then asked to exit cleanly."""
        return bool(self.prefix)

    def command(self) -> list[str]:
        """Return the program and its arguments."""
        return [*self.prefix, *bootstrap.command("sysbench.worker")]

    def environment(self) -> dict[str, str]:
        """Return the complete environment; the engine adds the address at which it listens."""
        return {**bootstrap.environment(), **self.variables}


_idle_workers: list[WorkerProcess] = []
"""Workers that were launched ahead or set aside, and are not in use yet."""


@contextmanager
def unused_workers_ended() -> Iterator[None]:
    """Context manager that ends the workers that were set aside in it and found no use."""
    try:
        yield
    finally:
        while _idle_workers:
            _idle_workers.pop().end(0)


@contextmanager
def prelaunched(launcher: Launcher) -> Iterator[None]:
    """Launch a worker, which imports torch, for the first call of `get_worker` in this context.

    If the launch fails, nothing is raised here, because the call that needs a worker will report the failure.
    """
    with unused_workers_ended():
        # A signal must not interrupt this: a process that is not in the list yet would never be ended.
        with suppress(SysbenchError), catch_interrupts() as interrupts:
            _idle_workers.append(WorkerProcess(launcher))
        if interrupts.requested:
            raise KeyboardInterrupt
        yield


def get_worker(launcher: Launcher, *, simulates: bool = False) -> WorkerProcess:
    """Return the worker that was launched ahead with the same command line, or a new one; raises SysbenchError."""
    while _idle_workers and _idle_workers[-1].command == launcher.command():
        worker = _idle_workers.pop()
        if simulates or not worker.has_simulated:
            return worker
        worker.end(0)
    return WorkerProcess(launcher)


def launch_ahead(launcher: Launcher) -> None:
    """Launch a worker for a later call of `get_worker`; must be called within `unused_workers_ended`."""
    _idle_workers.insert(0, WorkerProcess(launcher))


def keep_for_reuse(worker: WorkerProcess) -> None:
    """Keep a worker for the next call of `get_worker`; `unused_workers_ended` ends it if there is no such call."""
    _idle_workers.append(worker)


class WorkerProcess:
    """A worker process in its own session, so that Ctrl-C in the terminal does not reach it."""

    def __init__(self, launcher: Launcher) -> None:
        """Launch the worker, which connects later; raises SysbenchError if the launch fails."""
        self.command = launcher.command()
        self.ready: WorkerReady | None = None
        self.has_simulated = False
        self._key = os.urandom(32)
        self._connection: Connection | None = None
        with ExitStack() as resources:
            # The worker connects through a socket in a private directory, which is removed as soon as it has connected.
            self._socket_resources = resources.enter_context(ExitStack())
            try:
                address, self._listener = _listen(self._socket_resources)
                self._output = resources.enter_context(tempfile.TemporaryFile())
            except OSError as error:
                raise SysbenchError(f"cannot make temporary files for a worker: {reason(error)}") from error
            self._process = self._launch(launcher.environment(), address)
            self.sentinel = _open_sentinel(self._process.pid, resources)
            """Descriptor that is readable when the process has ended; None on systems without such a descriptor."""
            self._resources = resources.pop_all()
        self.source = self._listener.fileno()
        """Descriptor that is readable when there is something to receive."""
        self._poll = select.poll()  # kept, not created for each wait, because steps may arrive by the thousand
        for descriptor in (self.source, self.sentinel):
            if descriptor is not None:
                self._poll.register(descriptor, select.POLLIN)

    def _launch(self, environment: dict[str, str], address: Path) -> subprocess.Popen[bytes]:
        connection_variables = {bootstrap.ADDRESS_VARIABLE: str(address), bootstrap.KEY_VARIABLE: self._key.hex()}
        try:
            return subprocess.Popen(
                self.command,
                env={**environment, **connection_variables},
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,
            )
        except OSError as error:
            cause = "program not found" if isinstance(error, FileNotFoundError) else reason(error)
            raise SysbenchError(f"cannot start {self.command[0]}: {cause}") from error

    ranks = 1

    name = "the worker"

    @property
    def pid(self) -> int:
        """Process id of the launched process: the worker, or the program that wraps it."""
        return self._process.pid

    @property
    def pids(self) -> tuple[int, ...]:
        """Ids of the launched processes: only `pid`."""
        return (self.pid,)

    @property
    def torch(self) -> str | None:
        """The worker's version of torch; None until the worker is ready."""
        return self.ready.torch.torch if self.ready is not None else None

    @property
    def connected(self) -> bool:
        """Whether the worker has connected."""
        return self._connection is not None

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return not self._ended(0)

    def wait(self, also: int, timeout_s: float) -> bool:
        """Wait until there is something to receive, and return whether there is."""
        self._poll.register(also, select.POLLIN)
        patience_s = timeout_s if self.sentinel is not None else min(timeout_s, POLL_S)
        return self.source in (ready for ready, _ in self._poll.poll(math.ceil(patience_s * 1000)))

    def receive(self) -> Event | None:
        """Return the received event; None if the worker has just connected."""

        from sysbench.engine.protocol import MESSAGE_LIMIT_BYTES
        from sysbench.log.events import WorkerReady, decode

        if self._connection is None:
            self._accept()
            return None
        try:
            message = self._connection.recv_bytes(MESSAGE_LIMIT_BYTES)
        except (EOFError, ConnectionError) as error:
            raise WorkerGoneError from error
        except OSError as error:
            raise InvalidMessageError("a message that is too long") from error
        try:
            event = decode(message)
        except ValueError as error:
            raise InvalidMessageError(repr(message[:60])) from error
        if type(event) is WorkerReady:
            self.ready = event
        return event

    def send(self, command: protocol.Command) -> None:
        """Send a command; raises WorkerGoneError if the worker is not connected."""
        from sysbench.engine import protocol

        if self._connection is None:
            raise WorkerGoneError
        try:
            self._connection.send_bytes(protocol.encode(command))
        except OSError as error:
            raise WorkerGoneError from error

    def end(self, patience_s: float) -> WorkerExited:
        """Wait up to `patience_s` for the process to end, kill it if necessary, and return its WorkerExited event."""
        from sysbench.log.events import WorkerExited

        if not self._ended(patience_s):
            self._signal(signal.SIGTERM)
            self._ended(TERMINATION_TIMEOUT_S)
        # Kill the whole process group, including compilers that the worker may have started. Until the process is
        # reaped below, its id, and with it the id of the group, cannot be reused.
        self._signal(signal.SIGKILL)
        self._ended(KILL_TIMEOUT_S)
        code = self._process.poll()
        output_bytes = os.fstat(self._output.fileno()).st_size
        tail = os.pread(self._output.fileno(), TAIL_BYTES, max(0, output_bytes - TAIL_BYTES))
        if self._connection is not None:
            self._connection.close()
        self._resources.close()
        return WorkerExited(
            at_s=time.time(),
            pid=self.pid,
            exit_code=code if code is not None and code >= 0 else None,
            signal=signal_name(-code) if code is not None and code < 0 else None,
            stderr_tail=tail.decode(errors="replace").strip() or None,
        )

    def _accept(self) -> None:
        from multiprocessing import AuthenticationError
        from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

        accepted, _ = self._listener.accept()
        connection = Connection(accepted.detach())
        try:
            with reads_limited(connection):
                deliver_challenge(connection, self._key)
                answer_challenge(connection, self._key)
        except (AuthenticationError, EOFError, OSError):
            connection.close()
            return
        self._poll.unregister(self.source)
        self._socket_resources.close()
        self._connection, self.source = connection, connection.fileno()
        self._poll.register(self.source, select.POLLIN)

    def _ended(self, timeout_s: float) -> bool:
        if self.sentinel is not None:
            readable, _, _ = select.select([self.sentinel], [], [], timeout_s)
            return bool(readable)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self._process.returncode is not None

    def _signal(self, number: signal.Signals) -> None:
        # macOS raises PermissionError for a group of which only dead processes are left.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)


@contextmanager
def reads_limited(connection: Connection, duration_s: float | None = None) -> Iterator[None]:
    """Set a timeout for every read from a connection in this context; a read that takes longer raises OSError.

    Default: `HANDSHAKE_S`.
    """
    duration_s = HANDSHAKE_S if duration_s is None else duration_s
    limit = struct.pack("ll", int(duration_s), int(duration_s % 1 * 1e6))
    # A Connection has no timeout of its own; its duplicated descriptor refers to the same socket.
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        yield
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))


def _listen(resources: ExitStack) -> tuple[Path, socket.socket]:
    short = len(os.fsencode(tempfile.gettempdir())) <= _MAX_DIRECTORY_BYTES
    directory = ScratchDirectory(dir=None if short else "/tmp")
    address = Path(resources.enter_context(directory)) / "engine"
    listener = resources.enter_context(socket.socket(socket.AF_UNIX))
    listener.bind(str(address))
    listener.listen(1)
    return address, listener


def _open_sentinel(pid: int, resources: ExitStack) -> int | None:
    if sys.platform != "linux":
        return None
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    resources.callback(os.close, descriptor)
    return descriptor
