"""Causal self-attention: written out in basic operations, or with the kernels that torch provides.

All implementations map queries, keys and values of shape (batch, heads, ctx, d_head) to outputs of the same shape:
softmax(q·kᵀ / √d_head + mask)·v, where the mask hides every later position.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from einops import einsum
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from sysbench.errors import UnavailableError
from sysbench.lab.dispatch import Arguments, DispatchMode, Operator, Options
from sysbench.lab.ranges import named
from sysbench.spec.steps import Attention


class NaiveAttention(nn.Module):
    """Attention that materializes every ctx × ctx intermediate: scores, masked scores, exponentials and weights."""

    future: Tensor

    def __init__(self, ctx: int) -> None:
        super().__init__()
        later = torch.ones(ctx, ctx, dtype=torch.bool).triu(diagonal=1)
        self.register_buffer("future", later, persistent=False)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Compute attention; under autocast, the matrix products use the autocast dtype and the softmax uses fp32."""
        ctx, d_head = q.shape[-2:]
        with named("scores"):
            scores = einsum(q, k, "batch heads query d, batch heads key d -> batch heads query key")
            scores = scores / math.sqrt(d_head)
        with named("mask"):
            scores = scores.masked_fill(self.future[:ctx, :ctx], float("-inf"))
        with named("softmax"):
            weights = softmax(scores).to(v.dtype)
        with named("output"):
            return einsum(weights, v, "batch heads query key, batch heads key d -> batch heads query d")


def softmax(scores: Tensor) -> Tensor:
    """Return the softmax over the last dimension, computed in fp32 from basic operations."""
    # The maximum only guards against overflow. It cancels out, so no gradient needs to pass through it.
    maximum = scores.detach().amax(dim=-1, keepdim=True)
    exponentials = (scores.float() - maximum).exp()
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


class FusedAttention(nn.Module):
    """`scaled_dot_product_attention` with a given backend, or with the backend that torch chooses."""

    def __init__(self, backend: SDPBackend | None = None) -> None:
        super().__init__()
        self.backend = backend

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Compute attention; raises RuntimeError if the backend does not support these inputs."""
        with nullcontext() if self.backend is None else sdpa_kernel(self.backend):
            return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class FlexAttention(nn.Module):
    """`flex_attention` with a causal block mask; on CUDA, compiled into a fused kernel."""

    def __init__(self, ctx: int) -> None:
        super().__init__()
        # This import takes half as long as importing torch, and only this implementation needs it.
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        device = torch.get_default_device()
        self.block_mask = create_block_mask(causal_mask, B=None, H=None, Q_LEN=ctx, KV_LEN=ctx, device=device)
        # On the CPU the compiled kernel supports only the forward pass, and the uncompiled one needs no compile time.
        attend: Any = flex_attention
        self._attend = torch.compile(attend) if device.type == "cuda" else attend

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Compute attention; raises NotImplementedError on a CPU if gradients are required."""
        output: Tensor = self._attend(q, k, v, block_mask=self.block_mask)
        return output


def causal_mask(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Return whether a query sees a key, as FlexAttention asks for it."""
    return query >= key


BACKENDS: Mapping[Attention, SDPBackend] = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
"""The backend of each implementation that is a kernel of `scaled_dot_product_attention`."""


def _fused(backend: SDPBackend, ctx: int) -> nn.Module:
    return FusedAttention(backend)


KINDS: dict[Attention, Callable[[int], nn.Module]] = {
    "naive": NaiveAttention,
    "sdpa": lambda ctx: FusedAttention(),
    **{name: partial(_fused, backend) for name, backend in BACKENDS.items()},
    "flex": FlexAttention,
}
"""Constructor of each implementation, which takes the context length and uses the default device."""


UNSUPPORTED_PHRASES = ("No available kernel", "No viable backend", "does not support")
"""Phrases in torch's error messages for inputs that a kernel does not support (ATen's attention.cpp and sdp_utils,
flex_attention.py)."""


def kernel_of(attention: nn.Module, q: Tensor, k: Tensor, v: Tensor) -> str:
    """Return the operator that computes `attention`, for example `aten::_scaled_dot_product_flash_attention`.

    It is called for that, and backward runs too, so that everything compiled on the first call is compiled now.
    """
    with unsupported_as_unavailable():
        output = attention(q, k, v)
        if output.requires_grad:
            output.sum().backward()
    if isinstance(attention, FlexAttention):
        return "flex_attention"  # a higher-order operator, which OperatorLog cannot look into
    return operator_of(lambda: attention(q, k, v))


def operator_of(call: Callable[[], object]) -> str:
    """Return the operator that computes attention in a call: a fused one, or `aten::bmm`."""
    with OperatorLog() as operators:
        call()
    return next((name for name in operators.names if "scaled_dot_product" in name), "aten::bmm")


@contextmanager
def unsupported_as_unavailable(prefix: str = "") -> Iterator[None]:
    """In this context, raise UnavailableError instead of torch's error if no kernel supports the inputs."""
    with warnings.catch_warnings(record=True) as reasons:
        warnings.simplefilter("always")
        try:
            yield
        except RuntimeError as error:
            if not any(phrase in str(error) for phrase in UNSUPPORTED_PHRASES):
                raise
            # The first sentence of each message, without torch's source locations.
            messages = [error, *(reason.message for reason in reasons)]
            sentences = (re.split(r"\. | \(Triggered", str(message), maxsplit=1)[0].rstrip(".") for message in messages)
            why = "; ".join(dict.fromkeys(sentences))
            # If the type of the inputs is the reason, it names the supported types.
            options = {"bfloat16": "--bf16", "float16": "--precision fp16", "half": "--precision fp16"}
            option = next((option for name, option in options.items() if name in why.lower()), "")
            advice = f"; add {option}" if option and option not in why else ""
            raise UnavailableError(f"{prefix}{why}{advice}") from error


class OperatorLog(DispatchMode):
    """A dispatch mode that records the names of the operators that run, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def run(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        """Record the operator's name and run it."""
        self.names.append(str(func._schema.name))
        return func(*args, **kwargs)
