"""Scratch memory of CUDA kernels: memory that a kernel allocates besides its results, and frees before it returns.

Copies of arguments that an operator makes before it allocates its results are apart (`COPIES`): the order decides which
free blocks the results get.

Scratch memory cannot be observed without a GPU, but contributes to peaks. Sizes that depend on values are
set to their upper bound. Small buffers of flash attention with split keys are omitted. Sources
are in PyTorch 2.11 to 2.15, under aten/src/ATen/native. Reductions have a module of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from sysbench.extras import installed_torch
from sysbench.lab.dispatch import Arguments, Operator, Options
from sysbench.simulate.cuda.reductions import REDUCTIONS, Held, Scratch

_aten = torch.ops.aten

MATRIX_PRODUCTS = frozenset(
    {
        _aten.mm.default,
        _aten.bmm.default,
        _aten.addmm.default,
        _aten.baddbmm.default,
        _aten.addbmm.default,
        _aten.mv.default,
        _aten.addmv.default,
        _aten.dot.default,
        _aten.vdot.default,
    }
)
"""Operators that use cuBLAS, which needs workspaces."""

_LT_DTYPES = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})

_FLOAT_BYTES = 4
_INDEX_BYTES = 8


def uses_cublas_lt(func: Operator, arguments: Arguments, options: Options, result: object) -> bool:
    """Return whether cuBLASLt computes a matrix product: it adds a bias along with it.

    From PyTorch 2.15 on, it also adds a matrix of a 16-bit type that is not overwritten, with any factor but 0. Source:
    cuda/Blas.cpp, isInputCompliesAddmmCudaLt; the second rule was observed (tests/fake_gpu).
    """
    if func is not _aten.addmm.default:
        return False
    added, first, second = arguments[:3]
    beta = options.get("beta", 1)
    is_bias = beta == 1 and added.numel() == added.shape[-1] == second.shape[1]
    is_matrix = beta != 0 and added.dim() == 2 and first.dtype.itemsize == 2 and installed_torch() >= (2, 15)
    if not (isinstance(result, Tensor) and result.is_contiguous() and added.is_contiguous()):
        return False
    is_added = is_bias or (is_matrix and added.shape == result.shape)
    return is_added and first.dtype in _LT_DTYPES and min(*first.shape, *second.shape) > 1


def is_outer_product(func: Operator, arguments: Arguments) -> bool:
    """Return whether a batched product is one of columns and rows, which a kernel multiplies without cuBLAS.

    As observed in PyTorch 2.13 and 2.15 (tests/fake_gpu).
    """
    return func is _aten.bmm.default and arguments[0].shape[2] == 1


def _bmm(first: Tensor, second: Tensor) -> Scratch:
    """Return the sizes of the copies that bmm makes of operands with strides that cuBLAS does not support.

    Source: cuda/Blas.cpp, bmm_out_cuda_impl.
    """
    rows, columns, inner = first.shape[1], second.shape[2], first.shape[2]
    if is_outer_product(_aten.bmm.default, (first, second)):
        return []
    if columns == 1:
        operands = [(first, 1, 2, rows, inner), (second, 1, 2, inner, columns)]
    else:
        operands = [(second, 2, 1, columns, inner), (first, 2, 1, inner, rows)]
    return [[_bytes(operand) for operand, *layout in operands if _bmm_needs_copy(operand, *layout)]]


def _bmm_needs_copy(matrix: Tensor, fast: int, leading: int, m: int, n: int) -> bool:
    """Return whether cuBLAS needs a copy of a batched matrix (cuda/Blas.cpp, prepare_batch_matrix_for_cublas).

    No copy is needed if one of the dimensions `fast` (length m) and `leading` (length n) is contiguous, and the stride
    of the other one is large enough.
    """
    stride = matrix.stride()
    if (stride[fast] == 1 and stride[leading] >= max(1, m)) or (stride[leading] == 1 and stride[fast] >= max(1, n)):
        return False
    return not (matrix.is_contiguous() and stride[1] and stride[2])


def _mm(first: Tensor, second: Tensor, *_: object) -> Scratch:
    """Return the sizes of the copies that mm makes of operands (cuda/Blas.cpp, prepare_matrix_for_cublas)."""
    return [[_bytes(matrix) for matrix in (first, second) if _mm_needs_copy(matrix)]]


def _mm_needs_copy(matrix: Tensor) -> bool:
    rows, columns = matrix.shape
    down, across = matrix.stride()
    return not ((down == 1 and across >= max(1, rows)) or (across == 1 and down >= max(1, columns)))


def _safe_softmax(scores: Tensor, *_: object) -> Scratch:
    """Return the sizes of the mask of masked-out scores, the mask of fully masked rows, and a 0.

    The rows of the softmax that are fully masked become 0 in place (SoftMax.cpp).
    """
    return [[scores.numel(), scores.numel() // max(1, scores.shape[-1]), scores.dtype.itemsize]]


def _softmax_backward(gradient: Tensor, output: Tensor, *_: object) -> Scratch:
    """Return the size of the product of gradient and output (cuda/SoftMax.cu, softmax_backward_cuda_out)."""
    return [[output.numel() * max(gradient.dtype.itemsize, output.dtype.itemsize)]]


_MAX_UNSORTED_INDICES = 3072
_ROWS_PER_THREAD = 10


def _embedding_backward(gradient: Tensor, indices: Tensor, weights: int, *_: object) -> Scratch:
    """Return the scratch memory of an embedding's backward pass.

    If there are many indices, they are sorted, and the gradient rows of equal indices are summed in parts. The number
    of distinct indices depends on values, so its upper bound is used. The memory of cub's sort is an estimate. Sources:
    cuda/Embedding.cu, EmbeddingBackwardKernel.cu.
    """
    groups = [[] if gradient.is_contiguous() else [_bytes(gradient)]]
    count, width = indices.numel(), gradient.shape[-1]
    if count <= _MAX_UNSORTED_INDICES:
        return groups
    segments = min(count, weights)
    parts = count // _ROWS_PER_THREAD + segments
    sorting = [count * _INDEX_BYTES, count * _INDEX_BYTES, 2 * count * _INDEX_BYTES]
    offsets = [count, 1, segments, segments, 1, parts]
    adding = [*(length * _INDEX_BYTES for length in offsets), parts * width * _FLOAT_BYTES]
    return [*groups, sorting, [*sorting[:2], *adding]]


def _flash_backward(gradient: Tensor, q: Tensor, *_: object) -> Scratch:
    """Return the scratch memory of flash attention's backward pass (flash_attn/flash_api.cpp, mha_bwd)."""
    batch, heads, ctx, d_head = q.shape
    rows = _round_up(ctx, 128)
    sums = batch * heads * rows * _FLOAT_BYTES
    query_gradient = batch * rows * heads * _round_up(d_head, 32 if d_head <= 128 else 64) * _FLOAT_BYTES
    return [[sums, query_gradient]]


def _cudnn_backward(gradient: Tensor, q: Tensor, *_: object) -> Scratch:
    """Return the copy of a gradient with strides in its last dimension, and the workspace of cuDNN's plan.

    The size of the workspace is an estimate: presumably, it holds the queries' gradient in fp32 and one fp32 number per
    row. Source: cudnn/MHA.cpp.
    """
    batch, heads, ctx, d_head = q.shape
    copies = [_bytes(gradient)] if gradient.stride(-1) != 1 else []
    return [[*copies, batch * heads * _round_up(ctx, 128) * (_round_up(d_head, 32) + 1) * _FLOAT_BYTES]]


def _efficient_forward(q: Tensor, k: Tensor, v: Tensor, *_: object) -> Scratch:
    """Return the size of the fp32 buffer that accumulates the output if heads are too wide for registers.

    An fp32 output serves as its own accumulator. Source: transformers/cuda/attention.cu.
    """
    is_needed = v.shape[-1] > 128 and q.dtype != torch.float32
    return [[q.shape[0] * q.shape[1] * q.shape[2] * v.shape[-1] * _FLOAT_BYTES]] if is_needed else []


def _efficient_backward(gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: object, *_: object) -> Scratch:
    """Return the scratch memory of efficient attention's backward pass.

    The tiles are those of the kernels for sm80: 64 × 64 for heads up to 64 wide, 128 × 128 for wider heads. If queries
    share keys, there are gradients of the keys and values of each query head. Sources:
    transformers/cuda/attention_backward.cu, mem_eff_attention/kernel_backward.h; the gradients were observed.
    """
    batch, heads, ctx, d_head = q.shape
    tile = 64 if d_head <= 64 else 128
    delta = batch * heads * ctx * _FLOAT_BYTES
    elements = _round_up(ctx, tile) // tile * (_round_up(d_head, tile) // tile) * (tile * tile + 4)
    if d_head > 128 and q.dtype != torch.float32:
        splits = max(1, min(_round_up(ctx, tile) // tile, 200 // (batch * heads)))
        elements += 2 * splits * tile * _round_up(d_head, tile)
    workspace = batch * heads * _round_up(elements, 4) * _FLOAT_BYTES
    by_head = [Held(_bytes(each) // each.shape[1] * heads) for each in (k, v) if each.shape[1] != heads]
    if q.dtype != torch.float32:
        return [[*by_head, delta, workspace]]
    # gradient · output, its sum, and a copy of the sum by head
    copied = [delta, Held(delta)] if min(heads, ctx) > 1 else [Held(delta)]
    return [[*by_head, _bytes(gradient), *copied], [workspace]]


SCRATCH: Mapping[object, Callable[..., Scratch]] = {
    **REDUCTIONS,
    _aten.bmm.default: _bmm,
    _aten.mm.default: _mm,
    _aten.addmm.default: lambda added, *operands: _mm(*operands),
    _aten._safe_softmax.default: _safe_softmax,
    _aten._softmax_backward_data.default: _softmax_backward,
    _aten.embedding_dense_backward.default: _embedding_backward,
    _aten._fused_rms_norm_backward.default: lambda gradient, *_: [_contiguous_copies(gradient)],
    _aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    _aten._scaled_dot_product_cudnn_attention_backward.default: _cudnn_backward,
    _aten._scaled_dot_product_efficient_attention.default: _efficient_forward,
    _aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
}
"""Scratch memory by operator, as a function of the operator's arguments."""


def _convolution_copies(source: Tensor, weight: Tensor, *_: object) -> list[int]:
    """Return the sizes of the copies of what a convolution gets in another memory format than its kernel's.

    That is channels last if either is, but not in one dimension. Source: native/Convolution.cpp, _convolution.
    """
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(source.dim())
    is_last = last is not None and any(
        each.is_contiguous(memory_format=last) and not each.is_contiguous() for each in (source, weight)
    )
    wanted = last if is_last and last is not None else torch.contiguous_format
    return [_bytes(each) for each in (source, weight) if not each.is_contiguous(memory_format=wanted)]


COPIES: Mapping[object, Callable[..., Sequence[int]]] = {
    _aten._scaled_dot_product_flash_attention_backward.default: lambda gradient, q, k, v, output, *_: _bshd_copies(
        gradient, output
    ),
    _aten._scaled_dot_product_efficient_attention_backward.default: lambda gradient, *_: _bshd_copies(gradient),
    _aten.convolution.default: _convolution_copies,
    _aten.native_layer_norm.default: lambda source, *_: _contiguous_copies(source),
    _aten.native_layer_norm_backward.default: lambda gradient, source, *_: _contiguous_copies(gradient, source),
}
"""Sizes of the copies of arguments that an operator makes before its results, and frees after its scratch memory
(transformers/cuda/attention_backward.cu, Convolution.cpp, cuda/layer_norm_kernel.cu)."""


def _contiguous_copies(*tensors: Tensor) -> list[int]:
    return [_bytes(tensor) for tensor in tensors if not tensor.is_contiguous()]


def _bshd_copies(*tensors: Tensor) -> list[int]:
    """Return the sizes of the copies of tensors that are not stored contiguously as (batch, ctx, heads, d_head)."""
    return [_bytes(tensor) for tensor in tensors if not _is_contiguous_bshd(tensor)]


def _is_contiguous_bshd(tensor: Tensor) -> bool:
    _, heads, ctx, d_head = tensor.shape
    contiguous = (ctx * heads * d_head, d_head, heads * d_head, 1)
    layout = zip(tensor.shape, tensor.stride(), contiguous, strict=True)
    return all(length == 1 or step == wanted for length, step, wanted in layout)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.dtype.itemsize


def _round_up(length: int, multiple: int) -> int:
    return math.ceil(length / multiple) * multiple
