"""Arithmetic in formats that a device computes in, and in those that it only converts to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sysbench.events import ArithmeticSource
from sysbench.rounding import FORMATS, FormatName

TORCH_DTYPES: dict[FormatName, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
"""Formats that torch has arithmetic in: every operation gives the exact result, rounded once."""

_CONVERTED_TO: dict[FormatName, torch.dtype] = {
    "fp8-e4m3": torch.float8_e4m3fn,
    "fp8-e5m2": torch.float8_e5m2,
}
"""Formats that torch converts to and from."""

_TF32_DROPPED_BITS = 13
"""fp32 has 23 bits of mantissa, TF32 has 10."""


@dataclass(frozen=True)
class Arithmetic:
    """Addition and subtraction in one format.

    source  whether they are the device's own, or those of fp32 with every result rounded. That is the same for these
            formats: a sum in fp32 that is rounded again to 11 bits or less is the exact one rounded once
            (Figueroa, "When is double rounding innocuous?", 1995: 24 ≥ 2 · 11 + 2).
    dtype   the type that tensors have here, which for a `rounded` format is fp32
    """

    name: FormatName
    source: ArithmeticSource
    dtype: torch.dtype
    device: torch.device
    _round: Callable[[Tensor], Tensor] | None

    @classmethod
    def of(cls, name: FormatName, device: torch.device) -> Arithmetic:
        """Arithmetic in the format, on the device where it has it, else rounded on the CPU."""
        if name in TORCH_DTYPES:
            return cls(name, "device", TORCH_DTYPES[name], device, None)
        return cls(name, "rounded", torch.float32, torch.device("cpu"), rounding_to(name))

    def numbers(self, value: float, *shape: int) -> Tensor:
        """A tensor full of `value`, rounded to the format once."""
        wide = torch.full(shape, value, dtype=torch.float64)
        if self._round is None:
            return wide.to(self.dtype).to(self.device)
        return self._round(wide.to(torch.float32))

    def add(self, left: Tensor, right: Tensor) -> Tensor:
        """The sum, rounded."""
        return left + right if self._round is None else self._round(left + right)

    def subtract(self, left: Tensor, right: Tensor) -> Tensor:
        """The difference, rounded."""
        return left - right if self._round is None else self._round(left - right)


def rounding_to(name: FormatName) -> Callable[[Tensor], Tensor]:
    """Rounds fp32 tensors to the nearest numbers of a format, ties to even; they stay tensors of fp32."""
    if name == "tf32":
        return round_to_tf32
    dtype, known = _CONVERTED_TO.get(name) or TORCH_DTYPES[name], FORMATS[name]
    if known.saturates:
        # Said aloud: what torch makes of such numbers, NaN or this, depends on its version.
        limit = float(known.largest)
        return lambda values: values.clamp(-limit, limit).to(dtype).to(torch.float32)
    return lambda values: values.to(dtype).to(torch.float32)


def round_to_tf32(values: Tensor) -> Tensor:
    """fp32 with 10 bits of mantissa: what tensor cores see of it."""
    bits = values.view(torch.int32)
    odd = (bits >> _TF32_DROPPED_BITS).bitwise_and_(1)
    rounded = odd.add_(bits).add_((1 << (_TF32_DROPPED_BITS - 1)) - 1)
    return rounded.bitwise_and_(-(1 << _TF32_DROPPED_BITS)).view(torch.float32)
