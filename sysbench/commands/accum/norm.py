"""Find the input scales at which each step of layer norm leaves the range of a format."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from sysbench.commands.accum.record import NormMeasured, NormPoint
from sysbench.commands.accum.spec import AccumCell
from sysbench.lab.devices import torch_device
from sysbench.lab.precision import TORCH_DTYPES
from sysbench.log.events import DeviceInfo, Event
from sysbench.rounding import FormatName

EXPONENTS = range(-80, 66)
"""Exponents of the input scales: the squares of 2**-80 and 2**65 are beyond the range of fp32."""


class Statistics(NamedTuple):
    """Intermediate results of layer norm, one value per row."""

    mean: Tensor
    variance: Tensor
    reciprocal_deviation: Tensor
    bare_reciprocal_deviation: Tensor


def run(cell: AccumCell, device: DeviceInfo) -> Iterator[Event]:
    """Yield the results of layer norm in every format; 16-bit formats also with fp32 statistics, as under autocast."""
    if cell.width is None or cell.eps is None:
        raise ValueError("a layer-norm cell needs a width and an eps")
    where = torch_device(device)
    inputs = scaled_inputs(cell.width, cell.seed)
    expected = normalised_exactly(inputs, cell.eps)
    pairs: list[tuple[FormatName, FormatName]] = [(name, name) for name in cell.dtypes]
    pairs += [(name, "fp32") for name in cell.dtypes if name != "fp32"]
    for name, statistics_format in pairs:
        rounded = inputs.to(TORCH_DTYPES[name]).to(where)
        outputs, statistics = normalised(rounded, TORCH_DTYPES[statistics_format], cell.eps)
        difference = torch.linalg.vector_norm(outputs.cpu().double() - expected, dim=-1)
        errors = (difference / torch.linalg.vector_norm(expected, dim=-1)).tolist()
        columns = zip(*(column.cpu().double().tolist() for column in statistics), strict=True)
        yield NormMeasured(
            at_s=time.time(),
            cell=cell.key,
            dtype=name,
            statistics=statistics_format,
            source="device",
            points=[
                NormPoint(scale=2.0**exponent, relative_error=error, **Statistics(*values)._asdict())
                for exponent, values, error in zip(EXPONENTS, columns, errors, strict=True)
            ],
        )


def scaled_inputs(width: int, seed: int) -> Tensor:
    """Return inputs (scales, width) in fp64: the mean and the standard deviation of each row equal a power of two."""
    drawn = torch.randn(width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    shaped = (drawn - drawn.mean()) / drawn.std(correction=0) + 1
    scales = torch.tensor([2.0**exponent for exponent in EXPONENTS], dtype=torch.float64)
    return scales[:, None] * shaped


def normalised(inputs: Tensor, dtype: torch.dtype, eps: float) -> tuple[Tensor, Statistics]:
    """Apply layer norm without gain and bias to each row of (rows, width), with every intermediate result in `dtype`.

    Takes two passes, like torch's definition: the mean, then the mean squared deviation. Outputs have the dtype of the
    inputs.
    """
    x = inputs.to(dtype)
    width = x.shape[-1]
    mean = pairwise_sum(x) / width
    centred = x - mean[:, None]
    variance = pairwise_sum(centred * centred) / width
    reciprocal = torch.rsqrt(variance + torch.tensor(eps, dtype=dtype, device=x.device))
    outputs = (centred * reciprocal[:, None]).to(inputs.dtype)
    return outputs, Statistics(mean, variance, reciprocal, torch.rsqrt(variance))


def pairwise_sum(rows: Tensor) -> Tensor:
    """Sum each row pairwise, rounding every partial sum to the rows' dtype; `Tensor.sum` would accumulate in fp32."""
    while rows.shape[-1] > 1:
        if rows.shape[-1] % 2:
            rows = torch.nn.functional.pad(rows, (0, 1))
        half = rows.shape[-1] // 2
        rows = rows[:, :half] + rows[:, half:]
    return rows[:, 0]


def normalised_exactly(inputs: Tensor, eps: float) -> Tensor:
    mean = inputs.mean(-1, keepdim=True)
    variance = ((inputs - mean) ** 2).mean(-1, keepdim=True)
    return (inputs - mean) / torch.sqrt(variance + eps)
