"""Seconds of one kernel on a GPU, from its kind and the GPU's rates.

Matrix products run as tiles in waves over the multiprocessors; everything else moves bytes, or works out an offset for
each element, whichever takes longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sysbench.predict.rates import Draws, GpuRate, GpuRates
from sysbench.predict.trace import Kernel, Kind
from sysbench.spec.hardware import Hardware
from sysbench.spec.model import Precision

Limit = Literal["matmul", "bandwidth", "indexing", "latency"]
"""What a kernel's time is mostly made of: arithmetic of a product, bytes, offsets of elements, or being launched."""

RateDraws = Mapping[GpuRate, Draws]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TileModel:
    """How a library's matrix products depend on their shape.

    efficiency   of a tile by its area, against a large product's rate
    alone, pair  of a multiprocessor that has one tile, or two, where more would hide latency better
    extra_k      inner length that filling and draining the pipeline costs
    start_s      what a product takes beside its tiles
    """

    efficiency: Mapping[int, float]
    alone: float
    pair: float
    extra_k: float
    start_s: float


SIMT = TileModel({32768: 1.0, 16384: 1.0, 8192: 0.60, 4096: 0.52, 2048: 0.45, 1024: 0.45}, 0.70, 0.85, 16, 3e-6)
TENSOR = TileModel({32768: 1.0, 16384: 0.90, 8192: 0.75, 4096: 0.55, 2048: 0.35, 1024: 0.2}, 0.80, 0.92, 64, 4e-6)

_TILES = np.array(
    [(128, 256), (256, 128), (128, 128), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128), (64, 32), (32, 64),
     (32, 32)]
)  # fmt: skip
_SPLITS = np.array([1, 2, 3, 4, 6, 8])

_RATE_OF_PRODUCT: Mapping[str, GpuRate] = {
    "fp32": "matmul_fp32", "tf32": "matmul_tf32", "bf16": "matmul_half", "fp16": "matmul_half",
}  # fmt: skip


def seconds(kernels: Sequence[Kernel], gpu: GpuRates, drawn: RateDraws) -> Floats:
    """(kernels, draws) From start to end of each, alone on the device."""
    result = np.empty((len(kernels), len(drawn["stream"])))
    products = [i for i, kernel in enumerate(kernels) if kernel.kind == "gemm"]
    if products:
        result[products] = _products([kernels[i] for i in products], gpu.sms, drawn)
    for i, kernel in enumerate(kernels):
        if kernel.kind == "attention":
            result[i] = np.maximum(kernel.flops / _attention_rate(kernel, drawn), kernel.bytes / drawn["stream"])
            result[i] += drawn["kernel_s"]
        elif kernel.kind != "gemm":
            result[i] = np.maximum(_moving(kernel, drawn), _indexing(kernel, drawn)) + drawn["kernel_s"]
    return result


def limit(kernel: Kernel, drawn: RateDraws) -> Limit:
    """What most of the kernel's time goes into, at the first draw."""
    moving, indexing = _moving(kernel, drawn)[0], _indexing(kernel, drawn)[0]
    terms: dict[Limit, float] = {"bandwidth": moving, "indexing": indexing, "latency": drawn["kernel_s"][0]}
    if kernel.kind == "gemm":
        terms["matmul"] = kernel.flops / drawn[_RATE_OF_PRODUCT.get(kernel.dtype, "matmul_fp32")][0]
    elif kernel.kind == "attention":
        terms["matmul"] = kernel.flops / _attention_rate(kernel, drawn)[0]
    return max(terms, key=lambda name: terms[name])


def perfect_seconds(kernel: Kernel, hardware: Hardware) -> float:
    """The least that the data sheet allows: the slower of its FLOPs at the peak and its bytes at full bandwidth."""
    precision: Precision = "fp32" if kernel.dtype == "other" else kernel.dtype
    peak = hardware.peak_flops_per_s.get(precision) or max(hardware.peak_flops_per_s.values())
    flops = kernel.flops / 2 if kernel.layout.endswith("causal") else kernel.flops
    return max(flops / peak, kernel.bytes / (hardware.memory_bandwidth_bytes_per_s or np.inf))


def _moving(kernel: Kernel, drawn: RateDraws) -> Draws:
    return kernel.bytes / (drawn["reduce"] if kernel.kind in ("reduce", "softmax") else drawn["stream"])


def _indexing(kernel: Kernel, drawn: RateDraws) -> Draws:
    rates: Mapping[Kind, GpuRate] = {"indexed": "indexed", "transpose": "transpose"}
    name = rates.get(kernel.kind)
    return kernel.elements / drawn[name] if name else np.zeros_like(drawn["stream"])


def _attention_rate(kernel: Kernel, drawn: RateDraws) -> Draws:
    return drawn["attention_backward" if "backward" in kernel.layout else "attention_forward"]


def _products(kernels: Sequence[Kernel], sms: int, drawn: RateDraws) -> Floats:
    """(kernels, draws) By the tile and split of the inner dimension that is fastest, as cuBLAS would pick."""
    dims = np.array([kernel.dims for kernel in kernels], dtype=float)
    batch, m, n, k = (column[:, None, None] for column in dims.T)
    rows, columns = (side[None, :, None] for side in _TILES.T)
    split = _SPLITS[None, None, :]
    models = [SIMT if kernel.dtype in ("fp32", "other") else TENSOR for kernel in kernels]
    efficiency = np.array([[model.efficiency[int(a * b)] for a, b in _TILES] for model in models])[:, :, None]
    alone, pair, extra_k, start_s = (
        np.array([getattr(model, name) for model in models])[:, None, None]
        for name in ("alone", "pair", "extra_k", "start_s")
    )
    tiles = batch * np.ceil(m / rows) * np.ceil(n / columns)
    waves = np.ceil(tiles * split / sms)
    busy = np.where(waves == 1, alone, np.where(waves == 2, pair, 1.0))
    work = waves * sms * 2 * rows * columns * (np.ceil(k / split) + extra_k) / (efficiency * busy)
    moved = np.where(split > 1, 4 * batch * m * n * (split + 1) / 2, 0.0)
    allowed = (split == 1) | ((k >= 512) & (tiles < 4 * sms))
    work = np.where(allowed, work, np.inf).reshape(len(kernels), -1)
    moved = np.broadcast_to(moved, (len(kernels), len(_TILES), len(_SPLITS))).reshape(len(kernels), -1)
    extra = np.where(moved > 0, 2e-6, 0.0)
    flops_per_s = np.array([drawn[_RATE_OF_PRODUCT.get(kernel.dtype, "matmul_fp32")] for kernel in kernels])
    best = np.full(flops_per_s.shape, np.inf)
    for candidate in range(work.shape[1]):
        time = work[:, candidate, None] / flops_per_s + moved[:, candidate, None] / drawn["stream"]
        np.minimum(best, time + extra[:, candidate, None], out=best)
    traffic = np.array([kernel.bytes for kernel in kernels])[:, None] / drawn["stream"]
    result: Floats = np.maximum(best, traffic) + start_s[:, 0]
    return result
