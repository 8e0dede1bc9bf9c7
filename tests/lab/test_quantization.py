"""Adapters beside weights of 4 bits (QLoRA) and of 8: products are those of the dequantized weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sysbench.commands.memory.spec import MemorySpec
from sysbench.errors import SpecError, UnavailableError
from sysbench.lab.step import TrainingStep
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.memory import simulate
from sysbench.spec.model import ModelCell
from tests.cli.running import answered

CPU = torch.device("cpu")
BUILT_IN = {"d_model": 64, "d_ff": 128, "layers": 2, "heads": 2, "vocab": 31}


def cell(**fields: Any) -> ModelCell:
    """The one cell of a training step with adapters."""
    given = {"ctx": 8, "batch": 3, "mode": "train", "lora": 4, "quantize": "nf4", **BUILT_IN, **fields}
    (only,) = MemorySpec(**given).cells()
    assert only.step is not None
    return only.step


def with_weights_of(quantized: TrainingStep, step: TrainingStep) -> TrainingStep:
    """The step of whole weights, with the dequantized ones and the adapters of the other step."""
    from bitsandbytes.functional import dequantize_4bit

    weights = dict(quantized.model.named_parameters())
    with torch.no_grad():
        for name, parameter in step.model.named_parameters():
            weight, state = weights[name], getattr(weights[name], "quant_state", None)
            if state is not None:
                weight = dequantize_4bit(weight, state)
            elif weight.dtype == torch.int8:  # largest magnitude of each row, in 127 steps
                weight = weight * getattr(weight, "SCB")[:, None] / 127  # noqa: B009
            parameter.copy_(weight)
    return step


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"lora_targets": "all-linear", "checkpoint": "full"},
        {"quantize": "int8"},
        {"quantize": "int8", "lora_targets": "all-linear", "checkpoint": "reentrant"},
    ],
    ids=str,
)
def test_gradients_are_those_of_the_dequantized_weights(fields: dict[str, Any]) -> None:
    pytest.importorskip("bitsandbytes")
    quantized = TrainingStep(cell(**fields), CPU)
    for name, module in quantized.model.named_modules():
        if name.endswith("lora_B.default"):
            nn.init.normal_(module.weight, std=0.1)  # type: ignore[arg-type]
    whole = with_weights_of(quantized, TrainingStep(cell(**{**fields, "quantize": ()}), CPU))
    for step in (quantized, whole):
        for name, run in step.phases:
            if name != "optimizer":
                run()
    assert quantized.loss == pytest.approx(whole.loss, rel=1e-4)
    expected = dict(whole.model.named_parameters())
    for name, parameter in quantized.model.named_parameters():
        assert (parameter.grad is not None) == (".lora_" in name)
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, expected[name].grad, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("quantize", "dtype"), [("nf4", torch.uint8), ("int8", torch.int8)])
def test_all_linear_layers_but_the_output_layer_are_packed(quantize: str, dtype: torch.dtype) -> None:
    pytest.importorskip("bitsandbytes")
    step = TrainingStep(cell(quantize=quantize), CPU)
    packed = {name for name, each in step.model.named_parameters() if each.dtype == dtype}
    assert len(packed) == 2 * 7
    assert {name.split(".")[0] for name in packed} == {"layers"}


def test_simulated_weights_take_the_bytes_that_bitsandbytes_stores() -> None:
    shape = {"d_model": 512, "d_ff": 1024, "layers": 1, "vocab": 256}
    kept = simulate(cell(**shape), "train", Gpu("any", 1 << 50)).phases[0].by_category
    elements = 4 * 512 * 512 + 3 * 512 * 1024
    adapters, whole = 2 * 2 * 4 * 512 * 4, 4 * (2 * 256 * 512 + 3 * 512)
    assert kept["parameters"] == elements // 2 + adapters + whole
    scales = elements // 64 + 4 * elements // 64 // 256
    assert scales <= kept["inputs"] <= scales + 7 * 5 * 1024 + 16 * 1024


def test_simulated_weights_of_8_bits_take_a_byte_each_and_four_for_each_row() -> None:
    shape = {"d_model": 512, "d_ff": 1024, "layers": 1, "vocab": 256}
    kept = simulate(cell(**shape, quantize="int8"), "train", Gpu("any", 1 << 50)).phases[0].by_category
    adapters, whole = 2 * 2 * 4 * 512 * 4, 4 * (2 * 256 * 512 + 3 * 512)
    assert kept["parameters"] == 4 * 512 * 512 + 3 * 512 * 1024 + adapters + whole
    without = simulate(cell(**shape, quantize=()), "train", Gpu("any", 1 << 50)).phases[0].by_category
    assert kept["inputs"] - without["inputs"] == 4 * (5 * 512 + 2 * 1024)


def test_layers_of_8_bits_keep_their_inputs_unless_checkpointing_is_reentrant() -> None:
    tokens, d_model, d_ff, layers = 512, 64, 128, 4
    fields = {"precision": "bf16-true", "attention": "sdpa", "ctx": tokens, "batch": 1, "layers": layers}

    def before_backward(**chosen: Any) -> int:
        phases = simulate(cell(**fields, **chosen), "train", Gpu("any", 1 << 50)).phases
        (loss,) = (each for each in phases if each.phase == "loss")
        return loss.allocated_peak_bytes

    in_a_layer = 2 * tokens * (3 * d_model + d_ff)  # of q, k and v; of the output; of gate and up; of down
    nf4, whole = (before_backward(checkpoint=choice) for choice in ("full", "none"))
    freed, kept = (before_backward(quantize="int8", checkpoint=choice) for choice in ("reentrant", "full"))
    assert (layers - 1) * in_a_layer < kept - freed <= layers * in_a_layer
    assert freed - nf4 < in_a_layer < whole - nf4


def test_products_of_8_bits_count_as_those_of_whole_weights(tmp_path: Path) -> None:
    words = ("--d-model=64", "--d-ff=64", "--layers=1", "--heads=2", "--vocab=100", "--ctx=16", "--mode=train")
    ran = answered("time", *words, "--simulate=h100", "--lora=8", "--quantize=none,int8", f"--out={tmp_path}",
                   "--no-live", "--json=-")  # fmt: skip
    whole, packed = json.loads(ran.out)["cells"]
    assert whole["model"] == packed["model"]  # parameters, and FLOPs of forward
    assert [caution["code"] for caution in packed["cautions"]] == ["modelled"]


def test_a_dequantized_weight_exists_only_while_its_layer_runs() -> None:
    fields: dict[str, Any] = {"d_model": 1024, "d_ff": 4096, "batch": 1, "lora_targets": "all-linear"}
    peaks = [simulate(cell(layers=layers, **fields), "train", Gpu("any", 1 << 50)).phases for layers in (2, 4)]
    forward_bytes = [next(each.allocated_peak_bytes for each in phases if each.phase == "forward") for phases in peaks]
    weights_of_a_layer = 4 * 1024 * 1024 + 3 * 1024 * 4096
    assert forward_bytes[1] - forward_bytes[0] < 2 * weights_of_a_layer  # 4 bytes each, if they stayed


@pytest.fixture
def mixture(tmp_path: Path) -> str:
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "moe_intermediate_size": 128, "intermediate_size": 128, "num_hidden_layers": 3}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "vocab_size": 50, "model_type": "qwen3_moe"}
    (tmp_path / "config.json").write_text(json.dumps({**sizes, **heads, **experts}))
    return f"hf:{tmp_path}"


def of_mixture(model: str, **fields: Any) -> ModelCell:
    own = {"ctx": 8, "batch": 2, "mode": "train", "lora": 4, "quantize": "nf4-experts", "lora_targets": "q_proj"}
    (only,) = MemorySpec(model=model, **{**own, **fields}).cells()
    return only.step


def test_experts_are_packed_and_their_products_are_those_of_the_dequantized_weights(mixture: str) -> None:
    pytest.importorskip("bitsandbytes")
    packed, whole = TrainingStep(of_mixture(mixture), CPU), TrainingStep(of_mixture(mixture, quantize="nf4"), CPU)
    experts = [name for name, each in whole.model.named_parameters() if each.dim() == 3]
    assert len(experts) == 2 * 3
    with torch.no_grad():
        for name in experts:
            module, attribute = name.rpartition(".")[::2]
            weight = whole.model.get_parameter(name)
            values = getattr(packed.model.get_submodule(module), attribute)
            assert (values - weight).abs().mean() < 0.15 * weight.abs().mean()  # 4 bits have 16 values
            weight.copy_(values)
    losses = []
    for step in (packed, whole):
        for name, run in step.phases:
            if name != "optimizer":
                run()
        losses.append(step.loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable`")
def test_simulated_experts_take_four_bits_and_exist_only_while_their_module_runs(mixture: str) -> None:
    def phases(quantize: str) -> dict[str, Any]:
        of = of_mixture(mixture, quantize=quantize, checkpoint="full")
        return {each.phase: each for each in simulate(of, "train", Gpu("any", 1 << 50)).phases}

    elements = 3 * 8 * 3 * 64 * 128
    whole, packed = phases("nf4"), phases("nf4-experts")
    saved = whole["zero_grad"].by_category["parameters"] - packed["zero_grad"].by_category["parameters"]
    assert saved == 4 * elements - elements // 2
    kept_bytes = whole["forward"].allocated_peak_bytes - packed["forward"].allocated_peak_bytes
    assert kept_bytes > 1.9 * elements  # the values of one layer of three are there, and scales


def test_a_model_without_experts_is_refused() -> None:
    with pytest.raises(UnavailableError, match="has no stacked weights of experts"):
        simulate(cell(quantize="nf4-experts"), "train", Gpu("any", 1 << 50))


def test_parameters_are_counted_as_they_are_and_not_as_they_are_stored(tmp_path: Path) -> None:
    words = ("--d-model=64", "--d-ff=64", "--layers=1", "--heads=2", "--vocab=100", "--ctx=16", "--mode=train")
    ran = answered("memory", *words, "--simulate=h100", "--lora=8", "--quantize=none,nf4", f"--out={tmp_path}",
                   "--no-live", "--json=-")  # fmt: skip
    whole, packed = json.loads(ran.out)["cells"]
    assert whole["model"]["parameters"] == packed["model"]["parameters"]
    assert [caution["code"] for each in (whole, packed) for caution in each["cautions"]] == ["modelled"]


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"quantize": "nf"}, "Did you mean nf4?"),
        *(
            (
                {"quantize": each, "lora": "0"},
                f"--quantize {each} freezes weights, which leaves nothing to train. Add --lora 8",
            )
            for each in ("nf4", "int8")
        ),
    ],
)
def test_bad_values_are_refused(fields: dict[str, Any], line: str) -> None:
    with pytest.raises((SpecError, ValueError)) as refused:
        MemorySpec(ctx=16, **fields)
    assert line in str(refused.value)


@pytest.mark.parametrize("quantize", ["nf4", "int8"])
def test_shards_of_packed_weights_are_refused(quantize: str) -> None:
    (only,) = MemorySpec(ctx=16, mode="train", lora="8", quantize=quantize, ranks="2", strategy="fsdp2").cells()  # type: ignore[arg-type]
    assert "does not support the sharded parameters of fsdp2. Nearest: ddp" in str(only.problem("cuda"))


def test_a_model_without_linear_layers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("from torch import nn\nclass Embedded(nn.Embedding):\n"
                                       "    def __init__(self):\n        super().__init__(50, 8)\n")  # fmt: skip
    spec = MemorySpec(model="plain.py:Embedded", app_dir=str(tmp_path), ctx=8, mode="train", lora=4, quantize="nf4")  # type: ignore[arg-type]
    (only,) = spec.cells()
    with pytest.raises(UnavailableError, match="Embedded has no linear layers with weights to pack"):
        TrainingStep(only.step, CPU)  # type: ignore[arg-type]


def test_values_multiply_only_the_cells_with_adapters() -> None:
    cells = MemorySpec(ctx=16, mode="train", lora="none,8", quantize="none,nf4").cells()  # type: ignore[arg-type]
    assert [(cell.lora, cell.quantize) for cell in cells] == [(0, None), (8, None), (8, "nf4")]
