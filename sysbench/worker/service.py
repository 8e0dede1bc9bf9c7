"""The worker's side of a run: it receives commands from the engine, runs them, and classifies errors."""

from __future__ import annotations

import gc
import os
import traceback
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from multiprocessing.connection import Client, Connection
from time import time as now  # a model may replace `time.time`

import torch
from pydantic import ValidationError

from sysbench import bootstrap
from sysbench.engine import protocol
from sysbench.errors import (
    BeyondMemoryError,
    OverBudgetError,
    SysbenchError,
    UnavailableError,
    description_of,
)
from sysbench.interpreter import with_roomy_stack
from sysbench.lab import ceiling, strategies
from sysbench.lab import devices as device
from sysbench.lab.memory import allocator
from sysbench.log.events import (
    EVENTS,
    CeilingFailed,
    CellFinished,
    Event,
    WorkerReady,
    encode,
)
from sysbench.log.kinds import load
from sysbench.log.outcomes import REASONS, Outcome, Reason
from sysbench.spec.knobs import allocator_options
from sysbench.spec.model import step_of
from sysbench.spec.validation import first_error
from sysbench.worker import threads

DETAIL_CHARACTERS = 300
TRACEBACK_CHARACTERS = 20_000

_GLOO_TIMEOUT = "Timed out waiting"
"""Phrase in gloo's error when a rank has not joined a collective operation; the error has no class of its own."""

_UNSUPPORTED = (
    "No execution plans support the graph", "No valid execution plans built", "No valid triton configs",
)  # fmt: skip
"""What cuDNN and Triton say of inputs that none of their kernels can compute."""


@with_roomy_stack
def serve(channel: Channel, import_s: float) -> bool:
    """Announce this worker and run commands until Exit or a disconnection; return whether to exit cleanly."""
    try:
        channel.send(
            WorkerReady(
                at_s=now(),
                pid=os.getpid(),
                torch=device.torch_info(import_s),
                devices=device.available_devices(),
            )
        )
        for command in channel.commands():
            match command:
                case protocol.Measure():
                    channel.send(_measure(channel, command))
                    _freeze_modules()
                case protocol.ProbeThreads():
                    channel.send(threads.probe())
                case protocol.MeasureCeiling():
                    channel.send(_measure_ceiling(command))
                case protocol.Exit():
                    return command.orderly
    except EngineGoneError:
        pass
    return False


def _measure(channel: Channel, request: protocol.Measure) -> CellFinished:
    """Measure one cell and send its events; an exception becomes the outcome in CellFinished."""
    outcome: Outcome = "ok"
    reason: Reason | None = None
    detail = trace = expected_s = None
    try:
        device.make_current(request.device)
        with device.using_threads(_threads(request)), _allocator_settings(request), _process_group(request):
            measure: Callable[..., Iterator[Event]] = load(request.package).measure()
            if request.earlier_s:
                measure = partial(measure, earlier_s=request.earlier_s)
            for event in measure(request.cell, request.device, request.artifact):
                channel.send(event)
    except Exception as error:  # noqa: BLE001  A cell of a sweep may raise anything, and the others still count.
        outcome, reason = _outcome_and_reason(error)
        detail, trace = _one_line(error), _format_traceback(error)
        expected_s = error.expected_s if isinstance(error, OverBudgetError) else None
    # The experiment has cleaned up, but the traceback held tensors until the except block ended. After any other
    # failure this is unnecessary: the engine replaces this process.
    if outcome in ("invalid", "skipped"):
        allocator.release(device.torch_device(request.device))
    key = request.cell.key
    return CellFinished(
        at_s=now(), cell=key, outcome=outcome, detail=detail, reason=reason, expected_s=expected_s, traceback=trace
    )


def _allocator_settings(request: protocol.Measure) -> AbstractContextManager[None]:
    step = step_of(request.cell)
    options = None if step is None or step.simulated else allocator_options(step.allocator)
    return nullcontext() if options is None else allocator.using_options(options, device.torch_device(request.device))


def _threads(request: protocol.Measure) -> int | None:
    """Return the number of CPU threads for the cell: its own, or the run's, which its ranks divide evenly."""
    if request.rank is None or request.cell.threads is not None:
        return request.cell.threads or request.threads
    return max(1, (request.threads or torch.get_num_threads()) // request.cell.workers)


def _process_group(request: protocol.Measure) -> AbstractContextManager[None]:
    rank = request.rank
    if rank is None:
        return nullcontext()
    where = device.torch_device(request.device)
    return strategies.process_group(rank.number, request.cell.workers, rank.store, where, rank.patience_s)


@cache
def _freeze_modules() -> None:
    """After the first cell, exclude existing objects from garbage collection; traversing them took 0.3 s per cell."""
    gc.freeze()


def _measure_ceiling(request: protocol.MeasureCeiling) -> Event:
    try:
        device.make_current(request.device)
        return ceiling.measure(request.device, request.precision, request.threads)
    except Exception as error:  # noqa: BLE001  Cells run without a ceiling too.
        return CeilingFailed(
            at_s=now(), device=request.device.torch_name, precision=request.precision, detail=_one_line(error)
        )


def _outcome_and_reason(error: Exception) -> tuple[Outcome, Reason]:
    if isinstance(error, OverBudgetError):
        return "skipped", "over-budget"
    if isinstance(error, BeyondMemoryError):
        return "skipped", "exceeds-memory"
    outcome: Outcome = "crashed"
    if allocator.is_out_of_memory(error):
        outcome = "oom"
    elif _GLOO_TIMEOUT in str(error):
        outcome = "timeout"
    elif isinstance(error, UnavailableError | ValueError) or any(each in str(error) for each in _UNSUPPORTED):
        outcome = "invalid"
    return outcome, REASONS[outcome]


def _one_line(error: Exception) -> str:
    if isinstance(error, ValidationError) and error.title in {kind.__name__ for kind in EVENTS.values()}:
        return (
            f"an impossible value was measured, {first_error(error)}: does the program replace time.time, "
            "time.perf_counter or time.perf_counter_ns?"
        )
    text = _encodable(" ".join(str(error).split()) if isinstance(error, SysbenchError) else description_of(error))
    # The end may name the line of the user's code.
    return text if len(text) <= DETAIL_CHARACTERS else f"{text[: DETAIL_CHARACTERS - 100]}…{text[-99:]}"


def _format_traceback(error: Exception) -> str:
    return _encodable("".join(traceback.format_exception(error)))[-TRACEBACK_CHARACTERS:]


def _encodable(text: str) -> str:
    """Return the text with lone surrogates escaped: an error may have any message, and events are UTF-8."""
    return text.encode(errors="backslashreplace").decode()


class EngineGoneError(Exception):
    """The engine has disconnected, so further results have no recipient."""


class Channel:
    """Receives commands and sends events; messages are JSON, never pickles."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    def connect(cls, environment: MutableMapping[str, str] = os.environ) -> Channel:
        """Connect to the engine at the address in `environment`; raises KeyError, OSError or AuthenticationError."""
        address = environment.pop(bootstrap.ADDRESS_VARIABLE)
        key = bytes.fromhex(environment.pop(bootstrap.KEY_VARIABLE))
        return cls(Client(address, authkey=key))

    def send(self, event: Event) -> None:
        """Send one event; raises EngineGoneError if the engine has disconnected."""
        try:
            self._connection.send_bytes(encode(event))
        except OSError as error:
            raise EngineGoneError from error

    def commands(self) -> Iterator[protocol.Command]:
        """Yield commands from the engine as they arrive, until the engine disconnects."""
        while True:
            try:
                message = self._connection.recv_bytes(protocol.MESSAGE_LIMIT_BYTES)
            except (EOFError, OSError):
                return
            yield protocol.decode(message)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
