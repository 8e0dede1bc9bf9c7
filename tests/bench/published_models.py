"""The models of published runs, kernel by kernel as Hugging Face's eager implementations run them, and their traces."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout

from sysbench.lab.transformer import build
from sysbench.predict.trace import Trace
from sysbench.predict.tracing import Tracer
from sysbench.simulate.cuda.attention import reporting_launches
from sysbench.simulate.cuda.composites import using_composites
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.platform import Platform
from sysbench.simulate.ranks import sharding_on, simulated_ranks
from sysbench.simulate.recorder import Recorder
from sysbench.simulate.recording import Recording
from sysbench.simulate.tensors import DEVICE, SimulatedDevice
from sysbench.spec.grid import ModelShape
from sysbench.spec.ranks import Strategy

Family = Literal["bert", "gpt2", "opt"]


@dataclass(frozen=True)
class Shape:
    """A model and its input."""

    family: Family
    layers: int
    hidden: int
    heads: int
    d_ff: int
    vocab: int
    seq: int
    batch: int


def gelu_new(x: Tensor) -> Tensor:
    """GPT-2's, written out in eight kernels."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


ACTIVATIONS = {"bert": nn.functional.gelu, "gpt2": gelu_new, "opt": nn.functional.relu}


class Block(nn.Module):
    """One layer, post-norm in BERT, pre-norm elsewhere."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        hidden = shape.hidden
        widths = [3 * hidden] if shape.family == "gpt2" else [hidden] * 3
        self.inputs = nn.ModuleList(nn.Linear(hidden, width) for width in widths)
        self.output = nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, shape.d_ff), nn.Linear(shape.d_ff, hidden)
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(2))

    def attend(self, x: Tensor, mask: Tensor) -> Tensor:
        """Scores, mask, softmax, weighted sum, each a tensor in memory."""
        shape, width = self.shape, self.shape.hidden // self.shape.heads
        parts = self.inputs[0](x).split(shape.hidden, dim=2) if len(self.inputs) == 1 else [f(x) for f in self.inputs]
        q, k, v = (part.view(shape.batch, -1, shape.heads, width).permute(0, 2, 1, 3) for part in parts)
        if shape.family == "opt":
            q, k, v = ((part * scale).contiguous() for part, scale in ((q, width**-0.5), (k, 1), (v, 1)))
            scores = torch.max(torch.matmul(q, k.transpose(-1, -2)) + mask, mask.new_zeros(()))
        else:
            scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(width)
            scores = torch.where(mask > 0, scores, mask.new_zeros(())) if shape.family == "gpt2" else scores + mask
        weights = dropout(scores.softmax(-1), 0.1, self.training)
        attended = torch.matmul(weights, v).permute(0, 2, 1, 3).contiguous()
        return dropout(self.output(attended.view(shape.batch, -1, shape.hidden)), 0.1, self.training)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        post = self.shape.family == "bert"
        first, second = self.norms
        x = first(x + self.attend(x, mask)) if post else x + self.attend(first(x), mask)
        inner = self.down(ACTIVATIONS[self.shape.family](self.up(x if post else second(x))))
        inner = dropout(inner, 0.1, self.training)
        return second(x + inner) if post else x + inner


class Model(nn.Module):
    """Embeddings, layers, and a head over the vocabulary; BERT's, which classifies, only in training."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.family = shape.family
        self.embedding, self.positions = nn.Embedding(shape.vocab, shape.hidden), nn.Embedding(shape.seq, shape.hidden)
        self.layers = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.hidden)
        self.transform = nn.Linear(shape.hidden, shape.hidden)
        self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x, mask)
        if self.family == "bert":
            if not self.training:
                return self.transform(x[:, 0]).tanh()
            x = nn.functional.gelu(self.transform(x))
        return self.head(self.norm(x))


class _Reduced(torch.autograd.Function):
    """A sum over the ranks of tensor parallelism in forward, or in backward: Megatron-LM's g and f."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: bool) -> Tensor:
        ctx.forward_reduces = forward
        if forward:
            torch.distributed.all_reduce(x)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if not ctx.forward_reduces:
            torch.distributed.all_reduce(gradient)
        return gradient, None


class SplitBlock(Block):
    """One rank's part of a layer under tensor parallelism: of the heads, and of the columns of the feed-forward."""

    def __init__(self, shape: Shape, ranks: int) -> None:
        super().__init__(shape)
        part, hidden = shape.hidden // ranks, shape.hidden
        self.local = replace(shape, heads=shape.heads // ranks, hidden=part)
        self.inputs = nn.ModuleList([nn.Linear(hidden, 3 * part)])
        self.output = nn.Linear(part, hidden)
        self.up, self.down = nn.Linear(hidden, shape.d_ff // ranks), nn.Linear(shape.d_ff // ranks, hidden)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        first, second = self.norms
        self.shape = self.local
        x = x + _Reduced.apply(self.attend(_Reduced.apply(first(x), False), mask), True)
        inner = ACTIVATIONS[self.shape.family](self.up(_Reduced.apply(second(x), False)))
        return x + dropout(_Reduced.apply(self.down(inner), True), 0.1, self.training)


def traced_rank(shape: Shape, strategy: Strategy, ranks: int) -> Trace:
    """Forward, loss and backward of one of several ranks, each with its own batch except under tensor parallelism."""
    with simulated_ranks(strategy, ranks) as mesh:
        return traced(shape, training=True, mesh=mesh)


def traced(shape: Shape, *, training: bool, compiled: bool = False, mesh: Any = None) -> Trace:
    """Forward, and in training the loss (a phase by itself) and backward, of the second pass."""

    def made() -> Callable[[], Iterator[str]]:
        model: nn.Module = Model(shape).train(training)
        if mesh is not None:
            model = _distributed(model, shape, mesh)
        if compiled:
            model = torch.compile(model)
        tokens = torch.zeros(shape.batch, shape.seq, dtype=torch.int64)
        mask = torch.zeros(shape.batch, 1, shape.seq, shape.seq)

        def step() -> Iterator[str]:
            yield "forward"
            logits = model(tokens, mask)
            if training:
                yield "loss"
                loss = cross_entropy(logits.flatten(0, 1), tokens.flatten())
                yield "backward"
                loss.backward()

        return step

    return recorded(made, training=training, compiled=compiled, sharded=mesh is not None)


def recorded(
    made: Callable[[], Callable[[], Iterator[str]]], *, training: bool, compiled: bool = False, sharded: bool = False
) -> Trace:
    """The second of two steps; a step names each phase before it does it."""
    trace, _ = recorded_with_memory(made, training=training, compiled=compiled, sharded=sharded)
    return trace


def recorded_with_memory(
    made: Callable[[], Callable[[], Iterator[str]]],
    *,
    training: bool = True,
    compiled: bool = False,
    sharded: bool = False,
) -> tuple[Trace, Recording]:
    """As `recorded`, and both steps' requests to the allocator."""
    tracer = Tracer(1)
    platform = Platform.of_generation(Gpu("", 1 << 50, (8, 0)))
    with reporting_launches(tracer.add_kernel), using_composites(platform.composites):
        recorder = Recorder(platform, tracer.device, None)
        sharding = sharding_on(recorder.device) if sharded else nullcontext()
        with sharding, recorder.device, _compiling(recorder, platform, compiled), torch.set_grad_enabled(training):
            with recorder.span(-1, "build"), DEVICE:
                step = made()
            for number in range(2):
                running = step()
                phase = next(running, None)
                while phase is not None:
                    with recorder.span(number, phase):
                        phase = next(running, None)
            recorder.device.stop()
    return tracer.trace(), recorder.recording()


def _compiling(recorder: Recorder, platform: Platform, compiled: bool) -> AbstractContextManager[object]:
    if not compiled:
        return nullcontext()
    from sysbench.simulate.compiler.compiled import compiling_on  # which takes seconds to import

    assert isinstance(recorder.device, SimulatedDevice)
    return compiling_on(recorder.device, platform)


def _distributed(model: Any, shape: Shape, mesh: Any) -> nn.Module:
    if mesh.mesh_dim_names == ("ddp",):
        return nn.parallel.DistributedDataParallel(model, process_group=mesh.get_group())
    model.layers = nn.ModuleList(SplitBlock(shape, mesh.size()) for _ in range(shape.layers))
    model.head = nn.Linear(shape.hidden, shape.vocab // mesh.size(), bias=False)
    return model  # type: ignore[no-any-return]


@cache
def written_out_adamw(shape: ModelShape) -> Trace:
    """An update of every parameter by AdamW in plain tensor arithmetic, fourteen kernels each."""
    tracer = Tracer(0)
    recorder = Recorder(Platform.of(Gpu("", 1 << 50, (8, 0))), tracer.device, None)
    with recorder.device, torch.no_grad():
        with recorder.span(-1, "build"), DEVICE:
            parameters = [torch.zeros(each.shape) for each in build(shape, 1, "naive", DEVICE, 0).parameters()]
        with recorder.span(0, "optimizer"):
            for p in parameters:
                gradient, first, second = p, p, p
                first = 0.9 * first + 0.1 * gradient
                second = 0.999 * second + 0.001 * gradient**2
                p -= 1e-3 * first / (second.sqrt() + 1e-8)
                p -= 1e-5 * p
        recorder.device.stop()
    return tracer.trace()


def joined(first: Trace, second: Trace) -> Trace:
    """The phases of one after those of the other."""
    kernels, operators, modules = len(first.kernels), len(first.operators), len(first.modules)
    moved = (
        replace(
            each, kernels=each.kernels + kernels, operators=each.operators + operators, modules=each.modules + modules
        )
        for each in second.phases
    )
    return Trace(
        (*first.kernels, *second.kernels),
        (*first.operators, *second.operators),
        (*first.modules, *second.modules),
        (*first.phases, *moved),
    )
