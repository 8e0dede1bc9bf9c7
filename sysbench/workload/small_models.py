"""The toy or a Transformer, with a batch for it: what experiments on a model's types and gradients take."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sysbench.specs.model import ModelCell
from sysbench.workload import toy, transformer
from sysbench.workload.step import random_batch


@dataclass(frozen=True)
class Supervised:
    """A model, inputs for it, and what its logits should say."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor

    def loss_of(self, logits: Tensor) -> Tensor:
        """Mean cross entropy; whether it is computed in fp32 is left to autocast."""
        return nn.functional.cross_entropy(logits.flatten(0, -2), self.targets.flatten())


def supervised(step: ModelCell | None, batch: int, device: torch.device, seed: int) -> Supervised:
    """The Transformer of `step`, or without one the toy, on `device`."""
    if step is None:
        return Supervised(toy.build(device, seed), *toy.batch(batch, device, seed))
    model = transformer.build(step.model, step.ctx, step.attention, device, seed)
    return Supervised(model, *random_batch(step, device))
