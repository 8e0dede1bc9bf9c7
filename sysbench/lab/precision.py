"""Precisions in torch, and arithmetic in formats that a device supports only as input formats of matrix products."""

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
"""Precisions that use autocast over fp32 parameters; the others compute in the dtype of the parameters."""


def compute_dtype(precision: Precision) -> torch.dtype:
    """Return the dtype of the inputs of matrix products: autocast's, or fp32 (which tf32 rounds inside the product)."""
    return AUTOCAST_DTYPES.get(precision, torch.float32)


@contextmanager
def matmul_precision(precision: Precision) -> Iterator[None]:
    """Set the precision of fp32 matrix products in this context: TF32 for `tf32`, otherwise full fp32.

    `torch.set_float32_matmul_precision` is the one setting that cuBLAS, oneDNN, Inductor and FlexAttention all read;
    settings of single backends could contradict it. The previous setting is restored at the end.
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
"""Formats with arithmetic in torch: every operation returns the exact result, rounded once."""

_TF32_DROPPED_BITS = 13
"""fp32 has 23 mantissa bits, TF32 has 10."""


@dataclass(frozen=True)
class Arithmetic:
    """Addition and subtraction of single numbers in one format, with the format's own representation of a number.

    source    "device" if the device computes in the format, "rounded" if every result is computed in fp64 and then
              rounded. The results are the same: for formats with up to 11 bits, rounding to 53 bits and then to the
              format equals rounding the exact result once (Figueroa, "When is double rounding innocuous?", 1995:
              53 ≥ 2 · 11 + 2).
    number    converts a float to the nearest number of the format
    value     converts a number of the format to a float
    """

    name: FormatName
    source: ArithmeticSource
    number: Callable[[float], Any]
    value: Callable[[Any], float]
    add: Callable[[Any, Any], Any]
    subtract: Callable[[Any, Any], Any]

    @classmethod
    def of(cls, name: FormatName, device: torch.device) -> Arithmetic:
        """Return the arithmetic of a format: on the device if torch supports the format, otherwise by rounding."""
        if name in TORCH_DTYPES:
            dtype = TORCH_DTYPES[name]

            def number(value: float) -> Tensor:
                return torch.tensor(value, dtype=torch.float64).to(dtype).to(device)

            return Arithmetic(name, "device", number, lambda tensor: float(tensor.item()), torch.add, torch.sub)
        nearest = FORMATS[name].nearest
        return cls(name, "rounded", nearest, float, lambda a, b: nearest(a + b), lambda a, b: nearest(a - b))


def round_to_tf32(values: Tensor) -> Tensor:
    """Round fp32 values to 10 mantissa bits, ties to even, as tensor cores do with their TF32 inputs."""
    bits = values.view(torch.int32)
    odd = (bits >> _TF32_DROPPED_BITS) & 1
    rounded = bits + ((1 << (_TF32_DROPPED_BITS - 1)) - 1) + odd
    return (rounded & -(1 << _TF32_DROPPED_BITS)).view(torch.float32)
