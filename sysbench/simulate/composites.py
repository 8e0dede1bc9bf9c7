"""GPU decompositions of the composite operators that decompose differently on CPUs and GPUs.

All other operators decompose identically on every device, and torch decomposes them.
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
"""Replacement implementations by operator name."""

_AUTOGRAD = "AutogradMeta"
"""The dispatch key at which simulated tensors arrive before autograd records anything."""


def composites_on(gpu: Gpu) -> Composites:
    """Return the decompositions that CUDA uses on `gpu`, by operator name."""
    return {
        "scaled_dot_product_attention": attention_on(gpu),
        "softmax.int": _softmax_with_cast(torch.ops.aten._softmax.default),
        "log_softmax.int": _softmax_with_cast(torch.ops.aten._log_softmax.default),
        "dropout": _dropout,
    }


@contextmanager
def using_composites(composites: Composites) -> Iterator[None]:
    """Context manager that applies `composites` to operators on simulated tensors, and simulates FlexAttention.

    On exit, all changes to torch's dispatcher and to the workload's attention implementations are undone.
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


def _softmax_with_cast(operator: Any) -> Callable[..., Tensor]:
    """Return CUDA's softmax or log-softmax. Its kernel converts fp16 to fp32 itself, but no other dtypes.

    Source: native/SoftMax.cpp.
    """

    def softmax(values: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
        if values.dtype == torch.float16 and dtype == torch.float32:
            fused: Tensor = operator(values, dim, True)
            return fused
        result: Tensor = operator(values if dtype is None else values.to(dtype), dim, False)
        return result

    return softmax


def _dropout(values: Tensor, p: float, train: bool) -> Tensor:
    """Simulate dropout as in native/Dropout.cpp: fused, with a boolean mask, if 0 < p < 1 during training."""
    if p == 0 or not train or not values.numel():
        return values
    if p == 1:
        return values * torch.zeros((), dtype=values.dtype, device=values.device)
    dropped: Tensor = torch.ops.aten.native_dropout.default(values, p, train)[0]
    return dropped
