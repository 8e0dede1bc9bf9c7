"""Models of the user's on a GPU: measured like the built-in one, and simulated for that GPU to the same peaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sysbench.spec import hardware
from tests.cli.running import record_in, sysbench

pytestmark = pytest.mark.gpu

MODEL = """
import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out, self.drop = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Dropout(0.1)

    def forward(self, x):
        batch, ctx, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, ctx, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.drop(self.out(attended.transpose(1, 2).reshape(x.shape)))


class Model(nn.Module):
    def __init__(self, width=1024, layers=4):
        super().__init__()
        self.embedding, self.head = nn.Embedding(8192, width), nn.Linear(width, 8192)
        self.layers = nn.Sequential(*(Block(width, 16) for _ in range(layers)))

    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens)))
"""


def measured(directory: Path, command: str, *words: str) -> dict[str, Any]:
    (directory / "model.py").write_text(MODEL)
    out = directory / "-".join([command, *words])
    ran = sysbench(command, "--model=model:Model", "--ctx=512", "--batch=4", *words, f"--out={out}", cwd=directory)
    assert ran.code == 0, ran.err
    (cell,) = record_in(out)["cells"]
    assert isinstance(cell, dict)
    return cell


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_measured_peak_is_the_simulated_one(tmp_path: Path, precision: str) -> None:
    spec = ("--mode=train", f"--precision={precision}")
    real = measured(tmp_path, "memory", *spec)
    known = hardware.find(real["device"]["name"], real["device"]["memory_bytes"])
    if known is None:
        pytest.skip(f"{real['device']['name']} is not among the known GPUs")
    simulated = measured(tmp_path, "memory", *spec, f"--simulate={known.slug}")
    assert real["own_model"]["loss"] == simulated["own_model"]["loss"] == "cross entropy of the logits"
    assert simulated["peak_allocated_bytes"] == pytest.approx(real["peak_allocated_bytes"], rel=0.01)


def test_a_step_is_timed_with_the_rates_of_its_own_flops(tmp_path: Path) -> None:
    cell = measured(tmp_path, "time", "--steps=5", "--bf16")
    flops = cell["own_model"]["flops"]
    assert flops["backward"] == pytest.approx(2 * flops["forward"], rel=0.3)
    assert cell["rates"]["step_flops"] == sum(flops.values())
    assert cell["rates"]["flops_per_s"] > 0
