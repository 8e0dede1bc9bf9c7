"""Ranks on real GPUs, through NCCL: `pytest -m gpu` on a machine that has two."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sysbench import load
from tests.cli.running import MINUTE, sysbench

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two CUDA devices"),
]


def test_two_gpus_are_measured_with_every_strategy(tmp_path: Path) -> None:
    words = ("--ctx", "64", "--ranks", "1,2", "--strategy", "ddp,fsdp2,tp", "--precision", "fp32,bf16")
    ran = sysbench("time", *MINUTE, *words, "--json", "record.json", cwd=tmp_path)
    assert ran.code == 0, ran.err
    cells = load(tmp_path / "record.json").cells
    assert [cell.outcome for cell in cells] == ["ok"] * 8
    alone = {cell.cell.precision: cell for cell in cells if cell.cell.ranks == 1}
    for cell in cells:
        assert [each.rank for each in cell.ranks] == ([0, 1] if cell.cell.ranks == 2 else [])
        for each in cell.ranks:
            assert each.allocated_peak_bytes
            assert each.phases["backward"].device.median_s > 0
        if cell.ranks:
            assert cell.ranks[0].loss == pytest.approx(alone[cell.cell.precision].loss, rel=1e-2)


def test_a_rank_without_a_gpu_is_refused(tmp_path: Path) -> None:
    count = torch.cuda.device_count() + 1
    refused = sysbench("time", *MINUTE, "--ctx", "64", "--ranks", str(count), cwd=tmp_path)
    assert refused.code == 2
    assert f"--ranks {count} needs a device for each rank" in refused.complaint


def test_offloaded_shards_leave_what_is_simulated(tmp_path: Path) -> None:
    words = ("--ctx", "64", "--ranks", "2", "--strategy", "fsdp2", "--offload", "parameters", "--mode", "train")
    measured = sysbench("time", *MINUTE, *words, "--optimizer", "fused", "--json", "record.json", cwd=tmp_path)
    assert measured.code == 0, measured.err
    ran = sysbench("time", *MINUTE, *words, "--simulate", "h100", "--json", "simulated.json", cwd=tmp_path)
    assert ran.code == 0, ran.err
    (real,), (simulated,) = (load(tmp_path / name).cells for name in ("record.json", "simulated.json"))
    assert simulated.prediction.allocated_peak_bytes == pytest.approx(real.ranks[0].allocated_peak_bytes, rel=0.02)
