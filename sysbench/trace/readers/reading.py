"""Processes and progress, which the readers of large files share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import sysbench

_LENGTH_BYTES: Final = 8

Progress = Callable[[str], None]
"""Receives in words how far reading has come."""


def processors() -> int:
    """The number of processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def in_silence(_: str) -> None:
    """Report no progress."""


@contextmanager
def process(module: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """This very Python, and this very sysbench, with pipes to write to and read from; killed when the block is left."""
    paths = [str(Path(sysbench.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    with subprocess.Popen(
        # Without -P, a sysbench or a numpy.py in the current directory would be imported instead.
        [sys.executable, "-P", "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def tell(message: bytes) -> None:
    """Write a message to the process that started this one."""
    sys.stdout.buffer.write(len(message).to_bytes(_LENGTH_BYTES, "big") + message)


def told(started: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """The messages of a process, one at a time; raises EOFError where it came to grief."""
    said = started.stdout
    while said is not None and (length := said.read(_LENGTH_BYTES)):
        size_bytes = int.from_bytes(length, "big")
        message = said.read(size_bytes)
        if len(message) < size_bytes:
            break
        yield message
    if started.wait() != 0:
        raise EOFError
