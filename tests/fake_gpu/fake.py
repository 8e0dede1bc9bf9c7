"""Running code, commands and workers with the fake GPU, and reading what was launched on it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import textwrap
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.fake_gpu.build import build
from tests.processes import HANG_S

MIB = 2**20
H100_MIB = 81559
"""Memory of an H100 with 80 GB, as its driver reports it."""


class Launch(NamedTuple):
    """What was launched: a kernel by its name as a C++ programmer reads it, a copy, or a set."""

    device: int
    stream: int
    """Number of the stream among those of its device; 0 is the default stream."""
    name: str


@dataclass
class Report:
    """What happened on the fake GPU, of one process or of several."""

    launches: Counter[Launch] = field(default_factory=Counter)
    most_bytes: dict[int, int] = field(default_factory=dict)
    """The most memory that was taken at once, by device; the most of any process."""
    errors: Counter[str] = field(default_factory=Counter)
    """What CUDA refused, as "cudaMalloc cudaErrorMemoryAllocation"."""
    unknown: Counter[str] = field(default_factory=Counter)
    """Functions that were called and that the fake does not have."""

    @classmethod
    def parse(cls, text: str) -> Report:
        """Read the lines that `report` in native/device.cpp writes."""
        report = cls()
        for line in text.splitlines():
            kind, *words = line.split("\t")
            if kind == "launch":
                device, stream, count, name = words
                report.launches[Launch(int(device), int(stream), name)] += int(count)
            elif kind == "memory":
                device, most = map(int, words)
                report.most_bytes[device] = max(report.most_bytes.get(device, 0), most)
            else:
                (report.errors if kind == "error" else report.unknown)[words[1]] += int(words[0])
        return report

    def count(self, name: str = "", *, device: int | None = None, stream: int | None = None) -> int:
        """How often what has `name` in its name was launched; on any device and stream unless one is named."""
        return sum(
            count
            for launch, count in self.launches.items()
            if name in launch.name and device in (None, launch.device) and stream in (None, launch.stream)
        )


class Ran(NamedTuple):
    """What a program left behind, its own and on the GPU."""

    code: int
    out: str
    err: str
    report: Report


@dataclass(frozen=True)
class FakeGpu:
    """The libraries of the fake GPU, and a home for what is run with them.

    libraries  directory of the libraries
    home       HOME of what is run: PyTorch and Triton keep there what they compile, which is of no use to a real GPU
    """

    libraries: Path
    home: Path

    @classmethod
    def built(cls, cache: Path, home: Path) -> FakeGpu:
        """Build it, or find it built in `cache`; raises NotAvailableError with the reason where that cannot be."""
        libraries = build(cache)
        if " " in str(libraries):  # which separates the words of LD_PRELOAD
            link = Path(tempfile.mkdtemp(prefix="fake-gpu-")) / "libraries"
            link.symlink_to(libraries)
            libraries = link
        return cls(libraries, home)

    def environment(
        self,
        *,
        devices: int = 1,
        memory_mib: int = H100_MIB,
        log: Path | None = None,
        nvml: bool = False,
        **settings: str | float,
    ) -> dict[str, str]:
        """What a program's environment needs besides, to find `devices` GPUs of so much memory each.

        `log` is a file that each process appends its report to when it ends. With `nvml`, NVIDIA's management library
        is there too. `settings` are others of native/device.h, such as kernel_us=5 or capability="8.0".
        """
        preloaded = (self.libraries / "libfakegpu.so", self.libraries / "libnvrtc.so")
        settings = {"devices": devices, "memory_mib": memory_mib, **settings}
        return {
            "LD_PRELOAD": ":".join(map(str, preloaded)),
            "HOME": str(self.home),
            # What is calibrated on it is no GPU's rate.
            "XDG_CONFIG_HOME": str(self.home / ".config"),
            "USE_PYTORCH_KERNEL_CACHE": "0",
            "TRITON_LIBCUDA_PATH": str(self.libraries),
            **({"FAKE_GPU_LOG": str(log)} if log is not None else {}),
            **({"LD_LIBRARY_PATH": str(self.libraries)} if nvml else {}),
            **{f"FAKE_GPU_{name.upper()}": str(value) for name, value in settings.items()},
        }

    def run(self, *words: str, timeout_s: float = HANG_S, **options: str | float | bool) -> Ran:
        """Run a program to its end; options are those of `environment`, and variables in capitals."""
        variables = {name: str(value) for name, value in options.items() if name.isupper()}
        wanted = {name: value for name, value in options.items() if not name.isupper()}
        with tempfile.NamedTemporaryFile(suffix=".log") as log:
            environment = self.environment(log=Path(log.name), **wanted)  # type: ignore[arg-type]
            done = subprocess.run(
                words,
                env={**os.environ, **environment, **variables},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
            return Ran(done.returncode, done.stdout, done.stderr, Report.parse(Path(log.name).read_text()))

    def python(self, program: str, **options: str | float | bool) -> Ran:
        """Run Python code, which must not fail."""
        ran = self.run(sys.executable, "-c", textwrap.dedent(program), **options)
        assert ran.code == 0, ran.err
        return ran

    def sysbench(self, *words: str, **options: str | float | bool) -> Ran:
        """Run the command, as a process of its own."""
        return self.run(sys.executable, "-m", "sysbench", *words, **options)

    def answered(self, *words: str, cwd: Path | None = None, **options: str | float | bool) -> Ran:
        """As `sysbench`, within this process, with workers that are forked: a cell takes a second instead of six.

        The report is that of the workers that have ended by themselves. Without NVIDIA's management library.
        """
        from tests.cli.running import answered  # which needs pytest

        variables = {name: str(value) for name, value in options.items() if name.isupper()}
        wanted = {name: value for name, value in options.items() if not name.isupper()}
        with tempfile.NamedTemporaryFile(suffix=".log") as log:
            environment = self.environment(log=Path(log.name), **wanted)  # type: ignore[arg-type]
            ran = answered(*words, cwd=cwd, **{**environment, **variables})
            return Ran(ran.code, ran.out, ran.err, Report.parse(Path(log.name).read_text()))


def report_so_far() -> Report:
    """What this process, which runs with the fake GPU, has launched since the last `forget`."""
    library = ctypes.CDLL(None)
    library.fake_gpu_report.restype = ctypes.c_size_t
    library.fake_gpu_report.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    text = ctypes.create_string_buffer(library.fake_gpu_report(None, 0))
    library.fake_gpu_report(text, len(text))
    return Report.parse(text.value.decode())


def forget() -> None:
    """Begin to count anew, in a process that runs with the fake GPU."""
    ctypes.CDLL(None).fake_gpu_forget()
