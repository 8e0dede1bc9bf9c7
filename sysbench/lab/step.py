"""A training step, divided into the phases that are timed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from sysbench.lab.precision import AUTOCAST_DTYPES
from sysbench.lab.ranges import named
from sysbench.lab.strategies import distributed
from sysbench.lab.workload.own import own_workload
from sysbench.lab.workload.workload import Workload, built_in
from sysbench.spec.model import ModelCell, Phase

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class TrainingStep:
    """One step of a cell, run repeatedly: a model, a batch, an optimizer, and the phases of the mode.

    Autocast covers forward and loss; backward follows the types that forward chose, and the optimizer works on the fp32
    parameters. Under fp16 the loss is scaled, as fp16 training requires: scaling the loss is part of `backward`;
    unscaling the gradients, checking them for infinities (where for-loop and foreach wait for the device) and updating
    the scale are part of `optimizer`. A step whose gradients overflow does not change the parameters.

    Outputs stay alive until `forget`, which is called between steps, outside any timed window.
    """

    def __init__(self, cell: ModelCell, device: torch.device, mesh: DeviceMesh | None = None) -> None:
        """Build everything on `device`; raises UnavailableError for what is not available there, or does not fit.

        With a `mesh` (`strategies.mesh_of`), the model is distributed over its ranks by the cell's strategy, and a step
        is this rank's part of it; every rank has to build the step and take it.
        """
        self.cell = cell
        self.work = workload_of(cell, device)
        self.model = self.work.model
        if mesh is not None and cell.strategy is not None:
            self.model = distributed(self.model, cell, mesh)
        self._run_model: Callable[..., Any] = torch.compile(self.model) if cell.execution == "compiled" else self.model
        self._gradients = torch.no_grad() if cell.mode == "inference" else torch.enable_grad()
        self._autocast = _autocast(cell, device)
        own = self.work.own
        self._theirs: Callable[[str], AbstractContextManager[None]] = _ours if own is None else own.printed.called
        self._scaler = GradScaler(device.type, enabled=cell.precision == "fp16" and "loss" in cell.phases)
        self._optimizer = self.work.optimizer() if "optimizer" in cell.phases else None
        self._output: Any = None
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
        """Release the output and the loss of the last step, and with them the autograd graph."""
        self._output = self._loss = None

    @property
    def output(self) -> Any:
        """What the model returned, (batch, ctx, vocab) logits if it is ours; None before a step and after `forget`."""
        return self._output

    @property
    def loss(self) -> float | None:
        """Loss of the last step; None in a mode without a loss. Reading it waits for the device."""
        return None if self._loss is None else self._loss.item()

    @property
    def gradients_present(self) -> bool | None:
        """Whether every parameter that is not frozen has a gradient; None in a mode without backward."""
        if "backward" not in self.cell.phases:
            return None
        return all(each.grad is not None for each in self.model.parameters() if each.requires_grad)

    @torch.no_grad()
    def fingerprint(self) -> Tensor | None:
        """Return a few values of each parameter on the host, to detect changes; None without an optimizer.

        Of a sharded parameter, they are from this rank's shard.
        """
        if self._optimizer is None:
            return None
        here = [getattr(each, "to_local", each.detach)() for each in self.model.parameters()]
        return torch.cat([each.flatten()[:64] for each in here]).cpu()

    def _zero_grad(self) -> None:
        with named("zero_grad"):
            # As a training loop does: the optimizer has its parameters listed, a model has to walk through its modules.
            (self._optimizer or self.model).zero_grad(set_to_none=True)

    def _forward(self) -> None:
        with named("forward"), self._gradients, self._autocast, self.work.attending(), self._theirs("forward"):
            self._output = self._run_model(*self.work.arguments, **self.work.keywords)

    def _compute_loss(self) -> None:
        with named("loss"), self._autocast:
            self._loss = self.work.loss(self._output)

    def _backward(self) -> None:
        with named("backward"), self._theirs("backward"):
            self._scaler.scale(_present(self._loss, "loss")).backward()

    def _update(self) -> None:
        with named("optimizer"):
            optimizer = _present(self._optimizer, "an optimizer")
            self._scaler.step(optimizer)
            self._scaler.update()


Value = TypeVar("Value")


def _present(value: Value | None, phase: str) -> Value:
    if value is None:
        raise RuntimeError(f"a phase ran before {phase}, which it builds on")
    return value


def workload_of(cell: ModelCell, device: torch.device) -> Workload:
    """Build what the cell's step works on, on `device`."""
    if cell.own is not None:
        return own_workload(cell, cell.own, device)
    assert cell.shape is not None
    return built_in(cell, cell.shape, device)


def _ours(doing: str) -> AbstractContextManager[None]:
    return nullcontext()


def _autocast(cell: ModelCell, device: torch.device) -> AbstractContextManager[Any]:
    dtype = AUTOCAST_DTYPES.get(cell.precision)
    return torch.autocast(device.type, dtype) if dtype else nullcontext()
