"""Messages between rank 0's engine and the other ranks: JSON, each validated against a class, never pickled.

The two ends authenticate each other with SYSBENCH_KEY. Without a key, anyone who can reach the port can connect, as
with torch's own rendezvous; but a rank runs only cells of its own command line.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from sysbench.spec.frozen import Frozen
from sysbench.spec.quantities import Seconds, Size

HANDSHAKE_S = 5.0
"""Maximum time for a client to introduce itself, because other clients have to wait."""


class Hello(Frozen):
    """Message with which a rank introduces itself to rank 0."""

    rank: Size
    ranks: Size
    host: str
    version: str
    digest: str
    spec: str


class Welcome(Frozen):
    """Rank 0's answer to a Hello; `refused` is the reason for a rejection, or None."""

    refused: str | None = None


class Launch(Frozen):
    """Order to start a worker."""

    order: Literal["launch"] = "launch"


class Close(Frozen):
    """Order to end the worker, by force after `patience_s`; the rank answers with a WorkerExited."""

    order: Literal["close"] = "close"
    patience_s: Seconds


class Dismiss(Frozen):
    """Order to exit, because the run is over."""

    order: Literal["dismiss"] = "dismiss"


Order = Annotated[Launch | Close | Dismiss, Field(discriminator="order")]

ORDER: TypeAdapter[Order] = TypeAdapter(Order, config=ConfigDict(defer_build=True))

FOR_THE_RANK, FOR_THE_WORKER = b"r", b"w"
"""First byte of a message from the engine: an order for the rank, or a command to forward to its worker."""

STOPPED = b"s"
"""The last message of a rank that its user has stopped; all its other messages are events."""


@contextmanager
def limited(connection: Connection, duration_s: float = HANDSHAKE_S) -> Iterator[None]:
    """Set a timeout for every read from a connection in this context; a read that takes longer raises OSError."""
    # A Connection has no timeout of its own; its duplicated descriptor refers to the same socket.
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", int(duration_s), 0))
        yield
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 0))


def connected(taken: socket.socket) -> Connection:
    """Convert a connected socket to a message connection."""
    taken.setblocking(True)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(taken.detach())
