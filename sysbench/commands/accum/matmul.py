"""Measure errors of matrix products relative to fp64, by format and by length of the dot products (K)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from sysbench.commands.accum.record import Accumulation, ProductMeasured
from sysbench.commands.accum.spec import AccumCell
from sysbench.lab.devices import torch_device
from sysbench.lab.precision import TORCH_DTYPES, matmul_precision, round_to_tf32
from sysbench.log.events import DeviceInfo, Event
from sysbench.rounding import ArithmeticSource, FormatName

M = 64
"""Number of rows and columns M of the products (M, k) × (k, M)."""

_SWITCHES: dict[FormatName, str] = {
    "fp16": "allow_fp16_reduced_precision_reduction",
    "bf16": "allow_bf16_reduced_precision_reduction",
}
"""Switches of torch.backends.cuda.matmul that allow partial sums to be added in the format of the inputs."""

_TF32_CAPABILITY = 8
"""Compute capability of the first GPUs with TF32."""


class MatmulMethod(NamedTuple):
    """A method of computing a product in one format."""

    dtype: FormatName
    accumulation: Accumulation
    source: ArithmeticSource
    multiply: Callable[[Tensor, Tensor], Tensor]
    """Multiplies matrices on the device."""


def run(cell: AccumCell, device: DeviceInfo) -> Iterator[Event]:
    if cell.lengths is None:
        raise ValueError("a matmul cell needs the length of its dot products")
    where = torch_device(device)
    methods = [method for name in cell.dtypes for method in matmul_methods(name, device)]
    for k in cell.lengths:
        generator = torch.Generator().manual_seed(cell.seed)
        left = torch.rand(M, k, generator=generator, dtype=torch.float64)
        right = torch.rand(k, M, generator=generator, dtype=torch.float64)
        exact = left @ right
        for method in methods:
            rounded = [
                round_to_tf32(tensor.float()) if method.dtype == "tf32" else tensor.to(TORCH_DTYPES[method.dtype])
                for tensor in (left, right)
            ]
            expected = rounded[0].double() @ rounded[1].double()
            found = method.multiply(*(tensor.to(where) for tensor in rounded)).cpu().double()
            yield ProductMeasured(
                at_s=time.time(),
                cell=cell.key,
                dtype=method.dtype,
                accumulation=method.accumulation,
                source=method.source,
                m=M,
                k=k,
                relative_error=_relative_error(found, expected),
                total_error=_relative_error(found, exact),
            )


def matmul_methods(name: FormatName, device: DeviceInfo) -> Iterator[MatmulMethod]:
    """Yield the methods by which a device multiplies in a format; 16-bit formats also have one with 16-bit sums."""
    if name == "tf32":
        has_tf32 = (
            device.type == "cuda" and int((device.compute_capability or "0").partition(".")[0]) >= _TF32_CAPABILITY
        )
        # Without tensor cores, only the inputs are rounded to TF32; sums are in fp32.
        yield MatmulMethod(
            name, "as it is", "device" if has_tf32 else "rounded", _matmul_within(lambda: matmul_precision("tf32"))
        )
        return
    if device.type == "cuda" and name in _SWITCHES:
        yield MatmulMethod(name, "reduced", "device", _matmul_within(lambda: _reduced_precision(_SWITCHES[name], True)))
        yield MatmulMethod(
            name, "not reduced", "device", _matmul_within(lambda: _reduced_precision(_SWITCHES[name], False))
        )
    else:
        yield MatmulMethod(name, "as it is", "device", _matmul_within(lambda: matmul_precision("fp32")))
    if name in _SWITCHES:
        yield MatmulMethod(name, "narrow", "device", accumulate_narrow)


def accumulate_narrow(left: Tensor, right: Tensor) -> Tensor:
    """Multiply matrices by adding one term at a time, rounding each partial sum to the dtype of the inputs."""
    total = left.new_zeros(left.shape[0], right.shape[1])
    for column, row in zip(left.unbind(1), right.unbind(0), strict=True):
        total = total + column[:, None] * row
    return total


def _matmul_within(context: Callable[[], AbstractContextManager[object]]) -> Callable[[Tensor, Tensor], Tensor]:
    def multiply(left: Tensor, right: Tensor) -> Tensor:
        with context():
            return left @ right

    return multiply


@contextmanager
def _reduced_precision(switch: str, allowed: bool) -> Iterator[None]:
    settings = torch.backends.cuda.matmul
    before = getattr(settings, switch)
    setattr(settings, switch, allowed)
    try:
        yield
    finally:
        setattr(settings, switch, before)


def _relative_error(found: Tensor, expected: Tensor) -> float:
    return float(torch.linalg.matrix_norm(found - expected) / torch.linalg.matrix_norm(expected))
