"""Predicted kernels against public tables: which rows, and what the model says of each."""

from __future__ import annotations

import csv
import gzip
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sysbench.predict.kernels import lower_bound_seconds, seconds
from sysbench.predict.rates import GpuRates
from sysbench.predict.trace import Kernel
from sysbench.spec.hardware import by_name

LAUNCH_GAP_S = 28e-6
"""NeuSight's times are of events around an eager call: with the gap before the kernel, 29 to 34 µs in the fits, of
which the model has 3. Rows below 0.1 ms are host time and left out."""

CACHE_WRITE_S = {"a100_sxm_80": 5.3e-6}
"""Of the kernel that writes keys and values to a cache, what is not moving bytes: the A100's shortest row is 23 µs."""

SLUGS = {
    "a100_pcie_40": "a100-pcie-40gb", "a100_pcie_80": "a100-pcie-80gb", "a100_sxm_80": "a100-80gb", "l4": "l4",
    "h100_sxm_80": "h100", "t4": "t4", "v100_pcie_32": "v100-pcie-32gb", "h200_sxm_141": "h200", "b200_sxm": "b200",
    "l40s": "l40s",
}  # fmt: skip
ATTENTION = {
    ("a100_sxm_80", "flash_attention"), ("h100_sxm_80", "fa3"), ("h200_sxm_141", "fa3"), ("b200_sxm", "trtllm_mha"),
    ("l40s", "vllm_flash_attn_fa2"),
}  # fmt: skip
ELEMENTWISE = {
    "add": 3, "mul": 3, "div": 3, "pow": 3, "addu": 2, "mulu": 2, "divu": 2, "powu": 2, "relu": 2, "tanh": 2, "gelu": 2,
}  # fmt: skip
MOST_ROWS = 4000
"""Of each group, so that the whole takes a minute."""


class Measured(NamedTuple):
    """A kernel of a table."""

    group: str
    gpu: str
    kernel: Kernel
    seconds: float
    beside_s: float = 0.0
    """What was measured with it and is no kernel of its own."""
    beside: tuple[Kernel, ...] = ()
    """Kernels that were measured with it."""


class Group(NamedTuple):
    """What is said of one kind of kernel on one GPU: errors are |ln(predicted / measured)|."""

    name: str
    gpu: str
    fitted: NDArray[np.float64]
    held_out: NDArray[np.float64]
    roofline: NDArray[np.float64]
    covered: float
    width: float


def product(dtype: str, dims: tuple[int, int, int, int], layout: str) -> Kernel:
    batch, m, n, k = dims
    size = 4 if dtype == "fp32" else 2
    moved = size * batch * (m * k + k * n + m * n)
    return Kernel("gemm", "mm", dtype, moved, batch * m * n, 2 * batch * m * n * k, dims, layout)  # type: ignore[arg-type]


def neusight(directory: Path) -> Iterator[Measured]:
    for row in _rows(directory / "neusight_kernels.csv.gz"):
        gpu, op, measured_s = row["gpu"], row["op"], float(row["latency_ms"]) / 1e3
        if gpu not in SLUGS or row["split"] != "test" or measured_s < 1e-4:
            continue
        batch, m, n = int(row["b"] or 1), int(row["m"]), int(row["n"])
        if op in ("linear", "bmm"):
            kernel = product("fp32", (batch, m, n, int(row["k"])), "TN" if op == "linear" else "NN")
            yield Measured("fp32 products", gpu, kernel, measured_s, LAUNCH_GAP_S)
        elif op in ELEMENTWISE:
            count = batch * m * n
            kernel = Kernel("map", op, "fp32", 4 * ELEMENTWISE[op] * count, count)
            yield Measured("elementwise", gpu, kernel, measured_s, LAUNCH_GAP_S)
        else:
            kernel = Kernel("softmax", op, "fp32", 8 * batch * m * n, batch * m * n, dims=(batch * m, n))
            yield Measured("softmax and layer norm", gpu, kernel, measured_s, LAUNCH_GAP_S)


def products(directory: Path) -> Iterator[Measured]:
    """bf16, x·Wᵀ, of at least 64 rows: below, a step of training has none. Those of uninitialised weights left out."""
    for row in _rows(directory / "gemm_half.csv.gz"):
        if row["dtype"] == "bf16" and row["source"] in ("sglang", "trtllm") and int(row["m"]) >= 64:
            kernel = product("bf16", (1, int(row["m"]), int(row["n"]), int(row["k"])), "TN")
            yield Measured("bf16 products", row["gpu"], kernel, float(row["seconds"]))


def attention(directory: Path) -> Iterator[Measured]:
    """Causal prefill from 256 positions, of as many key heads as query heads; writing the key cache is included."""
    for row in _rows(directory / "attention_half.csv.gz"):
        wanted = (row["gpu"], row["kernel"]) in ATTENTION and row["causal"] == "1" and row["heads"] == row["kv_heads"]
        batch, seq, heads, width = (int(row[name]) for name in ("batch", "seq", "heads", "head_dim"))
        if wanted and seq >= 256 and width in (64, 128):
            dims = (batch, heads, seq, seq, width)
            flops, moved = 4 * batch * heads * seq * seq * width, 8 * batch * heads * seq * width
            layout = "cudnn forward causal"
            kernel = Kernel("attention", row["kernel"], "bf16", moved, moved // 8, flops, dims, layout)
            cache = Kernel("map", "copy_", "bf16", moved, moved // 4)
            beside_s = CACHE_WRITE_S.get(row["gpu"], 0.0)
            yield Measured("attention forward", row["gpu"], kernel, float(row["seconds"]), beside_s, (cache,))


def groups(measured: Iterable[Measured]) -> list[Group]:
    """By kind and GPU; a shape belongs to the fitted half if the first byte of its MD5 is even."""
    by_group: dict[tuple[str, str], list[Measured]] = defaultdict(list)
    for each in measured:
        by_group[each.group, each.gpu].append(each)
    return [_group(name, gpu, rows) for (name, gpu), rows in sorted(by_group.items())]


def _group(name: str, slug: str, rows: Sequence[Measured]) -> Group:
    chosen = np.random.default_rng(0).permutation(len(rows))[:MOST_ROWS]
    rows = [rows[i] for i in chosen]
    gpu = GpuRates.of(by_name(SLUGS[slug]))
    kernels = list(dict.fromkeys(kernel for row in rows for kernel in (row.kernel, *row.beside)))
    position = {kernel: i for i, kernel in enumerate(kernels)}
    drawn = seconds(kernels, gpu, gpu.drawn(33))
    own = np.array([row.seconds for row in rows])
    predicted = drawn[[position[row.kernel] for row in rows]] + np.array([row.beside_s for row in rows])[:, None]
    for i, row in enumerate(rows):
        predicted[i] += sum(drawn[position[each]] for each in row.beside)
    perfect = np.array([lower_bound_seconds(row.kernel, gpu.hardware) for row in rows], dtype=float)
    low, high = np.quantile(predicted, [0.05, 0.95], axis=1)
    error = np.abs(np.log(predicted[:, 0] / own))
    fitted = np.array([_is_fitted(row.kernel) for row in rows])
    return Group(
        name, slug, error[fitted], error[~fitted], np.abs(np.log(perfect / own))[~fitted],
        float(np.mean((low <= own) & (own <= high))), float(np.median(high / low)),
    )  # fmt: skip


def _is_fitted(kernel: Kernel) -> bool:
    """Whether constants were fitted on the half of the shapes that this one belongs to."""
    return hashlib.md5(_shape(kernel).encode()).digest()[0] % 2 == 0


def _shape(kernel: Kernel) -> str:
    """As it was hashed when the halves were made."""
    if kernel.kind == "attention":
        batch, heads, seq, _, width = map(float, kernel.dims)
        return str([batch, seq, heads, heads, width])
    if kernel.kind == "gemm" and kernel.dtype == "bf16":
        return str(list(kernel.dims[1:]))
    if kernel.kind == "gemm":
        return f"{'linear' if kernel.layout == 'TN' else 'bmm'},{list(kernel.dims)}"
    return f"{kernel.name},{kernel.dims},{kernel.elements}"


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if path.exists():
        with gzip.open(path, "rt") as file:
            yield from csv.DictReader(file)
