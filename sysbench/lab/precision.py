"""What the name of a precision means to torch, and arithmetic in formats that a device only accepts as inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sysbench.rounding import FORMATS, FormatName
from sysbench.spec.model import Precision

if TYPE_CHECKING:
    from sysbench.commands.accum.record import ArithmeticSource

AUTOCAST_DTYPES: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Precisions that are autocast over fp32 parameters; the others compute in the parameters' own type."""


def compute_dtype(precision: Precision) -> torch.dtype:
    """The type of a matrix product's inputs: autocast's, or fp32 (which tf32 shortens inside the product)."""
    return AUTOCAST_DTYPES.get(precision, torch.float32)


@contextmanager
def matmul_precision(precision: Precision) -> Iterator[None]:
    """Make fp32 matrix products what `precision` says: TF32 for `tf32`, the full format for every other.

    `torch.set_float32_matmul_precision` is the one setting that cuBLAS, oneDNN, Inductor and FlexAttention all read;
    the settings of single backends would contradict it. What was set before is set again at the end.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


TORCH_DTYPES: dict[FormatName, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
"""Formats that torch has arithmetic in: every operation gives the exact result, rounded once."""

_TF32_DROPPED_BITS = 13
"""fp32 has 23 bits of mantissa, TF32 has 10."""


@dataclass(frozen=True)
class Arithmetic:
    """Addition and subtraction of single numbers in one format, by whatever stands for a number in it.

    source    whether they are the device's own, or those of fp64 with every result rounded. For these formats that
              is the same: what is rounded to 53 bits and then to 11 or less is as the exact result rounded once
              (Figueroa, "When is double rounding innocuous?", 1995: 53 ≥ 2 · 11 + 2).
    number    a number of the format, the nearest to this one
    value     the other way round
    """

    name: FormatName
    source: ArithmeticSource
    number: Callable[[float], Any]
    value: Callable[[Any], float]
    add: Callable[[Any, Any], Any]
    subtract: Callable[[Any, Any], Any]

    @classmethod
    def of(cls, name: FormatName, device: torch.device) -> Arithmetic:
        """Arithmetic in the format: on the device where torch has it, else rounded."""
        if name in TORCH_DTYPES:
            return _on_device(name, device)
        nearest = FORMATS[name].nearest
        return cls(name, "rounded", nearest, float, lambda a, b: nearest(a + b), lambda a, b: nearest(a - b))


def _on_device(name: FormatName, device: torch.device) -> Arithmetic:
    dtype = TORCH_DTYPES[name]

    def number(value: float) -> Tensor:
        return torch.tensor(value, dtype=torch.float64).to(dtype).to(device)

    return Arithmetic(name, "device", number, lambda tensor: float(tensor.item()), torch.add, torch.sub)


def round_to_tf32(values: Tensor) -> Tensor:
    """fp32 with 10 bits of mantissa, ties to even: what tensor cores see of it."""
    bits = values.view(torch.int32)
    odd = (bits >> _TF32_DROPPED_BITS) & 1
    rounded = bits + ((1 << (_TF32_DROPPED_BITS - 1)) - 1) + odd
    return (rounded & -(1 << _TF32_DROPPED_BITS)).view(torch.float32)
