"""LoRA trains W + s·B·A through A and B alone; every parameter of the model stays as it is."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from sysbench import formulas
from sysbench.commands.memory.spec import MemorySpec
from sysbench.commands.own_models import counted_work
from sysbench.commands.time.spec import TimeSpec
from sysbench.errors import UnavailableError
from sysbench.lab.knobs.layers import linear_layers
from sysbench.lab.step import TrainingStep
from sysbench.log.events import AdaptedModelBuilt
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.memory import simulate
from sysbench.spec.model import ModelCell
from tests.cli.running import answered
from tests.fake_gpu.memory import ROOT
from tests.lab.two_ranks import RANKS
from tests.processes import HANG_S

CPU = torch.device("cpu")
RANK = 4
SCALE = 8 / RANK
"""peft's default of `lora_alpha` is 8."""

BUILT_IN = {"d_model": 16, "d_ff": 24, "layers": 2, "heads": 2, "vocab": 31}
STRANGERS = ("NanoGpt", "Llama", "Grouped", "Encoder", "Mamba", "Mixture", "Recomputed")
CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "bos_token_id": 0, "eos_token_id": 0},
    "llama": {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2},
    "mixtral": {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
    },
}


def cell(model: str = "", **fields: Any) -> ModelCell:
    """The one cell of a training step: of the built-in model, of a stranger's, or of a config's directory."""
    target = model if model.startswith("hf:") else f"tests.fake_gpu.strangers:{model}"
    given = {"model": target, "app_dir": str(ROOT)} if model else BUILT_IN
    (only,) = MemorySpec(**{"ctx": 8, "batch": 3, "mode": "train", **given, **fields}).cells()
    assert only.step is not None
    return only.step


@pytest.fixture
def config(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    fields = {"model_type": request.param, "vocab_size": 31, **CONFIGS[request.param]}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    return f"hf:{tmp_path}"


def whole_and_adapted(model: str, **fields: Any) -> tuple[TrainingStep, TrainingStep]:
    """The step of a model whose weights are W + s·B·A, and the step with adapters A and B beside W."""
    adapted = TrainingStep(cell(model, lora=RANK, **fields), CPU)
    whole = TrainingStep(cell(model), CPU)
    weights = dict(whole.model.named_parameters(remove_duplicate=False))
    torch.manual_seed(1)
    with torch.no_grad():
        for name, module in adapters(adapted):
            down, up = module.lora_A["default"].weight, module.lora_B["default"].weight.normal_(std=0.1)
            weights[f"{name}.weight"] += as_stored(SCALE * up @ down, module)
    return whole, adapted


def adapters(step: TrainingStep) -> list[tuple[str, Any]]:
    return [(name, module) for name, module in step.model.named_modules() if hasattr(module, "lora_A")]


def as_stored(weight: Tensor, adapter: Any) -> Tensor:
    """A matrix (d_out, d_in) as the layer stores it: GPT-2's has it transposed."""
    return weight.T if type(adapter.base_layer).__name__ == "Conv1D" else weight


def take(step: TrainingStep) -> float:
    torch.manual_seed(0)  # for dropout
    for name, run in step.phases:
        if name != "optimizer":
            run()
    assert step.loss is not None
    return step.loss


def compare(model: str, **fields: Any) -> int:
    """Compare loss and gradients of both steps by the chain rule; return the number of adapted layers."""
    whole, adapted = whole_and_adapted(model, **fields)
    assert take(adapted) == pytest.approx(take(whole), rel=1e-5)
    weights = dict(whole.model.named_parameters(remove_duplicate=False))
    for name, module in adapters(adapted):
        down, up = module.lora_A["default"].weight, module.lora_B["default"].weight
        gradient = weights[f"{name}.weight"].grad
        assert gradient is not None
        gradient = as_stored(gradient, module)
        torch.testing.assert_close(down.grad, SCALE * up.T @ gradient, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(up.grad, SCALE * gradient @ down.T, rtol=1e-3, atol=1e-6)
    return len(adapters(adapted))


def trained(step: TrainingStep) -> dict[str, Tensor]:
    return {name: each for name, each in step.model.named_parameters() if each.requires_grad}


@pytest.mark.parametrize(
    ("fields", "layers"),
    [
        ({}, 4),
        ({"lora_targets": "all-linear", "checkpoint": "full"}, 14),
        ({"lora_targets": "w?+layers.1.attention.q"}, 7),
        ({"lora_targets": "lm_head", "cross_entropy": "chunked-5"}, 1),
    ],
    ids=str,
)
def test_gradients_are_those_of_the_merged_weights(fields: dict[str, Any], layers: int) -> None:
    assert compare("", **fields) == layers


@pytest.mark.parametrize("model", STRANGERS)
def test_gradients_of_others_models_are_those_of_the_merged_weights(model: str) -> None:
    assert compare(model) > 0


@pytest.mark.parametrize("config", CONFIGS, indirect=True)
def test_models_of_transformers_get_the_layers_that_peft_chooses(config: str) -> None:
    assert compare(config) == (4 if "gpt2" not in (Path(config[3:]) / "config.json").read_text() else 2)


def test_only_adapters_are_trained_and_have_gradients_and_state() -> None:
    step = TrainingStep(cell(lora=RANK), CPU)
    before = {name: each.detach().clone() for name, each in step.model.named_parameters()}
    for _ in range(2):
        for _, run in step.phases:
            run()
    changed = {name for name, each in step.model.named_parameters() if not torch.equal(each, before[name])}
    assert changed == trained(step).keys() == {name for name in before if ".lora_" in name}
    assert {name for name, each in step.model.named_parameters() if each.grad is not None} == changed
    state = {id(parameter) for parameter, _ in step.optimizer_state()}
    assert state == {id(each) for each in trained(step).values()}


def test_simulated_gradients_and_state_are_those_of_the_adapters() -> None:
    of = cell(lora=RANK, d_model=128, d_ff=128, lora_targets="w1")
    found = {peak.phase: peak.by_category for peak in simulate(of, "train", Gpu("any", 1 << 50)).phases}["optimizer"]
    bytes_of_adapters = 4 * of.shape.layers * RANK * (128 + 128)  # type: ignore[union-attr]
    assert found["gradients"] == bytes_of_adapters
    assert 2 * bytes_of_adapters <= found["optimizer state"] <= 2 * bytes_of_adapters + 512 * 2 * 4  # and its counters


def test_parameters_and_flops_are_those_that_torch_counts() -> None:
    of = cell(lora=RANK)
    step = TrainingStep(of, CPU)
    (event,) = counted_work(of, step)
    assert isinstance(event, AdaptedModelBuilt)
    assert of.shape is not None
    count = sum(each.numel() for each in trained(step).values())
    assert (event.trainable_parameters, event.parameters) == (count, formulas.parameters(of.shape) + count)
    assert event.flops is not None
    assert event.flops["forward"] == formulas.forward_flops(of.shape, of.ctx, of.batch) + 2 * of.tokens * count
    for name, run in step.phases:
        with FlopCounterMode(display=False) as counter:
            run()
        assert counter.get_total_flops() == event.flops.get(name, 0)


@pytest.mark.parametrize("config", ["llama"], indirect=True)
def test_of_the_usual_names_a_model_need_not_have_all(config: str) -> None:
    """GLM has one layer for gate and up, and lists of targets name both all the same."""
    some = cell(config, lora=RANK, lora_targets="q_proj+v_proj")
    assert len(adapters(TrainingStep(some, CPU))) == 4
    with pytest.raises(UnavailableError, match="--lora-targets v_prj matches no linear layer of Llama"):
        TrainingStep(cell(config, lora=RANK, lora_targets="q_proj+v_prj"), CPU)


@pytest.mark.parametrize("config", ["gpt2"], indirect=True)
def test_usual_names_of_which_a_model_has_none_are_refused(config: str) -> None:
    with pytest.raises(UnavailableError, match="--lora-targets q_proj matches no linear layer of GPT2LMHeadModel"):
        TrainingStep(cell(config, lora=RANK, lora_targets="q_proj+v_proj"), CPU)


@pytest.mark.parametrize("config", ["mixtral"], indirect=True)
def test_of_the_usual_names_those_that_are_there_get_adapters(config: str) -> None:
    step = TrainingStep(
        cell(config, lora=RANK, lora_targets="q_proj+k_proj+gate_proj+up_proj+down_proj+gate+x_proj"), CPU
    )
    assert {name.rpartition(".")[2] for name, _ in adapters(step)} >= {"q_proj", "k_proj"}


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"lora_targets": "q_"}, "--lora-targets q_ matches no linear layer of Transformer. Nearest that does: q"),
        ({"lora_targets": "lm_head", "cross_entropy": "linear"}, "of the output layer, which has an adapter"),
        ({"model": "capped.py:Embedded"}, "--lora 4: Embedded has no linear layers that could get adapters"),
    ],
)  # fmt: skip
def test_what_has_no_layer_to_adapt_is_refused(tmp_path: Path, fields: dict[str, Any], line: str) -> None:
    (tmp_path / "capped.py").write_text("from torch import nn\nclass Embedded(nn.Embedding):\n"
                                        "    def __init__(self):\n        super().__init__(50, 8)\n")  # fmt: skip
    built_in = {} if "model" in fields else BUILT_IN
    spec = MemorySpec(
        **{"ctx": 8, "batch": 3, "mode": "train", "app_dir": str(tmp_path), "lora": 4, **built_in, **fields}
    )
    (of,) = spec.cells()
    with pytest.raises(UnavailableError) as refused:
        TrainingStep(of.step, CPU)  # type: ignore[arg-type]
    assert line in str(refused.value)


@pytest.mark.slow
def test_two_ranks_train_the_same_adapters(tmp_path: Path) -> None:
    asked = [
        each
        for strategy in ("ddp", "fsdp2")
        for each in TimeSpec(
            **BUILT_IN, ctx=8, batch=3, device="cpu", ranks=RANKS, strategy=strategy, lora=RANK
        ).cells()
    ]
    found = tmp_path / "steps.pt"
    written = json.dumps([each.model_dump(mode="json") for each in asked])
    subprocess.run([sys.executable, "-m", "tests.lab.two_ranks", written, str(found)], timeout=HANG_S, check=True)
    replicated, sharded = torch.load(found)
    step = TrainingStep(cell(lora=RANK), CPU)
    assert replicated["gradients"].keys() == sharded["gradients"].keys() == trained(step).keys()
    for name, gradient in replicated["gradients"].items():
        torch.testing.assert_close(sharded["gradients"][name], gradient, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(sharded["parameters"][name], replicated["parameters"][name], rtol=1e-3, atol=1e-5)


def test_tables_say_what_is_trained(tmp_path: Path) -> None:
    words = ("--d-model=64", "--d-ff=64", "--layers=1", "--heads=2", "--ctx=16", "--mode=train", "--simulate=h100")
    knob = ("--lora=none,8", "--lora-targets=q", f"--out={tmp_path}", "--no-live")
    for command in ("time", "memory"):
        ran = answered(command, *words, *knob, "--tables=cells", "--format=csv")
        assert ran.code == 0
        assert "trained" in ran.out
        assert "1024" in ran.out


@pytest.mark.slow
def test_adapters_do_not_import_bitsandbytes() -> None:
    """In a new process: peft imports it, and a model that has none of its layers does not need it."""
    code = (
        "import sys, torch; from sysbench.commands.time.spec import TimeSpec\n"
        "from sysbench.lab.step import TrainingStep\n"
        "cell = next(iter(TimeSpec(lora=(2,), d_model=(8,), d_ff=(8,), layers=(1,), heads=(1,), ctx=(4,)).cells()))\n"
        "TrainingStep(cell, torch.device('cpu'))\n"
        "from peft.import_utils import is_bnb_available; from importlib.util import find_spec\n"
        "from transformers.utils import is_bitsandbytes_available\n"
        "is_here = find_spec('bitsandbytes') is not None\n"
        "print('bitsandbytes' in sys.modules, is_bnb_available() == is_here == is_bitsandbytes_available())"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S)
    assert ran.stdout.split() == ["False", "True"], ran.stderr


def test_a_router_that_returns_more_than_its_product_is_no_linear_layer() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "intermediate_size_mlp": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
    config = transformers.Llama4TextConfig(vocab_size=50, num_local_experts=2, pad_token_id=0, **sizes, **heads)
    names = linear_layers(transformers.Llama4ForCausalLM(config)).values()
    assert not [name for name in names if "router" in name]
    assert [name for name in names if "shared_expert" in name]
