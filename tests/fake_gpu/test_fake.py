"""What the fake GPU is, to PyTorch and to the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.fake_gpu.fake import FakeGpu, Ran

STEP = ("--d-model=64", "--d-ff=128", "--layers=1", "--heads=2", "--vocab=100", "--batch=2", "--ctx=32")


def _cell(ran: Ran) -> dict[str, Any]:
    assert ran.code == 0, ran.err
    (cell,) = json.loads(ran.out)["cells"]
    return dict(cell)


def test_a_cell_is_measured_on_the_device_that_was_named_and_on_no_other(fake_gpu: FakeGpu, tmp_path: Path) -> None:
    words = ("time", *STEP, "--steps=4", "--warmup=1", "--json=-")
    ran = fake_gpu.answered(*words, "--device=cuda:1", cwd=tmp_path, devices=2)
    assert _cell(ran)["outcome"] == "ok"
    assert ran.report.count("multi_tensor_apply", device=1) >= 5
    assert ran.report.count(device=0) == 0
    assert not ran.report.errors
