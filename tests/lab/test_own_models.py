"""Models of the user's own: what is told from them, and one clear line for each way in which they can be wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from sysbench import formulas
from sysbench.commands.memory.spec import MemoryCell, MemorySpec
from sysbench.errors import SpecError, SysbenchError
from sysbench.lab.attention import OperatorLog
from sysbench.lab.step import TrainingStep
from sysbench.lab.workload import imports
from sysbench.lab.workload.inputs import vocabulary_size
from sysbench.log.events import OwnModelFacts
from sysbench.render.sentences import notes
from sysbench.simulate.platform import REAL_PLATFORM
from sysbench.simulate.recording import StepRecording
from sysbench.simulate.steps import record
from sysbench.spec.steps import Mode

CPU = torch.device("cpu")

LM = """
import os
import sys

import torch
from torch import Tensor, nn


class Lm(nn.Module):
    def __init__(self, vocab=50, width=32, tied=False):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab, width), nn.Linear(width, vocab, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(self.embed(tokens))


"""


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Write a module `theirs.py`, a language model with what is given after it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "theirs", raising=False)

    def write(rest: str = "") -> Path:
        (tmp_path / "theirs.py").write_text(LM + dedent(rest))
        return tmp_path

    return write


def cells(directory: Path, model: str = "theirs:Lm", **fields: Any) -> list[MemoryCell]:
    given = {"ctx": 8, "batch": 2, "mode": "train", "app_dir": str(directory), **fields}
    return list(MemorySpec(model=model, **given).cells())


def stepped(directory: Path, model: str = "theirs:Lm", **fields: Any) -> TrainingStep:
    """A step of the one cell, run once on the CPU."""
    (cell,) = cells(directory, model, **fields)
    step = TrainingStep(cell.step, CPU)
    for _, run in step.phases:
        run()
    return step


def simulated(directory: Path, model: str = "theirs:Lm", **fields: Any) -> StepRecording:
    (cell,) = cells(directory, model, **fields)
    return record(cell.step, cell.mode, REAL_PLATFORM, origins=False)


def facts(directory: Path, model: str = "theirs:Lm", **fields: Any) -> OwnModelFacts:
    found = simulated(directory, model, **fields).own_model
    assert found is not None
    return found


def refusal(run: Callable[..., object], *arguments: Any, **fields: Any) -> str:
    """The one line with which this is refused."""
    with pytest.raises(SysbenchError) as refused:
        run(*arguments, **fields)
    assert "\n" not in str(refused.value)
    return str(refused.value)


Write = Callable[[str], Path]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("thiers:Lm", "no module thiers in {}. Did you mean theirs?"),
        ("torch.nn.functionals:Lm", "no module functionals in"),
        ("theirs:Ln", "theirs:Ln: Ln is not in theirs. Did you mean Lm? (Lm, Needs, makes_none)"),
        ("theirs:number", "--model theirs:number is int, not a class or a function"),
        ("theirs:made", "theirs:made is already a model: name its class, or a function that builds it"),
        ("theirs:makes_none", "theirs:makes_none returned NoneType, which is not a torch.nn.Module"),
        (
            "theirs:Needs",
            "missing constructor arguments width, extra of --model theirs:Needs; "
            "it takes (width, extra, depth, vocab=50). "
            "Add --model-arg NAME=VALUE",
        ),
    ],
)
def test_what_is_no_model_is_refused_with_what_is_there(model: str, said: str, write: Write) -> None:
    here = write(
        """
        class Needs(Lm):
            def __init__(self, width, extra, depth, vocab=50):
                super().__init__(vocab)

        def makes_none():
            return None

        number, made = 3, Lm()
        """
    )
    assert said.format(here) in refusal(stepped, here, model)


def test_a_missing_file_and_a_missing_config_are_named_before_anything_runs(write: Write) -> None:
    here = write("")
    (file,), (config,) = cells(here, "other.py:Lm"), cells(here, "hf:nowhere")
    assert str(file.problem(None)) == f"--model other.py:Lm: there is no file {here}/other.py"
    assert str(config.problem(None)).startswith("--model hf:nowhere: is none of sysbench models, and no file; ")


def test_an_unknown_argument_is_refused_with_the_nearest(write: Write) -> None:
    said = refusal(stepped, write(""), model_arg=["widht=16"])
    assert said.startswith("--model-arg widht: widht is not an argument of --model theirs:Lm. Did you mean width?")


NANO = """
    from dataclasses import dataclass


    @dataclass
    class Config:
        block_size: int = 4
        n_embd: int = 16
        vocab_size: int = 50


    class Gpt(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.embed = nn.Embedding(config.vocab_size, config.n_embd)
            self.positions = nn.Embedding(config.block_size, config.n_embd)
            self.head = nn.Linear(config.n_embd, config.vocab_size)

        def forward(self, tokens):
            return self.head(self.embed(tokens) + self.positions.weight[: tokens.shape[1]])


    class Annotated(Gpt):
        def __init__(self, params: "Config"):
            super().__init__(params)
"""


@pytest.mark.parametrize("model", ["Gpt", "Annotated"])
def test_a_config_object_is_built_from_the_context_and_the_arguments_given(model: str, write: Write) -> None:
    step = stepped(write(NANO), f"theirs:{model}", ctx=8, model_arg=["n_embd=24"])
    built: Any = step.model
    assert built.positions.weight.shape == (8, 24)  # the cell's context, and the argument
    assert built.embed.weight.shape == (50, 24)  # the config's own default
    assert facts(write(NANO), f"theirs:{model}").config_class == "Config"


def test_a_size_gives_a_config_its_dimensions_also_if_it_is_the_default_size(write: Write) -> None:
    here = write(NANO)
    assert facts(here, "theirs:Gpt", size="small").parameters == 768 * (10_000 + 8 + 10_000) + 10_000
    assert facts(here, "theirs:Gpt", size="tiny").parameters < facts(here, "theirs:Gpt", size="small").parameters
    assert facts(here, "theirs:Gpt").parameters == 16 * (50 + 8 + 50) + 50


def test_a_dimension_without_a_size_leaves_all_others_to_the_model(write: Write) -> None:
    here = write(NANO)
    (cell,) = cells(here, "theirs:Gpt", vocab=64)
    assert cell.size == "Gpt vocab=64"
    assert facts(here, "theirs:Gpt", vocab=64).parameters == 16 * (64 + 8 + 64) + 64
    said = refusal(stepped, here, "theirs:Gpt", layers=2)
    assert said == "--model theirs:Gpt has no argument for --layers: use --model-arg NAME=VALUE"


def test_a_field_that_a_config_has_not_is_refused_with_the_nearest(write: Write) -> None:
    said = refusal(stepped, write(NANO), "theirs:Gpt", model_arg=["n_emb=24"])
    assert said.startswith(
        "--model-arg n_emb: n_emb is not an argument of Config, the config of --model theirs:Gpt. Did"
    )
    assert "n_embd?" in said


def test_which_of_two_dataclasses_is_the_config_is_not_guessed(write: Write) -> None:
    here = write(NANO + "\n    @dataclass\n    class Other:\n        x: int = 1\n")
    assert "missing constructor argument config of --model theirs:Gpt" in refusal(stepped, here, "theirs:Gpt")
    assert facts(here, "theirs:Annotated").config_class == "Config"


FAULTS = {
    "asserts": (
        "assert tokens.sum() < 0",
        "forward: AssertionError: assert tokens.sum() < 0 (theirs.py:22 in forward)",
    ),
    "raises": ("raise KeyError('nothing')", "forward: KeyError: 'nothing' (theirs.py:22 in forward)"),
    "dtype": ("return self.embed(tokens.float())", "(theirs.py:22 in forward)"),
    "device": ("return self.embed(tokens.to('nowhere'))", "(theirs.py:22 in forward)"),
    "exits": ("sys.exit(0)", "forward: it calls exit() (theirs.py:22 in forward)"),
    "words": ("return 'done'", "the model returned str, which holds no tensor: a loss needs floating-point numbers"),
    "nothing": ("return None", "the model returned NoneType, which holds no tensor"),
    "ids": ("return tokens", "the model returned only tensors of int64: a loss needs floating-point numbers"),
    "detached": (
        "return super().forward(tokens).detach()",
        "the loss (cross entropy of the logits) depends on no parameter that requires a gradient",
    ),
}


@pytest.mark.parametrize("run", [stepped, simulated])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_forward_is_one_line_that_names_theirs(fault: str, run: Callable[..., object], write: Write) -> None:
    body, said = FAULTS[fault]
    here = write(f"class Wrong(Lm):\n    def forward(self, tokens):\n        {body}\n")
    assert said in refusal(run, here, "theirs:Wrong")


def test_a_model_that_reads_standard_input_is_told_that_there_is_nothing(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path("/dev/null").open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        said = refusal(stepped, write("def asks():\n    input()\n"), "theirs:asks")
    assert said == "building asks: it reads from standard input, which is empty (theirs.py:21 in asks)"


def test_a_process_that_a_model_forks_ends_where_it_would_go_on_as_this_one(write: Write) -> None:
    here = write(
        """
        class Forks(Lm):
            def forward(self, tokens):
                child = os.fork()
                if child == 0:
                    return None
                self.status = os.waitpid(child, 0)[1]
                return super().forward(tokens)
        """
    )
    step = stepped(here, "theirs:Forks")
    assert step.model.status == 0
    assert step.loss is not None


def test_a_model_without_a_parameter_to_train_is_refused_unless_there_is_no_backward(write: Write) -> None:
    here = write(
        """
        class Frozen(Lm):
            def __init__(self):
                super().__init__()
                self.requires_grad_(False)
        """
    )
    assert "no parameter of Frozen requires a gradient" in refusal(stepped, here, "theirs:Frozen")
    assert facts(here, "theirs:Frozen", mode="inference").trainable_parameters == 0


def test_a_model_on_meta_has_no_values_to_compute_with_but_can_be_simulated(write: Write) -> None:
    here = write(
        """
        class Meta(Lm):
            def __init__(self):
                super().__init__()
                self.to("meta")
        """
    )
    assert "Meta has parameters on the meta device, which have no values" in refusal(stepped, here, "theirs:Meta")
    assert facts(here, "theirs:Meta").parameters == 2 * 50 * 32


LOOKS = {
    "item": ("if self.head.weight.sum().item() > 0:\n            x = 2 * x", "theirs.py:23 in forward"),
    "branch": ("if x.mean() > 0:\n            x = 2 * x", "theirs.py:23 in forward"),
    "loop": ("while x.max() > 9:\n            x = x / 2", "theirs.py:23 in forward"),
}


@pytest.mark.parametrize("look", LOOKS)
def test_what_depends_on_weights_is_measured_but_not_simulated(look: str, write: Write) -> None:
    body, line = LOOKS[look]
    here = write(
        f"class Looks(Lm):\n    def forward(self, tokens):\n        x = self.embed(tokens)\n        {body}\n"
        "        return self.head(x)\n"
    )
    stepped(here, "theirs:Looks")
    said = refusal(simulated, here, "theirs:Looks")
    assert said == f"the code reads a tensor value, which a simulation does not have: measure it on a device ({line})"


def test_what_follows_from_constants_and_inputs_is_known_to_a_simulation(write: Write) -> None:
    here = write(
        """
        class Looks(Lm):
            def forward(self, tokens):
                assert tokens.max().item() < 50 and torch.arange(4).sum() == 6 and tokens.is_cuda
                return super().forward(tokens[:, : int(torch.ones(6).sum())])
        """
    )
    own = facts(here, "theirs:Looks")
    assert own.flops is not None
    assert own.flops["forward"] == 2 * 2 * 6 * 32 * 50


OPTIMIZERS = {
    "two": (
        "torch.optim.SGD([model.embed.weight]), torch.optim.SGD([model.head.weight])",
        "--optimizer theirs:make returned a tuple of 2, but a step has one optimizer. "
        "For your own loop with several optimizers, use sysbench.measure",
    ),
    "none": ("None", "--optimizer theirs:make returned NoneType, which is not a torch.optim.Optimizer"),
    "closure": (
        "torch.optim.LBFGS(model.parameters())",
        "--optimizer theirs:make: LBFGS.step needs a closure, which computes the loss again, but a step here has none.",
    ),
    "wrong": ("torch.optim.SGD(model.parameters(), lr=-1)", "ValueError: Invalid learning rate: -1 (theirs.py:21"),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_is_not_one_optimizer_is_refused(optimizer: str, write: Write) -> None:
    body, said = OPTIMIZERS[optimizer]
    here = write(f"def make(model):\n    return {body}\n")
    assert said in refusal(stepped, here, optimizer="theirs:make")


def test_an_optimizer_of_their_own_gets_the_model_or_its_trainable_parameters(write: Write) -> None:
    here = write(
        """
        def of_model(model):
            return torch.optim.SGD(model.head.parameters(), lr=0.1)

        def of_params(params):
            return torch.optim.SGD(params, lr=0.1, momentum=0.9)
        """
    )
    only_head = stepped(here, optimizer="theirs:of_model")
    initial = {name: value.clone() for name, value in stepped(here, mode="inference").model.state_dict().items()}
    changed = {name for name, value in only_head.model.state_dict().items() if not torch.equal(value, initial[name])}
    assert changed == {"head.weight"}
    momentum = simulated(here, optimizer="theirs:of_params")
    state = sum(each.size_bytes for each in momentum.allocations if each.category == "optimizer state")
    assert state == 4 * 2 * 50 * 32


LOSSES = {
    "vector": (
        "output: output.mean(-1)",
        "--loss theirs:loss returned a tensor [2, 8]; a loss must be a tensor with one element",
    ),
    "none": ("output: None", "--loss theirs:loss returned NoneType; a loss must be a tensor with one element"),
    "three": ("a, b, c: a", "--loss theirs:loss: it must take (output) or (output, inputs)"),
    "raises": ("output: output['x']", "--loss theirs:loss: "),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_no_loss_is_refused(loss: str, write: Write) -> None:
    body, said = LOSSES[loss]
    assert said in refusal(stepped, write(f"loss = lambda {body}\n"), loss="theirs:loss")


def test_a_loss_of_their_own_gets_output_and_inputs(write: Write) -> None:
    here = write(
        """
        def loss(output, inputs):
            return nn.functional.cross_entropy(output.flatten(0, 1), inputs.flatten())
        """
    )
    step = stepped(here, loss="theirs:loss", mode="forward-backward")
    (tokens,) = step.work.batches[0].arguments
    expected = nn.functional.cross_entropy(step.model(tokens).flatten(0, 1), tokens.flatten())
    assert step.loss == expected.item()
    assert facts(here, loss="theirs:loss").loss == "theirs:loss"


INPUTS = {
    "none": ("return None", "theirs:inputs returned NoneType; it must return a tensor, a tuple or a dict of tensors"),
    "dtype": ("return torch.randn(batch, ctx)", "(theirs.py:17 in forward)"),
    "device": ("return torch.zeros(batch, ctx, device='nowhere')", "(theirs.py:21 in inputs)"),
}


@pytest.mark.parametrize("inputs", INPUTS)
def test_inputs_that_do_not_fit_are_refused(inputs: str, write: Write) -> None:
    body, said = INPUTS[inputs]
    here = write(f"def inputs(batch, ctx):\n    {body}\n")
    assert said in refusal(stepped, here, input="theirs:inputs")


TAKES = {
    "keyword": ("*, input_ids", {"input_ids"}),
    "optional keyword": ("*, input_ids=None, mask=None", {"input_ids"}),
    "keyword targets": ("*, labels, input_ids", {"input_ids", "labels"}),
    "targets": ("input_ids, targets", {"targets"}),
    "called y": ("y, mask=None", set()),
}


@pytest.mark.parametrize("takes", TAKES)
def test_token_ids_and_targets_reach_the_arguments_that_take_them(takes: str, write: Write) -> None:
    signature, keywords = TAKES[takes]
    name = "y" if takes == "called y" else "input_ids"
    here = write(f"class Takes(Lm):\n    def forward(self, {signature}):\n        return super().forward({name})\n")
    step = stepped(here, "theirs:Takes")
    (batch,) = step.work.batches
    assert set(batch.keywords) == keywords
    assert step.work.tokens == 16
    tokens = batch.keywords.get("input_ids", *batch.arguments)
    for targets in (batch.keywords.get("labels"), batch.keywords.get("targets")):
        assert targets is None or torch.equal(targets[:, :-1], tokens[:, 1:])


def test_a_model_that_takes_any_keywords_says_how_to_feed_it(write: Write) -> None:
    here = write("class Any(Lm):\n    def forward(self, **batch):\n        return super().forward(batch['ids'])\n")
    assert "Any.forward takes **batch, and these inputs cannot be inferred" in refusal(stepped, here, "theirs:Any")
    stepped(here, "theirs:Any", input=["ids=int64[B,T]<50"])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"n_layer": -3}, "config.json: n_layer is -3; a model has 0 or more"),
        ({"other": {"depths": [1, -1]}}, "config.json: other.depths is -1; a model has 0 or more"),
    ],
)
def test_a_config_with_fewer_than_no_layers_is_refused(fields: dict[str, Any], said: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "vocab_size": 50, "n_embd": 32, **fields}))
    assert said in refusal(simulated, tmp_path, "hf:.")


@pytest.mark.parametrize(
    ("named", "precision", "ignored"),
    [("bfloat16", "bf16-true", None), ("bfloat16", "fp32", "bfloat16"), ("float16", "bf16-true", "float16")],
)
def test_a_config_is_ignored_where_the_model_is_built_otherwise(
    named: str, precision: str, ignored: str | None, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    config = {"model_type": "gpt2", "vocab_size": 50, "n_embd": 32, "n_head": 2, "n_layer": 1, "torch_dtype": named}
    (tmp_path / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "fp8"}}))
    found = facts(tmp_path, "hf:.", precision=precision)
    assert found.ignored_dtype == ignored
    assert found.ignored_quantization == "fp8"
    record: Any = SimpleNamespace(cells=[SimpleNamespace(own_model=found, outcome="ok")])
    (remark,) = notes.own_models(record)
    assert "its config's quantization (fp8) is not applied" in remark.text
    assert ("not in its config's" in remark.text) is (ignored is not None)


def test_a_model_that_takes_something_unknown_says_how_to_feed_it(write: Write) -> None:
    here = write("class Image(nn.Conv2d):\n    def __init__(self):\n        super().__init__(3, 4, 3)\n")
    said = refusal(stepped, here, "theirs:Image")
    assert said.startswith("Image has no embedding, so the inputs of its forward cannot be inferred: add get_inputs")
    assert "<vocab means the size of the first embedding, but the model has no embedding" in refusal(
        stepped, here, "theirs:Image", input=["int64[B,T]<vocab"]
    )


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("tokens", "tokens does not describe an input: write tokens=int64[B,T]<vocab or image=float32[B,3,224,224]"),
        ("tokens=int64[B,T]", "needs an upper bound for its integers, such as <vocab or <1000"),
        ("tokens=int[B,T]<5", "int is not an input dtype. Did you mean int64?"),
        ("float32[B,Q]", "Q is not a size in float32[B,Q]; use a whole number from 1, B (batch) or T (ctx)"),
        ("float32[B,0]", "0 is not a size in float32[B,0]"),
        ("int64[B,T]<voc", "voc is not a bound in int64[B,T]<voc: write a whole number from 1, or vocab"),
        ("int64[B,T]<0", "0 is not a bound in int64[B,T]<0"),
    ],
)
def test_a_description_that_cannot_be_read_is_refused_with_what_is_allowed(written: str, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        MemorySpec(model="theirs:Lm", input=[written])
    assert said in str(refused.value)


@pytest.mark.parametrize("described", ["tokens=int64[B,T]<vocab", "int64[B,T]<vocab", "int32[B,T]<50"])
def test_described_token_ids_have_the_loss_of_a_language_model_as_inferred_ones_have(
    described: str, write: Write
) -> None:
    here = write("")
    inferred, given = facts(here), facts(here, input=[described])
    assert given.loss == inferred.loss == "cross entropy of the logits"
    assert given.flops == inferred.flops
    assert given.tokens == inferred.tokens == 16


def test_attention_that_cannot_be_exchanged_is_refused(write: Write) -> None:
    assert refusal(stepped, write(""), attention="naive") == (
        "--attention naive: --model theirs:Lm takes no argument `attention`, and its module has no function "
        "scaled_dot_product_attention to replace"
    )


def test_a_function_of_that_name_beside_the_model_is_exchanged_and_put_back(write: Write) -> None:
    here = write(
        """
        from torch.nn.functional import scaled_dot_product_attention

        class Attends(Lm):
            def forward(self, tokens):
                x = self.embed(tokens)[:, None]
                return self.head(scaled_dot_product_attention(x, x, x, is_causal=True)[:, 0])
        """
    )
    runs = {name: stepped(here, "theirs:Attends", attention=name, mode="forward-backward") for name in ("naive", "own")}
    assert runs["own"].loss == pytest.approx(runs["naive"].loss, rel=1e-5)
    assert sys.modules["theirs"].scaled_dot_product_attention is nn.functional.scaled_dot_product_attention
    kept = {
        name: sum(each.size_bytes for each in recorded.allocations if each.category == "activations")
        for name in ("naive", "sdpa")
        if (recorded := simulated(here, "theirs:Attends", attention=name, ctx=64))
    }
    assert kept["naive"] > kept["sdpa"]


@pytest.mark.parametrize("attention", ["flash", "math"])
def test_a_kernel_that_is_asked_for_computes_every_step(attention: str, write: Write) -> None:
    here = write(
        """
        from torch.nn.functional import scaled_dot_product_attention

        class Attends(Lm):
            def forward(self, tokens):
                x = self.embed(tokens)[:, None]
                return self.head(scaled_dot_product_attention(x, x, x, is_causal=True)[:, 0])
        """
    )
    step = stepped(here, "theirs:Attends", attention=attention)
    first = step.loss
    with OperatorLog() as operators:
        for _, run in step.phases:
            run()
    assert step.loss is not None
    assert first is not None
    assert step.loss < first
    fused = any("flash_attention_for_cpu" in name for name in operators.names)
    assert fused == (attention == "flash")


def test_a_sweep_over_a_models_own_arguments_is_a_grid_with_their_names(write: Write) -> None:
    here = write("")
    swept = cells(here, model_arg=["width=16,32", "vocab=50,100"])
    assert [cell.size for cell in swept] == [
        f"Lm width={width} vocab={vocab}" for width in (16, 32) for vocab in (50, 100)
    ]
    counts = [sum(each.numel() for each in TrainingStep(cell.step, CPU).model.parameters()) for cell in swept]
    assert counts == [2 * 16 * 50, 2 * 16 * 100, 2 * 32 * 50, 2 * 32 * 100]


def test_tied_parameters_are_counted_once(write: Write) -> None:
    here = write("")
    assert facts(here).parameters == 2 * 50 * 32
    tied = simulated(here, model_arg=["tied=true"])
    assert tied.own_model is not None
    assert tied.own_model.parameters == tied.own_model.trainable_parameters == 50 * 32
    bytes_of = {
        category: sum(each.size_bytes for each in tied.allocations if each.category == category)
        for category in ("parameters", "optimizer state")
    }
    assert bytes_of["optimizer state"] == 8 * 50 * 32


def test_dimensions_reach_a_constructor_with_the_names_of_the_course(write: Write) -> None:
    here = write(
        """
        class BasicsTransformerLM(Lm):
            def __init__(self, vocab_size, context_length, d_model, num_layers, num_heads, d_ff, rope_theta=10000.0):
                super().__init__(vocab_size, d_model)
                self.given = (vocab_size, context_length, d_model, num_layers, num_heads, d_ff, rope_theta)
        """
    )
    step = stepped(here, "theirs:BasicsTransformerLM", size="tiny", vocab=60, mode="inference")
    assert step.model.given == (60, 8, 256, 4, 4, 1024, 10000.0)


@pytest.mark.parametrize("mode", ["inference", "forward", "train"])
def test_the_built_in_model_given_as_ones_own_does_the_same(mode: Mode) -> None:
    fields = {"d_model": 32, "d_ff": 64, "layers": 2, "heads": 2, "vocab": 50, "ctx": 16, "batch": 2, "mode": mode}
    (built_in,) = MemorySpec(**fields, attention="naive").cells()
    (own,) = MemorySpec(**fields, model="sysbench.lab.transformer:build", attention="naive").cells()
    ours, theirs = (record(cell.step, cell.mode, REAL_PLATFORM, origins=False) for cell in (built_in, own))
    assert _of_steps(theirs) == _of_steps(ours)
    assert theirs.own_model is not None
    assert theirs.own_model.flops is not None
    assert built_in.shape is not None
    counted = sum(theirs.own_model.flops.values())
    assert counted == formulas.step_flops(mode, built_in.shape, ctx=16, batch=2)


def _of_steps(recording: StepRecording) -> list[tuple[str, list[tuple[str, int, str]]]]:
    """What each phase allocates and frees, by size and category."""
    return [
        (
            span.name,
            [
                ("+" if event >= 0 else "-", each.size_bytes, each.category)
                for event in recording.events[span.first : span.end]
                for each in [recording.allocations[event if event >= 0 else ~event]]
            ],
        )
        for span in recording.spans
        if span.step >= 0
    ]


CNN = """
class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8)
        self.attend = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, image):
        x = self.norm(self.conv(image)).flatten(2).transpose(1, 2)
        return self.attend(x).mean((1, 2))


def get_inputs(batch):
    return torch.randn(batch, 3, 9, 9)


def loss(output):
    return output.square().sum()
"""


def test_flops_are_those_of_torchs_counter(write: Write) -> None:
    here = write(CNN)
    fields: dict[str, Any] = {"model": "theirs:Cnn", "loss": "theirs:loss", "mode": "forward-backward"}
    with sdpa_kernel(SDPBackend.MATH):
        own = facts(here, **fields)
        (cell,) = cells(here, **fields)
        step = TrainingStep(cell.step, CPU)
        by_phase = {}
        for name, run in step.phases:
            with FlopCounterMode(display=False) as counter:
                run()
            by_phase[name] = counter.get_total_flops()
    assert own.flops == by_phase
    assert by_phase["forward"] > 0
    assert own.tokens is None
    assert own.inputs == "get_inputs beside the model"


def test_what_an_import_allocates_is_not_the_models_and_how_long_it_takes_is_said(
    write: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "_IMPORTED_S", {})
    plain = simulated(write())
    imports._of_simulations.clear()
    imports._IMPORTED_S.clear()
    slow = simulated(write("import time; time.sleep(0.2); table = torch.zeros(1 << 16)"))
    assert [each.size_bytes for each in slow.allocations] == [each.size_bytes for each in plain.allocations]
    assert plain.own_model is not None
    assert slow.own_model is not None
    assert slow.own_model.import_s >= 0.2
    assert 0 < plain.own_model.import_s != slow.own_model.import_s

    def said(facts: OwnModelFacts) -> str:
        record: Any = SimpleNamespace(cells=[SimpleNamespace(own_model=facts, outcome="ok")])
        (remark,) = notes.own_models(record)
        return remark.text

    assert "importing" not in said(slow.own_model)
    assert "import took 62.0 s" in said(slow.own_model.model_copy(update={"import_s": 62.0}))


def test_a_loss_that_a_model_keeps_as_an_attribute_is_not_computed_again(write: Write) -> None:
    here = write(
        """
        class Keeps(Lm):
            def forward(self, tokens, targets=None):
                logits = super().forward(tokens)
                if targets is not None:
                    self.last_loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
                return logits


        class Returns(Keeps):
            def forward(self, tokens, targets=None):
                return super().forward(tokens, targets), self.last_loss
        """
    )
    kept, returned = stepped(here, "theirs:Keeps"), stepped(here, "theirs:Returns")
    assert kept.loss == returned.loss
    assert facts(here, "theirs:Keeps").loss == "the model's own, which it keeps as last_loss"
    assert facts(here, "theirs:Returns").loss == "the model's own"
    requests = [
        [each.size_bytes for each in simulated(here, f"theirs:{name}").allocations] for name in ("Keeps", "Returns")
    ]
    assert requests[0] == requests[1]


def test_tokens_are_below_the_rows_of_the_embedding_that_a_model_names() -> None:
    """Vision-language models have the positions of their images before it."""

    class Sees(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.positions, self.tokens = nn.Embedding(7, 4), nn.Embedding(50, 4)

        def get_input_embeddings(self) -> nn.Module:
            return self.tokens

    assert vocabulary_size(Sees()) == 50
