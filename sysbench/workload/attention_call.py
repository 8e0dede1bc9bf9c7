"""Attention called on one input, forward and backward: by what measures it, and by what simulates it."""

from __future__ import annotations

import torch
from torch import Tensor

from sysbench.instruments.precision import compute_dtype
from sysbench.specs.attention import AttentionCell
from sysbench.workload.attention_functions import Attention

Inputs = tuple[Tensor, Tensor, Tensor]


def inputs_for(cell: AttentionCell, device: torch.device) -> Inputs:
    """q, k and v, standard normal, leaves that carry gradients: (batch, seq, dim), or (batch, heads, seq, dim)."""
    shape = (cell.batch, *([cell.heads] if cell.heads else []), cell.seq, cell.dim)
    generator = torch.Generator(device=device).manual_seed(cell.seed)
    dtype = compute_dtype(cell.precision)
    q, k, v = (
        torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype).requires_grad_()
        for _ in range(3)
    )
    return q, k, v


def gradient_for(q: Tensor) -> Tensor:
    """What the output's gradient is to be."""
    return torch.randn(q.shape, dtype=torch.float32, device=q.device).to(q.dtype)


class AttentionCall:
    """One input, attended to again and again; the output is kept, and with it the graph that backward needs."""

    def __init__(self, function: Attention, inputs: Inputs, gradient: Tensor) -> None:
        self.function, self.inputs, self.gradient = function, inputs, gradient
        self.output: Tensor | None = None

    def forget(self) -> None:
        """Drop output, graph and gradients."""
        self.output = None
        for tensor in self.inputs:
            tensor.grad = None

    def attend(self) -> None:
        """Forward, with its graph."""
        self.output = self.function(*self.inputs)

    def differentiate(self) -> None:
        """Backward alone."""
        assert self.output is not None
        self.output.backward(self.gradient)
