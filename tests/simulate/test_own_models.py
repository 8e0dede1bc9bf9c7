"""Models that nobody here wrote: memory of a simulated step against one measured on the CPU, byte for byte."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from sysbench.commands.memory.spec import MemorySpec
from sysbench.commands.time.spec import TimeSpec
from sysbench.errors import UnavailableError
from sysbench.lab.step import TrainingStep
from sysbench.lab.workload.imports import UserCodeError
from sysbench.predict.tracing import trace
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.platform import REAL_PLATFORM, Platform
from sysbench.simulate.recording import StepRecording
from sysbench.simulate.steps import record, record_real
from sysbench.simulate.tensors import ALL_SELECTED, BALANCED
from sysbench.spec.model import ModelCell
from tests.cli.running import answered

H100 = Gpu("GPU", 2**40, (9, 0))

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
        simulated = record(cell.step, cell.mode, REAL_PLATFORM)
    left = [measured.allocations[number] for number in measured.live_at(len(measured.events))]
    counters = sum(each.category == "optimizer state" and each.size_bytes == 4 for each in left)
    expected = live(measured)
    for step, phase in expected:
        if step > 0 or phase == "optimizer":
            expected[step, phase] -= 4 * counters  # AdamW counts its steps on the host, which is not simulated
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
    _, simulated = same_bytes(
        model="torch.nn:Transformer", input=["src=float32[T,B,32]", "tgt=float32[T,B,32]"], model_arg=layers
    )
    # Its layers are copies of one: what copies them says nothing about a parameter.
    parameters = [each.stack for each in simulated.allocations if each.category == "parameters"]
    assert parameters
    assert not [frame for stack in parameters for frame in simulated.stacks[stack] if "copy.py" in frame.filename]


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


NAMED_AGAIN = """
from torch.utils.checkpoint import checkpoint

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(100, 32), nn.Linear(32, 100)

    def experts(self, x):
        flat = x.flatten(0, 1)
        order = torch.randperm(len(flat), device=x.device)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(flat), device=x.device)
        return flat[order].tanh()[back].view_as(x)

    def forward(self, tokens):
        return self.head(checkpoint(self.experts, self.embed(tokens), use_reentrant=False))
"""


def test_code_that_runs_again_in_backward_names_devices_as_in_forward(saved: Callable[[str], dict[str, str]]) -> None:
    """Experts of transformers sort tokens so, and undo it, in blocks that are computed again."""
    same_bytes(**saved(NAMED_AGAIN))


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, str]]:
    """Save code as a user's module, and return the options that name its class `Model`."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def save(code: str) -> dict[str, str]:
        monkeypatch.delitem(sys.modules, "saved", raising=False)
        (tmp_path / "saved.py").write_text(f"import torch\nfrom torch import nn\n{code}")
        return {"model": "saved:Model", "app_dir": str(tmp_path)}

    return save


LITERALS = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(100, 32), nn.Linear(32, 100)
        self.register_buffer("gains", torch.tensor([0.5, 2.0] * 16))

    def forward(self, tokens):
        x = self.embed(tokens) * self.gains
        kept = torch.cat([torch.tensor([], dtype=x.dtype, device=x.device), x * torch.tensor(2.0, device=x.device)])
        signs = torch.as_tensor([1, -1] * 8, device=tokens.device)[:, None] * x.new_tensor([1.0, 3.0]).sum()
        if 100 in tokens[:, [-1, 0]]:
            raise ValueError("there is no such token")
        return self.head(kept[:, [1, 0] * 8] * signs)
"""


def test_literals_on_the_device_take_as_many_bytes_as_measured(saved: Callable[[str], dict[str, str]]) -> None:
    same_bytes(**saved(LITERALS))


def test_a_cache_that_begins_with_an_empty_literal_takes_as_many_bytes_as_measured(
    configs: Callable[[str], str],
) -> None:
    same_bytes(model=configs("GPT2LMHeadModel"), model_arg=["use_cache=true", "pad_token_id=1"])


@pytest.mark.parametrize(
    "run", [lambda cell: record(cell, cell.mode, Platform.of(H100)), lambda cell: trace(cell, H100)]
)
def test_a_model_that_depends_on_what_it_computes_is_refused(
    run: Callable[[ModelCell], object], saved: Callable[[str], dict[str, str]]
) -> None:
    code = """
class Model(nn.Linear):
    def __init__(self):
        super().__init__(16, 16)

    def forward(self, x):
        y = super().forward(x)
        return y if y.sum() > 0 else -y
"""
    (cell,) = TimeSpec(**saved(code), ctx=16, device="cuda", input=["float32[B,16]"]).cells()
    with pytest.raises(UnavailableError, match="reads a tensor value"):
        run(cell)


def test_attention_with_a_learned_mask_runs_where_cudnn_has_no_gradient_of_it(
    saved: Callable[[str], dict[str, str]],
) -> None:
    code = """
class Model(nn.Module):
    def __init__(self, learned):
        super().__init__()
        self.embed = nn.Embedding(100, 64)
        self.bias = nn.Parameter(torch.zeros(1, 1, 16, 16), requires_grad=learned)

    def forward(self, tokens):
        x = self.embed(tokens)[:, None]
        return nn.functional.scaled_dot_product_attention(x, x, x, self.bias.to(x.dtype))
"""
    options = {**saved(code), "ctx": 16, "device": "cuda", "precision": "bf16"}
    for learned, kernel in (("true", "efficient"), ("false", "cudnn")):
        (cell,) = TimeSpec(**options, model_arg=[f"learned={learned}"]).cells()
        operators = trace(cell, H100)[0].operators
        assert f"aten::_scaled_dot_product_{kernel}_attention_backward" in operators


GPU_NAMES = """
device = "cuda" if torch.cuda.is_available() else "cpu"

class Model(nn.Module):
    def __init__(self, autocast=False):
        super().__init__()
        self.embed, self.head, self.autocast = nn.Embedding(100, 32), nn.Linear(32, 100), autocast
        self.gain = torch.tensor([2.0] * 32, device=device)
        if device == "cuda":
            self.cuda().to("cuda:0").to(torch.accelerator.current_accelerator())
            if torch.cuda.get_device_capability() < (8, 0) or torch.cuda.device_count() != 1:
                raise ValueError("another GPU")

    def forward(self, tokens):
        if (tokens.is_cuda, tokens.device.type) != (device == "cuda", device):
            raise ValueError(tokens.device)
        x = self.embed(tokens.to(device)) * self.gain + torch.arange(32, device=self.gain.device)
        with torch.device(device):
            x = x + torch.tensor([1.0] * 32) + torch.zeros(32)
        x = x + torch.rand(32, device=device, generator=torch.Generator(device).manual_seed(1))
        with torch.autocast(device, dtype=torch.bfloat16, enabled=self.autocast):
            y = x @ x.mT
            if (y.dtype == torch.bfloat16, torch.is_autocast_enabled(device)) != (self.autocast, self.autocast):
                raise ValueError(y.dtype)
        return self.head(torch.where(torch.ones(16, 16, dtype=torch.bool, device=device).tril(), y, 0).float() @ x)
"""
MIXED = """
HOST = torch.ones(16, 32)

class Model(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.embed, self.head, self.how = nn.Embedding(100, 32), nn.Linear(32, 100), how

    def forward(self, tokens):
        x = self.embed(tokens)
        if self.how == "product":
            x = x * HOST
        if self.how == "in place":
            x.add_(HOST)
        if self.how == "list":
            x = torch.stack([x[0], HOST])
        if self.how == "indices":
            x = x + self.embed(torch.arange(16))
        if self.how == "values":
            x[:, torch.arange(16)] = HOST
        if self.how == "allowed":
            x = x[:, torch.arange(16)] * torch.tensor(2.0) + HOST.to(x.device)
            x[:, :, 0] = torch.tensor(1.0)
        return self.head(x)
"""


def test_what_names_a_gpu_means_the_simulated_one(saved: Callable[[str], dict[str, str]]) -> None:
    model = saved(GPU_NAMES)
    same_bytes(**model)
    (cell,) = MemorySpec(**model, ctx=16, mode="train", model_arg={"autocast": True}).cells()
    record(cell.step, cell.mode, Platform.of(H100))


@pytest.mark.parametrize(
    ("how", "differs"),
    [(how, True) for how in ("product", "in place", "list", "indices", "values")] + [("allowed", False)],
)
def test_tensors_on_the_host_do_not_mix_with_those_on_the_device(
    how: str, differs: bool, saved: Callable[[str], dict[str, str]]
) -> None:
    (cell,) = MemorySpec(**saved(MIXED), ctx=16, batch=2, mode="train", model_arg={"how": how}).cells()
    if not differs:
        record(cell.step, cell.mode, Platform.of(H100))
        return
    with pytest.raises(UserCodeError, match="RuntimeError: Expected all tensors to be on the same device"):
        record(cell.step, cell.mode, Platform.of(H100))


PARAMETRIZED = """
from torch.nn.utils import parametrizations as made

class Model(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.embed, self.layer, self.head = nn.Embedding(100, 32), nn.Linear(32, 32), nn.Linear(32, 100)
        getattr(made if how != "spectral_norm_hook" else nn.utils, how.removesuffix("_hook"))(self.layer)
        made.weight_norm(self.embed)

    def forward(self, tokens):
        return self.head(self.layer(self.embed(tokens)))
"""


@pytest.mark.parametrize("how", ["weight_norm", "spectral_norm", "orthogonal", "spectral_norm_hook"])
def test_a_weight_that_is_computed_takes_as_many_bytes_as_measured(
    how: str, saved: Callable[[str], dict[str, str]]
) -> None:
    same_bytes(**saved(PARAMETRIZED), model_arg={"how": how})


WITH_GRADIENT = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x):
        return self.layer(x).square().mean()

def get_inputs(batch, ctx):
    return torch.randn(batch * ctx, 64, requires_grad=True)
"""


@pytest.mark.parametrize("grad_accum", [1, 3])
def test_the_gradient_of_an_input_is_a_gradient_and_lives_as_long_as_its_batch(
    grad_accum: int, saved: Callable[[str], dict[str, str]]
) -> None:
    for recording in same_bytes(**saved(WITH_GRADIENT), grad_accum=grad_accum):
        left = [recording.allocations[number] for number in recording.live_at(len(recording.events))]
        found = Counter(each.category for each in left if each.size_bytes == 4 * 2 * 16 * 64)
        assert found == {"inputs": grad_accum, "gradients": 1}
        before = [recording.allocations[number] for number in recording.live_at(recording.measured[0].end)]
        assert not [each for each in before if each.category == "gradients"]


ROUTED = """
class Model(nn.Module):
    def __init__(self, experts=4):
        super().__init__()
        self.embed, self.head = nn.Embedding(100, 32), nn.Linear(32, 100)
        self.experts = nn.ModuleList(nn.Linear(32, 32) for _ in range(experts))

    def forward(self, tokens):
        x = self.embed(tokens).flatten(0, 1)
        turns = torch.arange(len(x), device=x.device)[:, None] + torch.arange(len(self.experts), device=x.device)
        scores = turns % len(self.experts) + 0 * x.mean(-1, keepdim=True)  # balanced, but only the weights say so
        chosen = scores.topk(2).indices
        hit = (nn.functional.one_hot(chosen, len(self.experts)).sum((0, 1)) > 0).nonzero()
        out = torch.zeros_like(x)
        for (number,) in hit:
            row, _ = torch.where(chosen == number)
            out = out.index_add(0, row, self.experts[number](x[row]))
        return self.head(out).view(*tokens.shape, -1)
"""
COUNTED = """
class Model(nn.Module):
    def __init__(self, experts=4):
        super().__init__()
        self.embed, self.head = nn.Embedding(100, 32), nn.Linear(32, 100)
        self.experts = nn.ModuleList(nn.Linear(32, 32) for _ in range(experts))

    def forward(self, tokens):
        x, n = self.embed(tokens).flatten(0, 1), len(self.experts)
        turns = torch.arange(len(x), device=x.device)[:, None] + torch.arange(n, device=x.device)
        chosen = (turns % n + 0 * x.mean(-1, keepdim=True)).topk(2).indices
        flat = chosen.flatten()
        marks = chosen.new_zeros(len(chosen), n).scatter_(1, chosen, 1)
        order = flat.argsort()
        counts = [
            torch.bincount(flat, minlength=n),
            torch.bincount(flat.sort().values),
            torch.histc(flat.float(), n, 0, n - 1).long(),
            marks.sum(0),
            nn.functional.one_hot(chosen, n).sum((0, 1)),
            torch.zeros(n, dtype=torch.long, device=x.device).scatter_add_(0, flat, torch.ones_like(flat)),
            torch.unique(flat, return_counts=True)[1],
            torch.unique_consecutive(flat[order], return_counts=True)[1],
            torch.stack([(flat == expert).sum() for expert in range(n)]),
        ]
        if any(each.tolist() != counts[0].tolist() for each in counts) or marks.sum(0).cpu().numpy().max() == 0:
            raise ValueError("counted differently")
        parts = x[order // 2].split(counts[0].tolist())
        out = torch.cat([expert(part) for expert, part in zip(self.experts, parts)])
        owners = torch.repeat_interleave(torch.arange(n, device=x.device), counts[0])
        out = torch.zeros_like(x).index_add(0, order // 2, out * (owners[:, None] >= 0))
        return self.head(out).view(*tokens.shape, -1)
"""
SELECTED = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(100, 32), nn.Linear(32, 32)

    def forward(self, tokens):
        x = self.embed(tokens)
        rows = x[(x.abs() >= 0).all(-1)]
        x[tokens < 50] = rows[: int((tokens < 50).sum())]
        return self.head(x[tokens >= 50]).masked_select(self.head.weight[0] > -9).mean()
"""


@pytest.mark.parametrize(
    ("code", "assumed"),
    [(ROUTED, [BALANCED]), (COUNTED, [BALANCED]), (SELECTED, [ALL_SELECTED])],
    ids=["experts", "counts", "masks"],
)
def test_what_masks_select_takes_as_many_bytes_as_measured_where_what_is_assumed_holds(
    code: str, assumed: list[str], saved: Callable[[str], dict[str, str]]
) -> None:
    simulated, measured = same_bytes(**saved(code))
    assert simulated.own_model is not None
    assert measured.own_model is not None
    assert simulated.own_model.assumed == assumed
    assert measured.own_model.assumed == []


def test_an_assumed_selection_is_a_caution_of_memory_and_of_time(saved: Callable[[str], dict[str, str]]) -> None:
    options = saved(ROUTED)
    words = (
        "--model",
        options["model"],
        "--app-dir",
        options["app_dir"],
        "--simulate",
        "h100",
        "--mode",
        "train",
        "--ctx",
        "16",
    )
    for kind in ("memory", "time"):
        answer = answered(kind, *words, "--json", "-")
        (cell,) = json.loads(answer.out)["cells"]
        (caution,) = (each for each in cell["cautions"] if each["code"] == "selection-assumed")
        assert any(BALANCED in each for each in caution["about"])
        assert BALANCED in " ".join(answered(kind, *words).out.split())


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable`")
def test_a_checkpointed_block_attends_in_backward_by_the_kernel_that_was_asked_for(
    configs: Callable[[str], str],
) -> None:
    axes = {"model": configs("LlamaForCausalLM"), "precision": "bf16", "ctx": 16, "batch": 2, "mode": "train"}
    (cell,) = MemorySpec(**axes, attention="flash", checkpoint="full", simulate="h100").cells()
    operators = [each.operator for each in record(cell.step, "train", Platform.of(H100)).allocations]
    assert "_scaled_dot_product_flash_attention" in operators
    assert "_scaled_dot_product_cudnn_attention" not in operators  # what an H100 prefers
