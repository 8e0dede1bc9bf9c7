"""Runs a command in a pseudo-terminal, so that what a person would see is really drawn."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable

COLUMNS, LINES = 120, 40


def run_in_terminal(
    command: list[str], environment: dict[str, str], on_tick: Callable[[int], None] = lambda pid: None
) -> tuple[float, int]:
    """Run to the end with stderr on a terminal; `on_tick(pid)` is called a few times a second.

    Returns elapsed seconds and how many bytes were drawn. Raises CalledProcessError when the command fails.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    drawn_bytes = 0
    started_s = time.perf_counter()
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs
    )
    os.close(theirs)
    try:
        while True:
            readable, _, _ = select.select([ours], [], [], 0.25)
            on_tick(process.pid)
            if readable:
                try:
                    chunk = os.read(ours, 65536)
                except OSError:  # the other side of the terminal is closed
                    break
                if not chunk:
                    break
                drawn_bytes += len(chunk)
    finally:
        code = process.wait()
        os.close(ours)
    if code:
        raise subprocess.CalledProcessError(code, command)
    return time.perf_counter() - started_s, drawn_bytes
