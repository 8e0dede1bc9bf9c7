"""A knob changes what is kept and how it is computed, but not the gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from sysbench.commands.memory.spec import MemorySpec
from sysbench.commands.own_models import counted_work
from sysbench.errors import UnavailableError
from sysbench.lab.knobs.checkpointing import checkpoint_blocks
from sysbench.lab.knobs.optimizers import LEARNING_RATE
from sysbench.lab.step import TrainingStep
from sysbench.log.events import RecomputationCounted
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.platform import Platform
from sysbench.simulate.steps import record
from sysbench.spec.model import ModelCell
from tests.fake_gpu.memory import ROOT

CPU = torch.device("cpu")
CHECKPOINTS = ("full", "every-2", "selective")
STRANGERS = {
    **dict.fromkeys(("NanoGpt", "Llama", "Encoder", "Adapted", "Recomputed"), CHECKPOINTS),
    "Mixture": ("gate",),
    "Mamba": ("head",),
}


def cell(model: str = "", **fields: Any) -> ModelCell:
    """The one cell of a training step, of the built-in model or of a stranger's."""
    built_in = {"d_model": 16, "d_ff": 24, "layers": 4, "heads": 2, "vocab": 31}
    own = {"model": f"tests.fake_gpu.strangers:{model}", "app_dir": str(ROOT)}
    given = {"ctx": 8, "batch": 3, "mode": "train", **(own if model else built_in), **fields}
    (only,) = MemorySpec(**given).cells()
    assert only.step is not None
    return only.step


def gradients(of: ModelCell) -> dict[str, Tensor]:
    """The gradients of two steps, summed; the second step starts from other weights."""
    step = TrainingStep(of, CPU)
    found: dict[str, Tensor] = {}
    for _ in range(2):
        step.forget()
        for _, run in step.phases:
            run()
        for name, parameter in step.model.named_parameters():
            if parameter.grad is not None:
                found[name] = found.get(name, 0) + parameter.grad.clone()
    return found


def parameters(of: ModelCell) -> dict[str, Tensor]:
    """The parameters after two steps."""
    step = TrainingStep(of, CPU)
    for _ in range(2):
        step.forget()
        for _, run in step.phases:
            run()
    return {name: parameter.detach().clone() for name, parameter in step.model.named_parameters()}


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


@pytest.mark.parametrize("choice", [*CHECKPOINTS, "layers.*.attention", "layers.[12]"])
@pytest.mark.parametrize("fields", [{"attention": "sdpa"}, {"precision": "bf16"}, {"grad_accum": 2}], ids=str)
def test_checkpointing_leaves_the_gradients_as_they_are(choice: str, fields: dict[str, Any]) -> None:
    assert differing(gradients(cell(**fields)), gradients(cell(checkpoint=choice, **fields))) == []


@pytest.mark.parametrize("model", STRANGERS)
def test_checkpointing_leaves_the_gradients_of_others_models_as_they_are(model: str) -> None:
    plain = gradients(cell(model))
    for choice in STRANGERS[model]:
        assert differing(plain, gradients(cell(model, checkpoint=choice))) == []


@pytest.mark.parametrize("model", ["", "NanoGpt", "Llama", "Mamba", "Mixture", "Adapted"])
@pytest.mark.parametrize("choice", ["chunked", "chunked-5", "linear"])
def test_chunks_of_logits_have_the_gradients_of_all(model: str, choice: str) -> None:
    if choice == "linear" and not hasattr(torch.nn.functional, "linear_cross_entropy"):
        pytest.skip("this torch has no linear_cross_entropy")
    plain, chunked = gradients(cell(model)), gradients(cell(model, cross_entropy=choice))
    assert plain.keys() == chunked.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(chunked[name], gradient, rtol=1e-4, atol=1e-6)


def test_logits_never_exist_as_a_whole() -> None:
    fields: dict[str, Any] = {"vocab": 5000, "ctx": 64, "batch": 4, "layers": 1, "attention": "sdpa"}
    logits_bytes = 5000 * 64 * 4 * 4
    platform = Platform.of(Gpu("any", 1 << 50))

    def largest(**knob: Any) -> int:
        recording = record(cell(**fields, **knob), "train", platform, origins=False)
        sizes = enumerate(each.size_bytes for each in recording.allocations)
        return max(size_bytes for number, size_bytes in sizes if number not in recording.workspaces)

    assert largest() == logits_bytes
    assert largest(cross_entropy="chunked-32") <= 5000 * 32 * 4


@pytest.mark.parametrize("choice", ["full", "every-2", "layers.*.feed_forward"])
def test_flops_computed_again_are_those_that_torch_counts(choice: str) -> None:
    def counted(of: ModelCell) -> int:
        step = TrainingStep(of, CPU)
        for name, run in step.phases:
            with FlopCounterMode(display=False) as counter:
                run()
            if name == "backward":
                return int(counter.get_total_flops())
        raise AssertionError

    of = cell(checkpoint=choice)
    (event,) = counted_work(of, TrainingStep(of, CPU))
    assert isinstance(event, RecomputationCounted)
    assert event.flops == counted(of) - counted(cell())


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"checkpoint": "layer.*"}, "layer.* matches no module of Transformer. Nearest that does: layers.*"),
        ({"checkpoint": "every-9"}, "--checkpoint every-9: Transformer has only 4 blocks. Nearest: every-4"),
        ({"cross_entropy": "chunked-99"}, "a micro-batch has only 24 tokens. Nearest: chunked-24"),
    ],
)  # fmt: skip
def test_what_a_model_does_not_have_is_refused(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(UnavailableError, match=line.replace("*", r"\*").replace(".", r"\.")):
        TrainingStep(cell(**fields), CPU)


class Recorded(nn.Module):
    """A block that writes down its name each time that it is computed."""

    def __init__(self, name: str, log: list[str]) -> None:
        super().__init__()
        self.name, self.log, self.linear = name, log, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.log.append(self.name)
        return self.linear(x).sin()  # type: ignore[no-any-return]


def test_every_nth_block_is_counted_in_each_list_of_blocks() -> None:
    """Not in all lists as one: the third block of the encoder would shift those of the decoder."""
    log: list[str] = []
    encoder, decoder = (nn.Sequential(*(Recorded(f"{part}.{i}", log) for i in range(3))) for part in ("enc", "dec"))
    model = nn.Sequential(encoder, decoder)
    checkpoint_blocks(model, "every-2")
    loss = model(torch.ones(1, 4)).sum()
    log.clear()
    loss.backward()
    assert sorted(log) == ["dec.1", "enc.1"]
    with pytest.raises(UnavailableError, match="has only 3 blocks in its longest list"):
        checkpoint_blocks(model, "every-4")


THEIRS = """
import torch
from torch import nn


class Capped(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)

    def forward(self, tokens):
        return torch.tanh(self.head(self.embed(tokens)) / 2.5) * 2.5


class Centred(Capped):
    def forward(self, tokens):
        logits = self.head(self.embed(tokens))
        return logits - logits.mean(-1, keepdim=True)


class Headless(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.layers = nn.Embedding(50, 8), nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))

    def forward(self, tokens):
        return self.layers(self.embed(tokens))


class Dropping(Headless):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)) for _ in range(3))

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return x


class Counting(Headless):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)) for _ in range(2)))
"""


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    (tmp_path / "capped.py").write_text(THEIRS)
    return tmp_path


@pytest.mark.parametrize(
    ("model", "knob", "line"),
    [
        ("Centred", {"cross_entropy": "chunked"}, "applies mean to its logits, which needs all logits at once"),
        ("Capped", {"cross_entropy": "linear"}, "scales or caps its logits, which needs all logits at once"),
        ("Headless", {"cross_entropy": "chunked"}, "found no linear layer in Headless whose outputs are the 50 logits"),
        ("Capped", {"checkpoint": "full"}, "Capped has no list of equal blocks; name its modules instead, as in"),
        ("Counting", {"checkpoint": "full"}, "BatchNorm1d would update its running statistics twice in each step"),
    ],
)  # fmt: skip
def test_models_that_a_knob_does_not_suit_are_refused(
    theirs: Path, model: str, knob: dict[str, str], line: str
) -> None:
    (of,) = MemorySpec(model=f"capped.py:{model}", app_dir=str(theirs), ctx=8, batch=2, mode="train", **knob).cells()
    with pytest.raises(UnavailableError, match=line):
        gradients(of.step)


def of_theirs(theirs: Path, model: str, **knob: str) -> dict[str, Tensor]:
    spec = MemorySpec(model=f"capped.py:{model}", app_dir=str(theirs), ctx=8, batch=2, mode="train", **knob)
    (of,) = spec.cells()
    return gradients(of.step)


def test_capped_logits_are_capped_in_chunks(theirs: Path) -> None:
    plain, chunked = of_theirs(theirs, "Capped"), of_theirs(theirs, "Capped", cross_entropy="chunked-5")
    assert plain.keys() == chunked.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(chunked[name], gradient, rtol=1e-4, atol=1e-6)


def test_a_block_draws_the_same_random_numbers_again(theirs: Path) -> None:
    plain, recomputed = of_theirs(theirs, "Dropping"), of_theirs(theirs, "Dropping", checkpoint="full")
    assert differing(plain, recomputed) == []


@pytest.mark.parametrize("optimizer", ["foreach", "for-loop", "fused", "sgd", "adafactor"])
@pytest.mark.parametrize("model", ["", "NanoGpt", "Adapted"])
def test_an_update_in_backward_is_the_update_after_it(optimizer: str, model: str) -> None:
    plain = parameters(cell(model, optimizer=optimizer))
    assert differing(plain, parameters(cell(model, optimizer=optimizer, optimizer_in_backward="on"))) == []


def test_no_gradient_is_left_by_an_update_in_backward() -> None:
    step = TrainingStep(cell(optimizer_in_backward="on"), CPU)
    for _, run in step.phases:
        run()
    assert [name for name, parameter in step.model.named_parameters() if parameter.grad is not None] == []
    assert len({parameter for parameter, _ in step.optimizer_state()}) == len(list(step.model.parameters()))


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": partial(torch.optim.SGD, foreach=False),
    "adafactor": partial(torch.optim.Adafactor, foreach=False),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_is_torchs_written_in_a_loop(name: str) -> None:
    taken, expected = (TrainingStep(cell(optimizer=optimizer), CPU) for optimizer in (name, "foreach"))
    expected._optimizer = OPTIMIZERS[name](expected.model.parameters(), lr=LEARNING_RATE)
    for step in (taken, expected):
        for _, run in step.phases:
            run()
    for one, other in zip(taken.model.parameters(), expected.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_muon_has_the_matrices_of_blocks_and_adamw_the_rest() -> None:
    step = TrainingStep(cell(optimizer="muon"), CPU)
    for _, run in step.phases:
        run()
    moments: dict[Tensor, int] = {}
    for parameter, state in step.optimizer_state():
        moments[parameter] = moments.get(parameter, 0) + (state.shape == parameter.shape)
    inside = {parameter for block in step.model.layers for parameter in block.parameters()}  # type: ignore[union-attr]
    for parameter in step.model.parameters():
        assert moments[parameter] == (1 if parameter in inside and parameter.dim() == 2 else 2)


@pytest.mark.parametrize("model", ["", "NanoGpt", "Llama", "Encoder"])
def test_bf16_true_has_bf16_parameters_gradients_and_state(model: str) -> None:
    step = TrainingStep(cell(model, precision="bf16-true"), CPU)
    for _, run in step.phases:
        run()
    trained = list(step.model.parameters())
    assert {each.dtype for each in trained} == {each.grad.dtype for each in trained if each.grad is not None}
    assert {each.dtype for each in trained} == {torch.bfloat16}
    assert {state.dtype for _, state in step.optimizer_state() if state.dim()} == {torch.bfloat16}
    assert torch.get_default_dtype() == torch.float32
    fp32 = TrainingStep(cell(model), CPU)
    for _, run in fp32.phases:
        run()
    assert step.loss == pytest.approx(fp32.loss, rel=0.1)  # other weights are drawn, of the same distribution


def test_positions_keep_their_digits_in_bf16() -> None:
    step = TrainingStep(cell(precision="bf16-true"), CPU)
    assert {name: buffer.dtype for name, buffer in step.model.named_buffers() if name.endswith(("cos", "sin"))} == {
        "layers.0.attention.rotary.cos": torch.float32,
        "layers.0.attention.rotary.sin": torch.float32,
    }
