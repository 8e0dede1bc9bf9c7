"""Published effects of knobs, and what sysbench simulates and predicts for them.

    python -m tests.bench.published_knobs [--markdown]

- torchtune's table "Optimization flags": Llama 3.2 3B, 2 sequences of 4,096 tokens, bf16, one A100. Each row also has
  the knobs of the rows above it. `Tuned` does what torchtune's code does: each layer is compiled by itself, logits are
  in fp32 and are freed before backward; the loss is eager, because its recipe drops what `compile_loss` returns, or
  compiled by chunks. Offloaded activations, which saved 1.3 GiB in that table, are not simulated.
- torchao's table of optimizers: Llama 2 7B, bf16, one A100; batch and context are not stated. They do not change what
  an optimizer saves, so that alone is compared.
- cut-cross-entropy's table: the loss of Gemma 2 2B alone, 8,192 tokens, one A100.

All rows were chosen before any of them was simulated, and nothing was chosen by them. `Tuned` was written later: at
first, the built-in knobs took the place of torchtune's own loss, and logits were kept.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, scaled_dot_product_attention, silu
from torch.utils.checkpoint import checkpoint

from sysbench.commands.time.spec import TimeSpec
from sysbench.predict.rates import gpu as rates_of
from sysbench.predict.rates import typical_host
from sysbench.predict.simulated_step import UNLIMITED_BYTES, SimulatedStep
from sysbench.predict.step import predict
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.replay import Replay
from sysbench.spec.hardware import by_name
from tests.bench.prediction import published_rows, show_table
from tests.bench.published_models import recorded_with_memory

ROOT = Path(__file__).parents[2]
GPU = "a100-80gb"
GIB, MIB = 2**30, 2**20


# --- models


class Norm(nn.Module):
    """RMSNorm in fp32, as in torchtune."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * self.scale


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding in fp32: x is (batch, tokens, heads, width)."""
    pairs = x.float().unflatten(-1, (-1, 2))
    cosine, sine = angles.cos()[None, :, None], angles.sin()[None, :, None]
    turned = (pairs[..., 0] * cosine - pairs[..., 1] * sine, pairs[..., 1] * cosine + pairs[..., 0] * sine)
    return torch.stack(turned, -1).flatten(3).type_as(x)


class Layer(nn.Module):
    def __init__(self, hidden: int, d_ff: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.width = heads, kv_heads, hidden // heads
        self.sa_norm, self.mlp_norm = Norm(hidden), Norm(hidden)
        self.q_proj = nn.Linear(hidden, hidden, bias=False)
        self.k_proj, self.v_proj = (nn.Linear(hidden, kv_heads * self.width, bias=False) for _ in "kv")
        self.output_proj = nn.Linear(hidden, hidden, bias=False)
        self.w1, self.w3 = (nn.Linear(hidden, d_ff, bias=False) for _ in "13")
        self.w2 = nn.Linear(d_ff, hidden, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        normed = self.sa_norm(x)
        q = rotated(self.q_proj(normed).unflatten(2, (self.heads, -1)), angles).transpose(1, 2)
        k = rotated(self.k_proj(normed).unflatten(2, (self.kv_heads, -1)), angles).transpose(1, 2)
        v = self.v_proj(normed).unflatten(2, (self.kv_heads, -1)).transpose(1, 2)
        if self.heads != self.kv_heads:
            each = self.heads // self.kv_heads
            k, v = (part.unsqueeze(2).expand(-1, -1, each, -1, -1).flatten(1, 2) for part in (k, v))
        attended = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.output_proj(attended)
        normed = self.mlp_norm(x)
        return x + self.w2(silu(self.w1(normed)) * self.w3(normed))


class Llama(nn.Module):
    """Llama as in torchtune, with logits in fp32."""

    def __init__(
        self, layers: int, hidden: int, d_ff: int, heads: int, kv_heads: int, vocab: int, *, tied: bool
    ) -> None:
        super().__init__()
        self.width = hidden // heads
        self.tok_embeddings = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(Layer(hidden, d_ff, heads, kv_heads) for _ in range(layers))
        self.norm = Norm(hidden)
        self.output = nn.Linear(hidden, vocab, bias=False)
        if tied:
            self.output.weight = self.tok_embeddings.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.hidden(tokens)).float()

    def hidden(self, tokens: Tensor) -> Tensor:
        """Map token ids (batch, tokens) to (batch, tokens, hidden)."""
        x = self.tok_embeddings(tokens)
        places = torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.float32)
        turns = torch.arange(0, self.width, 2, device=tokens.device, dtype=torch.float32) / self.width
        angles = torch.outer(places, torch.exp(-math.log(5e5) * turns))
        for layer in self.layers:
            x = self.layer(layer, x, angles)
        normed: Tensor = self.norm(x)
        return normed

    def layer(self, layer: nn.Module, x: Tensor, angles: Tensor) -> Any:
        return layer(x, angles)


class Tuned(Llama):
    """Llama 3.2 3B as torchtune compiles it, with its loss."""

    recomputes = False

    def __init__(self) -> None:
        super().__init__(28, 3072, 8192, 24, 8, 128_256, tied=True)
        for layer in self.layers:
            layer.compile()

    @torch.compiler.disable
    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:  # type: ignore[override]
        return cross_entropy(super().forward(tokens).flatten(0, 1), targets.flatten())

    def layer(self, layer: nn.Module, x: Tensor, angles: Tensor) -> Any:
        return checkpoint(layer, x, angles, use_reentrant=False) if self.recomputes else layer(x, angles)


class Chunked(Tuned):
    """With the loss computed in eight chunks, and compiled."""

    def __init__(self) -> None:
        super().__init__()
        self._sum_of = torch.compile(_sum_of)

    @torch.compiler.disable
    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:  # type: ignore[override]
        logits = [self.output(part) for part in self.hidden(tokens).chunk(8, dim=1)]
        parts = zip(logits, targets.chunk(8, dim=1), strict=True)
        return (
            torch.stack([self._sum_of(one.flatten(0, 1), other.flatten()) for one, other in parts]).sum()
            / targets.numel()
        )


class Recomputed(Chunked):
    """With full checkpointing."""

    recomputes = True


def _sum_of(logits: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(logits.float(), targets, reduction="sum")


def llama2_7b() -> Llama:
    return Llama(32, 4096, 11_008, 32, 32, 32_000, tied=False)


# --- whole steps


class Row(NamedTuple):
    """A published row, and the same simulated: GiB of allocated memory, and tokens per second if they are published."""

    knob: str
    published_gib: float
    simulated_gib: float
    published_per_s: float | None
    predicted_per_s: float


CUMULATIVE: dict[str, dict[str, str]] = {
    "packed": {"model": "Tuned", "optimizer": "fused"},
    "compiled": {"execution": "compiled"},
    "chunked cross-entropy": {"model": "Chunked"},
    "full checkpointing": {"model": "Recomputed"},
    "optimizer in backward": {"optimizer_in_backward": "on"},
    "8-bit AdamW and offloaded activations": {"optimizer": "adamw-8bit"},
}
"""What each of torchtune's rows adds to the rows above it, except offloading, which sysbench lacks."""

OPTIMIZERS = {"fused AdamW": "fused", "8-bit AdamW": "adamw-8bit", "4-bit AdamW": "adamw-4bit"}


def tuned() -> Iterator[Row]:
    """The rows of torchtune."""
    knobs: dict[str, Any] = {}
    for row in published_rows("knobs.csv"):
        if row["source"] == "torchtune":
            knobs |= CUMULATIVE[row["knob"]]
            inputs = ("tokens=int64[B,T]<128256", "targets=int64[B,T]<128256")
            yield _row(row, batch=2, ctx=4096, **knobs, input=inputs)


def optimized() -> Iterator[Row]:
    """The rows of torchao."""
    for row in published_rows("knobs.csv"):
        if row["source"] == "torchao":
            optimizer = OPTIMIZERS[row["knob"]]
            yield _row(row, model="llama2_7b", batch=1, ctx=2048, optimizer=optimizer, checkpoint="full")


def _row(row: Mapping[str, str], **fields: Any) -> Row:
    per_s = float(row["tokens_per_s"]) if row["tokens_per_s"] else None
    gib, predicted_per_s = simulated(**fields)
    return Row(row["knob"], float(row["memory_gib"]), gib, per_s, predicted_per_s)


def simulated(**fields: Any) -> tuple[float, float]:
    """Return GiB of allocated memory, and tokens per second, of a step in bf16 throughout."""
    (cell,) = TimeSpec(simulate=(GPU,), **_spec_fields(**fields)).cells()
    step = SimulatedStep(cell, GPU, memory_bytes=UNLIMITED_BYTES)
    replay, _ = step.memory
    peak_bytes = max(peak.allocated_bytes for peak in replay.peaks_of_last_step())
    return peak_bytes / GIB, cell.tokens / step.prediction.time.point_s


def _spec_fields(model: str, **fields: Any) -> dict[str, Any]:
    target = f"{__name__ if __name__ != '__main__' else 'tests.bench.published_knobs'}:{model}"
    knobs = {name: value if isinstance(value, tuple) else (value,) for name, value in fields.items()}
    return {"model": target, "app_dir": str(ROOT), "precision": ("bf16-true",), **knobs}


# --- the loss alone


TOKENS, WIDTH, VOCAB = 8192, 2304, 256_000
CAP = 30.0

LOSS = {"forward": (81.9, 24_000.0), "forward + backward": (208.8, 28_000.0)}
"""Published milliseconds and MiB of cut-cross-entropy's baseline."""


@cache
def loss_alone() -> dict[str, tuple[float, float]]:
    """Milliseconds and MiB of a loss whose logits are capped, beyond the memory of its inputs."""

    def made() -> Any:
        hidden, weights = (nn.Parameter(torch.zeros(rows, WIDTH, dtype=torch.bfloat16)) for rows in (TOKENS, VOCAB))
        labels = torch.zeros(TOKENS, dtype=torch.int64)

        def step() -> Iterator[str]:
            hidden.grad = weights.grad = None
            yield "forward"
            logits = torch.tanh(linear(hidden, weights) / CAP) * CAP
            loss = cross_entropy(logits.float(), labels)
            del logits
            yield "backward"
            loss.backward()

        return step

    trace, recording = recorded_with_memory(made)
    gpu = Gpu.of(by_name(GPU))
    replay = Replay(recording.with_scratch(gpu.scratch), gpu, AllocatorSettings())
    forward, backward = replay.peaks_of_last_step()[-2:]
    before = sum(replay.sizes[number] for number in replay.recording.live_at(forward.span.first))
    found = {}
    for name, phases, peaks in (("forward", 1, [forward]), ("forward + backward", 2, [forward, backward])):
        said = predict(trace.with_phases(("forward", "backward")[:phases]), rates_of(GPU), typical_host())
        highest = max(peak.allocated_bytes for peak in peaks)
        found[name] = 1e3 * said.time.point_s, (highest - before) / MIB
    return found


# --- tables


def show(markdown: bool) -> None:
    rows = list(tuned())
    head = ("published GiB", "simulated GiB", "error", "published tokens/s", "predicted tokens/s", "error")
    show_table(("torchtune", *head), map(_described, rows), markdown)
    head = ("published GiB", "simulated GiB", "published tokens/s", "predicted tokens/s")
    show_table(("torchtune, added", *head), map(_effect, pairwise(rows)), markdown)
    first, *others = optimized()
    head = ("torchao, saved", "published GB", "simulated GiB")
    show_table(head, [(row.knob, *_difference(first, row)) for row in others], markdown)
    head = ("cut-cross-entropy, baseline", "published MB", "simulated MiB", "published ms", "predicted ms")
    found = loss_alone()
    losses = [
        (name, f"{mib:,.0f}", f"{found[name][1]:,.0f}", f"{ms:.1f}", f"{found[name][0]:.1f}")
        for name, (ms, mib) in LOSS.items()
    ]
    show_table(head, losses, markdown)


def _described(row: Row) -> tuple[str, ...]:
    assert row.published_per_s is not None
    return (
        row.knob,
        *(f"{gib:.1f}" for gib in (row.published_gib, row.simulated_gib)),
        f"{row.simulated_gib / row.published_gib - 1:+.1%}",
        *(f"{per_s:,.0f}" for per_s in (row.published_per_s, row.predicted_per_s)),
        f"{row.predicted_per_s / row.published_per_s - 1:+.1%}",
    )


def _effect(pair: tuple[Row, Row]) -> tuple[str, ...]:
    before, after = pair
    assert before.published_per_s is not None
    assert after.published_per_s is not None
    ratios = after.published_per_s / before.published_per_s, after.predicted_per_s / before.predicted_per_s
    return after.knob, *_difference(before, after), *(f"× {ratio:.2f}" for ratio in ratios)


def _difference(before: Row, after: Row) -> tuple[str, str]:
    published_gib, simulated_gib = (
        after.published_gib - before.published_gib,
        after.simulated_gib - before.simulated_gib,
    )
    return f"{published_gib:+.1f}", f"{simulated_gib:+.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", action="store_true", help="as docs/prediction.md has it")
    show(parser.parse_args().markdown)


if __name__ == "__main__":
    main()
