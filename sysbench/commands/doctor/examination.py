"""Examination of this machine. Child processes answer slow questions while this process answers the others."""

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
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, TypeVar

from sysbench import bootstrap
from sysbench.engine.interrupts import signal_name
from sysbench.log.storage import reason

if TYPE_CHECKING:
    from sysbench.commands.doctor.record import HostSection, NvmlSection, Section, Tool, ToolsSection, TorchSection

    AnySection = TypeVar("AnySection", bound=Section)

TORCH_TIMEOUT_S = 120.0
"""Time limit that allows for importing torch from a cold or remote disk, and for finding its devices."""

NVML_TIMEOUT_S = 20.0
"""Time limit that allows for a driver that first has to wake its GPUs."""

TOOL_TIMEOUT_S = 10.0
"""Time limit that allows for slow starts; nsys takes a second to start from a cold disk."""

MAX_STDERR_CHARACTERS = 160


class NoAnswerError(Exception):
    """A child process failed or took too long; the message has the reason."""


class ChildProcess:
    """A process that prints its answer on standard output. It starts at once, so several can run at the same time."""

    def __init__(self, command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> None:
        self._program = Path(command[0]).name
        self._timeout_s = timeout_s
        self._deadline_s = time.monotonic() + timeout_s
        # Files, not pipes: a daemon that the process leaves behind may keep its output open.
        self._output, self._errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  closed by `close`
        self._process: subprocess.Popen[bytes] | None = None
        self._start_error = ""
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
            self._start_error = "program not found" if isinstance(error, FileNotFoundError) else reason(error)

    def answer(self) -> str:
        if self._process is None:
            raise NoAnswerError(f"{self._program} cannot be started: {self._start_error}")
        try:
            code = self._process.wait(max(0.0, self._deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise NoAnswerError(f"no answer within {self._timeout_s:g} s") from None
        output, errors = _content(self._output), _content(self._errors)
        if code == 0:
            return output
        end = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with {code}"
        last_line = (errors or output).strip().rpartition("\n")[2].strip()
        raise NoAnswerError(f"{self._program} {end}" + (f": {last_line[:MAX_STDERR_CHARACTERS]}" if last_line else ""))

    def close(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(1.0)  # a process that hangs in a driver may never end
        self._output.close()
        self._errors.close()


class Examination:
    """Examination of this machine. The constructor starts all child processes; their answers are read later.

    Most modules are imported late, so that nothing delays the start of the slowest child.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._children = ExitStack()
        ours = bootstrap.environment()
        self._torch = self._start(bootstrap.command("sysbench.worker.survey"), TORCH_TIMEOUT_S, ours)
        self._nvml = self._start(bootstrap.command("sysbench.commands.doctor.gpu_survey"), NVML_TIMEOUT_S, ours)
        # As Triton looks for a C compiler (triton/runtime/build.py): CC, then gcc, then clang; and Inductor for one of
        # C++ (torch/_inductor/config.py, cpp.cxx): CXX, or g++, on macOS clang++.
        programs = {
            "nsys": ("nsys",),
            "c_compiler": (environment.get("CC"), "gcc", "clang"),
            "cxx_compiler": (environment.get("CXX"), "clang++" if sys.platform == "darwin" else "g++"),
        }
        found = {name: _find_program(names, environment.get("PATH")) for name, names in programs.items()}
        self._tools = {
            name: (path, self._start([path, "--version"], TOOL_TIMEOUT_S)) for name, path in found.items() if path
        }

    def _start(
        self, command: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None
    ) -> ChildProcess:
        child = ChildProcess(command, timeout_s, environment)
        self._children.callback(child.close)
        return child

    def __enter__(self) -> Examination:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._children.close()

    def host(self) -> HostSection:
        from sysbench.commands.doctor import host_survey

        return host_survey.survey()

    def nvml(self) -> NvmlSection:
        from sysbench.commands.doctor.record import NvmlSection

        return _parse_section(NvmlSection, self._nvml)

    def torch(self) -> TorchSection:
        from sysbench.commands.doctor.record import TorchSection

        return _parse_section(TorchSection, self._torch)

    def tools(self) -> ToolsSection:
        from sysbench.commands.doctor.record import ToolsSection
        from sysbench.simulate.allocator.settings import ENVIRONMENT_VARIABLES, AllocatorSettings, NotSimulatedError

        include = Path(sysconfig.get_path("include"))
        variable = next((name for name in ENVIRONMENT_VARIABLES if name in self._environment), None)
        settings = self._environment[variable] if variable else ""
        problem = not_simulated = None
        try:
            AllocatorSettings.parse(settings)
        except NotSimulatedError as error:
            not_simulated = str(error)
        except ValueError as error:
            problem = str(error)
        return ToolsSection(
            nsys=self._tool("nsys", "nsys not found on PATH"),
            c_compiler=self._tool("c_compiler", "neither gcc nor clang found on PATH"),
            cxx_compiler=self._tool("cxx_compiler", "g++ not found on PATH"),
            python_headers=str(include) if (include / "Python.h").is_file() else None,
            allocator=f"{variable}={settings}" if variable else None,
            allocator_problem=problem,
            allocator_not_simulated=not_simulated,
        )

    def _tool(self, name: str, missing: str) -> Tool:
        from sysbench.commands.doctor.record import Tool

        if name not in self._tools:
            return Tool(problem=missing)
        path, child = self._tools[name]
        try:
            version = re.search(r"\d+(?:\.\d+)+", child.answer())
        except NoAnswerError as error:
            return Tool(path=path, problem=str(error))
        return Tool(path=path, version=version[0] if version else None)


def _find_program(names: Sequence[str | None], path: str | None) -> str | None:
    """Return the first program that is installed; what the user chose (CC, CXX) even if it is not, to report it."""
    if names[0] and len(names) > 1:
        return shutil.which(names[0], path=path) or names[0]
    return next((found for name in names if name and (found := shutil.which(name, path=path))), None)


def _parse_section(kind: type[AnySection], child: ChildProcess) -> AnySection:
    try:
        return kind.model_validate_json(child.answer())
    except NoAnswerError as error:
        return kind(unknown={"everything": str(error)})
    except ValueError as error:  # includes pydantic's errors: some library may print to stdout
        return kind(unknown={"everything": f"invalid answer: {str(error).splitlines()[0]}"})


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
