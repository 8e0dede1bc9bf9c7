"""What NVIDIA's management library knows, and a GPU in a container that lacks it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.fake_gpu.fake import FakeGpu


def test_expandable_segments_are_refused_before_pytorch_ends_the_process(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    words = ("memory", "--size=tiny", "--ctx=16", "--batch=1", "--mode=forward", "--json=-", f"--out={tmp_path}")
    runs = (
        ("expandable_segments:True", "invalid", fake_gpu.sysbench),  # no process that may know the library
        ("expandable_segments:False", "ok", fake_gpu.answered),
    )
    for setting, outcome, run in runs:
        (cell,) = json.loads(run(*words, PYTORCH_CUDA_ALLOC_CONF=setting).out)["cells"]
        assert cell["outcome"] == outcome
        assert (outcome == "ok") or "needs NVIDIA's management library (libnvidia-ml.so.1)" in cell["detail"]


@pytest.mark.parametrize(("size_bytes", "is_said"), [(64 << 20, True), (8 << 30, False)])
def test_a_small_shared_memory_is_said_before_several_ranks_need_it(
    size_bytes: int, is_said: bool, fake_gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=size_bytes))
    words = ("time", "--size=tiny", "--ctx=16", "--ranks=2", "--steps=1", "--timeout=20", f"--out={tmp_path}")
    ran = fake_gpu.answered(*words, devices=2)  # without NCCL the cell fails
    assert (ran.err.splitlines()[0].startswith("/dev/shm has 64.0 MiB: if NCCL fails")) == is_said


@pytest.mark.parametrize("is_shared", [False, True])
def test_memory_of_other_programs_is_not_called_the_context(is_shared: bool, fake_gpu: FakeGpu, tmp_path: Path) -> None:
    control = tmp_path / "control"
    control.write_text(f"pids {os.getpid()}\n" if is_shared else "")
    words = ("memory", "--size=tiny", "--ctx=16", "--batch=1", "--mode=forward", "--json=-", f"--out={tmp_path}")
    ran = fake_gpu.sysbench(*words, nvml=True, STUB_NVML_CONTROL=str(control))
    assert ran.code == 0, ran.err
    (cell,) = json.loads(ran.out)["cells"]
    assert (cell["context_bytes"] is None) == is_shared
