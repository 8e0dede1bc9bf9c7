"""Compiled steps are simulated by torch's own compiler. What it allocates on a GPU is held by `tests/fake_gpu`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from sysbench.commands.memory.spec import MemorySpec
from sysbench.errors import UnavailableError
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.platform import Platform
from sysbench.simulate.recording import StepRecording
from sysbench.simulate.steps import record
from sysbench.spec.steps import Protocol
from tests.cli.running import answered

H100 = Gpu("GPU", 2**40, (9, 0))

CODE = """
import torch
from torch import nn


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(512, 64), nn.Linear(64, 512)
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def between(self, x):
        return x

    def forward(self, ids):
        x = self.between(self.embed(ids))
        return self.head(x + self.down(self.up(x).tanh().sin().exp()))


class Prints(Mlp):
    def between(self, x):
        print("a graph break")
        return x


class Refuses(Mlp):
    def __init__(self):
        super().__init__()
        self.whole = torch.compile(self.broken, fullgraph=True)

    def broken(self, x):
        torch._dynamo.graph_break()
        return x * 2

    def between(self, x):
        return self.whole(x)


class Reads(Mlp):
    def between(self, x):
        return x * 2 if x.sum() > 0 else x


class Doubles(Mlp):
    def between(self, x):
        return x * 2


class AsksTensor(Mlp):
    def between(self, x):
        return x * 2 if x.is_cuda and x.device.type == "cuda" else x


class AsksTorch(Mlp):
    def between(self, x):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return x * torch.full((64,), 2, dtype=x.dtype, device=device)


class NamesGpu(Mlp):
    def between(self, x):
        return x * torch.full((64,), 2, dtype=x.dtype, device="cuda")


class Moves(Mlp):
    def between(self, x):
        return x.to("cuda") * torch.full((64,), 2, dtype=x.dtype).to(x.device)


class Chooses(Mlp):
    def between(self, x):
        return x + x[torch.nonzero(x[:, :, 0]).unbind(1)].sum()


class Widens(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.parts = nn.Embedding(512, 8), nn.ModuleList([Part(8, 16), Part(16, 512)])

    def forward(self, ids):
        x = self.embed(ids)
        for part in self.parts:
            x = part(x)
        return x


class Part(nn.Module):
    def __init__(self, ins, outs):
        super().__init__()
        self.linear = nn.Linear(ins, outs)

    def forward(self, x):
        torch._dynamo.graph_break()
        return self.linear(x)


@torch.library.custom_op("simulated_here::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class CompiledLayer(nn.Linear):
    def __init__(self):
        super().__init__(64, 64)
        self.run = torch.compile(self.inner)

    def inner(self, x):
        return x + torch.tanh(super().forward(x))

    def forward(self, x):
        return self.run(x)


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(512, 64), nn.Linear(64, 512)
        self.layers = nn.Sequential(*(CompiledLayer() for _ in range(4)))
        if len({each.device for each in self.parameters()}) > 1:
            raise RuntimeError("what is made after the first torch.compile is on another device")

    @torch.compiler.disable
    def forward(self, ids):
        return self.head(self.layers(self.embed(ids)))


class Opaque(Mlp):
    def between(self, x):
        return doubled(x)
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "models.py").write_text(CODE)
    return tmp_path


def recorded(
    directory: Path,
    model: str = "Mlp",
    execution: str = "compiled",
    mode: Protocol = "train",
    precision: str = "bf16",
) -> StepRecording:
    spec = MemorySpec(
        model=f"models:{model}", app_dir=str(directory), input="ids=int64[B,T]<512", ctx=(64,), batch=(4,),
        mode=(mode,), precision=(precision,), execution=(execution,),
    )  # fmt: skip
    (cell,) = spec.cells()
    return record(cell.step, mode, Platform.of(H100), origins=False)


def requests(recording: StepRecording) -> tuple[tuple[int, ...], list[int]]:
    return recording.events, [each.size_bytes for each in recording.allocations]


def kept_bytes(recording: StepRecording) -> int:
    """What the measured forward leaves allocated, above what was there before."""
    (forward,) = (span for span in recording.measured if span.name == "forward")
    live = [*recording.live_bytes()]
    return live[forward.end - 1] - live[forward.first - 1]


def test_compiled_step_keeps_less_and_leaves_nothing_behind(directory: Path) -> None:
    before = recorded(directory, execution="eager")
    compiled, after = recorded(directory), recorded(directory, execution="eager")
    tokens, width = 4 * 64, 256
    # Eager keeps the results of tanh, sin and exp, in bf16; the compiler keeps one of them, or what they come from.
    assert kept_bytes(before) - kept_bytes(compiled) >= 2 * tokens * width * 2
    assert compiled.compiled is not None
    assert (compiled.compiled.graphs, compiled.compiled.graph_breaks, compiled.compiled.breaks) == (1, 0, [])
    assert requests(after) == requests(before)
    assert after.compiled is None
    # The compiler itself is again that of this machine.
    doubled = torch.compile(lambda x: x * 2, backend="eager")
    assert doubled(torch.ones(2)).tolist() == [2.0, 2.0]


def test_parts_that_are_compiled_keep_nothing_from_step_to_step(directory: Path) -> None:
    eager, compiled = (recorded(directory, "Parts", execution, precision="fp32") for execution in ("eager", "compiled"))
    before = [[*each.live_bytes()][each.measured[0].first - 1] for each in (eager, compiled)]
    assert before[0] == before[1]


def test_forward_alone_keeps_what_it_keeps_before_backward(directory: Path) -> None:
    assert kept_bytes(recorded(directory, mode="forward")) == kept_bytes(recorded(directory))


def test_steps_that_differ_in_their_phases_only_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import compile_fx

    compiled: list[object] = []
    compiling = compile_fx.compile_fx
    monkeypatch.setattr(
        compile_fx, "compile_fx", lambda graph, *rest, **o: compiled.append(graph) or compiling(graph, *rest, **o)
    )
    shape = {"d_model": 64, "d_ff": 128, "heads": 2, "layers": 2, "vocab": 100, "ctx": 16, "batch": 2}
    modes = ("forward", "train", "inference", "forward-backward")
    cells = list(MemorySpec(**shape, mode=modes, execution="compiled", precision="bf16", simulate="h100").cells())
    at_once = [record(cell.step, cell.mode, Platform.of(H100)) for cell in cells]
    assert len(compiled) == 2, "one with gradients, one without"
    for cell, recording in zip(cells, at_once, strict=True):
        monkeypatch.setattr("sysbench.simulate.compiler.compiled._kept", {})
        assert requests(record(cell.step, cell.mode, Platform.of(H100))) == requests(recording)
    assert len(compiled) == 2 + len(cells)


def test_graph_break_is_named_with_its_line(directory: Path) -> None:
    compiled = recorded(directory, "Prints").compiled
    assert compiled is not None
    assert compiled.graphs == 2
    assert compiled.breaks == [f"models.py:{CODE[: CODE.index('print(')].count(chr(10)) + 1}"]


@pytest.mark.parametrize("model", ["AsksTensor", "AsksTorch", "NamesGpu", "Moves"])
def test_code_that_asks_for_the_gpu_finds_one_while_it_is_compiled(directory: Path, model: str) -> None:
    asks, doubles = recorded(directory, model), recorded(directory, "Doubles")
    assert requests(asks) == requests(doubles)
    assert asks.compiled is not None
    assert (asks.compiled.graphs, asks.compiled.breaks) == (1, [])


def test_code_that_runs_on_several_shapes_is_compiled_for_each(directory: Path) -> None:
    compiled = recorded(directory, "Widens")
    assert compiled.compiled is not None
    assert compiled.compiled.graphs == 2
    tokens = 4 * 64
    logits = tokens * 512 * 2  # bf16
    assert logits in {each.size_bytes for each in compiled.allocations}


def test_blocks_of_fsdp2_are_compiled_once_and_nothing_is_amiss() -> None:
    shape = {"d_model": 32, "d_ff": 64, "heads": 2, "vocab": 64, "ctx": 16, "batch": 1}
    graphs = []
    for layers in (2, 4):
        spec = MemorySpec(**shape, layers=layers, ranks=2, strategy="fsdp2", mode="train", execution="compiled")
        (cell,) = spec.cells()
        compiled = record(cell.step, "train", Platform.of(H100), origins=False).compiled
        assert compiled is not None
        assert (compiled.fell_back, compiled.breaks) == (False, [])
        graphs.append(compiled.graphs)
    assert graphs[0] == graphs[1] >= 1


def test_compiled_tensor_parallelism_is_refused() -> None:
    (cell,) = MemorySpec(size="tiny", ctx=16, ranks=2, strategy="tp", mode="train", execution="compiled").cells()
    with pytest.raises(UnavailableError, match=r"^compiled steps of tensor parallelism cannot be simulated"):
        record(cell.step, "train", Platform.of(H100))


def test_a_size_that_depends_on_data_divides_the_code(directory: Path) -> None:
    compiled = recorded(directory, "Chooses").compiled
    assert compiled is not None
    assert compiled.breaks == [f"models.py:{CODE[: CODE.index('torch.nonzero')].count(chr(10)) + 1}"]


def test_disabled_compiler_leaves_the_eager_step(directory: Path) -> None:
    import torch._dynamo.config

    with torch._dynamo.config.patch(disable=True):
        assert requests(recorded(directory)) == requests(recorded(directory, execution="eager"))


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("Refuses", r"^torch\.compile refuses this step: Unsupported: Call to `torch\._dynamo\.graph_break"),
        ("Reads", "^the code reads a tensor value"),
        ("Opaque", r"^torch\.compile refuses this step: RuntimeError: There was no fake impl registered for"),
    ],
)
def test_what_cannot_be_compiled_is_said_in_one_line(directory: Path, model: str, said: str) -> None:
    with pytest.raises(UnavailableError, match=said) as refused:
        recorded(directory, model)
    assert "\n" not in str(refused.value)


def test_command_says_how_a_compiled_peak_was_found(tmp_path: Path) -> None:
    words = ("--layers=1", "--d-model=32", "--heads=2", "--d-ff=64", "--vocab=64", "--ctx=16", "--batch=1")
    ran = answered("memory", *words, "--compile", "--mode=train", "--simulate=h100", "--json=-", cwd=tmp_path)
    (cell,) = json.loads(ran.out)["cells"]
    assert cell["outcome"] == "ok"
    assert "compiled-simulated" in [caution["code"] for caution in cell["cautions"]]
