"""Models that nobody here wrote: memory of a simulated step against one measured on the CPU, byte for byte."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from sysbench.commands.memory.spec import MemorySpec
from sysbench.lab.step import TrainingStep
from sysbench.simulate.recording import _REAL_PLATFORM, StepRecording, record, record_real

CPU = torch.device("cpu")

LORA = '''
import torch
from torch import nn


class Adapted(nn.Module):
    """A frozen product with a trainable one of low rank beside it."""

    def __init__(self, width, rank):
        super().__init__()
        self.frozen = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)

    def forward(self, x):
        return self.frozen(x) + self.up(self.down(x))


class Lora(nn.Module):
    def __init__(self, vocab=100, width=32, rank=2, layers=3):
        super().__init__()
        self.embed = nn.Embedding(vocab, width).requires_grad_(False)
        self.layers = nn.Sequential(*(nn.Sequential(Adapted(width, rank), nn.GELU()) for _ in range(layers)))
        self.head = nn.Linear(width, vocab).requires_grad_(False)

    def forward(self, tokens):
        return self.head(self.layers(self.embed(tokens)))
'''

SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "vocab_size": 100,
}
CONFIGS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "GPT2LMHeadModel": ("GPT2Config", {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 100}),
    "LlamaForCausalLM": ("LlamaConfig", {**SMALL, "num_key_value_heads": 1}),
    "Qwen2ForCausalLM": ("Qwen2Config", {**SMALL, "num_key_value_heads": 1}),
    "MixtralForCausalLM": ("MixtralConfig", {**SMALL, "num_key_value_heads": 1, "num_local_experts": 4}),
    "BertForMaskedLM": ("BertConfig", SMALL),
    "OPTForCausalLM": (
        "OPTConfig",
        {
            "num_hidden_layers": 2,
            "hidden_size": 32,
            "ffn_dim": 64,
            "num_attention_heads": 2,
            "vocab_size": 100,
            "word_embed_proj_dim": 32,
        },
    ),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", SMALL),
    "Gemma2ForCausalLM": ("Gemma2Config", {**SMALL, "num_key_value_heads": 1, "head_dim": 16}),
    "AlbertForMaskedLM": ("AlbertConfig", {**SMALL, "embedding_size": 16}),
    "ElectraForMaskedLM": ("ElectraConfig", {**SMALL, "embedding_size": 16}),
    "BloomForCausalLM": ("BloomConfig", {"n_layer": 2, "hidden_size": 32, "n_head": 2, "vocab_size": 100}),
    "ViTForImageClassification": (
        "ViTConfig",
        {name: value for name, value in SMALL.items() if name != "vocab_size"} | {"image_size": 32, "patch_size": 8},
    ),
    "ResNetForImageClassification": (
        "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    ),
}


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """A directory with the config of a small model, as `save_pretrained` writes it."""
    transformers = pytest.importorskip("transformers")

    def written(architecture: str) -> str:
        kind, fields = CONFIGS[architecture]
        directory = tmp_path_factory.mktemp(architecture)
        getattr(transformers, kind)(**fields, architectures=[architecture]).save_pretrained(directory)
        return f"hf:{directory}"

    return written


def same_bytes(**fields: Any) -> tuple[StepRecording, StepRecording]:
    """Simulate and measure two training steps of a model; assert that as many bytes are live after every phase."""
    (cell,) = MemorySpec(**{"ctx": 16, "batch": 2, "mode": "train", **fields}).cells()
    with sdpa_kernel(SDPBackend.MATH):  # written in operators that a simulation has, too
        *_, measured = record_real(cell.step, cell.mode, CPU)
        simulated = record(cell.step, cell.mode, _REAL_PLATFORM)
    trained = sum(
        measured.allocations[number].category == "gradients" for number in measured.live_at(len(measured.events))
    )
    expected = live(measured)
    for step, phase in expected:
        if step > 0 or phase == "optimizer":
            expected[step, phase] -= 4 * trained  # AdamW counts its steps on the host, which is not simulated
    assert live(simulated) == expected
    return simulated, measured


def live(recording: StepRecording) -> dict[tuple[int, str], int]:
    """Live bytes at the end of each span."""
    return {
        (span.step, span.name): sum(recording.allocations[each].size_bytes for each in recording.live_at(span.end))
        for span in recording.spans
    }


@pytest.mark.parametrize("architecture", CONFIGS)
def test_models_of_transformers_take_as_many_bytes_as_measured(
    architecture: str, configs: Callable[[str], str]
) -> None:
    image = architecture.endswith("ImageClassification")
    fields = {"input": ["pixel_values=float32[B,3,32,32]"]} if image else {}
    simulated, measured = same_bytes(model=configs(architecture), **fields)
    assert simulated.own_model is not None
    assert measured.own_model is not None
    assert simulated.own_model == measured.own_model
    assert simulated.own_model.class_name == architecture
    assert (simulated.own_model.loss == "mean of the output") is image


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")  # its own, of its own defaults
def test_torchs_transformer_takes_as_many_bytes_as_measured() -> None:
    layers = ["d_model=32", "nhead=2", "num_encoder_layers=1", "num_decoder_layers=2", "dim_feedforward=64"]
    same_bytes(model="torch.nn:Transformer", input=["src=float32[T,B,32]", "tgt=float32[T,B,32]"], model_arg=layers)


@pytest.fixture
def lora(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "lora", raising=False)
    (tmp_path / "lora.py").write_text(LORA)
    return tmp_path


def test_a_model_with_frozen_parameters_takes_as_many_bytes_as_measured(lora: Path) -> None:
    for recording in same_bytes(model="lora:Lora", app_dir=str(lora)):
        own = recording.own_model
        assert own is not None
        assert (own.parameters, own.trainable_parameters) == (10_052, 384)
        left = recording.live_at(len(recording.events))
        found = Counter[str]()
        for each in (recording.allocations[number] for number in left):
            found[each.category] += each.size_bytes
        assert found["parameters"] == 4 * 10_052
        assert found["gradients"] == 4 * 384
        assert found["optimizer state"] in (8 * 384, 8 * 384 + 4 * 6)  # with the counters of 6 tensors if measured


def test_a_step_of_a_model_with_frozen_parameters_is_that_of_a_bare_loop(lora: Path) -> None:
    (cell,) = MemorySpec(model="lora:Lora", app_dir=str(lora), ctx=16, batch=2, mode="train").cells()
    step = TrainingStep(cell.step, CPU)
    (tokens,) = step.work.batches[0].arguments
    torch.manual_seed(cell.seed)
    alone = sys.modules["lora"].Lora()
    # As the page of the documentation says: the next tokens are the targets, the optimizer is AdamW at 1e-4.
    generator = torch.Generator().manual_seed(cell.seed)
    text = torch.randint(100, (2, 17), generator=generator)
    optimizer = torch.optim.AdamW(alone.parameters(), lr=1e-4, foreach=True)
    for _ in range(2):
        for _, run in step.phases:
            run()
        optimizer.zero_grad()
        logits = alone(text[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        assert step.loss == loss.item()
    assert torch.equal(tokens, text[:, :-1])
    for ours, theirs in zip(step.model.parameters(), alone.parameters(), strict=True):
        assert torch.equal(ours, theirs)
        assert (ours.grad is None) == (theirs.grad is None) == (not ours.requires_grad)
        assert ours.grad is None or torch.equal(ours.grad, theirs.grad)


CHECKPOINTED = """
from torch import nn
from torch.utils.checkpoint import checkpoint


class Deep(nn.Module):
    def __init__(self, again=True):
        super().__init__()
        self.again = again
        self.embed, self.head = nn.Embedding(100, 32), nn.Linear(32, 100)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 32)) for _ in range(4)
        )

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.again else layer(x)
        return self.head(x)
"""


def test_layers_that_are_computed_again_in_backward_take_as_many_bytes_as_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "deep", raising=False)
    (tmp_path / "deep.py").write_text(CHECKPOINTED)
    kept, again = (
        live(same_bytes(model="deep:Deep", app_dir=str(tmp_path), model_arg=[f"again={value}"])[0])[1, "forward"]
        for value in ("false", "true")
    )
    # Two tensors of 256 numbers for each of 2 × 16 tokens are not kept in each of four layers: 4 bytes each.
    assert kept - again >= 4 * 2 * 4 * 256 * 2 * 16
