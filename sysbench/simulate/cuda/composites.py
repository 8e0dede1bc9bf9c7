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
from sysbench.simulate.cuda.attention import CompiledFlexAttention, attention_on
from sysbench.simulate.gpu import Gpu

Composites = Mapping[str, Callable[..., object]]
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
        "linear": _linear,
        "_fused_rms_norm": _rms_norm,
        **{f"{name}.input": _recurrent(mode) for mode, name in enumerate(_RECURRENT)},
        **{f"{name}.data": _recurrent(mode, packed=True) for mode, name in enumerate(_RECURRENT)},
    }


@contextmanager
def using_composites(composites: Composites) -> Iterator[None]:
    """Context manager that applies `composites` to operators on simulated tensors, and simulates FlexAttention."""
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


_RECURRENT = ("rnn_relu", "rnn_tanh", "lstm", "gru")
"""Recurrent layers by the number of their mode in cuDNN (cudnnRNNMode_t)."""


def _recurrent(mode: int, *, packed: bool = False) -> Callable[..., object]:
    """Return a recurrent layer as CUDA runs it: one call of cuDNN for all layers and time steps (cudnn/RNN.cpp)."""

    def run(source: Tensor, *args: Any) -> tuple[Tensor, ...]:
        sizes, args = (args[0].tolist(), args[1:]) if packed else ([], args)
        states, params, has_biases, layers, dropout, train, bidirectional, *batch_first = args
        tensors = [source, *(states if mode == _LSTM else [states]), *params]
        if torch.is_autocast_enabled("cpu"):
            tensors = [tensor.to(torch.get_autocast_dtype("cpu")) for tensor in tensors]
        source, state, *rest = tensors
        cell = rest.pop(0) if mode == _LSTM else None
        width = (state if cell is None else cell).shape[2]
        projected = state.shape[2] if state.shape[2] != width else 0
        weights = rest[0].detach()  # in place of the view of all weights, which lie in one storage on a GPU
        output, *states, _, _ = torch.ops.aten._cudnn_rnn.default(
            source, rest, (4 if has_biases else 2) + bool(projected), weights, state, cell, mode, width, projected,
            layers, bool(batch_first and batch_first[0]), dropout, train, bidirectional, sizes, None,
        )  # fmt: skip
        return (output, *states) if mode == _LSTM else (output, states[0])

    return run


_LSTM = _RECURRENT.index("lstm")


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


def _rms_norm(source: Tensor, shape: list[int], weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    """Simulate RMSNorm as one kernel (cuda/layer_norm_kernel.cu); elsewhere, PyTorch takes it apart."""
    normalize: Callable[..., tuple[Tensor, Tensor]] = _RmsNorm.apply
    return normalize(source, shape, weight, eps)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, source: Tensor, shape: list[int], weight: Tensor | None, eps: float | None
    ) -> tuple[Tensor, Tensor]:
        with torch._C._AutoDispatchBelowAutograd():
            output, scale = torch.ops.aten._fused_rms_norm.default(source.contiguous(), shape, weight, eps)
        ctx.save_for_backward(source, weight, scale)
        ctx.shape = shape
        ctx.mark_non_differentiable(scale)
        ctx.set_materialize_grads(False)  # of the scale
        return output, scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        source, weight, scale = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], ctx.needs_input_grad[2]]
        with torch._C._AutoDispatchBelowAutograd():
            of_source, of_weight = torch.ops.aten._fused_rms_norm_backward.default(
                gradient, source.contiguous(), ctx.shape, scale, weight, wanted
            )
        return of_source, None, of_weight, None


def _linear(source: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Simulate a linear layer, which adds its bias in place unless the product does (native/Linear.cpp).

    PyTorch adds it out of place to what is dispatched in Python, as here.
    """
    product_adds = source.dim() == 2 or source.is_contiguous()
    if bias is None or product_adds:
        whole: Tensor = torch.ops.aten.linear.default.decompose(source, weight, bias)
        return whole
    return torch.matmul(source, weight.t()).add_(bias)


def _dropout(values: Tensor, p: float, train: bool) -> Tensor:
    """Simulate dropout as in native/Dropout.cpp: fused, with a boolean mask, if 0 < p < 1 during training."""
    if p == 0 or not train or not values.numel():
        return values
    if p == 1:
        return values * torch.zeros((), dtype=values.dtype, device=values.device)
    dropped: Tensor = torch.ops.aten.native_dropout.default(values, p, train)[0]
    return dropped
