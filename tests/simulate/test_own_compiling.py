"""User code that compiles itself is simulated as the same code without the compiler, and it is said where it compiles.

The reference is the recording of the same code with torch.compile left out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from sysbench.commands.memory.spec import MemorySpec
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.platform import Platform
from sysbench.simulate.recording import StepRecording
from sysbench.simulate.steps import record
from tests.cli.running import answered

H100 = Gpu("GPU", 2**40, (9, 0))

CODE = """
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn


def leave(function=None, **options):
    return function if function is not None else lambda decorated: decorated


compile = leave if {plain} else torch.compile


@compile
def squared(x):
    return F.relu(x) * x


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x):
        return x + self.down(squared(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, how="none"):
        super().__init__()
        blocks = [Block() for _ in range(3)]
        if how == "wrapped":
            blocks = [compile(block, fullgraph=True) for block in blocks]
        if how == "method" and not {plain}:
            for block in blocks:
                block.compile(dynamic=False)
        self.embed, self.blocks, self.head = nn.Embedding(100, 32), nn.ModuleList(blocks), nn.Linear(32, 100)

    def forward(self, tokens):
        torch.compiler.cudagraph_mark_step_begin()
        torch._dynamo.graph_break()
        x = self.embed(tokens)
        with torch.compiler.set_stance("default"):
            for block in self.blocks:
                x = block(x)
        return self.head(x)


def whole():
    return compile(Model("wrapped"), mode="reduce-overhead")


@compile(fullgraph=True)
def orthogonal(matrix):
    x = matrix.bfloat16()
    x = x / (x.norm() + 1e-7)
    for _ in range(3):
        square = x @ x.T
        x = 3.4 * x + (2.0 * square @ square - 4.7 * square) @ x
    return x.to(matrix.dtype)


class Muon(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(list(parameters), dict(lr=0.1))

    @torch.no_grad()
    @torch.compiler.set_stance("default")
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            update = orthogonal(parameter.grad) if parameter.dim() == 2 else parameter.grad
            parameter.add_(update, alpha=-0.1)
"""

FLEX = """
import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

flex_attention = torch.compile(flex_attention)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.qkv, self.head = nn.Embedding(100, 64), nn.Linear(64, 192), nn.Linear(64, 100)

    def forward(self, tokens):
        batch, ctx = tokens.shape
        mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, ctx, ctx, device=tokens.device)
        q, k, v = (each.view(batch, ctx, 2, 32).transpose(1, 2) for each in self.qkv(self.embed(tokens)).chunk(3, -1))
        return self.head(flex_attention(q, k, v, block_mask=mask).transpose(1, 2).flatten(2))
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "compiling.py").write_text(CODE.replace("{plain}", "False"))
    (tmp_path / "plain.py").write_text(CODE.replace("{plain}", "True"))
    (tmp_path / "flexible.py").write_text(FLEX)
    return tmp_path


def recorded(directory: Path, target: str, *, optimizer: str | None = None, **axes: str) -> StepRecording:
    spec = MemorySpec(
        model=target, app_dir=str(directory), ctx="16", batch="2", mode="train", precision="bf16",
        **({"optimizer": optimizer} if optimizer else {}), **axes,
    )  # fmt: skip
    (cell,) = spec.cells()
    return record(cell.step, "train", Platform.of(H100), origins=False)


def requests(recording: StepRecording) -> tuple[tuple[int, ...], list[int]]:
    return recording.events, [each.size_bytes for each in recording.allocations]


def places(recording: StepRecording) -> list[str]:
    assert recording.own_model is not None
    return recording.own_model.run_eagerly


def line(text: str) -> str:
    return f"compiling.py:{CODE[: CODE.index(text)].count(chr(10)) + 1}"


DECORATED = [line("@compile\n"), line("@compile(fullgraph=True)\n")]


@pytest.mark.parametrize(
    ("target", "arguments", "further"),
    [
        ("Model", (), []),
        ("Model", ("how=wrapped",), [line("blocks = [compile(")]),
        ("Model", ("how=method",), [line("block.compile(")]),
        ("whole", (), [line("blocks = [compile("), line("return compile(")]),
    ],
    ids=["decorated", "wrapped", "method", "whole"],
)
def test_what_compiles_itself_takes_what_the_same_code_takes_without_the_compiler(
    target: str, arguments: tuple[str, ...], further: list[str], directory: Path
) -> None:
    compiling, plain = (
        recorded(directory, f"{module}:{target}", optimizer=f"{module}:Muon", model_arg=arguments)
        for module in ("compiling", "plain")
    )
    assert requests(compiling) == requests(plain)
    assert [place for place in places(compiling) if place not in DECORATED] == further
    assert len(places(compiling)) == len(further) + 2
    assert places(plain) == []


def test_a_simulation_leaves_the_compiler_as_it_was_and_the_next_cell_knows_what_was_compiled_before(
    directory: Path,
) -> None:
    from torch._dynamo.testing import CompileCounter

    compile_before, stance_before = torch.compile, torch.compiler.set_stance
    first, other, second = (recorded(directory, f"{module}:Model") for module in ("compiling", "plain", "compiling"))
    assert len(places(first)) == 2
    assert (places(second), requests(second)) == (places(first), requests(first))
    assert places(other) == []
    assert torch.compile is compile_before
    assert torch.compiler.set_stance is stance_before
    torch._dynamo.reset()
    counter = CompileCounter()
    torch.compile(lambda x: x + 1, backend=counter)(torch.ones(2))
    assert counter.frame_count == 1


@pytest.mark.parametrize("module", ["compiling", "flexible"])
def test_neither_triton_nor_a_compiler_is_needed(module: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    assert recorded(directory, f"{module}:Model").allocations


def test_a_disabled_compiler_is_no_news(directory: Path) -> None:
    import torch._dynamo.config as config

    with config.patch(disable=True):  # what torch makes of TORCH_COMPILE_DISABLE when it is imported
        recording = recorded(directory, "compiling:Model", model_arg=("how=wrapped",))
    assert places(recording) == []
    assert requests(recording) == requests(recorded(directory, "plain:Model"))


def test_flex_attention_is_simulated_as_its_compiled_kernels_which_hold_no_scores(directory: Path) -> None:
    (cell,) = MemorySpec(model="flexible:Model", app_dir=str(directory), ctx="512", batch="2", mode="train").cells()
    recording = record(cell.step, "train", Platform.of(H100), origins=False)
    (forward,) = (span for span in recording.measured if span.name == "forward")
    sizes = [
        recording.allocations[event].size_bytes for event in recording.events[forward.first : forward.end] if event >= 0
    ]
    rows, scores_bytes = 2 * 2 * 512, 2 * 2 * 512 * 512 * 4  # of a batch of 2 and 2 heads
    assert sizes.count(rows * 4) >= 2  # logsumexp and maxima in fp32
    assert max(sizes) < scores_bytes


def test_the_note_names_the_places(directory: Path) -> None:
    words = (
        "memory",
        "--model=compiling:Model",
        f"--app-dir={directory}",
        "--simulate=h100",
        "--mode=train",
        "--ctx=16",
    )
    (cell,) = json.loads(answered(*words, "--json=-").out)["cells"]
    (caution,) = (each for each in cell["cautions"] if each["code"] == "own-compiling")
    assert caution["about"] == DECORATED
    said = " ".join(answered(*words).out.split())
    assert said.count(f"simulated as eager, although the code compiles at {' and '.join(DECORATED)}") == 1
