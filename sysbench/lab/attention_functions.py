"""Attention as a function of q, k and v, in the implementations that `sysbench attention` compares.

All map tensors of shape (batch, seq, dim) or (batch, heads, seq, dim) to an output of the same shape: softmax(q·kᵀ /
√dim + mask)·v, where a causal mask hides every later position.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sysbench.errors import UnavailableError
from sysbench.lab import attention
from sysbench.lab.attention import softmax
from sysbench.lab.precision import compute_dtype
from sysbench.lab.workload.imports import LoadedCode, load_code
from sysbench.spec.attention import IMPLEMENTATIONS, AttentionCell

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]

BACKENDS = {f"sdpa-{name}": backend for name, backend in attention.BACKENDS.items()}

_SIXTEEN_BITS = ("bf16", "fp16")


def function_for(cell: AttentionCell, device: torch.device) -> Attention:
    """Return the cell's implementation; raises UnavailableError if it is not available on this device."""
    name = cell.implementation
    if name not in IMPLEMENTATIONS:
        function: Attention = user_code(name).value
        return function
    if name in BACKENDS:
        return _fused(BACKENDS[name], causal=cell.causal)
    factories: dict[str, Callable[[], Attention]] = {
        "naive": lambda: naive(causal=cell.causal),
        "compiled": lambda: torch.compile(naive(causal=cell.causal), dynamic=False),
        "flex": lambda: _flex(cell, device),
        "flash-attn": lambda: _flash_attn(cell, device),
    }
    return factories[name]()


def naive(*, causal: bool) -> Attention:
    """Return attention that materializes every intermediate, and keeps exponentials and weights for backward."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if causal:
            future = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).triu(diagonal=1)
            scores = scores.masked_fill(future, float("-inf"))
        return softmax(scores).to(v.dtype) @ v

    return attend


def _fused(backend: SDPBackend, *, causal: bool) -> Attention:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return _with_heads(
                lambda q, k, v: nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal), q, k, v
            )

    return attend


def _with_heads(function: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Call a kernel that requires (batch, heads, seq, dim); inputs without heads are passed as one head."""
    if q.dim() == 4:
        return function(q, k, v)
    return function(*(tensor.unsqueeze(1) for tensor in (q, k, v))).squeeze(1)


def _flex(cell: AttentionCell, device: torch.device) -> Attention:
    if device.type != "cuda":
        raise UnavailableError(f"flex has no backward on {device.type}; use naive, compiled or an sdpa kernel")
    from torch.nn.attention.flex_attention import flex_attention

    return flex(cell, device, torch.compile(flex_attention, dynamic=False))


def flex(cell: AttentionCell, device: torch.device, kernel: Any) -> Attention:
    """Return FlexAttention with the given `kernel`, and a block mask if the cell is causal."""
    from torch.nn.attention.flex_attention import create_block_mask

    mask = (
        create_block_mask(attention.causal_mask, None, None, cell.seq, cell.seq, device=device) if cell.causal else None
    )
    return lambda q, k, v: _with_heads(lambda *tensors: kernel(*tensors, block_mask=mask), q, k, v)


def _flash_attn(cell: AttentionCell, device: torch.device) -> Attention:
    try:
        kernel: Any = importlib.import_module("flash_attn").flash_attn_func
    except ImportError as error:
        raise UnavailableError("flash-attn is not installed here") from error
    if device.type != "cuda" or cell.precision not in _SIXTEEN_BITS:
        raise UnavailableError("flash-attn takes bf16 or fp16 on a CUDA device")
    return flash_attn(cell, kernel)


def flash_attn(cell: AttentionCell, kernel: Any) -> Attention:
    """Return attention computed by flash-attn's `kernel`, which takes inputs of shape (batch, seq, heads, dim)."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _with_heads(
            lambda *tensors: kernel(*(t.transpose(1, 2) for t in tensors), causal=cell.causal).transpose(1, 2), q, k, v
        )

    return attend


def user_code(name: str) -> LoadedCode:
    """Import the user's function `module:function`; modules in the current directory can be imported."""
    return load_code(name, str(Path.cwd()), "--impl")


Inputs = tuple[Tensor, Tensor, Tensor]


def inputs_for(cell: AttentionCell, device: torch.device) -> Inputs:
    """Create q, k and v: standard normal leaf tensors that require gradients."""
    shape = (cell.batch, *([cell.heads] if cell.heads else []), cell.seq, cell.dim)
    generator = torch.Generator(device=device).manual_seed(cell.seed)
    dtype = compute_dtype(cell.precision)
    q, k, v = (
        torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype).requires_grad_()
        for _ in range(3)
    )
    return q, k, v


def gradient_for(q: Tensor) -> Tensor:
    """Create a random gradient of the output, from which the backward pass starts."""
    return torch.randn(q.shape, dtype=torch.float32, device=q.device).to(q.dtype)


class AttentionCall:
    """Attention on fixed inputs, called repeatedly; the forward pass keeps its output and graph for backward."""

    def __init__(self, function: Attention, inputs: Inputs, gradient: Tensor) -> None:
        self.function, self.inputs, self.gradient = function, inputs, gradient
        self.output: Tensor | None = None

    def forget(self) -> None:
        """Release the output, the autograd graph and the gradients."""
        self.output = None
        for tensor in self.inputs:
            tensor.grad = None

    def attend(self) -> None:
        """Run the forward pass and keep its graph."""
        self.output = self.function(*self.inputs)

    def differentiate(self) -> None:
        """Run only the backward pass."""
        assert self.output is not None
        self.output.backward(self.gradient)
