"""Child processes that answer one question each, within a time limit and without affecting each other.

This module also checks whether the programs that some options need are installed and run.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

POLL_S = 0.05
"""Polling interval for the end of a process whose output another process keeps open."""

MAX_STDERR_CHARACTERS = 160


class NoAnswerError(Exception):
    """A child process failed or took too long; the message has the reason."""


class ChildProcess:
    """A process that prints its answer on standard output. It starts at once, so several can run at the same time."""

    def __init__(self, command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> None:
        """Start the process; if this fails, `answer` raises NoAnswerError."""
        self._command = list(command)
        self._timeout_s = timeout_s
        self._deadline_s = time.monotonic() + timeout_s
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        self._start_error: OSError | None = None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                self._command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                start_new_session=True,
            )
        except OSError as error:
            self._start_error = error

    def answer(self) -> str:
        """Return the complete output; raises NoAnswerError if the process fails or takes too long."""
        if self._process is None or self._process.stdout is None:
            raise NoAnswerError(
                f"{Path(self._command[0]).name} cannot be started: {_start_failure_reason(self._start_error)}"
            )
        output = self._read(self._process, self._process.stdout)
        code = self._exit_code(self._process)
        if code == 0:
            return output
        raise NoAnswerError(self._describe_exit(code, output))

    def close(self) -> None:
        """Kill the process and all its children."""
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)  # a process that hangs in a driver may never end
            if self._process.stdout is not None:
                self._process.stdout.close()
        self._stderr.close()

    def _read(self, process: subprocess.Popen[bytes], output: IO[bytes]) -> str:
        received = b""
        while (remaining_s := self._deadline_s - time.monotonic()) > 0:
            readable, _, _ = select.select([output], [], [], min(POLL_S, remaining_s))
            if readable:
                chunk = os.read(output.fileno(), 65536)
                if not chunk:
                    return received.decode(errors="replace")
                received += chunk
            elif process.poll() is not None:
                return received.decode(errors="replace")
        raise NoAnswerError(f"no answer within {self._timeout_s:g} s")

    def _exit_code(self, process: subprocess.Popen[bytes]) -> int:
        """Return the exit code; 0 if the process has closed its output but not yet ended."""
        with suppress(subprocess.TimeoutExpired):
            return process.wait(POLL_S)
        return 0

    def _describe_exit(self, code: int, output: str) -> str:
        end = f"was killed by {_signal_name(-code)}" if code < 0 else f"exited with {code}"
        self._stderr.seek(0)
        lines = (self._stderr.read().decode(errors="replace") or output).split("\n")
        last_line = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"{Path(self._command[0]).name} {end}" + (f": {last_line[:MAX_STDERR_CHARACTERS]}" if last_line else "")


def _start_failure_reason(error: OSError | None) -> str:
    return (error.strerror if error is not None else None) or "for no reason given"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


TOOL_TIMEOUT_S = 10.0
"""Time limit that allows for slow starts; nsys takes a second to start from a cold disk."""

_NOT_FOUND = {
    "nsys": "nsys not found on PATH",
    "c_compiler": "neither gcc nor clang found on PATH",
    "cxx_compiler": "g++ not found on PATH",
}


class VersionQuery:
    """Asks a program for its version; the program starts at once."""

    def __init__(self, name: str, path: str | None) -> None:
        self._name, self.path = name, path
        self._child = ChildProcess([path, "--version"], TOOL_TIMEOUT_S) if path else None

    def answer(self) -> dict[str, str | None]:
        """Return the fields of a `Tool`. Never raises."""
        if self._child is None:
            return {"path": self.path, "version": None, "problem": _NOT_FOUND[self._name]}
        try:
            output = self._child.answer()
        except NoAnswerError as error:
            return {"path": self.path, "version": None, "problem": str(error)}
        return {"path": self.path, "version": find_version(output), "problem": None}

    def close(self) -> None:
        """Kill the program if it is still running."""
        if self._child is not None:
            self._child.close()


def query_versions(environment: Mapping[str, str] = os.environ) -> dict[str, VersionQuery]:
    """Start querying every program for its version; return the pending queries, by field of `ToolsSection`."""
    path = environment.get("PATH")
    return {
        "nsys": VersionQuery("nsys", shutil.which("nsys", path=path)),
        # As Triton looks for it (triton/runtime/build.py): CC, then gcc, then clang.
        "c_compiler": VersionQuery("c_compiler", _find_program((environment.get("CC"), "gcc", "clang"), path)),
        # As Inductor does (torch/_inductor/config.py, cpp.cxx): CXX, or g++, on macOS clang++.
        "cxx_compiler": VersionQuery(
            "cxx_compiler",
            _find_program((environment.get("CXX"), "clang++" if sys.platform == "darwin" else "g++"), path),
        ),
    }


def python_headers() -> str | None:
    """Return the directory of Python.h; None if it is not installed."""
    directory = Path(sysconfig.get_path("include"))
    return str(directory) if (directory / "Python.h").is_file() else None


def installed(distribution: str) -> str | None:
    """Return the version of a distribution, without importing it; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def find_version(text: str) -> str | None:
    """Return the first version number in a text, such as `2024.6.2.225`; None if there is none."""
    found = re.search(r"\d+(?:\.\d+)+", text)
    return found[0] if found else None


def _find_program(names: Sequence[str | None], path: str | None) -> str | None:
    """Return the path of the first program that is installed.

    The first name is the user's choice (CC, CXX); it is returned even if it does not exist, so the failure is reported.
    """
    for name in names:
        if not name:
            continue
        found = shutil.which(name, path=path)
        if found or name is names[0]:
            return found or name
    return None
