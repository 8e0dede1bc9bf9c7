"""Attention on a simulated GPU: which kernel is selected, and which tensors each kernel saves for backward.

Without a GPU, torch would use the CPU's kernels, which save different tensors. Sources, PyTorch 2.11 to 2.15:
aten/src/ATen/native/transformers/attention.cpp (scaled_dot_product_attention), cuda/sdp_utils.cpp (the selection),
cuda/attention.cu and torch/_meta_registrations.py (the shapes), torch/_inductor/kernel/flex (FlexAttention).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sysbench.errors import UnavailableError
from sysbench.extras import installed_torch
from sysbench.lab.attention import FlexAttention
from sysbench.lab.dispatch import Arguments, DispatchMode, Operator, Options
from sysbench.simulate.gpu import Gpu

_HALF_DTYPES = (torch.float16, torch.bfloat16)
_MAX_FLASH_HEAD = 256
_MAX_CUDNN_HEAD = 128
MAX_PLAIN_HEAD = 192
"""Width of a head up to which flash attention has a backward on every GPU since compute capability 8.0."""
_MASK_ALIGNMENT = 8
_MIN_FLEX_HEAD = 16
"""Smallest head width that tl.dot accepts (torch/_inductor/kernel/flex/flex_attention.py)."""


_NOT_4D = "Fused attention takes tensors (batch, heads, ctx, d_head)"

Attend = Callable[..., Tensor]
"""`scaled_dot_product_attention` of queries, keys and values (batch, heads, ctx, d_head)."""


def attention_on(gpu: Gpu) -> Attend:
    """Return `scaled_dot_product_attention` as it behaves on `gpu`."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        run = _select_kernel(gpu, query, key, value, attn_mask, dropout_p)
        if attn_mask is not None and attn_mask.dtype is torch.bool:
            hidden, shown = (
                torch.scalar_tensor(number, dtype=query.dtype, device=query.device) for number in (-math.inf, 0.0)
            )
            attn_mask = torch.where(attn_mask, shown, hidden)  # convert_boolean_attn_mask
        if attn_mask is not None and run is _efficient:
            attn_mask = _aligned(attn_mask).expand(*query.shape[:3], key.shape[2])
        return run(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)

    return attend


def _aligned(mask: Tensor) -> Tensor:
    """Align the rows of a mask to 8 elements in memory for the efficient kernel (observed in PyTorch 2.13 and 2.15)."""
    keys = mask.shape[-1]
    padding = -keys % _MASK_ALIGNMENT
    return torch.nn.functional.pad(mask, (0, padding))[..., :keys] if padding else mask


def _flash(
    q: Tensor, k: Tensor, v: Tensor, mask: None, dropout: float, is_causal: bool, *, scale: float | None, **_: object
) -> Tensor:
    d_head = q.shape[-1]
    scale = d_head**-0.5 if scale is None else scale
    padding = -d_head % 8
    if padding:
        q, k, v = (torch.nn.functional.pad(tensor, (0, padding)) for tensor in (q, k, v))
    operator = torch.ops.aten._scaled_dot_product_flash_attention.default
    output: Tensor = operator(q, k, v, dropout, is_causal, False, scale=scale)[0]
    return output[..., :d_head] if padding else output


def _efficient(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *rest: object, scale: object, **_: object
) -> Tensor:
    operator = torch.ops.aten._scaled_dot_product_efficient_attention.default
    output: Tensor = operator(q, k, v, mask, _needs_gradient(q, k, v), *rest, scale=scale)[0]
    return output


def _cudnn(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *rest: object, scale: object, **_: object) -> Tensor:
    operator = torch.ops.aten._scaled_dot_product_cudnn_attention.default
    output: Tensor = operator(q, k, v, mask, _needs_gradient(q, k, v), *rest, False, scale=scale)[0]
    return output


class _AddingInPlace(DispatchMode):
    """A dispatch mode in which the sum of two tensors takes the memory of the first one.

    Attention adds its mask to the scores so, but to a copy of them if they are dispatched in Python, as here.
    """

    def run(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        if func is not torch.ops.aten.add.Tensor:
            return func(*args, **kwargs)
        return torch.ops.aten.alias.default(torch.ops.aten.add_.Tensor(*args))


def _math(*args: object, **options: object) -> Tensor:
    with _AddingInPlace():
        output: Tensor = torch.ops.aten._scaled_dot_product_attention_math.default(*args, **options)[0]
    return output


def _needs_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _select_kernel(
    gpu: Gpu, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float
) -> Callable[..., Tensor]:
    """Select the kernel (select_sdp_backend). Raises RuntimeError if no enabled kernel supports the inputs."""
    cuda = torch.backends.cuda
    candidates: list[tuple[Callable[..., Tensor], bool, str | None]] = [
        (_flash, cuda.flash_sdp_enabled(), _flash_problem(gpu, q, k, v, masked=mask is not None)),
        (_efficient, cuda.mem_efficient_sdp_enabled(), _efficient_problem(gpu, q, k, v, mask)),
        (_math, cuda.math_sdp_enabled(), None),
        (_cudnn, cuda.cudnn_sdp_enabled(), _cudnn_problem(gpu, q, k, v, mask, dropout)),
    ]
    if gpu.compute_capability[0] in (9, 10):
        # check_prefer_cudnn_attention: cuDNN needs the same memory as flash attention except for its workspace.
        candidates.insert(0, candidates.pop())
    enabled = [(kernel, problem) for kernel, is_enabled, problem in candidates if is_enabled]
    for kernel, problem in enabled:
        if problem is None:
            return kernel
    for _, problem in enabled:
        warnings.warn(str(problem), stacklevel=3)
    raise RuntimeError("No available kernel. Aborting execution.")


def _flash_problem(gpu: Gpu, q: Tensor, k: Tensor, v: Tensor, *, masked: bool = False) -> str | None:
    """Return why flash attention does not support the inputs, or None if it does (can_use_flash_attention)."""
    d_head = q.shape[-1]
    if masked:
        return "Flash attention does not support a mask, only is_causal"
    if q.dim() != 4:
        return _NOT_4D
    if not d_head == k.shape[-1] == v.shape[-1] or d_head > _MAX_FLASH_HEAD:
        return f"Flash attention requires heads of equal width up to {_MAX_FLASH_HEAD}, not {d_head}"
    if gpu.compute_capability < (8, 0):
        return f"Flash attention needs sm80 or newer; {gpu.title} is older"
    is_small = (8, 6) <= gpu.compute_capability <= (8, 9) or gpu.compute_capability[0] == 12
    if is_small and _needs_gradient(q, k, v) and MAX_PLAIN_HEAD < d_head <= 224:
        return f"Flash attention has no backward for heads of width {d_head} on {gpu.title}"
    return _stride_problem("Flash attention", q, k, v) or _type_problem("Flash attention", q, _HALF_DTYPES)


def _efficient_problem(gpu: Gpu, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> str | None:
    """Return why efficient attention does not support the inputs, or None (can_use_mem_efficient_attention)."""
    if q.dim() != 4:
        return _NOT_4D
    if k.shape[1] != q.shape[1] and installed_torch() < (2, 14):
        return "Memory efficient attention requires equal numbers of key and query heads"
    is_recent = gpu.compute_capability >= (8, 0)
    # The alignment is minimum_gemm_alignment, in elements.
    major = gpu.compute_capability[0]
    has_tensor_cores = major >= 8 or (major == 7 and q.dtype in _HALF_DTYPES)
    alignment = max(4 if major >= 8 else 1, 16 // q.dtype.itemsize if has_tensor_cores else 1)
    if q.shape[-1] % alignment or v.shape[-1] % alignment:
        return f"Memory efficient attention requires a head width divisible by {alignment}, not {q.shape[-1]}"
    dtypes = (*_HALF_DTYPES, torch.float32) if is_recent else (torch.float16, torch.float32)
    return _stride_problem("Memory efficient attention", q, k, v, mask) or _type_problem(
        "Memory efficient attention", q, dtypes
    )


def _cudnn_problem(gpu: Gpu, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> str | None:
    """Return why cuDNN 9.15 or later does not support the inputs, or None if it does (can_use_cudnn_attention)."""
    if dropout and installed_torch() >= (2, 12):
        return "cuDNN attention does not support dropout"
    if mask is not None and _needs_gradient(mask):
        return "cuDNN attention has no gradient of the mask"
    if gpu.compute_capability < (8, 0):
        return f"cuDNN attention needs sm80 or newer; {gpu.title} is older"
    if q.dim() != 4:
        return _NOT_4D
    widths = q.shape[-1], v.shape[-1]
    if max(widths) > _MAX_CUDNN_HEAD or any(width % 8 for width in widths):
        return f"cuDNN attention requires a head width divisible by 8, up to {_MAX_CUDNN_HEAD}, not {widths[0]}"
    if k.shape[-2] == 1:
        return "cuDNN attention does not support a context of 1"
    return _stride_problem("cuDNN attention", q, k, v, mask) or _type_problem("cuDNN attention", q, _HALF_DTYPES)


def _stride_problem(kernel: str, *tensors: Tensor | None) -> str | None:
    """Return which elements a kernel cannot read (check_last_dim_stride_equals_1_dense)."""
    if all(tensor is None or tensor.shape[-1] == 1 or tensor.stride(-1) == 1 for tensor in tensors):
        return None
    return f"{kernel} requires queries, keys, values and mask whose last dimension is contiguous"


def _type_problem(kernel: str, q: Tensor, dtypes: tuple[torch.dtype, ...]) -> str | None:
    if q.dtype in dtypes:
        return None
    names = ", ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    return f"{kernel} takes {names}; this is {str(q.dtype).removeprefix('torch.')}; add --bf16"


LaunchCallback = Callable[[str, Tensor, Tensor, Tensor, bool], None]


def _ignore_launch(layout: str, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> None: ...


_on_launch: LaunchCallback = _ignore_launch
"""Callback for kernels without an ATen operator, such as `flex forward`; q, k and v are (batch, heads, ctx, d_head)."""


@contextmanager
def reporting_launches(on_launch: LaunchCallback) -> Iterator[None]:
    """Context manager that calls `on_launch` for each simulated attention kernel that has no ATen operator."""
    global _on_launch
    before, _on_launch = _on_launch, on_launch
    try:
        yield
    finally:
        _on_launch = before


class CompiledFlexAttention(FlexAttention):
    """FlexAttention that allocates the same tensors as its compiled kernels, but compiles nothing and needs no GPU."""

    def __init__(self, ctx: int) -> None:
        super().__init__(ctx)
        self._attend = flex_attention


def flex_attention(q: Tensor, k: Tensor, v: Tensor, block_mask: object = None) -> object:
    """Simulate torch's compiled `flex_attention`. Raises UnavailableError if the heads are too narrow."""
    if q.shape[-1] < _MIN_FLEX_HEAD:
        raise UnavailableError(f"flex needs a head width of at least {_MIN_FLEX_HEAD}, not {q.shape[-1]}")
    return _flex_attention(q, k, v, block_mask is not None)[0]


def flex_attention_operator(
    q: Tensor, k: Tensor, v: Tensor, score_mod: object, block_mask: tuple[object, ...], *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    """Simulate the operator that `flex_attention` calls; return the output, and each row's logsumexp and maximum.

    A mask counts as causal, unless it is the empty one, which is a single block of 1 << 30 rows.
    """
    output, logsumexp = _flex_attention(q, k, v, _is_masked(block_mask))
    return output, logsumexp, logsumexp


def _is_masked(block_mask: tuple[object, ...]) -> bool:
    return not any(isinstance(each, int) and each >= _EMPTY_MASK_BLOCK for each in block_mask)


_EMPTY_MASK_BLOCK = 1 << 30
"""Rows of the only block of a mask that hides nothing (_LARGE_SPARSE_BLOCK_SIZE in torch)."""


def _flex_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    attend: Callable[..., tuple[Tensor, Tensor]] = _FlexAttention.apply  # typed only in some versions of torch
    return attend(q, k, v, causal)


class _FlexAttention(torch.autograd.Function):
    """Simulated kernels of FlexAttention, which save the inputs, the output and each row's fp32 logsumexp for backward.

    Source: `torch/_inductor/kernel/flex/flex_attention.py`; the set of allocated buffers is inferred.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
        logsumexp = q.new_empty(q.shape[:-1], dtype=torch.float32)
        _maxima = torch.empty_like(logsumexp)  # always passed to the kernel, written only on demand
        output = torch.empty_like(q) if q.shape[-1] == v.shape[-1] else q.new_empty((*q.shape[:-1], v.shape[-1]))
        _on_launch("flex forward", q, k, v, causal)
        ctx.causal = causal
        ctx.save_for_backward(q, k, v, output, logsumexp)
        ctx.mark_non_differentiable(logsumexp)
        ctx.set_materialize_grads(False)  # of the logsumexp
        return output, logsumexp

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        q, k, v, _, logsumexp = ctx.saved_tensors
        _delta = torch.empty_like(logsumexp)  # of output · gradient, live while the kernel runs
        _on_launch("flex backward", q, k, v, ctx.causal)
        _of_logsumexp = torch.empty_like(logsumexp)  # its gradient, which is 0
        return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), None


def flash_attn_on(gpu: Gpu) -> Callable[..., object]:
    """Return flash-attn 2's `flash_attn_func` as it behaves on `gpu`, for tensors of shape (batch, seq, heads, d_head).

    The function raises UnavailableError for inputs that the library does not support.
    """

    def attend(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> object:
        by_head = [tensor.transpose(1, 2) for tensor in (q, k, v)]
        problem = _flash_problem(gpu, *by_head)
        if problem is not None:
            raise UnavailableError(problem.replace("Flash attention", "flash-attn"))
        run: Callable[..., object] = _FlashAttention.apply
        return run(q, k, v, causal)

    return attend


class _FlashAttention(torch.autograd.Function):
    """Simulated kernels of flash-attn 2.

    The kernels save the padded inputs, the output, each row's logsumexp and the state of the random generator for
    backward. Splitting long key sequences over idle multiprocessors is not modelled. Sources: FlashAttnFunc in
    flash_attn/flash_attn_interface.py; mha_fwd and mha_bwd in flash_api.cpp.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        d_head = q.shape[-1]
        padding = -d_head % 8
        if padding:
            q, k, v = (torch.nn.functional.pad(tensor, (0, padding)) for tensor in (q, k, v))
        output = torch.empty_like(q)
        batch, rows, heads, _ = q.shape
        logsumexp = q.new_empty((batch, heads, rows), dtype=torch.float32)
        generator = torch.empty(2, dtype=torch.int64, device=q.device)
        _on_launch("flash forward", q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal)
        ctx.causal = causal
        ctx.save_for_backward(q, k, v, output, logsumexp, generator)
        ctx.d_head = d_head
        return output[..., :d_head]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, _, _, _ = ctx.saved_tensors
        batch, rows, heads, d_head = q.shape
        gradients = tuple(torch.empty_like(each) for each in (q, k, v))
        if ctx.d_head < d_head:
            gradient = torch.nn.functional.pad(gradient, (0, d_head - ctx.d_head))
        _on_launch("flash backward", q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), ctx.causal)
        rounded = -(-rows // 128) * 128
        # mha_bwd: softmax_d, and dq_accum, which accumulates the queries' gradient in fp32
        _sums = q.new_empty((batch, heads, rounded), dtype=torch.float32)
        wide = -(-d_head // 32) * 32 if d_head <= 128 else -(-d_head // 64) * 64
        _accumulated = q.new_empty((batch, rounded, heads, wide), dtype=torch.float32)
        return *(tensor[..., : ctx.d_head] for tensor in gradients), None
