"""Scratch memory of reductions over several thread blocks: partial results, and a semaphore for each output block.

Source: setReduceConfig and ReduceConfig in aten/src/ATen/native/cuda/Reduce.cuh, PyTorch 2.11 to 2.15; the order and
the merging of dimensions is that of aten/src/ATen/TensorIterator.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sysbench.simulate.gpu import Multiprocessors

_aten = torch.ops.aten

_MOST_THREADS = 512
_WARP = 32
_LEAST_VALUES_PER_THREAD = 16
_MOST_VALUES_PER_THREAD = 256
_VECTOR = 4
_SEMAPHORE_BYTES = 4


@dataclass(frozen=True)
class SplitReduction:
    """A reduction that is computed by several thread blocks for each output, if the GPU has multiprocessors for them.

    grid           number of blocks with one for each output
    block_threads  number of threads of a block
    per_thread     number of values for each thread, with one block for each output
    block_bytes    size of the partial results of the blocks that share a position in their output
    """

    grid: int
    block_threads: int
    per_thread: int
    block_bytes: int

    def scratch_bytes(self, multiprocessors: Multiprocessors) -> tuple[int, int]:
        """Return the sizes of the partial results and of the semaphores; 0 if each output has one block."""
        target = multiprocessors.count * (multiprocessors.threads // self.block_threads)
        fewest = _ceil(self.per_thread, _MOST_VALUES_PER_THREAD)
        most = _ceil(self.per_thread, _LEAST_VALUES_PER_THREAD)
        blocks = max(min(_ceil(target, self.grid), most), fewest) if self.grid <= target else 1
        return (self.block_bytes * blocks, _SEMAPHORE_BYTES * self.grid) if blocks > 1 else (0, 0)


class Held(int):
    """Size of scratch memory that is freed when the operator ends, not with its group."""


Scratch = Sequence[Sequence[int | SplitReduction]]
"""Groups of sizes in bytes. Each group is freed before the next one is allocated."""


def _of_accumulated(values: Tensor, dims: object = None, *_: object) -> Scratch:
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.int64:
        return _scratch(values, dims, max(values.dtype.itemsize, 4))
    # Whole numbers and truth values are summed as a copy in int64 (ReduceOpsUtils.h, make_reduction).
    (split,) = _scratch(values, dims, 8) or [[]]
    return [[8 * values.numel(), *split]]


def _of_same_type(values: Tensor, dims: object = None, *_: object) -> Scratch:
    return _scratch(values, dims, values.dtype.itemsize)


def _of_norm(values: Tensor, order: object = 2, dims: object = None, *_: object) -> Scratch:
    return _scratch(values, dims, max(values.dtype.itemsize, 4))


REDUCTIONS: Mapping[object, Callable[..., Scratch]] = {
    **dict.fromkeys((_aten.sum.default, _aten.sum.dim_IntList, _aten.mean.default, _aten.mean.dim), _of_accumulated),
    _aten.amax.default: _of_same_type,
    _aten.linalg_vector_norm.default: _of_norm,
}
"""Scratch memory of reductions, by operator, as a function of the operator's arguments."""


def _scratch(values: Tensor, dims: object, result_bytes: int) -> Scratch:
    split = split_reduction(values, dims, result_bytes)
    return [[split]] if split is not None else []


def split_reduction(values: Tensor, dims: object, result_bytes: int) -> SplitReduction | None:
    """Return how a reduction may be split; None if each output has one block on every GPU.

    dims          the reduced dimensions; None or none for all
    result_bytes  size of a partial result
    """
    reduced, kept = _dimensions(values, dims)
    outputs, inputs = (math.prod(size for size, _ in each) for each in (kept, reduced))
    if not values.numel() or inputs < _MOST_VALUES_PER_THREAD:
        return None
    along_input = not kept or reduced[0][1] < kept[0][1]
    fastest = reduced[0][1] if along_input else kept[0][1]
    width, height, vector = (inputs, outputs, 1) if along_input else (outputs, inputs, 1)
    if fastest == 1 and along_input and inputs > 128 and len(reduced) + len(kept) == 1:
        width //= _VECTOR
    elif fastest == 1 and not along_input:
        vector = _output_vector(reduced, kept)
        width //= vector
    block_width, block_height = _block(width, height, _MOST_THREADS // vector)
    step_input, step_output = (block_width, 1) if along_input else (1, block_width)
    splits_warps = _ceil(inputs, step_input) >= min(block_height * 16, _MOST_VALUES_PER_THREAD)
    if splits_warps:
        step_input *= block_height
    else:
        step_output *= block_height
    per_thread = _ceil(inputs, step_input)
    if not splits_warps or per_thread < _MOST_VALUES_PER_THREAD:
        return None
    block_bytes = result_bytes * outputs * (1 if along_input else block_width * vector)
    return SplitReduction(_ceil(outputs // vector, step_output), block_width * block_height, per_thread, block_bytes)


_Dimensions = list[tuple[int, int]]
"""(size, stride) of each dimension, the fastest first."""


def _dimensions(values: Tensor, dims: Any) -> tuple[_Dimensions, _Dimensions]:
    """Return the reduced and the kept dimensions of more than one element, neighbours merged if they are one."""
    chosen = [dims] if isinstance(dims, int) else dims
    numbers = {dim % values.dim() for dim in chosen} if chosen else set(range(values.dim()))
    sizes = [(values.shape[dim], values.stride(dim), dim in numbers) for dim in range(values.dim())]
    reduced = sorted(((size, step) for size, step, is_reduced in sizes if is_reduced and size > 1), key=lambda d: d[1])
    kept = [(size, step) for size, step, is_reduced in reversed(sizes) if not is_reduced and size > 1]
    return _merged(reduced), _merged(kept)


def _merged(dimensions: _Dimensions) -> _Dimensions:
    merged: _Dimensions = []
    for size, stride in dimensions:
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = merged[-1][0] * size, merged[-1][1]
        else:
            merged.append((size, stride))
    return merged


def _output_vector(reduced: _Dimensions, kept: _Dimensions) -> int:
    """Return how many neighbouring outputs a thread computes (get_output_vec_size)."""
    return math.gcd(_VECTOR, kept[0][0], *(stride for _, stride in (*reduced, *kept[1:])))


def _block(width: int, height: int, most: int) -> tuple[int, int]:
    """Return the width and the height of a thread block (set_block_dimension)."""
    widest, highest = (_power_of_two(length) if length < most else most for length in (width, height))
    block_width = min(widest, _WARP)
    block_height = min(highest, most // block_width)
    return min(widest, most // block_height), block_height


def _power_of_two(length: int) -> int:
    return 1 << max(0, length.bit_length() - 1)


def _ceil(length: int, divisor: int) -> int:
    return -(-length // divisor)
