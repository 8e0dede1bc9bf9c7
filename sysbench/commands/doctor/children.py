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

SHOWN_CHARACTERS = 160


class NoAnswerError(Exception):
    """A child process failed or took too long; the message has the reason."""


class Child:
    """A process that prints its answer on standard output. It starts at once, so several can run at the same time."""

    def __init__(self, command: Sequence[str], limit_s: float, environment: Mapping[str, str] | None = None) -> None:
        """Start the process; if this fails, `answer` raises NoAnswerError."""
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
        """Return the complete output; raises NoAnswerError if the process fails or takes too long."""
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
        """Return the exit code; 0 if the process has closed its output but not yet ended."""
        with suppress(subprocess.TimeoutExpired):
            return process.wait(POLL_S)
        return 0

    def _epitaph(self, code: int, said: str) -> str:
        end = f"was killed by {_signal_name(-code)}" if code < 0 else f"exited with {code}"
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


LIMIT_S = 10.0
"""Time limit that allows for slow starts; nsys takes a second to start from a cold disk."""

_MISSING = {
    "nsys": "nsys not found on PATH",
    "c_compiler": "neither gcc nor clang found on PATH",
    "cxx_compiler": "g++ not found on PATH",
}


class ToolQuestion:
    """Asks a program for its version; the program starts at once."""

    def __init__(self, name: str, path: str | None) -> None:
        self._name, self.path = name, path
        self._child = Child([path, "--version"], LIMIT_S) if path else None

    def answer(self) -> dict[str, str | None]:
        """Return the fields of a `Tool`. Never raises."""
        if self._child is None:
            return {"path": self.path, "version": None, "problem": _MISSING[self._name]}
        try:
            said = self._child.answer()
        except NoAnswerError as error:
            return {"path": self.path, "version": None, "problem": str(error)}
        return {"path": self.path, "version": whole_version(said), "problem": None}

    def close(self) -> None:
        """Kill the program if it is still running."""
        if self._child is not None:
            self._child.close()


def questions(environment: Mapping[str, str] = os.environ) -> dict[str, ToolQuestion]:
    """Start querying every program for its version; return the pending queries, by field of `ToolsSection`."""
    path = environment.get("PATH")
    return {
        "nsys": ToolQuestion("nsys", shutil.which("nsys", path=path)),
        # As Triton looks for it (triton/runtime/build.py): CC, then gcc, then clang.
        "c_compiler": ToolQuestion("c_compiler", _first((environment.get("CC"), "gcc", "clang"), path)),
        # As Inductor does (torch/_inductor/config.py, cpp.cxx): CXX, or g++, on macOS clang++.
        "cxx_compiler": ToolQuestion(
            "cxx_compiler", _first((environment.get("CXX"), "clang++" if sys.platform == "darwin" else "g++"), path)
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


def whole_version(text: str) -> str | None:
    """Return the first version number in a text, such as `2024.6.2.225`; None if there is none."""
    found = re.search(r"\d+(?:\.\d+)+", text)
    return found[0] if found else None


def _first(names: Sequence[str | None], path: str | None) -> str | None:
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
