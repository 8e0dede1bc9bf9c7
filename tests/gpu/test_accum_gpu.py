"""What rounding does on a real GPU: its types beside those simulated for it, and its own sums."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import record_in, sysbench

pytestmark = pytest.mark.gpu


def cell_of(tmp_path: Path, *words: str) -> dict[str, Any]:
    ran = sysbench("accum", *words, "--device=cuda", f"--out={tmp_path}")
    assert ran.code == 0, ran.err
    (found,) = record_in(tmp_path)["cells"]
    return dict(found)


def test_the_four_sums_are_the_same_on_a_gpu(tmp_path: Path) -> None:
    sums = cell_of(tmp_path)["sums"]
    alone = [each for each in sums if each["order"] == "sequential"]
    found = {(each["accumulator"], each["addend"], each["upcast"]): f"{each['result']:.8f}" for each in alone}
    assert found["fp32", "fp32", False] == "10.00013351"
    assert found["fp16", "fp16", False] == "9.95312500"
    assert found["fp32", "fp16", False] == found["fp32", "fp16", True] == "10.00213623"


@pytest.mark.parametrize("size", ["toy", "tiny"])
def test_types_simulated_for_cuda_are_those_that_cuda_has(tmp_path: Path, size: str) -> None:
    dtypes = cell_of(tmp_path, "autocast", f"--size={size}")["dtypes"]
    assert dtypes
    differing = [each for each in dtypes if each["here"] != each["on_cuda"]]
    assert differing == []


def test_layer_norm_breaks_at_the_scales_at_which_it_breaks_on_a_cpu(tmp_path: Path) -> None:
    norms = {(each["dtype"], each["statistics"]): each for each in cell_of(tmp_path, "norm")["norms"]}
    fp16 = norms["fp16", "fp16"]
    assert (fp16["variance_overflows_from"], fp16["mean_overflows_from"]) == (8.0, 64.0)
    assert fp16["variance_vanishes_to"] == 2.0**-13
