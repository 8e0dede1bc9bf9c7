"""`sysbench fit --verify`: steps that are measured on the GPU, beside their prediction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import record_in
from tests.fake_gpu.fake import FakeGpu

KEPT = "allocator,checkpoint,cross-entropy,lora,optimizer-in-backward,ranks"
MODEL = ("--d-model=64", "--d-ff=256", "--layers=2", "--heads=4", "--vocab=2000", "--ctx=128", "--batch=4")
H100: dict[str, Any] = {"name": "NVIDIA H100 80GB HBM3", "memory_mib": 81559, "capability": "9.0"}


def test_the_step_as_asked_is_measured_where_it_fits(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    ran = fake_gpu.answered(
        "fit", *MODEL, "--verify", f"--keep={KEPT}", "--out=runs", cwd=tmp_path, COLUMNS="200", **H100
    )
    assert ran.code == 0, ran.err
    (cell,) = record_in(tmp_path / "runs")["cells"]
    (verified,) = cell["verified"]
    (asked,) = cell["trials"]
    assert (verified["gpu"], verified["changes"], verified["failure"]) == ("h100", {}, None)
    assert len(verified["steps_s"]) == 3
    assert verified["allocated_peak_bytes"] == pytest.approx(asked["allocated_peak_bytes"], rel=0.02)
    assert "the first suggestion, predicted and measured" in ran.out


def test_a_gpu_of_another_kind_is_refused(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    ran = fake_gpu.answered("fit", *MODEL, "--verify", "--on=a100-40gb", cwd=tmp_path, **H100)
    assert ran.code == 2
    assert "--verify measures on a GPU of --on, but this machine has h100, not a100-40gb" in " ".join(ran.err.split())


def test_a_suggestion_that_runs_out_of_memory_says_so(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    """Other programs may use the memory that the simulation counts on; here, all but 9 MiB of it."""
    step = (*MODEL[:-1], "--batch=32", "--budget=700MiB", f"--keep={KEPT},optimizer,precision")
    ran = fake_gpu.answered(
        "fit", *step, "--verify", "--out=runs", cwd=tmp_path, COLUMNS="200", context_mib=81550, **H100
    )
    assert ran.code == 0, ran.err
    (cell,) = record_in(tmp_path / "runs")["cells"]
    (verified,) = cell["verified"]
    assert verified["changes"]
    assert (verified["failure"], verified["steps_s"]) == ("out of memory", [])
    assert "out of memory" in ran.out
