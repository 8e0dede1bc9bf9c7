"""Helpers for readers of large files: child processes and progress reports."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sysbench import bootstrap

_LENGTH_BYTES: Final = 8

Progress = Callable[[str], None]
"""Callback that receives a description of the progress so far."""


def processors() -> int:
    """Return the number of CPU cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not available on every system
        return os.cpu_count() or 1


def no_progress(_: str) -> None:
    """Ignore progress reports."""


@contextmanager
def start_module(module: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a module in a child process with the same Python and the same sysbench, connected by pipes.

    The process is killed when the `with` block ends.
    """
    with subprocess.Popen(
        [*bootstrap.command(module), *arguments],
        env=bootstrap.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def send_message(message: bytes) -> None:
    """Write a message to the parent process."""
    sys.stdout.buffer.write(len(message).to_bytes(_LENGTH_BYTES, "big") + message)


def receive_messages(child: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """Yield the messages of a child process; raises EOFError if the process failed."""
    stdout = child.stdout
    while stdout is not None and (length := stdout.read(_LENGTH_BYTES)):
        size_bytes = int.from_bytes(length, "big")
        message = stdout.read(size_bytes)
        if len(message) < size_bytes:
            break
        yield message
    if child.wait() != 0:
        raise EOFError
