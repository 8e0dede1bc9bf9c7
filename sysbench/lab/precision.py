"""Precisions in torch, and arithmetic in formats that a device supports only as input formats of matrix products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from sysbench.rounding import FORMATS, ArithmeticSource, FormatName
from sysbench.spec.knobs import FP8
from sysbench.spec.steps import TRUE_PRECISIONS, StepPrecision

T = TypeVar("T")

AUTOCAST_DTYPES: dict[StepPrecision, torch.dtype] = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    **dict.fromkeys(FP8, torch.bfloat16),
}
"""Precisions that use autocast over fp32 parameters; the others compute in the dtype of the parameters."""


def compute_dtype(precision: StepPrecision) -> torch.dtype:
    """Return the dtype of the inputs of matrix products: autocast's, or fp32 (which tf32 rounds inside the product)."""
    return AUTOCAST_DTYPES.get(precision, parameter_dtype(precision))


def parameter_dtype(precision: StepPrecision) -> torch.dtype:
    """Return the dtype of parameters, gradients and optimizer state."""
    name = TRUE_PRECISIONS.get(precision, "float32")
    return {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}[name]


@contextmanager
def building(precision: StepPrecision) -> Iterator[None]:
    """Context manager in which a model is built with parameters of this precision, without ever having others."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(parameter_dtype(precision))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


_CUDNN: Any = torch.backends.cudnn  # typed in part only
_FP32_KERNELS: dict[str, Any] = {
    "matmul": torch.backends.cuda.matmul,
    "convolution": _CUDNN.conv,
    "recurrent": _CUDNN.rnn,
}
"""Settings of kernels that can round fp32 inputs to TF32. cuDNN's convolutions and recurrent layers do by default."""


def fp32_settings() -> dict[str, str]:
    """Return the precision in force for each kind of fp32 kernel: `ieee`, `tf32`, or `none` for torch's default."""
    return {name: kernels.fp32_precision for name, kernels in _FP32_KERNELS.items()}


def set_precision(precision: StepPrecision) -> list[str]:
    """Let fp32 kernels use TF32 for `tf32`, otherwise full fp32; return the kinds of kernels for which this changed.

    `torch.set_float32_matmul_precision` is the one setting that cuBLAS, oneDNN, Inductor and FlexAttention all read. It
    also sets the newer `fp32_precision`: reading the older settings fails after a program has used the newer one.
    """
    uses_tf32 = precision == "tf32"
    before = {name: found == "tf32" for name, found in fp32_settings().items()}
    torch.set_float32_matmul_precision("high" if uses_tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = uses_tf32
    if not uses_tf32:
        for kernels in (_CUDNN.conv, _CUDNN.rnn):
            kernels.fp32_precision = "ieee"  # torch.backends.fp32_precision decides otherwise, which may be TF32
    return [name for name, was_tf32 in before.items() if was_tf32 != uses_tf32]


@contextmanager
def matmul_precision(precision: StepPrecision) -> Iterator[None]:
    """Set the precision of fp32 kernels in this context, as `set_precision` does, and restore what was there before."""
    matmul = _older_setting(torch.get_float32_matmul_precision)
    cudnn = _older_setting(lambda: torch.backends.cudnn.allow_tf32)
    before = fp32_settings()
    set_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul or "highest")
        torch.backends.cudnn.allow_tf32 = bool(cudnn)
        for name, kernels in _FP32_KERNELS.items():
            kernels.fp32_precision = before[name]


def _older_setting(read: Callable[[], T]) -> T | None:
    """Return the value of a setting; None if torch refuses to, because `fp32_precision` contradicts it."""
    with suppress(RuntimeError):
        return read()
    return None


TORCH_DTYPES: dict[FormatName, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
"""Formats with arithmetic in torch: every operation returns the exact result, rounded once."""


@dataclass(frozen=True)
class Arithmetic:
    """Addition and subtraction of single numbers in one format, with the format's own representation of a number.

    `source` is "device" if the device computes in the format, "rounded" if every result is computed in fp64 and then
    rounded. The results are the same: for formats with up to 11 bits, rounding to 53 bits and then to the format equals
    rounding the exact result once (Figueroa, "When is double rounding innocuous?", 1995: 53 ≥ 2 · 11 + 2).
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
