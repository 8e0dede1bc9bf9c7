"""One command: its output in files, and an end that comes in time whatever the command does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

GRACE_S = 8.0
"""For a command that is asked to stop to write down what it has."""

GONE_S = 5.0
"""For processes that were killed to be gone."""

TAIL_CHARACTERS = 1500


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    words: tuple[str, ...]
    code: int | None
    """None when it had to be stopped."""
    took_s: float
    out: Path
    err: Path

    @property
    def line(self) -> str:
        """As one would type it."""
        return " ".join("python" if word == sys.executable else word for word in self.words)

    @property
    def problem(self) -> str | None:
        """What is wrong with how it ended, in its own last words; None when nothing is."""
        if self.code == 0:
            return None
        ended = f"stopped after {self.took_s:.0f} s" if self.code is None else f"ended with {self.code}"
        said = (tail(self.err) or tail(self.out)).strip()
        return f"{self.line}: {ended}{f': {said}' if said else ''}"


def run(words: Sequence[str], limit_s: float, out: Path, err: Path, extra: Mapping[str, str] | None = None) -> Ran:
    """Run to the end, or for `limit_s` seconds; what is left of it then is ended with everything it has started.

    Output goes into files: whatever survives of a command cannot keep a pipe open that somebody waits for.
    """
    began_s = time.monotonic()
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            list(words),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(extra or {})},
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(max(0.0, limit_s))
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(process)
    return Ran(tuple(words), code, time.monotonic() - began_s, out, err)


def end(process: subprocess.Popen[bytes], grace_s: float = GRACE_S) -> None:
    """Interrupt a process, which lets it save what it has, and then kill it and all that descend from it."""
    if process.poll() is None:
        family = descendants(process.pid)
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
        for each in family:
            with suppress(psutil.NoSuchProcess):  # psutil knows a process from another with the same number
                each.kill()
        if process.poll() is None:
            process.kill()
            process.wait()
        psutil.wait_procs(family, GONE_S)  # what they held on the GPU is free only then


def descendants(pid: int) -> list[psutil.Process]:
    """Everything that a process has started, and what that has."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def tail(path: Path) -> str:
    """The end of what a command said."""
    try:
        said = path.read_bytes()
    except OSError:
        return ""
    return said[-4 * TAIL_CHARACTERS :].decode(errors="replace")[-TAIL_CHARACTERS:]
