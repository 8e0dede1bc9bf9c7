"""Published effects of knobs, and what sysbench simulates and predicts for them.

    python -m tests.bench.published_knobs [--markdown]

- torchtune's table "Optimization flags": Llama 3.2 3B, 2 sequences of 4,096 tokens, bf16, one A100. Each row also has
  the knobs of the rows above it. From its second row on, the published model is compiled layer by layer, and so is its
  loss; here the model is compiled as a whole, and its loss is not. Tokens per second are predicted for the eager and
  the compiled step, where that is possible. Offloading activations, which saved 1.3 GiB in that table, is not
  simulated.
- torchao's table of optimizers: Llama 2 7B, bf16, one A100; batch and context are not stated. They do not change what
  an optimizer saves, so that alone is compared.
- cut-cross-entropy's table: the loss of Gemma 2 2B alone, 8,192 tokens, one A100.

All rows were chosen before any of them was simulated, and nothing was chosen by them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, scaled_dot_product_attention, silu

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
        x = self.tok_embeddings(tokens)
        places = torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.float32)
        turns = torch.arange(0, self.width, 2, device=tokens.device, dtype=torch.float32) / self.width
        angles = torch.outer(places, torch.exp(-math.log(5e5) * turns))
        for layer in self.layers:
            x = layer(x, angles)
        return self.output(self.norm(x)).float()


def llama_3b() -> Llama:
    return Llama(28, 3072, 8192, 24, 8, 128_256, tied=True)


def llama2_7b() -> Llama:
    return Llama(32, 4096, 11_008, 32, 32, 32_000, tied=False)


# --- whole steps


class Row(NamedTuple):
    """A published row, and the same simulated: GiB of allocated memory, and tokens per second.

    per_s  published, predicted for the eager step, and predicted for the compiled one; None if unknown
    """

    source: str
    knob: str
    published_gib: float
    simulated_gib: float
    per_s: tuple[float | None, float, float | None]


CUMULATIVE: dict[str, dict[str, Any]] = {
    "packed": {},
    "compiled": {},
    "chunked cross-entropy": {"cross_entropy": "chunked"},
    "full checkpointing": {"checkpoint": "full"},
    "optimizer in backward": {"optimizer_in_backward": "on"},
    "8-bit AdamW and offloaded activations": {"optimizer": "adamw-8bit"},
}
"""What each of torchtune's rows adds to the rows above it, except compiling, and offloading, which sysbench lacks."""

OPTIMIZERS = {"fused AdamW": "fused", "8-bit AdamW": "adamw-8bit", "4-bit AdamW": "adamw-4bit"}


def steps() -> Iterator[Row]:
    """The rows of torchtune and torchao."""
    knobs: dict[str, Any] = {"optimizer": "fused"}
    for row in published_rows("knobs.csv"):
        if row["source"] == "torchtune":
            knobs |= CUMULATIVE[row["knob"]]
            model, shape = "llama_3b", {"batch": 2, "ctx": 4096}
        else:
            model, shape = "llama2_7b", {"batch": 1, "ctx": 2048}
            knobs = {"optimizer": OPTIMIZERS[row["knob"]], "checkpoint": "full"}
        gib, eager_per_s = simulated(model, **shape, **knobs)
        compiled_per_s = None
        if row["source"] == "torchtune" and row["knob"] != "packed":
            gib, compiled_per_s = simulated(model, **shape, **knobs, execution="compiled")
        per_s = float(row["tokens_per_s"]) if row["tokens_per_s"] else None
        yield Row(row["source"], row["knob"], float(row["memory_gib"]), gib, (per_s, eager_per_s, compiled_per_s))


def simulated(model: str, **fields: Any) -> tuple[float, float]:
    """Return GiB of allocated memory, and tokens per second, of a step in bf16 throughout."""
    (cell,) = TimeSpec(simulate=(GPU,), **_spec_fields(model, fields)).cells()
    step = SimulatedStep(cell, GPU, memory_bytes=UNLIMITED_BYTES)
    replay, _ = step.memory
    peak_bytes = max(peak.allocated_bytes for peak in replay.peaks_of_last_step())
    return peak_bytes / GIB, cell.tokens / step.prediction.time.point_s


def _spec_fields(model: str, fields: dict[str, Any]) -> dict[str, Any]:
    target = f"{__name__ if __name__ != '__main__' else 'tests.bench.published_knobs'}:{model}"
    knobs = {name: (value,) for name, value in fields.items()}
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
    rows = list(steps())
    tuned, optimizers = ([row for row in rows if row.source == source] for source in ("torchtune", "torchao"))
    head = ("published GiB", "simulated GiB", "published tokens/s", "predicted, eager", "predicted, compiled")
    show_table(("torchtune", *head), [_described(row) for row in tuned], markdown)
    show_table(("torchtune, added", *head), map(_effect, pairwise(tuned[1:])), markdown)
    head = ("torchao, saved", "published GB", "simulated GiB")
    show_table(head, [(row.knob, *_difference(optimizers[0], row)) for row in optimizers[1:]], markdown)
    head = ("cut-cross-entropy, baseline", "published MB", "simulated MiB", "published ms", "predicted ms")
    found = loss_alone()
    losses = [
        (name, f"{mib:,.0f}", f"{found[name][1]:,.0f}", f"{ms:.1f}", f"{found[name][0]:.1f}")
        for name, (ms, mib) in LOSS.items()
    ]
    show_table(head, losses, markdown)


def _described(row: Row) -> tuple[str, ...]:
    per_s = (f"{number:,.0f}" if number else "—" for number in row.per_s)
    return row.knob, f"{row.published_gib:.1f}", f"{row.simulated_gib:.1f}", *per_s


def _effect(pair: tuple[Row, Row]) -> tuple[str, ...]:
    before, after = pair
    ratios = (f"× {new / old:.2f}" if new and old else "—" for old, new in zip(before.per_s, after.per_s, strict=True))
    return after.knob, *_difference(before, after), *ratios


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
