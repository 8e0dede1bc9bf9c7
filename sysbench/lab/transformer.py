"""A pre-norm Transformer language model, the built-in workload.

It maps token ids (batch, ctx) to logits (batch, ctx, vocab). Linear layers have no bias, RMSNorm computes in fp32,
the feed-forward block is SwiGLU, positions are rotary, attention is causal, and the output projection is not tied to
the embedding.
"""

from __future__ import annotations

import math

import torch
from einops import einsum, rearrange
from torch import Tensor, nn

from sysbench.lab.attention import KINDS
from sysbench.spec.grid import ModelShape
from sysbench.spec.steps import Attention

NORM_EPSILON = 1e-5
ROTARY_BASE = 10_000.0
TRUNCATION_DEVIATIONS = 3.0


class Linear(nn.Linear):
    """A linear layer without bias: W·x."""

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__(d_in, d_out, bias=False)

    def reset_parameters(self) -> None:
        """Leave the weights as they are: `draw_weights` draws them."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, d_in) to (…, d_out)."""
        return einsum(x, self.weight, "... d_in, d_out d_in -> ... d_out")


class Embedding(nn.Module):
    """One learned vector per token."""

    def __init__(self, vocab: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab, d_model))

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids (…) to (…, d_model)."""
        return nn.functional.embedding(tokens, self.weight)


class RMSNorm(nn.Module):
    """gain · x / √(mean(x²) + ε), computed in fp32 and returned in the dtype of x.

    Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor) -> Tensor:
        """Map (…, d_model) to (…, d_model)."""
        full = x.float()
        inverse_rms = torch.rsqrt(full.square().mean(dim=-1, keepdim=True) + NORM_EPSILON)
        return (full * inverse_rms * self.gain).to(x.dtype)


class RotaryEmbedding(nn.Module):
    """Rotates each pair of neighbouring components by an angle proportional to the position.

    Pair i of d_head/2 rotates by position · base^(−2i/d_head), so the product of a query and a key depends only on the
    distance between their positions. Su et al., "RoFormer", 2021. The angles are neither parameters nor part of the
    state dict, so a longer context does not make the model larger.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, ctx: int, d_head: int) -> None:
        super().__init__()
        # In fp32 whatever the parameters are: bf16 has too few digits for positions.
        frequencies = ROTARY_BASE ** -(torch.arange(0, d_head, 2, dtype=torch.float32) / d_head)
        angles = einsum(torch.arange(ctx, dtype=torch.float32), frequencies, "position, pair -> position pair")
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Rotate the vector at each position: (batch, heads, ctx, d_head) → same shape."""
        positions = x.shape[-2]
        cos, sin = self.cos[:positions], self.sin[:positions]
        even, odd = rearrange(x, "... (pair two) -> two ... pair", two=2)
        turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
        return rearrange(turned, "... pair two -> ... (pair two)").to(x.dtype)


class SwiGLU(nn.Module):
    """w2(silu(w1·x) ∘ w3·x). Shazeer, "GLU Variants Improve Transformer", 2020."""

    def __init__(self, d_model: int, d_ff: int) -> None:
        super().__init__()
        self.w1 = Linear(d_model, d_ff)
        self.w2 = Linear(d_ff, d_model)
        self.w3 = Linear(d_model, d_ff)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, ctx, d_model) to (batch, ctx, d_model)."""
        output: Tensor = self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))
        return output


class SelfAttention(nn.Module):
    """Self-attention: projection into heads, rotary positions, attention, and output projection."""

    def __init__(self, d_model: int, heads: int, rotary: nn.Module, attend: nn.Module) -> None:
        super().__init__()
        self.heads = heads
        self.q = Linear(d_model, d_model)
        self.k = Linear(d_model, d_model)
        self.v = Linear(d_model, d_model)
        self.output = Linear(d_model, d_model)
        self.rotary = rotary
        self.attend = attend

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, ctx, d_model) to (batch, ctx, d_model)."""
        q, k, v = (
            rearrange(projection(x), "batch ctx (heads d) -> batch heads ctx d", heads=self.heads)
            for projection in (self.q, self.k, self.v)
        )
        attended = self.attend(self.rotary(q), self.rotary(k), v)
        output: Tensor = self.output(rearrange(attended, "batch heads ctx d -> batch ctx (heads d)"))
        return output


class Block(nn.Module):
    """One layer: attention and feed-forward, each preceded by a norm and bypassed by a residual connection."""

    def __init__(self, shape: ModelShape, rotary: nn.Module, attend: nn.Module) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.d_model)
        self.attention = SelfAttention(shape.d_model, shape.heads, rotary, attend)
        self.feed_forward_norm = RMSNorm(shape.d_model)
        self.feed_forward = SwiGLU(shape.d_model, shape.d_ff)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, ctx, d_model) to (batch, ctx, d_model)."""
        attended = x + self.attention(self.attention_norm(x))
        output: Tensor = attended + self.feed_forward(self.feed_forward_norm(attended))
        return output


class Transformer(nn.Module):
    """The whole model for contexts up to `ctx`, on torch's default device; the weights are uninitialized."""

    def __init__(self, shape: ModelShape, ctx: int, attention: Attention = "naive") -> None:
        super().__init__()
        rotary = RotaryEmbedding(ctx, shape.d_head)
        self.attend = KINDS[attention](ctx)
        self.embedding = Embedding(shape.vocab, shape.d_model)
        self.layers = nn.ModuleList(Block(shape, rotary, self.attend) for _ in range(shape.layers))
        self.final_norm = RMSNorm(shape.d_model)
        self.lm_head = Linear(shape.d_model, shape.vocab)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids (batch, ctx) to logits (batch, ctx, vocab)."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.lm_head(self.final_norm(x))
        return logits


def build(shape: ModelShape, ctx: int, attention: Attention, device: torch.device, seed: int) -> Transformer:
    """Build a Transformer on `device`, with random weights from `seed`."""
    with device:
        model = Transformer(shape, ctx, attention)
    draw_weights(model, torch.Generator(device).manual_seed(seed))
    return model


@torch.no_grad()
def draw_weights(model: Transformer, generator: torch.Generator) -> None:
    """Draw the weights from normal distributions truncated at 3σ.

    σ² is 2/(d_in + d_out) in linear layers, and 1 in embeddings.
    """
    for module in model.modules():
        if isinstance(module, Linear):
            _draw_truncated_normal(module.weight, math.sqrt(2 / sum(module.weight.shape)), generator)
        elif isinstance(module, Embedding):
            _draw_truncated_normal(module.weight, 1.0, generator)


def _draw_truncated_normal(weight: Tensor, deviation: float, generator: torch.Generator) -> None:
    """Fill `weight` by inverting the distribution function: on a CPU, 12 times as fast as `nn.init.trunc_normal_`."""
    bound = math.erf(TRUNCATION_DEVIATIONS / math.sqrt(2))
    limit = TRUNCATION_DEVIATIONS * deviation
    weight.uniform_(-bound, bound, generator=generator).erfinv_().mul_(deviation * math.sqrt(2)).clamp_(-limit, limit)
