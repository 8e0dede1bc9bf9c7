"""A training step, divided into the phases that are timed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from sysbench.lab.attention import kernel_of
from sysbench.lab.precision import AUTOCAST_DTYPES, compute_dtype
from sysbench.lab.ranges import named
from sysbench.lab.transformer import Transformer, build
from sysbench.spec.model import ModelCell, Optimizer, Phase

LEARNING_RATE = 1e-4
"""Small enough for a thousand stable steps on one batch, and large enough to change every parameter."""

_IMPLEMENTATIONS: dict[Optimizer, dict[str, Any]] = {
    "for-loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
"""Explicit, because torch.optim would otherwise choose by device."""


class TrainingStep:
    """One step of a cell, run repeatedly: a model, a batch, an optimizer, and the phases of the mode.

    Autocast covers forward and loss; backward follows the types that forward chose, and the optimizer works on the fp32
    parameters. Under fp16 the loss is scaled, as fp16 training requires: scaling the loss is part of `backward`;
    unscaling the gradients, checking them for infinities (where for-loop and foreach wait for the device) and updating
    the scale are part of `optimizer`. A step whose gradients overflow does not change the parameters.

    Outputs stay alive until `forget`, which is called between steps, outside any timed window.
    """

    def __init__(self, cell: ModelCell, device: torch.device) -> None:
        """Build everything on `device`; raises UnavailableError if the cell's attention is not available there."""
        self.cell = cell
        self.model = build(cell.model, cell.ctx, cell.attention, device, cell.seed)
        self.tokens, self.targets = random_batch(cell, device)
        self.attention_kernel = self._attention_kernel(device)
        self._run_model: Callable[[Tensor], Tensor] = (
            torch.compile(self.model) if cell.execution == "compiled" else self.model
        )
        self._gradients = torch.no_grad() if cell.mode == "inference" else torch.enable_grad()
        self._autocast = _autocast(cell, device)
        self._scaler = GradScaler(device.type, enabled=cell.precision == "fp16" and "loss" in cell.phases)
        self._optimizer = _optimizer(self.model, cell.optimizer) if "optimizer" in cell.phases else None
        self._logits: Tensor | None = None
        self._loss: Tensor | None = None

    @property
    def phases(self) -> dict[str, Callable[[], None]]:
        """The phases of the cell's mode, in the order in which they run."""
        implementations: dict[Phase, Callable[[], None]] = {
            "zero_grad": self._zero_grad,
            "forward": self._forward,
            "loss": self._compute_loss,
            "backward": self._backward,
            "optimizer": self._update,
        }
        return {phase: implementations[phase] for phase in self.cell.phases}

    def forget(self) -> None:
        """Release the logits and the loss of the last step, and with them the autograd graph."""
        self._logits = self._loss = None

    @property
    def logits(self) -> Tensor | None:
        """Logits of the last step, (batch, ctx, vocab); None before the first step and after `forget`."""
        return self._logits

    @property
    def loss(self) -> float | None:
        """Mean cross-entropy of the last step; None in a mode without a loss. Reading it waits for the device."""
        return None if self._loss is None else self._loss.item()

    @property
    def gradients_present(self) -> bool | None:
        """Whether every parameter has a gradient; None in a mode without backward."""
        if "backward" not in self.cell.phases:
            return None
        return all(parameter.grad is not None for parameter in self.model.parameters())

    @torch.no_grad()
    def fingerprint(self) -> Tensor | None:
        """Return a few values of each parameter on the host, to detect changes; None without an optimizer."""
        if self._optimizer is None:
            return None
        return torch.cat([parameter.detach().flatten()[:64] for parameter in self.model.parameters()]).cpu()

    def _zero_grad(self) -> None:
        with named("zero_grad"):
            self.model.zero_grad(set_to_none=True)

    def _forward(self) -> None:
        with named("forward"), self._gradients, self._autocast:
            self._logits = self._run_model(self.tokens)

    def _compute_loss(self) -> None:
        with named("loss"), self._autocast:
            self._loss = cross_entropy(_present(self._logits, "forward"), self.targets)

    def _backward(self) -> None:
        with named("backward"):
            self._scaler.scale(_present(self._loss, "loss")).backward()

    def _update(self) -> None:
        with named("optimizer"):
            optimizer = _present(self._optimizer, "an optimizer")
            self._scaler.step(optimizer)
            self._scaler.update()

    def _attention_kernel(self, device: torch.device) -> str:
        """Determine the kernel from the model's own attention, with inputs of the shape and type it will receive."""
        shape = self.cell.model
        q, k, v = torch.zeros(
            (3, self.cell.batch, shape.heads, self.cell.ctx, shape.d_head),
            dtype=compute_dtype(self.cell.precision),
            device=device,
        )
        with torch.enable_grad():
            inputs = (each.requires_grad_(self.cell.mode != "inference") for each in (q, k, v))
            return kernel_of(self.model.attend, *inputs)


Value = TypeVar("Value")


def _present(value: Value | None, phase: str) -> Value:
    if value is None:
        raise RuntimeError(f"a phase ran before {phase}, which it builds on")
    return value


def random_batch(cell: ModelCell, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return token ids and the next token ids, each (batch, ctx) and equal on every device."""
    generator = torch.Generator().manual_seed(cell.seed)
    text = torch.randint(cell.model.vocab, (cell.batch, cell.ctx + 1), generator=generator)
    return text[:, :-1].contiguous().to(device), text[:, 1:].contiguous().to(device)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over all positions, in fp32: logits (batch, ctx, vocab) against ids (batch, ctx)."""
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def _autocast(cell: ModelCell, device: torch.device) -> AbstractContextManager[Any]:
    dtype = AUTOCAST_DTYPES.get(cell.precision)
    return torch.autocast(device.type, dtype) if dtype else nullcontext()


def _optimizer(model: Transformer, implementation: Optimizer) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, **_IMPLEMENTATIONS[implementation])
