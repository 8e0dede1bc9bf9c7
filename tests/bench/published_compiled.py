"""Published steps that were compiled with torch.compile, beside predicted ones.

    python -m tests.bench.published_compiled [--markdown]

- LLMs-from-scratch, ch05/10: GPT-2 (124M) without biases of queries, keys and values, dropout 0.1, bf16 throughout,
  contexts of 1,024, one A100, PyTorch 2.6. The model is compiled, the loss is not.
- build-nanogpt's lecture: GPT-2 (124M), bf16 by autocast, contexts of 1,024, one A100 SXM 80 GB, PyTorch of 2024. The
  model contains its loss, and both are compiled.
- torchtune's rows are in `published_knobs`, NeuSight's in `prediction`.

`odd` is a vocabulary of 50,257 instead of 50,304. All rows were chosen before any of them was predicted, and
nothing was chosen by them, but for the rate of products with unaligned rows: it rests on both pairs with and without
`odd`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout, gelu, scaled_dot_product_attention

from sysbench.commands.time.spec import TimeSpec
from sysbench.predict.simulated_step import UNLIMITED_BYTES, SimulatedStep
from sysbench.predict.step import StepPrediction
from tests.bench.prediction import published_rows, show_table

ROOT = Path(__file__).parents[2]
GPU = "a100-80gb"
CTX, WIDTH, HEADS, LAYERS = 1024, 768, 12, 12


class Block(nn.Module):
    """A layer of GPT-2."""

    def __init__(self, dropped: float, *, bias: bool) -> None:
        super().__init__()
        self.dropped = dropped
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.inputs, self.output = nn.Linear(WIDTH, 3 * WIDTH, bias=bias), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.inputs(self.first(x)).split(WIDTH, dim=2)
        q, k, v = (part.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for part in parts)
        attended = scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropped)
        attended = attended.transpose(1, 2).contiguous().view(x.shape)
        x = x + dropout(self.output(attended), self.dropped)
        inner = self.down(gelu(self.up(self.second(x)), approximate="tanh"))
        return x + dropout(inner, self.dropped)


class Gpt2(nn.Module):
    """GPT-2 as in LLMs-from-scratch."""

    def __init__(self, vocab: int, dropped: float = 0.1, *, bias: bool = False) -> None:
        super().__init__()
        self.dropped = dropped
        self.tokens, self.positions = nn.Embedding(vocab, WIDTH), nn.Embedding(CTX, WIDTH)
        self.layers = nn.ModuleList(Block(dropped, bias=bias) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        x = dropout(x, self.dropped)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Gpt2WithLoss(Gpt2):
    """GPT-2 as in build-nanogpt: a head that shares the embedding's weights, and the loss, are parts of the model."""

    def __init__(self, vocab: int) -> None:
        super().__init__(vocab, 0.0, bias=True)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        logits = super().forward(ids)
        return logits, cross_entropy(logits.flatten(0, 1), targets.flatten())


gpt2_flat, gpt2_flat_odd = partial(Gpt2, 50_304), partial(Gpt2, 50_257)
gpt2, gpt2_odd = partial(Gpt2WithLoss, 50_304), partial(Gpt2WithLoss, 50_257)


def plain_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the cross entropy of logits in their own type; the tokens themselves are the targets."""
    return cross_entropy(logits.flatten(0, 1), ids.flatten())


class Row(NamedTuple):
    """A published row, and the prediction of its step."""

    name: str
    tokens: int
    published_s: float
    predicted: StepPrediction


def rows() -> Iterator[Row]:
    """Yield all rows of `published/compiled.csv`."""
    module = __name__ if __name__ != "__main__" else "tests.bench.published_compiled"
    for row in published_rows("compiled.csv"):
        own_loss = {} if row["source"] == "build-nanogpt" else {"loss": f"{module}:plain_loss"}
        columns = ("precision", "optimizer", "execution")
        (cell,) = TimeSpec(
            model=f"{module}:{row['model']}", app_dir=str(ROOT), simulate=(GPU,), ctx=(CTX,), mode=("train",),
            batch=(int(row["batch"]),), **{name: (row[name],) for name in columns}, **own_loss,
        ).cells()  # fmt: skip
        predicted = SimulatedStep(cell, GPU, memory_bytes=UNLIMITED_BYTES).prediction
        name = f"{row['source']}, {row['model']} × {row['batch']} {row['execution']}"
        yield Row(name, cell.tokens, cell.tokens / float(row["tokens_per_s"]), predicted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", action="store_true", help="as docs/prediction.md has it")
    lines = []
    for row in rows():
        time = row.predicted.time
        covered = time.low_s <= row.published_s <= time.high_s
        lines.append(
            (
                row.name,
                f"{1e3 * row.published_s:.1f} ms",
                f"{1e3 * time.point_s:.1f} ms",
                f"{1e3 * time.low_s:.1f} to {1e3 * time.high_s:.1f}{'' if covered else ' (missed)'}",
                f"{time.point_s / row.published_s - 1:+.0%}",
            )
        )
    head = ("run", "published", "predicted", "90% interval", "error")
    show_table(head, lines, parser.parse_args().markdown)


if __name__ == "__main__":
    main()
