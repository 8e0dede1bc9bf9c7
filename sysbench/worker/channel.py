"""The worker's connection to the engine."""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from multiprocessing.connection import Client, Connection

from sysbench import meeting
from sysbench.engine import protocol
from sysbench.log.events import Event, encode


class EngineGoneError(Exception):
    """The engine has closed its end, so further results have no recipient."""


class Channel:
    """Receives commands and sends events; messages are JSON, never pickles."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @classmethod
    def connect(cls, environment: MutableMapping[str, str] = os.environ) -> Channel:
        """Connect to the engine that `environment` names, and remove its address from there; no child may inherit it.

        Raises KeyError if no engine is named, and OSError or multiprocessing.AuthenticationError if it cannot be
        reached.
        """
        address = environment.pop(meeting.ADDRESS_VARIABLE)
        key = bytes.fromhex(environment.pop(meeting.KEY_VARIABLE))
        return cls(Client(address, authkey=key))

    def send(self, event: Event) -> None:
        """Send one event; raises EngineGoneError. Call it between timed phases, never inside one."""
        try:
            self._connection.send_bytes(encode(event))
        except OSError as error:
            raise EngineGoneError from error

    def commands(self) -> Iterator[protocol.Command]:
        """Yield commands from the engine as they arrive; ends when the engine is gone."""
        while True:
            try:
                message = self._connection.recv_bytes(protocol.MESSAGE_LIMIT_BYTES)
            except (EOFError, OSError):
                return
            yield protocol.decode(message)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
