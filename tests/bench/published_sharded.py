"""Models of several GPUs as others trained them: kernels and collectives of one rank.

MPT, sharded as llm-foundry does it: FSDP of MosaicML's Composer with `mixed_precision: PURE` (parameters gathered and
gradients reduced in bf16), fused attention, checkpoints of whole blocks where said, gradients clipped by their norm,
and an AdamW that goes from tensor to tensor. FSDP2 stands for FSDP: the same collectives in the same order.

Llama 3, split as Megatron-LM with Transformer Engine does it in SimuMax's runs: tensor and sequence parallel, fused
norms, rotation and SwiGLU, gradients added up in fp32, and a sharded optimizer whose collectives nothing hides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, glu, linear, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from sysbench.predict.trace import Trace
from sysbench.simulate.ranks import simulated_ranks
from sysbench.simulate.tensors import DEVICE
from tests.bench.published_models import recorded

all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
"""By their names since torch 2.13."""


@dataclass(frozen=True)
class Run:
    """A model, and how it is trained: one of the micro-batches of one rank."""

    layers: int
    hidden: int
    heads: int
    d_ff: int
    vocab: int
    seq: int
    micro_batch: int
    ranks: int
    checkpointed: bool
    reshard: bool


class Block(nn.Module):
    """One layer, pre-norm, with biases."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.heads = run.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(run.hidden), nn.LayerNorm(run.hidden)
        self.qkv, self.output = nn.Linear(run.hidden, 3 * run.hidden), nn.Linear(run.hidden, run.hidden)
        self.up, self.down = nn.Linear(run.hidden, run.d_ff), nn.Linear(run.d_ff, run.hidden)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm_1(x)).chunk(3, dim=2)
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        attended = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.output(attended)
        return x + self.down(gelu(self.up(self.norm_2(x))))


class Mpt(nn.Module):
    """Embeddings of tokens and positions, layers, and a head that has the weights of the embedding."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.tokens, self.positions = nn.Embedding(run.vocab, run.hidden), nn.Embedding(run.seq, run.hidden)
        self.blocks = nn.ModuleList(Block(run) for _ in range(run.layers))
        self.norm = nn.LayerNorm(run.hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = (
                checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
                if self.run.checkpointed
                else block(x)
            )
        return linear(self.norm(x), self.tokens.weight)


@cache
def traced_micro_batch(run: Run) -> Trace:
    """Forward, loss and backward of one micro-batch in one phase; its gradients are reduced over all ranks."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    with simulated_ranks("fsdp2", run.ranks) as mesh:

        def made() -> Callable[[], Iterator[str]]:
            model = Mpt(run)
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
            for module in (*model.blocks, model):
                fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=run.reshard)
            tokens = torch.zeros(run.micro_batch, run.seq, dtype=torch.int64)

            def step() -> Iterator[str]:
                yield "step"
                cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten()).backward()

            return step

        return recorded(made, training=True, sharded=True)


@cache
def traced_update(run: Run) -> Trace:
    """The gradients' norm, their scaling, and AdamW of this rank's shards, one tensor for each layer."""
    layer = 4 * run.hidden**2 + 2 * run.hidden * run.d_ff + 9 * run.hidden + run.d_ff
    sizes = [*[layer] * run.layers, (run.vocab + run.seq + 2) * run.hidden]

    def made() -> Callable[[], Iterator[str]]:
        shards = [[torch.zeros(-(-size // run.ranks)) for _ in range(4)] for size in sizes]

        def step() -> Iterator[str]:
            yield "optimizer"
            norm = torch.stack([gradient.norm() for _, gradient, _, _ in shards]).norm()
            for p, gradient, first, second in shards:
                gradient.mul_(norm)
                first.mul_(0.9).add_(gradient, alpha=0.1)
                second.mul_(0.95).addcmul_(gradient, gradient, value=0.05)
                p.addcdiv_(first, (second.sqrt() / 0.99).add_(1e-8), value=-1e-4)

        return step

    return recorded(made, training=False)


@dataclass(frozen=True)
class Split:
    """A model, and how it is split: over `ranks` of tensor parallelism, with `replicas` of the whole."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    d_ff: int
    vocab: int
    seq: int
    ranks: int
    replicas: int

    @property
    def parameters(self) -> int:
        """Of a rank: matrices only."""
        layer = self.hidden * (2 * self.hidden + 2 * self.hidden * self.kv_heads // self.heads + 3 * self.d_ff)
        return (self.layers * layer + 2 * self.vocab * self.hidden) // self.ranks


class _Gathered(torch.autograd.Function):
    """All ranks' parts of the sequence; in backward the sum over ranks, of which each keeps its part.

    Only the part is kept for backward, where the gradient of a weight needs the whole again.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: int) -> Tensor:
        ctx.ranks = ranks
        ctx.save_for_backward(x)
        whole = x.new_empty(x.shape[0] * ranks, *x.shape[1:])
        all_gather(whole, x)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        all_gather(torch.empty_like(gradient), *ctx.saved_tensors)
        part = gradient.new_empty(gradient.shape[0] // ctx.ranks, *gradient.shape[1:])
        reduce_scatter(part, gradient)
        return part, None


class _Scattered(torch.autograd.Function):
    """The opposite of `_Gathered`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ranks: int) -> Tensor:
        ctx.ranks = ranks
        part = x.new_empty(x.shape[0] // ranks, *x.shape[1:])
        reduce_scatter(part, x)
        return part

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        whole = gradient.new_empty(gradient.shape[0] * ctx.ranks, *gradient.shape[1:])
        all_gather(whole, gradient)
        return whole, None


class SplitBlock(nn.Module):
    """One layer of Llama 3; x is (sequence / ranks, 1, hidden)."""

    def __init__(self, split: Split) -> None:
        super().__init__()
        self.split = split
        hidden, ranks = split.hidden, split.ranks
        width = hidden // split.heads
        self.norms = nn.ModuleList(nn.RMSNorm(hidden) for _ in range(2))
        self.sides = (hidden // ranks, *[split.kv_heads * width // ranks] * 2)
        self.qkv = nn.Linear(hidden, sum(self.sides), bias=False)
        self.output = nn.Linear(hidden // ranks, hidden, bias=False)
        self.up = nn.Linear(hidden, 2 * split.d_ff // ranks, bias=False)
        self.down = nn.Linear(split.d_ff // ranks, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        ranks = self.split.ranks
        width = self.split.hidden // self.split.heads
        parts = self.qkv(_Gathered.apply(self.norms[0](x), ranks)).split(self.sides, dim=2)
        q, k, v = (part.unflatten(2, (-1, width)).permute(1, 2, 0, 3) for part in parts)
        q, k = q * 1.0, k * 1.0  # a fused rotation reads and writes each once
        attended = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + _Scattered.apply(self.output(attended.permute(2, 0, 1, 3).flatten(2)), ranks)
        inner = glu(self.up(_Gathered.apply(self.norms[1](x), ranks)))  # moves what a fused SwiGLU moves
        return x + _Scattered.apply(self.down(inner), ranks)


@cache
def traced_split(split: Split) -> Trace:
    """Forward, loss and backward of one sequence, in one phase; gradients are added to those in fp32."""
    with simulated_ranks("tp", split.ranks):

        def made() -> Callable[[], Iterator[str]]:
            with torch.device(DEVICE):
                layers = [SplitBlock(split).bfloat16() for _ in range(split.layers)]
                embedding = torch.zeros(split.vocab // split.ranks, split.hidden, dtype=torch.bfloat16)
                head = torch.zeros_like(embedding).requires_grad_()
            sums = [torch.zeros(each.shape) for layer in layers for each in layer.parameters()]
            tokens = torch.zeros(split.seq, dtype=torch.int64)

            def step() -> Iterator[str]:
                yield "step"
                x = _Scattered.apply(embedding[tokens % embedding.shape[0]][:, None].requires_grad_(), split.ranks)
                for layer in layers:
                    x = layer(x)
                logits = linear(_Gathered.apply(x, split.ranks)[:, 0], head)
                cross_entropy(logits, tokens % logits.shape[1]).backward()
                for total, parameter in zip(sums, (p for layer in layers for p in layer.parameters()), strict=True):
                    total.add_(parameter.grad)
                    parameter.grad = None
                head.grad = None

            return step

        return recorded(made, training=True, sharded=True)


@cache
def traced_sharded_update(split: Split) -> Trace:
    """Gradients in fp32 are reduced over the replicas, a fused AdamW updates the shard, which all gather in bf16."""
    with simulated_ranks("ddp", split.replicas):

        def made() -> Callable[[], Iterator[str]]:
            shard = nn.Parameter(torch.zeros(split.parameters // split.replicas))
            shard.grad = torch.zeros_like(shard)
            gradients = torch.zeros(shard.numel() * split.replicas)
            optimizer = torch.optim.AdamW([shard], fused=True)

            def step() -> Iterator[str]:
                yield "optimizer"
                assert shard.grad is not None
                reduce_scatter(shard.grad, gradients)
                shard.grad.mul_(shard.grad.norm())
                optimizer.step()
                whole = gradients.new_empty(gradients.shape, dtype=torch.bfloat16)
                all_gather(whole, shard.detach().bfloat16())
                gradients.zero_()

            return step

        return recorded(made, training=False, sharded=True)
