"""Values of knobs, and modes in which they have no meaning, are refused before anything runs."""

from __future__ import annotations

import pytest

from sysbench.commands.memory.spec import MemorySpec
from sysbench.commands.time.spec import TimeSpec
from sysbench.errors import SpecError


@pytest.mark.parametrize(
    ("knob", "line"),
    [
        ({"checkpoint": "ful"}, "Did you mean full?"),
        ({"checkpoint": "every-0"}, "Did you mean every-2?"),
        ({"checkpoint": "a b"}, "or a pattern of module names such as 'layers.*'"),
        ({"cross_entropy": "chunk"}, "Did you mean chunked?"),
        ({"cross_entropy": "chunked-0"}, "Did you mean chunked"),
        ({"optimizer": "muom"}, "Did you mean muon?"),
        ({"optimizer": "adam"}, "Did you mean adamw?"),
        ({"precision": "bf16-tru"}, "Did you mean bf16-true?"),
        ({"precision": "fp8-rowise"}, "Did you mean fp8-rowwise?"),
        ({"allocator": "expandabel"}, "Did you mean expandable?"),
        ({"execution": "compiled-graph"}, "Did you mean compiled-graphs?"),
        ({"offload": "optimiser"}, "Did you mean optimizer?"),
        ({"offload": "parameter"}, "Did you mean parameters?"),
        ({"lora": "-1"}, "-1 is out of range: it must be 0 or more"),
        ({"lora": "8", "lora_targets": "q proj"}, "or names of linear layers joined by +, such as q_proj+v_proj"),
        ({"adapter": "dora"}, "--adapter dora is a kind of adapter. Add --lora 8"),
        ({"lora": "8", "adapter": "dra"}, "Did you mean dora"),
        ({"lora_targets": "q"}, "--lora-targets q chooses layers for adapters. Add --lora 8"),
    ],
)
def test_a_value_that_is_mistyped_is_refused_with_the_nearest(knob: dict[str, str], line: str) -> None:
    with pytest.raises(SpecError) as refused:
        TimeSpec(**knob)
    assert line in str(refused.value)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"mode": "inference", "checkpoint": "full"}, "no backward pass. Nearest: --mode forward-backward"),
        ({"mode": "forward", "checkpoint": "layers.*"}, "no backward pass. Nearest: --mode forward-backward"),
        ({"mode": "forward", "cross_entropy": "chunked"}, "no loss. Nearest: --mode forward-backward"),
        ({"mode": "inference", "lora": "8"}, "this mode trains none. Nearest: --mode forward-backward"),
        ({"mode": "train", "lora": "8", "ranks": "2", "strategy": "tp"}, "does not support --strategy tp. Nearest"),
        ({"mode": "forward", "optimizer_in_backward": "on"}, "no optimizer. Nearest: --mode train"),
        ({"optimizer_in_backward": "on", "grad_accum": "2"}, "--grad-accum 2 adds up several. Drop one of them"),
        ({"optimizer_in_backward": "on", "precision": "fp16"}, "Nearest: --precision bf16"),
        ({"execution": "compiled-graphs", "grad_accum": "2"}, "overwrites. Nearest: --execution compiled"),
        ({"offload": "optimizer", "mode": "forward-backward"}, "no optimizer. Nearest: --mode train"),
        ({"offload": "optimizer", "optimizer_in_backward": "on"}, "in different places. Drop one of them"),
        ({"offload": "optimizer", "precision": "fp16"}, "as fp16 needs. Nearest: --precision bf16"),
        ({"offload": "optimizer", "ranks": "2"}, "Use --ranks 1, or --strategy fsdp2 --offload parameters"),
        ({"offload": "parameters"}, "Add --ranks 2 --strategy fsdp2. Nearest without shards: --offload optimizer"),
        ({"offload": "parameters", "ranks": "2", "strategy": "ddp"}, "moves shards to the host. Add --ranks 2"),
        ({"offload": "parameters", "ranks": "2", "strategy": "fsdp2", "precision": "fp16"}, "as fp16 needs. Nearest"),
        ({"offload": "parameters", "ranks": "2", "strategy": "fsdp2", "optimizer": "sgd"}, "runs AdamW on the host"),
        ({"offload": "optimizer", "optimizer": "muon"}, "not muon. Nearest: --optimizer fused"),
        ({"precision": "fp8", "lora": "8"}, "freezes them. Nearest: --precision bf16"),
        (
            {"precision": "fp8", "ranks": "2", "strategy": "fsdp2"},
            "sharded parameters of fsdp2. Nearest: --strategy ddp",
        ),
        (
            {"precision": "fp8-rowwise", "d_model": "100", "heads": "5", "d_ff": "200"},
            "--precision fp8-rowwise needs sides divisible by 16, but has d_model 100 and d_ff 200. Nearest",
        ),
        (
            {"mode": "forward", "ranks": "2", "strategy": "zero1"},
            "shares the optimizer's state, but this mode has no opt",
        ),
        ({"precision": "fp16", "ranks": "2", "strategy": "zero2"}, "support --strategy zero2. Nearest: fp16-true"),
        ({"precision": "fp8", "ranks": "2", "strategy": "zero2"}, "support --strategy zero2. Nearest: bf16-true"),
        ({"optimizer": "muon", "ranks": "2", "strategy": "zero1"}, "makes all parameters one vector. Nearest: fused"),
        (
            {"lora": "8", "quantize": "int8", "ranks": "2", "strategy": "fsdp2"},
            "--quantize int8 does not support the sharded parameters of fsdp2. Nearest: ddp",
        ),
        ({"lora": "8", "quantize": "int8", "adapter": "dora"}, "--quantize int8 packs: not modelled. Nearest"),
        ({"optimizer_in_backward": "on", "ranks": "2"}, "before the 2 ranks have exchanged gradients. Use --ranks 1"),
    ],
)
def test_a_knob_that_the_mode_lacks_is_refused(fields: dict[str, str], line: str) -> None:
    (cell,) = TimeSpec(ctx=16, **fields).cells()
    assert line in str(cell.problem("cuda"))


def test_options_of_the_allocator_are_for_cuda() -> None:
    (cell,) = TimeSpec(ctx=16, allocator="expandable", mode="train").cells()
    assert cell.problem("cuda") is None
    assert "cpu has no caching allocator" in str(cell.problem("cpu"))


def test_cuda_graphs_are_for_cuda() -> None:
    (cell,) = TimeSpec(ctx=16, execution="compiled-graphs", mode="train").cells()
    assert cell.problem("cuda") is None
    assert "which cpu lacks. Nearest: compiled" in str(cell.problem("cpu"))
    (tuned,) = TimeSpec(ctx=16, execution="compiled-autotune", mode="train").cells()
    assert tuned.problem("cpu") is None


def test_an_optimizer_is_offloaded_from_cuda() -> None:
    (cell,) = TimeSpec(ctx=16, offload="optimizer", mode="train").cells()
    assert cell.problem("cuda") is None
    assert "it needs CUDA" in str(cell.problem("cpu"))


def test_the_tokens_of_products_in_fp8_are_divisible_by_16() -> None:
    odd, even = TimeSpec(ctx=10, batch="3,8", precision="fp8", mode="train").cells()  # type: ignore[arg-type]
    assert "divisible by 16, but has tokens (batch × ctx) 30. Nearest: --precision bf16" in str(odd.problem("cuda"))
    assert even.problem("cuda") is None


def test_products_in_fp8_are_not_for_mps_and_are_emulated_on_a_cpu() -> None:
    (cell,) = TimeSpec(ctx=16, precision="fp8", mode="train").cells()  # type: ignore[arg-type]
    assert cell.problem("cuda") is None
    assert cell.problem("cpu") is None
    assert "which mps lacks. Nearest: bf16" in str(cell.problem("mps"))


def test_the_rate_of_the_host_link_has_a_unit_and_is_kept_in_bytes_per_second() -> None:
    cells = TimeSpec(ctx=16, simulate="h100", offload="none,optimizer", host_link="25GB/s").cells()  # type: ignore[arg-type]
    assert [cell.host_link for cell in cells] == [25e9, 25e9]
    spec = TimeSpec(ctx=16, simulate="h100", offload="optimizer", host_link="24.5 GiB/s")  # type: ignore[arg-type]
    assert spec.host_link == 24.5 * 2**30
    assert TimeSpec(**spec.model_dump(mode="json")) == spec


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"host_link": "25"}, "25 is not a rate with a unit, such as 25GB/s"),
        ({"host_link": "25GB"}, "25GB is not a rate with a unit, such as 25GB/s"),
        ({"host_link": "-1GB/s"}, "-1GB/s is not a rate with a unit, such as 25GB/s"),
        ({"host_link": "0GB/s"}, "0GB/s is not a rate with a unit, such as 25GB/s"),
        ({"host_link": "fast"}, "fast is not a rate with a unit, such as 25GB/s"),
        ({"simulate": ()}, "--host-link needs --simulate GPU: it only affects predictions"),
        ({"offload": "none"}, "--host-link is the rate of what --offload copies: add --offload optimizer"),
    ],
)
def test_a_host_link_that_means_nothing_is_refused(fields: dict[str, str], line: str) -> None:
    asked = {"ctx": 16, "simulate": "h100", "offload": "optimizer", "host_link": "25GB/s"}
    with pytest.raises(SpecError) as refused:
        TimeSpec(**{**asked, **fields})
    assert line in str(refused.value)


def test_the_memory_of_cuda_graphs_is_withheld() -> None:
    (cell,) = MemorySpec(ctx=16, mode="train", execution="compiled-graphs").cells()
    assert "sysbench time reports the pool in its reserved memory" in str(cell.problem("cuda"))


def test_a_forward_pass_that_keeps_its_graph_can_be_checkpointed() -> None:
    (cell,) = MemorySpec(ctx=16, mode="forward", checkpoint="full").cells()
    assert cell.problem("cuda") is None


def test_targets_multiply_only_the_cells_with_adapters() -> None:
    cells = TimeSpec(ctx=16, lora="none,8", lora_targets="all-linear,q+v").cells()  # type: ignore[arg-type]
    assert [(cell.lora, cell.lora_targets) for cell in cells] == [(0, None), (8, "all-linear"), (8, "q+v")]


def test_a_cell_without_knobs_keeps_its_key() -> None:
    (plain,) = TimeSpec(ctx=16).cells()
    (turned,) = TimeSpec(ctx=16, checkpoint="full").cells()
    assert "checkpoint" not in plain.model_dump(mode="json")
    assert plain.key != turned.key


def test_adamw_is_its_implementation_that_torch_chooses_on_a_gpu() -> None:
    assert TimeSpec(optimizer="adamw,fused,foreach").optimizer == ("foreach", "fused")  # type: ignore[arg-type]
