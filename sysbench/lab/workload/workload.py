"""A model with its inputs, its loss and its optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sysbench.lab.attention import kernel_of
from sysbench.lab.precision import compute_dtype
from sysbench.lab.transformer import build
from sysbench.lab.workload.imports import Printed
from sysbench.lab.workload.inputs import random_tokens
from sysbench.lab.workload.losses import cross_entropy
from sysbench.log.events import CodeFile
from sysbench.spec.model import ModelCell, ModelShape

LEARNING_RATE = 1e-4
"""Small enough for a thousand stable steps on one batch, and large enough to change every parameter."""

_IMPLEMENTATIONS: Mapping[str, Mapping[str, Any]] = {
    "for-loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
"""Explicit, because torch.optim would otherwise choose by device."""


@dataclass(frozen=True)
class OwnWorkload:
    """What only a model of the user's has.

    class_name  of the model as it was built; FSDP2 gives it another
    files    its code, as it was imported
    inputs   where they come from
    loss     tells how the loss was computed, once it was
    printed  what its code has printed so far
    import_s how long the import of the code took, the first time
    """

    class_name: str
    files: tuple[CodeFile, ...]
    inputs: str
    loss: Callable[[], str | None]
    printed: Printed
    import_s: float


@dataclass(frozen=True)
class Batch:
    """One micro-batch.

    arguments, keywords  of a call of the model
    loss                 computes the loss, a scalar, from what the model returns
    """

    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    loss: Callable[[Any], Tensor]


@dataclass(frozen=True)
class Workload:
    """What a step works on.

    batches           micro-batches of one step
    optimizer         makes the optimizer of the model's parameters
    tokens            in one micro-batch; None if the inputs are not tokens
    attention_kernel  the operator that computes attention; None if that is the model's own matter
    attending         makes the context in which the model is called
    own               None for the built-in Transformer
    """

    model: nn.Module
    batches: tuple[Batch, ...]
    optimizer: Callable[[], torch.optim.Optimizer]
    tokens: int | None
    attention_kernel: str | None = None
    attending: Callable[[], AbstractContextManager[Any]] = nullcontext
    own: OwnWorkload | None = None


def built_in(cell: ModelCell, shape: ModelShape, device: torch.device) -> Workload:
    """Build the Transformer of sysbench; raises UnavailableError if the cell's attention is not available there."""
    model = build(shape, cell.ctx, cell.attention, device, cell.seed)
    drawn = random_tokens(shape.vocab, cell, device)
    # With inputs of the shape and type that the model's own attention will receive.
    q, k, v = torch.zeros(
        (3, cell.batch, shape.heads, cell.ctx, shape.d_head), dtype=compute_dtype(cell.computed_in), device=device
    )
    with torch.enable_grad():
        inputs = (each.requires_grad_(cell.mode != "inference") for each in (q, k, v))
        kernel = kernel_of(model.attend, *inputs)
    return Workload(
        model=model,
        batches=tuple(Batch((tokens,), {}, partial(cross_entropy, targets=targets)) for tokens, targets in drawn),
        optimizer=lambda: adamw(model, cell.optimizer),
        attention_kernel=kernel,
        tokens=cell.tokens,
    )


def adamw(model: nn.Module, implementation: str) -> torch.optim.AdamW:
    """AdamW for all parameters; those that are frozen get no gradient, and therefore no state."""
    # One group for each kind of tensor: foreach and fused take none that are partly sharded over ranks.
    kinds: dict[type[Tensor], list[Tensor]] = {}
    for parameter in model.parameters():
        kinds.setdefault(type(parameter.data), []).append(parameter)
    groups = [{"params": each} for each in kinds.values()]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, **_IMPLEMENTATIONS[implementation])
