"""Composite operators whose parts depend on the device: simulated tensors get those of a GPU.

Everywhere else an operator comes apart into the same others on every device, and torch takes care of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sysbench.lab.attention import KINDS
from sysbench.simulate.attention import CompiledFlexAttention, attention_on
from sysbench.simulate.gpu import Gpu

Composites = Mapping[str, Callable[..., Tensor]]
"""What runs in place of an operator, by its name."""

_AUTOGRAD = "AutogradMeta"
"""Where the dispatcher comes to with simulated tensors before it records anything for backward."""


def composites_on(gpu: Gpu) -> Composites:
    """As CUDA takes them apart."""
    return {
        "scaled_dot_product_attention": attention_on(gpu),
        "softmax.int": _converting(torch.ops.aten._softmax.default),
        "log_softmax.int": _converting(torch.ops.aten._log_softmax.default),
        "dropout": _dropout,
    }


@contextmanager
def composed_of(composites: Composites) -> Iterator[None]:
    """Inside, simulated tensors run these in place of torch's own, and FlexAttention is the one compiled for CUDA.

    What it changes in torch's dispatcher, and in the workload's attention kinds, is as it was before once it is left.
    """
    library = torch.library.Library("aten", "IMPL")
    flex = KINDS["flex"]
    try:
        for name, implementation in composites.items():
            library.impl(name, implementation, _AUTOGRAD)
        KINDS["flex"] = CompiledFlexAttention
        yield
    finally:
        KINDS["flex"] = flex
        library._destroy()


def _converting(operator: Any) -> Callable[..., Tensor]:
    """native/SoftMax.cpp: from fp16 to fp32 CUDA's kernel converts by itself; everything else is converted before."""

    def softmax(values: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        if values.dtype == torch.float16 and dtype == torch.float32:
            fused: Tensor = operator(values, dim, True)
            return fused
        result: Tensor = operator(values if dtype is None else values.to(dtype), dim, False)
        return result

    return softmax


def _dropout(values: Tensor, p: float, train: bool) -> Tensor:
    """native/Dropout.cpp: fused, with a mask of bools, where there is something to drop and something to keep."""
    if p == 0 or not train or not values.numel():
        return values
    if p == 1:
        return values * torch.zeros((), dtype=values.dtype, device=values.device)
    dropped: Tensor = torch.ops.aten.native_dropout.default(values, p, train)[0]
    return dropped
