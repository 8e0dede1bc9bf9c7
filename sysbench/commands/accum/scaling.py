"""Count gradients that round to zero in 16 bits, with and without loss scaling, in real backward passes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from sysbench.commands.accum.record import GradientsMeasured, ScaledBackward
from sysbench.commands.accum.spec import AccumCell
from sysbench.commands.accum.toy import Supervised, supervised
from sysbench.lab.devices import torch_device
from sysbench.lab.precision import TORCH_DTYPES, matmul_precision
from sysbench.log.events import DeviceInfo, Event


class _Observer(torch.optim.Optimizer):
    """Optimizer that changes nothing, and records whether `step` was called."""

    def __init__(self, work: Supervised) -> None:
        super().__init__(work.model.parameters(), {})
        self.was_called = False

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.was_called = True


def run(cell: AccumCell, device: DeviceInfo) -> Iterator[Event]:
    """Compute the gradients in fp32, then under autocast for every precision and loss scale.

    For each precision, all scales share one forward pass. A scale of 1 is equivalent to backward without a scaler.
    """
    if cell.scales is None:
        raise ValueError("a loss-scaling cell needs a scale")
    where = torch_device(device)
    work = supervised(cell.step, cell.batch or 1, where, cell.seed)
    with matmul_precision("fp32"):
        work.loss_of(work.model(work.inputs)).backward()
        expected = _gradients(work)
        yield _distribution(cell, expected)
        counts = expected != 0
        for precision in cell.dtypes:
            with torch.autocast(where.type, TORCH_DTYPES[precision]):
                loss = work.loss_of(work.model(work.inputs))
            for scale in cell.scales:
                scaler = GradScaler(where.type, init_scale=float(scale))
                optimizer = _Observer(work)
                scaler.scale(loss).backward(retain_graph=True)
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                tensor = _gradients(work)
                error = torch.linalg.vector_norm(tensor - expected) / torch.linalg.vector_norm(expected)
                yield ScaledBackward(
                    at_s=time.time(),
                    cell=cell.key,
                    precision=precision,
                    scale=float(scale),
                    gradients=int(counts.sum()),
                    lost=int(((tensor == 0) & counts).sum()),
                    overflowed=int((~torch.isfinite(tensor) & counts).sum()),
                    relative_error=float(error),
                    step_kept=optimizer.was_called,
                )


def _gradients(work: Supervised) -> Tensor:
    """Return the gradients of all parameters as one vector, and reset them."""
    tensors = [parameter.grad.flatten() for parameter in work.model.parameters() if parameter.grad is not None]
    work.model.zero_grad(set_to_none=True)
    return torch.cat(tensors)


def _distribution(cell: AccumCell, gradients: Tensor) -> GradientsMeasured:
    present = gradients[gradients != 0]
    _, exponents = torch.frexp(present.cpu())  # the mantissa lies in [0.5, 1)
    values, counts = torch.unique(exponents - 1, return_counts=True)
    return GradientsMeasured(
        at_s=time.time(),
        cell=cell.key,
        gradients=gradients.numel(),
        zeros=gradients.numel() - present.numel(),
        by_exponent=dict(zip(values.tolist(), counts.tolist(), strict=True)),
    )
