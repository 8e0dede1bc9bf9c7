"""Child processes that answer one question each, within a time limit and without affecting each other.

This module also checks whether the programs that some options need are installed and run.
"""

from __future__ import annotations

import os
import re
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

from sysbench.engine.interrupts import signal_name
from sysbench.log.storage import reason

MAX_STDERR_CHARACTERS = 160


class NoAnswerError(Exception):
    """A child process failed or took too long; the message has the reason."""


class ChildProcess:
    """A process that prints its answer on standard output. It starts at once, so several can run at the same time."""

    def __init__(self, command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> None:
        """Start the process; if this fails, `answer` raises NoAnswerError."""
        self._program = Path(command[0]).name
        self._timeout_s = timeout_s
        self._deadline_s = time.monotonic() + timeout_s
        # Files, not pipes: a daemon that the process leaves behind may keep its output open.
        self._output, self._errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        self._start_error: OSError | None = None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                list(command),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._errors,
                start_new_session=True,
            )
        except OSError as error:
            self._start_error = error

    def answer(self) -> str:
        """Return the complete output; raises NoAnswerError if the process fails or takes too long."""
        if self._start_error is not None:
            is_missing = isinstance(self._start_error, FileNotFoundError)
            cause = "program not found" if is_missing else reason(self._start_error)
            raise NoAnswerError(f"{self._program} cannot be started: {cause}")
        assert self._process is not None
        try:
            code = self._process.wait(max(0.0, self._deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise NoAnswerError(f"no answer within {self._timeout_s:g} s") from None
        output, errors = _content(self._output), _content(self._errors)
        if code == 0:
            return output
        end = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with {code}"
        last_line = next((line.strip() for line in reversed((errors or output).split("\n")) if line.strip()), "")
        raise NoAnswerError(f"{self._program} {end}" + (f": {last_line[:MAX_STDERR_CHARACTERS]}" if last_line else ""))

    def close(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)  # a process that hangs in a driver may never end
        self._output.close()
        self._errors.close()


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


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
