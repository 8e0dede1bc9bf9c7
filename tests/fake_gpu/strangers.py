"""Models as other people write them, small enough for a second each: what their kernels allocate is of many kinds."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

VOCAB, WIDTH = 1024, 256


class NanoGpt(nn.Module):
    """A GPT with dropout, biases, learned positions, one matrix for embedding and head, and its own loss."""

    def __init__(self, width: int = WIDTH, layers: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, width), nn.Embedding(512, width)
        self.blocks = nn.ModuleList(_GptBlock(width, dropout) for _ in range(layers))
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(dropout)
        self.head = nn.Linear(width, VOCAB, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.drop(self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device)))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits, None
        return logits, functional.cross_entropy(logits.view(-1, VOCAB), targets.view(-1), ignore_index=-1)


class _GptBlock(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop, self.p = nn.Dropout(dropout), dropout

    def forward(self, x: Tensor) -> Tensor:
        batch, ctx, width = x.shape
        q, k, v = (each.view(batch, ctx, 4, -1).transpose(1, 2) for each in self.qkv(self.first(x)).split(width, dim=2))
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=self.p if self.training else 0, is_causal=True)
        x = x + self.drop(self.out(y.transpose(1, 2).contiguous().view(batch, ctx, width)))
        return x + self.drop(self.down(functional.gelu(self.up(self.second(x)))))


class Llama(nn.Module):
    """A Llama: RMSNorm in fp32, rotary positions as complex numbers, grouped queries, SwiGLU, an additive mask."""

    def __init__(self, width: int = WIDTH, layers: int = 2, heads: int = 8, groups: int = 2) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, width), nn.Linear(width, VOCAB, bias=False)
        self.blocks = nn.ModuleList(_LlamaBlock(width, heads, groups) for _ in range(layers))
        self.norm = _RmsNorm(width)
        frequencies = 1.0 / (10000.0 ** (torch.arange(0, width // heads, 2).float() / (width // heads)))
        self.register_buffer("rotations", torch.polar(*_polar(frequencies)), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        ctx = ids.shape[1]
        x, rotations = self.embed(ids), self.rotations[:ctx]
        mask = torch.triu(torch.full((ctx, ctx), float("-inf"), device=ids.device), diagonal=1).type_as(x)
        for block in self.blocks:
            x = block(x, rotations, mask)
        return self.head(self.norm(x)).float()  # type: ignore[no-any-return]


def _polar(frequencies: Tensor) -> tuple[Tensor, Tensor]:
    angles = torch.outer(torch.arange(512).float(), frequencies)
    return torch.ones_like(angles), angles


class _RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


class _LlamaBlock(nn.Module):
    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, d_head = heads, groups, width // heads
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, groups * d_head, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)
        self.first, self.second = _RmsNorm(width), _RmsNorm(width)

    def forward(self, x: Tensor, rotations: Tensor, mask: Tensor) -> Tensor:
        batch, ctx, width = x.shape
        y = self.first(x)
        q = _rotated(self.q(y).view(batch, ctx, self.heads, -1), rotations).transpose(1, 2)
        k = _rotated(self.k(y).view(batch, ctx, self.groups, -1), rotations).transpose(1, 2)
        v = self.v(y).view(batch, ctx, self.groups, -1).transpose(1, 2)
        k, v = (each.repeat_interleave(self.heads // self.groups, dim=1) for each in (k, v))
        scores = functional.softmax((q @ k.transpose(2, 3) / math.sqrt(q.shape[-1]) + mask).float(), dim=-1).type_as(q)
        x = x + self.o((scores @ v).transpose(1, 2).reshape(batch, ctx, width))
        z = self.second(x)
        return x + self.down(functional.silu(self.gate(z)) * self.up(z))  # type: ignore[no-any-return]


def _rotated(x: Tensor, rotations: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotations[None, :, None]).flatten(3).type_as(x)


class Grouped(nn.Module):
    """Attention whose groups of queries share keys, by an option of PyTorch's function; QK norm; capped logits."""

    def __init__(self, width: int = WIDTH, heads: int = 8, groups: int = 2) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, width), nn.Linear(width, VOCAB, bias=False)
        self.q, self.kv = nn.Linear(width, width), nn.Linear(width, 2 * groups * width // heads)
        self.norm, self.heads, self.groups = nn.RMSNorm(width // heads), heads, groups

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        batch, ctx, _ = x.shape
        k, v = self.kv(x).chunk(2, dim=-1)
        q, k, v = (each.view(batch, ctx, -1, x.shape[2] // self.heads).transpose(1, 2) for each in (self.q(x), k, v))
        y = functional.scaled_dot_product_attention(self.norm(q), self.norm(k), v, is_causal=True, enable_gqa=True)
        return 30 * torch.tanh(self.head(x + y.transpose(1, 2).flatten(2)) / 30)  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """PyTorch's own encoder with dropout and a causal mask, as in its tutorial."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.embed, self.drop = nn.Embedding(VOCAB, width), nn.Dropout(0.2)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.2, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        x = self.drop(self.embed(ids) * math.sqrt(WIDTH))
        return self.head(self.layers(x, mask))  # type: ignore[no-any-return]


class Translator(nn.Module):
    """An encoder and a decoder (nn.Transformer), ReLU, no dropout, norms first."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, width), nn.Linear(width, VOCAB)
        self.both = nn.Transformer(width, 4, 1, 1, 4 * width, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        return self.head(self.both(self.embed(source), self.embed(target), tgt_mask=mask))  # type: ignore[no-any-return]


class Weighted(nn.Module):
    """nn.MultiheadAttention that returns its weights, averaged over the heads, with masked keys."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.embed, self.attention = nn.Embedding(VOCAB, width), nn.MultiheadAttention(width, 4, dropout=0.1)
        self.head = nn.Linear(width, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids).transpose(0, 1)
        y, weights = self.attention(x, x, x, key_padding_mask=ids == 0)
        return self.head((x + y).transpose(0, 1)) + weights.mean()  # type: ignore[no-any-return]


class Mamba(nn.Module):
    """A state-space model: a causal convolution of each channel, softplus, a scan by cumulative sums, a gate."""

    def __init__(self, width: int = WIDTH, states: int = 8) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, width), nn.Linear(width, VOCAB, bias=False)
        self.enter, self.leave = nn.Linear(width, 4 * width, bias=False), nn.Linear(2 * width, width, bias=False)
        self.select, self.step = nn.Linear(2 * width, 2 * states, bias=False), nn.Linear(2 * width, 2 * width)
        self.filters = nn.Parameter(torch.ones(2 * width, 4))
        self.rates = nn.Parameter(torch.ones(2 * width, states))

    def forward(self, ids: Tensor) -> Tensor:
        x, gate = self.enter(self.embed(ids)).chunk(2, dim=-1)
        padded = functional.pad(x, (0, 0, 3, 0))
        x = functional.silu(sum(padded[:, n : n + x.shape[1]] * self.filters[:, n] for n in range(4)))
        come, go = self.select(x).chunk(2, dim=-1)
        step = functional.softplus(self.step(x))
        decay = torch.cumsum(step[..., None] * -torch.exp(self.rates), dim=1)
        state = torch.cumsum((step * x)[..., None] * come[:, :, None] * torch.exp(-decay), dim=1) * torch.exp(decay)
        y = torch.einsum("btds,bts->btd", state, go) * functional.silu(gate)
        return self.head(self.leave(y))  # type: ignore[no-any-return]


class Mixture(nn.Module):
    """A mixture of experts: the best two of four by topk; each expert computes every token and is weighted."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.embed, self.head, self.gate = nn.Embedding(VOCAB, width), nn.Linear(width, VOCAB), nn.Linear(width, 4)
        self.up = nn.Parameter(torch.zeros(4, width, 2 * width))
        self.down = nn.Parameter(torch.zeros(4, 2 * width, width))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        scores, chosen = self.gate(x).topk(2, dim=-1)
        weights = torch.zeros(*x.shape[:2], 4, device=x.device, dtype=scores.dtype)
        weights = weights.scatter(-1, chosen, scores.softmax(-1))
        hidden = functional.relu(torch.einsum("btd,edf->ebtf", x, self.up)).square()
        y = torch.einsum("ebtf,efd,bte->btd", hidden, self.down, weights.to(hidden.dtype))
        return self.head(x + y)  # type: ignore[no-any-return]


class Adapted(nn.Module):
    """A frozen GPT with low-rank adapters at its heads (LoRA)."""

    def __init__(self, rank: int = 8) -> None:
        super().__init__()
        self.base = NanoGpt(dropout=0.0).requires_grad_(False)
        for block in self.base.blocks:
            block.qkv = _LowRank(block.qkv, rank)

    def forward(self, ids: Tensor) -> Tensor:
        return self.base(ids)[0]  # type: ignore[no-any-return]


class _LowRank(nn.Module):
    def __init__(self, frozen: nn.Linear, rank: int) -> None:
        super().__init__()
        self.frozen, self.drop = frozen, nn.Dropout(0.05)
        self.down = nn.Linear(frozen.in_features, rank, bias=False)
        self.up = nn.Linear(rank, frozen.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.frozen(x) + self.up(self.down(self.drop(x))) * 2.0  # type: ignore[no-any-return]


class Recomputed(nn.Module):
    """A GPT whose blocks are computed again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.base = NanoGpt()

    def forward(self, ids: Tensor) -> Tensor:
        x = self.base.tokens(ids)
        for block in self.base.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.base.head(self.base.norm(x))  # type: ignore[no-any-return]


class Biased(nn.Module):
    """Attention with a learned bias of relative positions, as in T5, to which dropout and norms of heads are added."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, width), nn.Linear(width, VOCAB)
        self.qkv, self.norm = nn.Linear(width, 3 * width), nn.RMSNorm(width // 4)
        self.bias = nn.Embedding(512, 4)

    def forward(self, ids: Tensor) -> Tensor:
        x, places = self.embed(ids), torch.arange(ids.shape[1], device=ids.device)
        bias = self.bias((places[:, None] - places).abs()).permute(2, 0, 1)[None]
        q, k, v = (each.unflatten(-1, (4, -1)).transpose(1, 2) for each in self.qkv(x).chunk(3, dim=-1))
        y = functional.scaled_dot_product_attention(self.norm(q), self.norm(k), v, attn_mask=bias.to(q.dtype))
        return self.head(x + y.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Strided(nn.Module):
    """What gets its input with other strides than it wants: convolutions, a layer norm, a linear layer with a bias."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCAB, width), nn.Linear(width, VOCAB)
        self.mix, self.norm = nn.Conv1d(width, width, 4, padding=3, groups=width), nn.LayerNorm(width)
        self.time = nn.Linear(width, width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.mix(self.embed(ids).transpose(1, 2))[..., : ids.shape[1]].transpose(1, 2)
        x = self.norm(x) + self.time(x.transpose(0, 1)).transpose(0, 1)
        return self.head(x)  # type: ignore[no-any-return]


class Patches(nn.Module):
    """A vision Transformer: patches by a convolution, a class token, learned positions, nn.MultiheadAttention."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, stride=16)
        self.token, self.positions = nn.Parameter(torch.zeros(1, 1, width)), nn.Parameter(torch.zeros(1, 17, width))
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 8, batch_first=True)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
        )
        self.last = nn.Linear(width, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return self.last((x + self.mlp(x))[:, 0])  # type: ignore[no-any-return]


class Mixer(nn.Module):
    """Group norm, transposed convolution, channel shuffling, upsampling and concatenation, as in a U-Net."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, width, 3, 2, 1), nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.norm, self.up = nn.GroupNorm(4, 2 * width), nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.last = nn.Conv2d(2 * width, 3, 1)

    def forward(self, image: Tensor) -> Tensor:
        first = functional.silu(self.down(image))
        x = self.up(functional.silu(self.norm(self.deep(first))))
        x = self.last(torch.cat([first, x], dim=1))
        return functional.interpolate(x, scale_factor=2, mode="nearest")
