"""What the name of a precision means to torch: the format of matrix products, and autocast's data type."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sysbench.specs.model import Precision

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
