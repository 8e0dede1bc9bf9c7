"""Shards, offloaded or compiled: what torch itself allocates for them on the fake GPU is what is simulated."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from sysbench.commands.memory.spec import MemoryCell, MemorySpec
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.memory import simulate
from sysbench.spec.hardware import by_name
from tests.fake_gpu.fake import FakeGpu

H100 = Gpu.of(by_name("h100"))

CHANGES: tuple[dict[str, Any], ...] = (
    {"offload": "none"},
    {},
    {"optimizer": "fused"},
    {"optimizer": "for-loop", "precision": "bf16"},
    {"param_dtype": "bf16", "reduce_dtype": "fp32"},
    {"reshard": "off", "prefetch": 1},
    {"strategy": "hsdp"},
    {"checkpoint": "full"},
    {"offload": "none", "ranks": 3, "vocab": 1009, "ctx": 51, "batch": 3},
    {"offload": "none", "ranks": 2, "d_ff": 301, "ctx": 77, "precision": "bf16", "attention": "sdpa"},
    {"offload": "none", "ranks": 3, "d_model": 132, "heads": 6, "param_dtype": "bf16", "grad_accum": 2},
)

COMPILED: tuple[dict[str, Any], ...] = (
    {"strategy": "ddp"},
    {"strategy": "ddp", "d_model": 512, "d_ff": 2048, "layers": 4, "vocab": 4000},
    {"strategy": "ddp", "bucket_mb": 1, "gradient_as_bucket_view": "on", "precision": "bf16"},
    {"strategy": "ddp", "grad_accum": 2},
    {"strategy": "zero1", "bucket_mb": 1},
    {"strategy": "zero2", "bucket_mb": 1, "optimizer": "fused"},
    {"strategy": "fsdp2"},
    {"strategy": "fsdp2", "precision": "bf16", "checkpoint": "selective"},
    {"strategy": "fsdp2", "param_dtype": "bf16", "reduce_dtype": "fp32", "attention": "sdpa"},
    {"strategy": "fsdp2", "reshard": "off", "prefetch": 1, "ranks": 3},
    {"strategy": "hsdp"},
)


def cell(**changes: Any) -> MemoryCell:
    shape = {"d_model": 64, "d_ff": 300, "layers": 3, "heads": 2, "vocab": 501, "ctx": 64, "batch": 2}
    sharded = {"ranks": 4, "strategy": "fsdp2", "offload": "parameters", "mode": "train"}
    (only,) = MemorySpec(**{**shape, **sharded, **changes}).cells()
    assert isinstance(only, MemoryCell)
    assert only.problem("cuda") is None
    return only


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_offloaded_shards_leave_on_the_device_what_is_simulated(fake_gpu: FakeGpu) -> None:
    cells = [cell(**changes) for changes in CHANGES]
    compare(cells, measured(fake_gpu, cells))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize("changes", COMPILED, ids=str)
def test_compiled_ranks_allocate_what_is_simulated(fake_gpu: FakeGpu, changes: dict[str, Any], tmp_path: Path) -> None:
    """Once the kernels are chosen: the first step of all tries them, which takes memory."""
    cells = [cell(**{"execution": "compiled", "vocab": 504, "d_ff": 304, "offload": "none", **changes})]
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    measured(fake_gpu, cells, **cache)
    compare(cells, measured(fake_gpu, cells, **cache))


def measured(fake_gpu: FakeGpu, cells: list[MemoryCell], **settings: str) -> list[dict[str, int]]:
    words = json.dumps([each.model_dump(mode="json") for each in cells])
    ran = fake_gpu.run(sys.executable, "-m", "tests.fake_gpu.sharded", words, capability="9.0", **settings)
    assert ran.code == 0, ran.err
    return [json.loads(line) for line in ran.out.splitlines()]


def compare(cells: list[MemoryCell], real: list[dict[str, int]]) -> None:
    for each, peaks in zip(cells, real, strict=True):
        phases = simulate(each.step, each.mode, H100).phases
        assert {phase.phase: phase.allocated_peak_bytes for phase in phases} == peaks, each.key
