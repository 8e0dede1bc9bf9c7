"""One of many ranks: its simulated memory against that of real ranks, byte for byte, and what surrounds it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sysbench.commands.memory.spec import MemoryCell, MemorySpec
from sysbench.simulate.gpu import MIB, Gpu
from sysbench.simulate.memory import simulate
from sysbench.simulate.platform import REAL_PLATFORM, Platform
from sysbench.simulate.ranks import BUCKET_BYTES, FIRST_BUCKET_BYTES, _fill_buckets
from sysbench.simulate.recording import StepRecording
from sysbench.simulate.search import find_fewest_ranks
from sysbench.simulate.steps import record
from sysbench.spec import hardware
from sysbench.spec.ranks import ZERO, Strategy
from tests.cli.running import made_once
from tests.simulate.measured_ranks import live
from tests.simulate.simulated_cells import CPU

H100 = Gpu.of(hardware.by_name("h100-80gb"))

SHAPE = {"d_model": 16, "d_ff": 32, "layers": 1, "heads": 2, "vocab": 50, "ctx": 8, "batch": 3}
UNEVEN = {**SHAPE, "d_model": 20, "d_ff": 31, "vocab": 51, "layers": 2}
BACKWARD = {"mode": "forward-backward"}
LARGE = {**UNEVEN, "d_model": 192, "d_ff": 768}
FP16 = {"precision": "fp16", "device": "auto"}
"""A user gets no fp16 on the CPU, which emulates it."""
HSDP = {"strategy": "hsdp", "ranks": 4}
MEASURED: dict[str, dict[str, Any]] = {
    "fsdp2": {},
    "fsdp2 fused": {"optimizer": "fused"},
    "fsdp2 odd width": {"d_model": 6, "d_ff": 13, "heads": 1, **BACKWARD},
    "fsdp2 forward": {"mode": "forward", "layers": 3},
    "ddp": {"strategy": "ddp"},
    "tp": {"strategy": "tp"},
    "ddp fp16": {"strategy": "ddp", **FP16},
    # Whole and sharded gradients, which the optimizer takes in separate groups.
    "tp fp16 foreach": {"strategy": "tp", "optimizer": "foreach", **FP16},
    "ddp gradients as views": {**LARGE, "strategy": "ddp", "gradient_as_bucket_view": "on", "bucket_mb": 1},
    "fsdp2 mixed precision": {"param_dtype": "bf16", "reduce_dtype": "fp32"},
    "hsdp knobs": {**HSDP, "reshard": "off", "param_dtype": "bf16", "prefetch": 1, **BACKWARD},
    "ddp accumulation, exchanged once": {**LARGE, "strategy": "ddp", "bucket_mb": 1, "grad_accum": 2, "no_sync": "on"},
    "fsdp2 accumulation, exchanged once": {**UNEVEN, "grad_accum": 3, "no_sync": "on"},
    "fsdp2 reshard 2": {"ranks": 4, "reshard": 2, "layers": 3, "mode": "forward"},
    "zero1 accumulation": {**UNEVEN, "strategy": "zero1", "bucket_mb": 1, "grad_accum": 2},
    "zero2 in several buckets": {**LARGE, "strategy": "zero2", "bucket_mb": 1, "optimizer": "fused"},
}
"""Configurations that two or four processes run for real."""
VIEWS = {"strategy": "ddp", "gradient_as_bucket_view": "on"}
MEASURED_TOO: dict[str, dict[str, Any]] = {
    "fsdp2 uneven": UNEVEN,
    "fsdp2 for-loop": {"optimizer": "for-loop"},
    "fsdp2 first step": {"mode": "train-first", "vocab": 77},
    "fsdp2 sdpa": {"attention": "sdpa", **BACKWARD},
    "fsdp2 inference": {"mode": "inference", "layers": 3},
    "ddp in several buckets": {**LARGE, "strategy": "ddp", **BACKWARD},
    "fsdp2 fp16": FP16,
    **{f"tp fp16 {each}": {"strategy": "tp", "optimizer": each, **FP16} for each in ("for-loop", "fused")},
    "ddp small buckets": {**LARGE, "strategy": "ddp", "bucket_mb": 1, **BACKWARD},
    "ddp views, first step": {**VIEWS, "mode": "train-first"},
    "ddp bf16": {"strategy": "ddp", "precision": "bf16"},
    "fsdp2 bf16": {"precision": "bf16", **BACKWARD},
    "fsdp2 reshard off": {"reshard": "off", "layers": 2, **BACKWARD},
    "fsdp2 reshard on": {"reshard": "on", "layers": 3, "mode": "forward"},
    "fsdp2 chunked loss": {"reshard": "on", "cross_entropy": "chunked-16"},
    "ddp accumulation": {"strategy": "ddp", "grad_accum": 3},
    "ddp accumulation, buckets": {**LARGE, "strategy": "ddp", "bucket_mb": 1, "grad_accum": 2, "no_sync": "off"},
    "ddp accumulation in views": {**VIEWS, "grad_accum": 3},
    "ddp accumulation in views, exchanged once": {**VIEWS, "grad_accum": 3, "no_sync": "on"},
    "fsdp2 accumulation": {"grad_accum": 3},
    "fsdp2 accumulation, two types": {
        "grad_accum": 2,
        "no_sync": "on",
        "param_dtype": "bf16",
        "reduce_dtype": "fp32",
        **BACKWARD,
    },
    "hsdp accumulation": {**HSDP, "grad_accum": 2, "no_sync": "on"},
    "zero1 in several buckets": {**LARGE, "strategy": "zero1", "bucket_mb": 1},
    "zero2 accumulation": {**LARGE, "strategy": "zero2", "bucket_mb": 2, "grad_accum": 3},
    "zero2 bf16-true": {**LARGE, "strategy": "zero2", "bucket_mb": 1, "precision": "bf16-true"},
}
"""Others, with `-m slow`."""


def cell_of(**axes: Any) -> MemoryCell:
    base = {**SHAPE, "mode": "train", "ranks": 2, "strategy": "fsdp2"}
    (cell,) = MemorySpec(**{**base, "device": "cpu", **axes}).cells()
    return cell


def measured(factory: pytest.TempPathFactory, name: str) -> list[list[Any]]:
    """Return the live bytes of rank 0 at the end of every phase."""
    together = MEASURED if name in MEASURED else MEASURED_TOO
    cells = {each: cell_of(**axes) for each, axes in together.items()}
    written = json.dumps([cell.model_dump(mode="json") for cell in cells.values()])

    def measure(folder: Path) -> str:
        command = [sys.executable, "-W", "ignore::UserWarning", "-m", "tests.simulate.measured_ranks"]
        subprocess.run([*command, written, str(folder)], check=True)
        return json.dumps({file.stem: json.loads(file.read_text()) for file in folder.glob("*.json")})

    outcome, _ = made_once(factory, f"{len(together)}-simulated-ranks", measure)
    found = {ranks: iter(phases) for ranks, phases in json.loads(outcome).items()}
    return {each: next(found[str(cell.ranks)]) for each, cell in cells.items()}[name]


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")  # the model returns a view, as models do
@pytest.mark.parametrize("name", [*MEASURED, *(pytest.param(name, marks=pytest.mark.slow) for name in MEASURED_TOO)])
def test_a_rank_takes_as_many_bytes_as_measured(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    cell = cell_of(**{**MEASURED, **MEASURED_TOO}[name])
    with sdpa_kernel(SDPBackend.MATH):
        simulated = record(cell.step, cell.mode, CPU)
    parameters = sum(each.category == "gradients" for each in simulated.allocations) and tensors_of(cell)
    if cell.strategy in ZERO:
        parameters = 1  # a part of all in one
    # A mesh with two dimensions, as torch makes for groups of ranks, keeps the coordinates of its rank on the host.
    coordinates_bytes = 16 if cell.ranks == 4 else 0
    expected = []
    for step, phase, size_bytes in measured(tmp_path_factory, name):
        # AdamW counts its steps on the host, which is not simulated; the fused one does not.
        counted = (step > 0 or phase == "optimizer") and "optimizer" in cell.phases and cell.optimizer != "fused"
        expected.append((step, phase, size_bytes - coordinates_bytes - (4 * parameters if counted else 0)))
    assert live(simulated) == expected


def tensors_of(cell: MemoryCell) -> int:
    assert cell.shape is not None
    return 3 + 9 * cell.shape.layers


def categories(recording: StepRecording, position: int) -> Counter[str]:
    found = Counter[str]()
    for each in (recording.allocations[number] for number in recording.live_at(position)):
        found[each.category] += each.size_bytes
    return found


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_the_loss_scale_is_no_gradient_where_whole_gradients_are_kept() -> None:
    def found(precision: str) -> Counter[str]:
        cell = cell_of(grad_accum=2, no_sync="on", precision=precision, simulate="h100", device="auto")
        recording = record(cell.step, cell.mode, CPU)
        return categories(recording, recording.measured[-2].end)  # after the last backward

    scaled, unscaled = found("fp16"), found("fp32")
    assert scaled["gradients"] == unscaled["gradients"]
    assert scaled["optimizer state"] == unscaled["optimizer state"] + 4 + 4


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize("ranks", [8, 64])
def test_fsdp2_keeps_three_times_the_shard_of_its_rank(ranks: int) -> None:
    cell = cell_of(ranks=ranks, d_model=64, d_ff=192, vocab=128, simulate="h100", device="auto")
    result = simulate(cell.step, "train", H100)
    left = categories(result.recording, len(result.recording.events))
    shard = left["parameters"]
    assert shard == 4 * (2 * 128 * 64 + 4 * 64 * 64 + 3 * 64 * 192 + 3 * 64) / ranks
    assert left["gradients"] == shard
    assert left["optimizer state"] == 2 * shard
    assert result.gpu.nccl_bytes == 392 * MIB


@pytest.mark.parametrize("ranks", [2, 8])
def test_ranks_of_zero_share_an_fp32_copy_and_two_moments_of_all_parameters(ranks: int) -> None:
    shape = {"d_model": 64, "d_ff": 192, "vocab": 128, "precision": "bf16-true", "simulate": "h100", "device": "auto"}
    result = simulate(cell_of(**shape, ranks=ranks, strategy="zero2", bucket_mb=1).step, "train", H100)
    left = categories(result.recording, len(result.recording.events))
    parameters = 2 * 128 * 64 + 4 * 64 * 64 + 3 * 64 * 192 + 3 * 64
    assert left["parameters"] == 2 * parameters
    assert left["optimizer state"] == 3 * 4 * parameters / ranks
    assert left["gradients"] == 0


@pytest.mark.parametrize(("stage", "kept"), [(1, 1.0), (2, 0.5)])
def test_stage_1_keeps_all_gradients_between_micro_batches_and_stage_2_those_of_its_part(
    stage: int, kept: float
) -> None:
    shape = {"d_model": 64, "d_ff": 192, "vocab": 128, "layers": 4, "bucket_mb": 1, "grad_accum": 2}
    cell = cell_of(**shape, strategy=f"zero{stage}", simulate="h100", device="auto")
    recording = record(cell.step, cell.mode, CPU)
    first_backward = next(span for span in recording.measured if span.name == "backward")
    gradients = categories(recording, first_backward.end)["gradients"]
    whole = 4 * (2 * 128 * 64 + 4 * (4 * 64 * 64 + 3 * 64 * 192 + 2 * 64) + 64)
    assert gradients == pytest.approx(kept * whole, rel=0.1)  # a parameter at the border of two parts is kept whole


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_what_fsdp2_communicates_is_allocated_on_streams_of_its_own() -> None:
    result = simulate(cell_of(simulate="h100", device="auto").step, "train", H100)
    streams = {each.stream for each in result.recording.allocations if each.category == "communication"}
    assert streams > {0}
    assert {each.stream for each in result.recording.allocations if each.category == "activations"} == {0}
    segments = result.snapshot()["segments"]
    assert {segment["stream"] for segment in segments} > {0}
    of_stream = {block["address"]: segment["stream"] for segment in segments for block in segment["blocks"]}
    for entry in result.snapshot()["device_traces"][0]:
        if entry["action"] == "alloc" and entry["addr"] in of_stream:
            assert entry["stream"] == of_stream[entry["addr"]]


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_a_rank_need_not_hold_the_whole_model_while_it_is_built() -> None:
    large = {"d_model": 2048, "d_ff": 8192, "layers": 8, "heads": 8, "simulate": "h100", "device": "auto"}
    whole = simulate(cell_of(**large, ranks=1, strategy=()).step, "forward", H100)
    tight = replace(H100, memory_bytes=whole.by_category["parameters"] // 2 + 1224 * MIB)
    assert not simulate(cell_of(**large, ranks=1, strategy=()).step, "forward", tight).verdict.fits
    assert simulate(cell_of(**large, ranks=8).step, "forward", tight).verdict.fits
    search = find_fewest_ranks(cell_of(**large, ranks=8).step, tight, "train")
    tried = []
    while True:
        try:
            ranks, result = next(search)
        except StopIteration as end:
            fewest = end.value
            break
        tried.append((ranks, result.verdict.fits))
    assert [ranks for ranks, _ in tried] == [2**power for power in range(len(tried))]
    assert fewest.value == next(ranks for ranks, fits in tried if fits) > 1


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_a_search_for_ranks_ends_where_more_ranks_save_less_than_is_missing() -> None:
    cell = cell_of(ctx=1024, batch=16, simulate="h100", device="auto")
    sharded = simulate(cell.step.model_copy(update={"ranks": 64}), "train", H100)
    tight = replace(H100, memory_bytes=H100.memory_bytes - sharded.verdict.margin_bytes - 600 * MIB)
    search, tried = find_fewest_ranks(cell.step, tight, "train"), []
    while True:
        try:
            tried.append(next(search)[0])
        except StopIteration as end:
            found = end.value
            break
    assert (found.value, found.safe, found.more_is_useless, tried) == (0, 0, True, [1, 2, 4])


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_a_search_for_ranks_computes_in_the_given_type_on_one_rank_too() -> None:
    cell = cell_of(param_dtype="bf16", layers=3, simulate="h100", device="auto")
    _, alone = next(find_fewest_ranks(cell.step, H100))
    forward = {}
    for recording in (alone.recording, record(cell.step, "train", Platform.of(H100))):
        found = categories(recording, recording.measured[2].end)  # after the loss
        forward[recording.cell.ranks] = found["activations"] + found["communication"]
    assert forward[1] == forward[2]


@pytest.mark.parametrize("strategy", ["fsdp2", "hsdp", "tp", "ddp"])
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_everything_is_as_it_was_after_a_simulation(strategy: Strategy) -> None:
    from torch.distributed.fsdp._fully_shard import _fully_shard

    before = (nn.parallel.DistributedDataParallel, _fully_shard._get_device_from_mesh, torch.UntypedStorage.resize_)
    record(cell_of(ranks=4, strategy=strategy, heads=4, mode="forward").step, "forward", REAL_PLATFORM)
    assert not dist.is_initialized()
    assert before == (
        nn.parallel.DistributedDataParallel,
        _fully_shard._get_device_from_mesh,
        torch.UntypedStorage.resize_,
    )


def test_ddp_fills_its_buckets_as_torch_does() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 3_000_000, (60,), generator=generator).tolist()
    parameters = [torch.empty(length, device="meta") for length in lengths]
    expected, _ = dist._compute_bucket_assignment_by_size(parameters, [FIRST_BUCKET_BYTES, BUCKET_BYTES])
    number = {id(each): position for position, each in enumerate(parameters)}
    filled = _fill_buckets(parameters, FIRST_BUCKET_BYTES, BUCKET_BYTES)
    assert [[number[id(each)] for each in bucket] for bucket in filled] == expected
