"""Nsight Systems itself, where it is installed, records sysbench's ranges and has its report read; no GPU is wanted."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from sysbench.engine import nsys
from sysbench.trace import range_tree, traces
from sysbench.trace.summary import PHASES
from tests.processes import HANG_S

PROGRAM = """
import torch
from sysbench.lab import ranges
from sysbench.lab.recorder import NsysRecorder

model = torch.nn.ModuleDict({"layers": torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))})
model.forward = lambda x: model["layers"](x)
with ranges.visible_to("nvtx", model), NsysRecorder(torch.device("cpu"), shapes=False).recording():
    for _ in range(2):
        with ranges.named("step"):
            with ranges.named("forward"):
                y = model(torch.randn(4, 8))
            with ranges.named("backward"):
                y.sum().backward()
"""


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d+", text)[:3])


@pytest.fixture
def program() -> str:
    found = shutil.which("nsys")
    if found is None:
        pytest.skip("Nsight Systems is not installed")
    said = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    if numbers(said) < (2023,) and numbers(version("nvtx")) > (0, 2, 11):
        pytest.skip("this Nsight Systems does not see the ranges of this nvtx: it wants nvtx 0.2.11 or older")
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("program")
def test_a_run_under_nsys_has_the_ranges_of_the_program(tmp_path: Path) -> None:
    report = tmp_path / "report.nsys-rep"
    launcher = nsys.launcher(report)
    command = launcher.command()
    around = command[: command.index(sys.executable)]
    subprocess.run(
        [*around, sys.executable, "-c", PROGRAM],
        env=launcher.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=HANG_S,
        check=True,
    )
    nsys.convert_raw_stream(report)
    trace = traces.read(report).whole()
    assert trace.title == "report.nsys-rep"
    names = [trace.names[name] for name in trace.ranges.name]
    once = ["step", "forward", "layers", "layers.0", "layers.1", "backward"]
    assert [name for name in names if name in once] == once * 2
    tree = range_tree.read(trace.ranges, trace.names)
    assert tree.steps == 2
    in_forward = {tree.modules[module] for module in tree.module[tree.phase == PHASES.index("forward")].tolist()}
    assert in_forward == {"", "layers", "layers.0", "layers.1"}
    assert trace.remarks == ("no GPU activity was recorded",)
