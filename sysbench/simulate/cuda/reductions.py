"""Scratch memory of reductions over several thread blocks: partial results, and a semaphore for each output block.

Source: setReduceConfig and ReduceConfig in aten/src/ATen/native/cuda/Reduce.cuh, PyTorch 2.11 to 2.15; the order and
the merging of dimensions is that of aten/src/ATen/TensorIterator.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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


def reductions_on(multiprocessors: Multiprocessors) -> dict[object, Callable[..., Sequence[Sequence[int]]]]:
    """Return the scratch memory of reductions, by operator, as a function of the operator's arguments."""

    def of_accumulated(values: Tensor, dims: object = None, *_: object) -> Sequence[Sequence[int]]:
        return scratch(values, dims, max(values.dtype.itemsize, 4), multiprocessors)

    def of_same_type(values: Tensor, dims: object = None, *_: object) -> Sequence[Sequence[int]]:
        return scratch(values, dims, values.dtype.itemsize, multiprocessors)

    accumulating = (_aten.sum.default, _aten.sum.dim_IntList, _aten.mean.default, _aten.mean.dim)
    return {**dict.fromkeys(accumulating, of_accumulated), _aten.amax.default: of_same_type}


def scratch(
    values: Tensor, dims: object, result_bytes: int, multiprocessors: Multiprocessors
) -> Sequence[Sequence[int]]:
    """Return the sizes of the partial results and of the semaphores; nothing if each output has one block.

    dims          the reduced dimensions; None or none for all
    result_bytes  size of a partial result
    """
    reduced, kept = _dimensions(values, dims)
    outputs, inputs = (math.prod(size for size, _ in each) for each in (kept, reduced))
    if not values.numel() or inputs < _MOST_VALUES_PER_THREAD:
        return []
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
    target = multiprocessors.count * (multiprocessors.threads // (block_width * block_height))
    grid = _ceil(outputs // vector, step_output)
    if not splits_warps or per_thread < _MOST_VALUES_PER_THREAD or grid > target:
        return []
    fewest = _ceil(per_thread, _MOST_VALUES_PER_THREAD)
    blocks = max(min(_ceil(target, grid), _ceil(per_thread, _LEAST_VALUES_PER_THREAD)), fewest)
    if blocks <= 1:
        return []
    size_bytes = result_bytes * outputs * blocks * (1 if along_input else block_width * vector)
    return [[size_bytes, _SEMAPHORE_BYTES * grid]]


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
