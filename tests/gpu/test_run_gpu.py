"""An experiment on a machine with a GPU is what its file says: nothing is simulated or changed for want of one."""

import json
from pathlib import Path

import pytest

from sysbench.log import manifest
from tests.cli.running import sysbench

pytestmark = pytest.mark.gpu


def test_what_would_be_simulated_elsewhere_is_measured_on_the_gpu(tmp_path: Path) -> None:
    ran = sysbench("run", "memory", "--size", "tiny", "--ctx", "32", "--out", str(tmp_path))
    assert ran.code == 0, ran.err
    (directory,) = tmp_path.glob("*-memory")
    content = manifest.read(directory)
    assert {run.here for run in content.runs} == {"as written"}
    for run in content.runs:
        record = json.loads((directory / run.record).read_text())
        assert all(cell["source"] == "measured" for cell in record["cells"])
    assert all((directory / file).is_file() for run in content.runs for file in run.files)
    assert content.runs[1].files


def test_only_the_simulation_of_what_was_measured_is_left_out(tmp_path: Path) -> None:
    ran = sysbench("run", "attention", "--dim", "16", "--seq", "128", "--repeats", "3", "--out", str(tmp_path))
    assert ran.code == 0, ran.err
    (directory,) = tmp_path.glob("*-attention")
    assert [run.here for run in manifest.read(directory).runs] == ["as written", "left out"]


def test_on_the_cpu_beside_the_gpu_it_is_as_on_a_machine_without_one(tmp_path: Path) -> None:
    ran = sysbench("run", "memory", "--size", "tiny", "--ctx", "32", "--device", "cpu", "--out", str(tmp_path))
    assert ran.code == 0, ran.err
    (directory,) = tmp_path.glob("*-memory")
    assert {run.here for run in manifest.read(directory).runs} == {"simulated"}
