"""A stand-in for NVIDIA's library, compiled when a test needs it, and programs that are run against it.

The programs go through the real pynvml, which loads the library by its name, in a process of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.fake_gpu.build import NotAvailableError, build_nvml
from tests.processes import HANG_S

FIRST = "GPU-11111111-aaaa-bbbb-cccc-000000000001"
SECOND = "GPU-22222222-aaaa-bbbb-cccc-000000000002"
INSTANCE = "MIG-33333333-aaaa-bbbb-cccc-000000000003"

PRELUDE = f"""
import json, os, subprocess, sys
from pathlib import Path
from sysbench.engine.sensors.sampler import Sampler
from sysbench.log.events import DeviceInfo

FIRST, SECOND, INSTANCE = {FIRST!r}, {SECOND!r}, {INSTANCE!r}

def control(*lines):
    Path(os.environ["STUB_NVML_CONTROL"]).write_text("".join(line + "\\n" for line in lines))

def gpu(uuid, index=0):
    return DeviceInfo(name="a GPU", type="cuda", index=index, uuid=uuid)

def lost(sampler):
    return [(failure.source, failure.detail) for failure in sampler.failures()]

def show(**results):
    print(json.dumps(results))

sampler = Sampler()
"""


@dataclass(frozen=True)
class Driver:
    """A compiled stand-in; a directory without a library is a machine without a driver."""

    directory: Path

    def run(self, program: str, *, faults: str = "") -> dict[str, Any]:
        """What `program` shows, run after the prelude with these lines in the control file."""
        control, log = self.directory / "control", self.directory / "log"
        control.write_text(faults)
        log.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", PRELUDE + textwrap.dedent(program)],
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(self.directory),
                "STUB_NVML_CONTROL": str(control),
                "STUB_NVML_LOG": str(log),
            },
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    def calls(self, function: str) -> int:
        """How often the last program called this function of the library."""
        log = self.directory / "log"
        return log.read_text().splitlines().count(function) if log.exists() else 0


def compile_driver(directory: Path, *defines: str) -> Driver:
    """Build the library into `directory`; skips the test where there is no C compiler for it."""
    try:
        assert build_nvml(directory, *defines).wait() == 0
    except NotAvailableError as reason:
        pytest.skip(str(reason))
    return Driver(directory)
