"""Child processes that answer one question each, within a time limit and without affecting each other."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

POLL_S = 0.05
"""How often to check whether a process has ended although another one keeps its output open."""

SHOWN_CHARACTERS = 160


class NoAnswerError(Exception):
    """There is no answer; the message has the reason."""


class Child:
    """A process whose standard output is an answer. It starts immediately, and runs while others are asked."""

    def __init__(self, command: Sequence[str], limit_s: float, environment: Mapping[str, str] | None = None) -> None:
        """Start the process; if that fails, `answer` raises."""
        self._command = list(command)
        self._limit_s = limit_s
        self._deadline_s = time.monotonic() + limit_s
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        self._refusal: OSError | None = None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                self._command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                start_new_session=True,
            )
        except OSError as error:
            self._refusal = error

    def answer(self) -> str:
        """Return its complete output; raises NoAnswerError if it fails or takes too long."""
        if self._process is None or self._process.stdout is None:
            raise NoAnswerError(f"{Path(self._command[0]).name} cannot be started: {_reason(self._refusal)}")
        said = self._read(self._process, self._process.stdout)
        code = self._code(self._process)
        if code == 0:
            return said
        raise NoAnswerError(self._epitaph(code, said))

    def close(self) -> None:
        """Kill the process and all its children."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)  # a process that hangs in a driver may never end
            if self._process.stdout is not None:
                self._process.stdout.close()
        self._complaints.close()

    def _read(self, process: subprocess.Popen[bytes], output: IO[bytes]) -> str:
        said = b""
        while (patience_s := self._deadline_s - time.monotonic()) > 0:
            readable, _, _ = select.select([output], [], [], min(POLL_S, patience_s))
            if readable:
                chunk = os.read(output.fileno(), 65536)
                if not chunk:
                    return said.decode(errors="replace")
                said += chunk
            elif process.poll() is not None:
                return said.decode(errors="replace")
        raise NoAnswerError(f"no answer within {self._limit_s:g} s")

    def _code(self, process: subprocess.Popen[bytes]) -> int:
        """Exit code; 0 if the process has closed its output but not yet ended."""
        with suppress(subprocess.TimeoutExpired):
            return process.wait(POLL_S)
        return 0

    def _epitaph(self, code: int, said: str) -> str:
        end = f"was ended by {_signal_name(-code)}" if code < 0 else f"exited with {code}"
        self._complaints.seek(0)
        lines = (self._complaints.read().decode(errors="replace") or said).split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{Path(self._command[0]).name} {end}" + (f": {last[:SHOWN_CHARACTERS]}" if last else "")


def _reason(error: OSError | None) -> str:
    return (error.strerror if error is not None else None) or "for no reason given"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
