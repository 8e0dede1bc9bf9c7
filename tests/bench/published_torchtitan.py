"""torchtitan's published memory of Llama 3.1 8B under FSDP2, eager and compiled, beside what is simulated.

    python -m tests.bench.published_torchtitan

torchtitan compiles each block, and FSDP2's hooks run between blocks, as under `--execution compiled`. Local batches of
2, contexts of 8,192, parameters gathered in bf16, gradients reduced in fp32; of each block, attention and every second
matrix product are kept, and all else is computed again. Published is the reserved memory. The cards were H100s with
96 GB at 2.4 TB/s and 500 W, which sysbench does not know: of the rates, only the ratio of both executions is compared.
Model and checkpoints are written after torchtitan's of that time. All rows were chosen before one was simulated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from sysbench.commands.time.spec import TimeSpec
from sysbench.predict.simulated_step import UNLIMITED_BYTES, SimulatedStep
from tests.bench.prediction import published_rows, show_table
from tests.bench.published_knobs import Norm

ROOT = Path(__file__).parents[2]
GPU = "h100"
WIDTH, D_FF, HEADS, GROUPS, LAYERS, VOCAB, CTX, BATCH = 4096, 14336, 32, 8, 32, 128_256, 8192, 2
GIB = 2**30

aten = torch.ops.aten
_KEPT = {aten._scaled_dot_product_flash_attention.default, aten._scaled_dot_product_efficient_attention.default}


def _every_second_product() -> Any:
    products: Counter[bool] = Counter()

    def policy(context: Any, operator: Any, *args: Any, **options: Any) -> CheckpointPolicy:
        is_product = operator == aten.mm.default
        products[context.is_recompute] += is_product
        is_kept = products[context.is_recompute] % 2 == 1 if is_product else operator in _KEPT
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def rotated(x: Tensor, rotations: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotations[None, :, None]).flatten(3).type_as(x)


def repeated(x: Tensor) -> Tensor:
    batch, ctx, groups, width = x.shape
    whole = x[:, :, :, None, :].expand(batch, ctx, groups, HEADS // GROUPS, width)
    return whole.reshape(batch, ctx, HEADS, width)


class Block(nn.Module):
    """A layer of Llama that keeps half of its matrix products until backward."""

    def __init__(self) -> None:
        super().__init__()
        linear = partial(nn.Linear, bias=False)
        self.q, self.o = linear(WIDTH, WIDTH), linear(WIDTH, WIDTH)
        self.k, self.v = (linear(WIDTH, WIDTH * GROUPS // HEADS) for _ in range(2))
        self.gate, self.up, self.down = linear(WIDTH, D_FF), linear(WIDTH, D_FF), linear(D_FF, WIDTH)
        self.first, self.second = Norm(WIDTH), Norm(WIDTH)

    def forward(self, x: Tensor, rotations: Tensor) -> Tensor:
        made: Tensor = checkpoint(
            self._computed,
            x,
            rotations,
            use_reentrant=False,
            context_fn=_every_second_product,
            preserve_rng_state=False,
        )
        return made

    def _computed(self, x: Tensor, rotations: Tensor) -> Tensor:
        heads = (*x.shape[:2], -1, WIDTH // HEADS)
        y = self.first(x)
        q, k, v = (part(y).view(heads) for part in (self.q, self.k, self.v))
        q, k = rotated(q, rotations), rotated(k, rotations)
        q, k, v = (part.transpose(1, 2) for part in (q, repeated(k), repeated(v)))
        attended = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).contiguous().view(x.shape)
        x = x + self.o(attended)
        z = self.second(x)
        return x + self.down(silu(self.gate(z)) * self.up(z))


class Llama(nn.Module):
    """Llama 3.1 8B as torchtitan has it, with its loss, so that logits are released before backward."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = Norm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
        angles = torch.zeros(CTX, WIDTH // HEADS // 2)
        self.register_buffer("rotations", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x, self.rotations)
        logits = self.head(self.norm(x))
        return cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Row(NamedTuple):
    """A published run, and what is simulated and predicted of it."""

    ranks: int
    execution: str
    memory_gib: float
    step_s: float
    simulated_gib: float
    predicted_s: float


def rows() -> Iterator[Row]:
    """Yield all rows of `published/torchtitan.csv`."""
    for row in published_rows("torchtitan.csv"):
        ranks = int(row["ranks"])
        network = {"interconnect": "ib-400"} if ranks > 8 else {}
        (cell,) = TimeSpec(
            model=f"{__spec__.name}:Llama", app_dir=str(ROOT), simulate=(GPU,), ctx=(CTX,), mode=("train",),
            input=(f"ids=int64[B,T]<{VOCAB}", f"targets=int64[B,T]<{VOCAB}"), batch=(BATCH,), ranks=(ranks,),
            strategy=("fsdp2",), param_dtype=("bf16",), reduce_dtype=("fp32",), precision=("fp32",),
            execution=(row["execution"],), **network,
        ).cells()  # fmt: skip
        simulated = SimulatedStep(cell, GPU, memory_bytes=UNLIMITED_BYTES)
        replay, _ = simulated.memory
        yield Row(
            ranks, row["execution"], float(row["memory_gib"]),
            BATCH * CTX / float(row["tokens_per_s"]), replay.reserved_peak_bytes / GIB,
            simulated.prediction.time.point_s,
        )  # fmt: skip


def main() -> None:
    found = list(rows())
    eager = {row.ranks: row for row in found if row.execution == "eager"}
    lines = [
        (
            f"{row.ranks} ranks, {row.execution}",
            f"{row.memory_gib:.1f} GiB",
            f"{row.simulated_gib:.1f} GiB",
            f"{row.simulated_gib / row.memory_gib - 1:+.1%}",
            f"{row.step_s / eager[row.ranks].step_s:.2f}",
            f"{row.predicted_s / eager[row.ranks].predicted_s:.2f}",
        )
        for row in found
    ]
    show_table(("run", "published", "simulated", "error", "time, published", "time, predicted"), lines, True)


if __name__ == "__main__":
    main()
