"""The two-layer model of the course's question about mixed precision."""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
        """(batch, 20) → (batch, 5)."""
        logits: Tensor = self.fc2(self.ln(self.relu(self.fc1(x))))
        return logits


def build(device: torch.device, seed: int) -> Toy:
    """A Toy on `device`, its weights drawn with `seed` on the CPU."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Toy().to(device)


def batch(size: int, device: torch.device, seed: int) -> tuple[Tensor, Tensor]:
    """Inputs (size, 20) and the classes that they are of, (size,)."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(size, FEATURES, generator=generator)
    return inputs.to(device), torch.randint(CLASSES, (size,), generator=generator).to(device)
