"""Time of one kernel on a GPU, from the kind of kernel and the GPU's rates.

Matrix products and fused attention run as tiles, in waves over the multiprocessors. Most other kernels take as long as
moving their bytes or computing an offset for each element, whichever takes longer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sysbench.predict import collectives
from sysbench.predict.rates import Draws, GpuRate, GpuRates
from sysbench.predict.trace import Kernel, Kind
from sysbench.spec.hardware import Hardware
from sysbench.spec.knobs import FP8_SPEEDUP
from sysbench.spec.steps import Precision

Limit = Literal["matmul", "bandwidth", "indexing", "latency", "communication", "host link"]
"""Main component of a kernel's time: arithmetic of products, bytes, element offsets, start-up, communication between
GPUs, or copies between device and host."""

RateDraws = Mapping[GpuRate, Draws]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TileModel:
    """Parameters for predicting the time of a library's matrix products from their shape.

    clock           fraction of the data sheet's peak that multiprocessors reach if only their clock limits them
    padding_power   power consumption of a FLOP on padding, relative to a useful FLOP
    other_power     power consumption of a FLOP in layouts other than TN, relative to TN
    l2_share        fraction of the L2 that caches operands; operands of twice that size come from memory only
    l2_write_share  fraction of the L2 that caches the result
    l2_speed        bandwidth of the L2, relative to memory
    efficiency      fraction of `clock` that tiles of each area in `_AREAS` reach: (in TN layout, in all other layouts)
    alone, pair     efficiency of a multiprocessor with one tile or with two tiles, which are too few to hide latency
    extra_k         cost of filling and draining the pipeline, as additional inner length
    smoothing       0 if tiles run in whole waves, 1 if there are no waves
    split_s         seconds to add up the parts of a split inner dimension, in addition to the time for their bytes
    traffic_share   bandwidth for reading operands, relative to a plain copy
    norm            exponent n that combines the overlapping times of arithmetic and traffic: (aⁿ + bⁿ)^(1/n)
    start_s         fixed overhead in seconds
    """

    clock: float
    efficiency: tuple[tuple[float, ...], tuple[float, ...]]
    alone: float
    pair: float
    extra_k: float
    smoothing: float
    split_s: float
    traffic_share: float
    norm: float
    start_s: float
    padding_power: float = 0.0
    other_power: float = 1.0
    l2_share: float = 0.0
    l2_write_share: float = 0.0
    l2_speed: float = 1.0


_VOLTA = TileModel(
    0.98, ((0.8, 1, 0.81, 0.81, 0.74, 0.35), (1, 1, 0.94, 0.575, 0.47, 0.29)), 0.54, 0.9, 4, 0.2, 3e-5, 0.7, 2.6, 3e-6
)
_TURING = TileModel(
    0.574, ((0.996, 1.2, 0.763, 0.714, 0.72, 0.266), (0.9, 1.2, 1.087, 0.348, 0.258, 0.292)), 0.297, 0.69, 5.3, 0.454,
    5e-5, 0.807, 2.87, 2.2e-6, padding_power=1.14, other_power=1.055,
)  # fmt: skip
_AMPERE = TileModel(
    0.95, ((0.73, 0.79, 0.96, 0.83, 0.5, 0.35), (0.8, 1, 0.51, 0.26, 0.2, 0.18)), 0.97, 0.97, 6, 0.1, 3e-5, 0.83, 1.8,
    3e-6,
)  # fmt: skip
_ADA = TileModel(
    0.634, ((0.85, 0.684, 1.2, 0.776, 0.47, 0.524), (1.2, 0.958, 0.096, 0.255, 0.068, 0.09)), 0.459, 0.515, 5, 0.17,
    4.5e-5, 1.1, 1.75, 5.8e-6, padding_power=0.82, other_power=1.084,
)  # fmt: skip
_HOPPER = TileModel(
    0.784, ((0.8, 1, 0.72, 0.71, 0.66, 0.35), (1, 1, 0.94, 0.79, 0.5, 0.35)), 0.97, 1, 29, 0.024, 3e-5, 0.84, 5.4, 3e-6
)
_AMPERE_TENSOR = TileModel(
    0.919,
    ((0.956, 0.857, 0.765, 0.421, 0.44, 0.228),) * 2,
    0.605,
    1,
    182,
    0.306,
    2.8e-6,
    0.926,
    2.88,
    2.1e-6,
    padding_power=0.2,
)
_ADA_TENSOR = TileModel(
    0.835, ((1.081, 1.087, 0.895, 0.633, 0.264, 0.189),) * 2, 1, 0.87, 254, 0.175, 1e-6, 0.88, 17, 7e-7,
    padding_power=0.74, l2_share=0.145, l2_write_share=0.59, l2_speed=2.08,
)  # fmt: skip
_HOPPER_TENSOR = TileModel(
    1.137, ((0.7, 0.827, 0.828, 0.71, 0.451, 0.263),) * 2, 0.703, 0.939, 205, 0.474, 3e-6, 0.921, 3.46, 2.5e-6,
    padding_power=0.26,
)  # fmt: skip
_BLACKWELL_TENSOR = TileModel(
    0.749, ((0.8, 0.79, 0.48, 0.94, 0.515, 0.317),) * 2, 0.567, 0.744, 101, 0.557, 5e-6, 0.833, 2.78, 2e-6,
    padding_power=0.29,
)  # fmt: skip
"""Fitted to one half of the shapes in public tables and checked on the other half (docs/prediction.md): fp32 to
NeuSight's kernels (V100; T4; A100; L4; H100), bf16 to those of aiconfigurator-core (A100; L40S; H100 and H200; B200).
Efficiencies above 1 compensate for the clock, which was fitted with them."""

_CUDA_CORE_MODELS: Mapping[str, TileModel] = {
    "6": _VOLTA, "7": _VOLTA, "7.5": _TURING, "8": _AMPERE, "8.9": _ADA, "9": _HOPPER, "10": _HOPPER, "12": _AMPERE,
}  # fmt: skip
_TENSOR_CORE_MODELS: Mapping[str, TileModel] = {
    "7": _AMPERE_TENSOR, "8": _ADA_TENSOR, "8.0": _AMPERE_TENSOR, "9": _HOPPER_TENSOR, "10": _BLACKWELL_TENSOR,
    "12": _ADA_TENSOR, "6": _VOLTA,
}  # fmt: skip
"""Models by compute capability or by major number. Pascal has no tensor cores: 16-bit products run as those in fp32."""

_AREAS = (32768, 16384, 8192, 4096, 2048, 1024)
_TILES = np.array(
    [(128, 256), (256, 128), (128, 128), (128, 64), (64, 128), (64, 64), (128, 32), (32, 128), (64, 32), (32, 64),
     (32, 32)]
)  # fmt: skip
_TILE_AREAS = np.array([_AREAS.index(int(a * b)) for a, b in _TILES])
_SPLITS = np.array([1, 2, 3, 4, 6, 8, 12, 16])
_MIN_SPLIT_K = 128

WEIGHT_GRADIENT_SLOWDOWN = 1.05
"""Time in NT layout relative to TN on tensor cores. SimuMax's median ratio of the rates: 0.951 (A100), 0.975 (B200)."""

_MATMUL_RATES: Mapping[str, GpuRate] = {
    "fp32": "matmul_fp32", "tf32": "matmul_tf32", "bf16": "matmul_half", "fp16": "matmul_half", "fp8": "matmul_fp8",
}  # fmt: skip


@dataclass(frozen=True)
class AttentionModel:
    """Parameters for predicting the time of flash attention on a GPU generation from its shape.

    extra_keys     cost of starting a tile of queries, expressed as a number of keys
    narrow_share   rate for heads up to 64 wide, relative to heads 128 wide
    balance        exponent n that combines the longest tile and the average load of multiprocessors: (aⁿ + bⁿ)^(1/n)
    traffic_share  bandwidth for reading queries, keys and values, relative to a plain copy
    norm           exponent that combines arithmetic and traffic, as in `TileModel`
    start_s        fixed overhead in seconds
    """

    extra_keys: float
    narrow_share: float
    balance: float
    traffic_share: float
    norm: float
    start_s: float


_ATTENTION: Mapping[str, AttentionModel] = {
    "8.0": AttentionModel(101, 0.8, 1.13, 0.905, 5.1, 8.25e-6),
    "8": AttentionModel(113, 0.888, 7.3, 0.896, 6.2, 0.2e-6),
    "9": AttentionModel(206, 0.6, 2.32, 0.907, 2.05, 4.8e-6),
    "10": AttentionModel(211, 0.426, 1.2, 0.825, 2.28, 8.3e-6),
}
"""Models by compute capability or by major number, fitted to one half of the causal prefill kernels in the tables of
aiconfigurator-core: A100, L40S, H100 and H200 together, and B200. The A100's table has no narrow heads: 0.8 is
assumed."""

_FIRST_WITH_TF32 = 8
"""Major compute capability from which tf32 exists."""

_ATTENTION_BLOCK = 128
"""Number of queries in a tile."""
_MAX_NARROW_HEAD = 64

IMPLEMENTATION_SHARES: Mapping[str, float] = {"cudnn": 1.0, "flash": 1.0, "flex": 0.85, "efficient": 0.5}
"""Rate of an implementation relative to the GPU's best one. FlexAttention: "85 to 90% of FlashAttention-2" (PyTorch's
blog, August 2024); memory-efficient: half of FlashAttention-2 on an A100 (Dao, "FlashAttention-2", 2023, figures 4 and
5)."""
FLASH_SHARE_ON_HOPPER = 0.6
"""Share of the best rate that torch's flash attention reaches on Hopper. torch contains version 2, which does not use
asynchronous copies: 370 of cuDNN's 600 TFLOP/s (Shah et al., "FlashAttention-3", 2024, figure 5)."""
FULL_PRECISION_SHARE = 0.12
"""Rate for fp32 inputs relative to half precision: the memory-efficient kernel runs three products on tensor cores at
half the rate (CUTLASS, OpMultiplyAddFastF32)."""


def seconds(kernels: Sequence[Kernel], gpu: GpuRates, drawn: RateDraws) -> Floats:
    """Return the seconds that each kernel takes when it runs alone on the device, of shape (kernels, draws)."""
    result = np.empty((len(kernels), len(drawn["stream"])))
    for model in dict.fromkeys(tile_model(kernel, gpu.hardware) for kernel in kernels if kernel.kind == "gemm"):
        positions = [i for i, k in enumerate(kernels) if k.kind == "gemm" and tile_model(k, gpu.hardware) is model]
        result[positions] = _products([kernels[i] for i in positions], model, gpu, drawn)
    for i, kernel in enumerate(kernels):
        if kernel.kind == "attention":
            result[i] = _attention(kernel, gpu, drawn)
        elif kernel.kind == "collective":
            result[i] = collectives.seconds(kernel, gpu.hardware, gpu.interconnect, result.shape[1])
        elif kernel.kind == "copy":
            result[i] = _copy_seconds(kernel, drawn)
        elif kernel.kind != "gemm":
            result[i] = np.maximum(_memory_seconds(kernel, drawn), _indexing_seconds(kernel, drawn)) + drawn["kernel_s"]
        if "new_memory" in drawn and (new_bytes := _new_bytes(kernel)):
            result[i] += new_bytes / drawn["new_memory"]
    return result


LARGEST_REUSED_BYTES = 32 * 1024**2
"""Larger results get new memory from the system each time on a CPU, and every page of it costs a fault at its first
write; freed memory of smaller ones is reused (glibc, malloc/malloc.c, DEFAULT_MMAP_THRESHOLD_MAX on 64-bit systems)."""

_ITEM_BYTES: Mapping[str, int] = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
_ALLOCATING: Collection[Kind] = ("gemm", "attention", "map", "indexed", "transpose", "softmax", "embedding")


def _new_bytes(kernel: Kernel) -> int:
    """Return the size of a result that is too large for reused memory, otherwise 0."""
    size_bytes = kernel.elements * _ITEM_BYTES.get(kernel.dtype, 0)
    is_new = kernel.kind in _ALLOCATING and not kernel.name.endswith("_") and size_bytes > LARGEST_REUSED_BYTES
    return size_bytes if is_new else 0


def limit(kernel: Kernel, drawn: RateDraws) -> Limit:
    """Return the largest component of the kernel's time, according to the first draw of the rates."""
    if kernel.kind == "collective":
        return "communication"
    if kernel.kind == "copy":
        return "host link"
    moving, indexing = _memory_seconds(kernel, drawn)[0], _indexing_seconds(kernel, drawn)[0]
    terms: dict[Limit, float] = {"bandwidth": moving, "indexing": indexing, "latency": drawn["kernel_s"][0]}
    if kernel.kind == "gemm":
        terms["matmul"] = kernel.flops / drawn[matmul_rate(kernel, drawn)][0] * _slowdown(kernel, drawn)[0]
    elif kernel.kind == "attention":
        terms["matmul"] = _computed_flops(kernel) / drawn[_attention_rate(kernel)][0]
    return max(terms, key=lambda name: terms[name])


def lower_bound_seconds(kernel: Kernel, hardware: Hardware) -> float | None:
    """Return the time for the FLOPs at the peak rate or for the bytes at full bandwidth, whichever is longer.

    Both come from the data sheet. Without one there is no bound, because a measured rate is not the highest possible
    one: other programs may have slowed it down. For collectives and copies, it is 0.
    """
    if kernel.kind in ("collective", "copy"):
        return 0.0
    peak, bandwidth = _peak(kernel, hardware), hardware.memory_bandwidth_bytes_per_s
    return max(_computed_flops(kernel) / peak, kernel.bytes / bandwidth) if peak and bandwidth else None


def matmul_rate(kernel: Kernel, known: Collection[GpuRate]) -> GpuRate:
    """Return the name of the rate for matrix products of this dtype; the fp32 rate if the GPU does not support tf32."""
    name = _MATMUL_RATES.get(kernel.dtype, "matmul_fp32")
    return name if name in known else "matmul_fp32"


_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")
"""Operators whose operands are plain matrices. Convolutions lay out their operands themselves."""

_ALIGNMENT_BYTES = 16


def is_unaligned(kernel: Kernel) -> bool:
    """Return whether a product on tensor cores has rows, in an operand or the result, that are no multiple of 16 bytes.

    Products on ordinary cores take nearly as long with such rows: within 2% on an A100, at most 7% longer on a T4 and
    a V100 (NeuSight's kernels in fp32, 42,600 random shapes).
    """
    if kernel.dtype not in ("bf16", "fp16", "tf32") or kernel.name not in _PRODUCTS:  # in fp8, only aligned ones run
        return False
    _, m, n, k = kernel.dims
    rows = (m if kernel.layout.endswith("T") else k, n if kernel.layout.startswith("N") else k, n)
    return any(row * _ITEM_BYTES[kernel.dtype] % _ALIGNMENT_BYTES for row in rows)


def _slowdown(kernel: Kernel, drawn: RateDraws) -> Draws:
    """Return how many times as long a product takes because of its layout and its rows, of shape (draws,)."""
    gradient = WEIGHT_GRADIENT_SLOWDOWN if kernel.layout == "NT" and kernel.dtype != "fp32" else 1.0
    return gradient / drawn["unaligned"] if is_unaligned(kernel) else np.full_like(drawn["stream"], gradient)


def tile_model(kernel: Kernel, hardware: Hardware) -> TileModel:
    """Return the model for matrix products of this dtype on this GPU generation (Ampere if it is unknown)."""
    capability = hardware.compute_capability or "8.0"
    major = capability.partition(".")[0]
    if kernel.dtype in ("fp32", "other") or (kernel.dtype == "tf32" and int(major) < _FIRST_WITH_TF32):
        return _CUDA_CORE_MODELS.get(capability) or _CUDA_CORE_MODELS.get(major, _AMPERE)
    return _TENSOR_CORE_MODELS.get(capability) or _TENSOR_CORE_MODELS.get(major, _AMPERE_TENSOR)


def _copy_seconds(kernel: Kernel, drawn: RateDraws) -> Draws:
    rate = drawn.get("device_to_host" if kernel.name == "device_to_host" else "host_to_device")
    return np.zeros_like(drawn["stream"]) if rate is None else kernel.bytes / rate + drawn["kernel_s"]


def _memory_seconds(kernel: Kernel, drawn: RateDraws) -> Draws:
    return kernel.bytes / drawn["reduce" if kernel.kind in ("reduce", "softmax") else "stream"]


def _indexing_seconds(kernel: Kernel, drawn: RateDraws) -> Draws:
    rates: Mapping[Kind, GpuRate] = {"indexed": "indexed", "transpose": "transpose"}
    name = rates.get(kernel.kind)
    return kernel.elements / drawn[name] if name else np.zeros_like(drawn["stream"])


def _peak(kernel: Kernel, hardware: Hardware) -> float | None:
    if kernel.dtype == "fp8":
        half = hardware.peak_flops_per_s.get("bf16")
        return FP8_SPEEDUP * half if half else None
    precision: Precision = "fp32" if kernel.dtype == "other" else kernel.dtype
    return hardware.peak_flops_per_s.get(precision) or hardware.peak_flops_per_s.get("fp32")


def _computed_flops(kernel: Kernel) -> float:
    """Return the kernel's FLOPs, halved if there is a causal mask, because masked scores are not computed."""
    return kernel.flops / 2 if kernel.layout.endswith("causal") else kernel.flops


def _attention_rate(kernel: Kernel) -> GpuRate:
    return "attention_backward" if "backward" in kernel.layout else "attention_forward"


def _attention(kernel: Kernel, gpu: GpuRates, drawn: RateDraws) -> Draws:
    """Return the seconds of a fused attention kernel, of shape (draws,).

    Each tile of 128 queries iterates over all keys or, with a causal mask, over the keys up to the diagonal.
    """
    batch, heads, queries, keys, width = kernel.dims
    implementation, capability = kernel.layout.split(" ")[0], gpu.hardware.compute_capability or "8.0"
    model = _ATTENTION.get(capability) or _ATTENTION.get(capability.split(".")[0]) or _ATTENTION["8"]
    share = IMPLEMENTATION_SHARES.get(implementation, 1.0) * (model.narrow_share if width <= _MAX_NARROW_HEAD else 1.0)
    if implementation == "flash" and capability.startswith(("9", "10")):
        share *= FLASH_SHARE_ON_HOPPER
    if kernel.dtype == "fp32":
        share *= FULL_PRECISION_SHARE
    causal = kernel.layout.endswith("causal")
    tiles = batch * heads * np.ceil(queries / _ATTENTION_BLOCK)
    longest = kernel.flops / (batch * heads * queries) * _ATTENTION_BLOCK * (1 + model.extra_keys / keys)
    average = (
        longest * (((keys + _ATTENTION_BLOCK) / 2 if causal else keys) + model.extra_keys) / (keys + model.extra_keys)
    )
    # Tiles of a causal mask differ in length. The longest start first and fill the multiprocessors. Equal tiles run in
    # waves.
    waves = tiles / gpu.sms if causal else np.ceil(tiles / gpu.sms)
    flops = gpu.sms * _overlapped(np.array(waves * average), np.array(longest), model.balance)
    computing = flops / (drawn[_attention_rate(kernel)] * share)
    moving = kernel.bytes / (drawn["stream"] * model.traffic_share)
    return _overlapped(computing, moving, model.norm) + model.start_s


def _products(kernels: Sequence[Kernel], model: TileModel, gpu: GpuRates, drawn: RateDraws) -> Floats:
    """Return the seconds of matrix products, of shape (kernels, draws).

    Each product uses the fastest tile and split of the inner dimension (split-K), as cuBLAS would choose. The clock of
    the multiprocessors limits all FLOPs, including those on padding. Power limits the useful FLOPs of the whole
    product.
    """
    sustained = np.array([drawn[matmul_rate(kernel, drawn)] for kernel in kernels])
    peak = np.array([_peak(kernel, gpu.hardware) or 0.0 for kernel in kernels])
    clock_ratio = np.maximum(model.clock * peak / sustained[:, 0], 1.0)
    work, partial_sum_bytes = _split_k_candidates(kernels, model, gpu.sms, clock_ratio)
    stream = drawn["stream"] * model.traffic_share
    tiled_s = np.full(sustained.shape, np.inf)
    for candidate in range(work.shape[1]):
        reduction_s = partial_sum_bytes[:, candidate, None] / stream + model.split_s * (
            partial_sum_bytes[:, candidate, None] > 0
        )
        np.minimum(tiled_s, work[:, candidate, None] / sustained + reduction_s, out=tiled_s)
    moved_bytes = np.array([float(kernel.bytes) for kernel in kernels])
    _, m, n, k = np.array([kernel.dims for kernel in kernels], dtype=float).T
    written_bytes = moved_bytes * m * n / (m * k + k * n + m * n)
    cached_bytes = sum(
        np.clip(2 * share * (gpu.hardware.l2_bytes or 0) - size_bytes, 0, size_bytes)
        for share, size_bytes in ((model.l2_share, moved_bytes - written_bytes), (model.l2_write_share, written_bytes))
    )
    traffic = (moved_bytes - cached_bytes * (1 - 1 / model.l2_speed))[:, None] / stream
    useful = np.array([kernel.flops for kernel in kernels])[:, None] / sustained
    slowdown = np.array([_slowdown(kernel, drawn) for kernel in kernels])
    result: Floats = np.maximum(_overlapped(tiled_s, traffic, model.norm), useful) * slowdown
    return result + model.start_s


def _split_k_candidates(
    kernels: Sequence[Kernel], model: TileModel, sms: int, clock_ratio: Floats
) -> tuple[Floats, Floats]:
    """Return the work of the best tile and the bytes of partial sums for each split-K, both of shape (kernels, splits).

    Work is the number of FLOPs that take the same time at the sustained rate. `clock_ratio` (kernels,) is the ratio of
    the clock-limited rate to the sustained rate.
    """
    dims = np.array([kernel.dims for kernel in kernels], dtype=float)
    batch, m, n, k = (column[:, None, None] for column in dims.T)
    rows, columns = (side[None, :, None] for side in _TILES.T)
    split = _SPLITS[None, None, :]
    is_other = np.array([kernel.layout not in ("TN", "") for kernel in kernels])
    efficiency = np.array(model.efficiency)[is_other.astype(int)][:, _TILE_AREAS][:, :, None]
    tiles = batch * np.ceil(m / rows) * np.ceil(n / columns)
    whole_waves = np.ceil(tiles * split / sms)
    busy = np.where(whole_waves <= 1, model.alone, np.where(whole_waves <= 2, model.pair, 1.0))
    inner = np.ceil(k / split) + model.extra_k
    # Multiprocessors with more tiles never finish before those with fewer.
    min_waves = np.where(
        whole_waves <= 1, 0.0, np.where(whole_waves <= 2, 1 / model.alone, max(1 / model.alone, 2 / model.pair))
    )
    waves = np.maximum(_waves(tiles * split, sms, model.smoothing) / busy, min_waves)
    work = waves * sms * 2 * rows * columns * inner / efficiency
    useful = 2 * batch * m * n * k
    power_limited = useful + model.padding_power * (2 * tiles * rows * columns * k - useful)
    power_limited = power_limited * np.where(is_other, model.other_power, 1.0)[:, None, None]
    work = np.maximum(work / clock_ratio[:, None, None], power_limited)
    allowed = (split == 1) | ((k / split >= _MIN_SPLIT_K) & (tiles < 4 * sms))
    partial_sum_bytes = np.where(split > 1, 2.0 * batch * m * n * (split + 1), 0.0)
    # Partial sums depend only on the split.
    return np.where(allowed, work, np.inf).min(axis=1), partial_sum_bytes[:, 0, :]


def _waves(tiles: Floats | float, sms: int, smoothing: float) -> Floats:
    """Return the number of waves in which the tiles run, at least one; `smoothing` > 0 allows fractions."""
    waves: Floats = (1 - smoothing) * np.ceil(tiles / sms) + smoothing * np.maximum(tiles / sms, 1)
    return waves


def _overlapped(one: Floats, other: Floats, norm: float) -> Floats:
    """Return the total time of two overlapping activities: the shorter one is mostly hidden behind the longer one."""
    longer = np.maximum(one, other)
    result: Floats = longer * ((one / longer) ** norm + (other / longer) ** norm) ** (1 / norm)
    return result
