"""Small models with a batch of data, for experiments on number formats and gradients.

A model is either the two-layer model from the mixed-precision question of Stanford CS336, or a Transformer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sysbench.lab import transformer
from sysbench.lab.workload.inputs import random_tokens
from sysbench.spec.model import ModelCell

FEATURES = 20
HIDDEN = 10
CLASSES = 5


class Toy(nn.Module):
    """Linear, ReLU, layer norm, linear: (batch, 20) → logits (batch, 5)."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(FEATURES, HIDDEN, bias=False)
        self.relu = nn.ReLU()
        self.ln = nn.LayerNorm(HIDDEN)
        self.fc2 = nn.Linear(HIDDEN, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (batch, 5) for inputs (batch, 20)."""
        logits: Tensor = self.fc2(self.ln(self.relu(self.fc1(x))))
        return logits


@dataclass(frozen=True)
class Supervised:
    """A model with a batch of inputs and their targets."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor

    def loss_of(self, logits: Tensor) -> Tensor:
        """Return the mean cross-entropy; autocast decides whether it is computed in fp32."""
        return nn.functional.cross_entropy(logits.flatten(0, -2), self.targets.flatten())


def supervised(step: ModelCell | None, batch: int, device: torch.device, seed: int) -> Supervised:
    """Return the Transformer of `step`, or the toy model if `step` is None, with a batch on `device`."""
    if step is None or step.shape is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            toy = Toy().to(device)
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(batch, FEATURES, generator=generator)
        targets = torch.randint(CLASSES, (batch,), generator=generator)
        return Supervised(toy, inputs.to(device), targets.to(device))
    model = transformer.build(step.shape, step.ctx, step.attention, device, seed)
    return Supervised(model, *random_tokens(step.shape.vocab, step, device)[0])
