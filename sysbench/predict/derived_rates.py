"""Rates of a GPU and its host, derived from a trace with shapes.

A trace shows kernels and times, but no rates. From the rates known so far, the model predicts the time of a kernel with
known dimensions. If only one rate limits that kernel, the measured time determines the rate.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from sysbench.errors import LogError
from sysbench.predict.kernels import is_unaligned, limit, matmul_rate, seconds
from sysbench.predict.rates import GPU_RATES, HOST_RATES, GpuRate, GpuRates, HostRate
from sysbench.predict.trace import Dtype, Kernel
from sysbench.trace.columns import Nesting
from sysbench.trace.kernels.work import PRODUCTS
from sysbench.trace.recording import KERNEL, NONE, Integers, Trace

MIN_PRODUCT_S: Final = 30e-6
"""Minimum time of a product; shorter ones wait for memory or for their launch."""
MIN_BYTES: Final = 96 * 1024**2
"""Minimum size of a tensor; smaller ones may come from the L2."""
TINY_BYTES: Final = 64 * 1024
MAX_CASES: Final = 8
"""Maximum number of cases per rate; those that take the most time are kept."""

MAX_GAP_S: Final = 20e-6
"""Maximum gap between queued kernels; a longer one has another cause, such as a synchronization or a copy."""
MAX_PAUSE_S: Final = 200e-6
"""Maximum pause between operators; in a longer one, Python does other work or waits."""
VIEW_SHARE: Final = 0.2
"""Cost of a view relative to an operator, as in `commands.calibrate.measure`."""
_CHUNKS: Final = 9
_ROUNDS: Final = 8
"""Number of iterations that solve for a rate; three suffice if the rate limits most of the kernel."""
_MIN_DEPENDENCE: Final = 0.7
"""Minimum increase of a kernel's time, in per cent, for a rate that is one per cent lower."""

_DTYPES: Final[Sequence[tuple[Dtype, re.Pattern[str]]]] = (
    ("tf32", re.compile(r"tf32|s1688gemm|s1688tensorop", re.IGNORECASE)),
    ("bf16", re.compile(r"bf16|bfloat16|nvjet_t", re.IGNORECASE)),
    ("fp16", re.compile(r"f16|hgemm|h16816|h1688|h884|half|nvjet_h", re.IGNORECASE)),
    ("fp32", re.compile(r"sgemm|f32f32_f32|ffma|simt|float|nvjet_s", re.IGNORECASE)),
)
"""Element types by words in kernel names, most specific first (cuBLAS, CUTLASS, torch's templates)."""
_LAYOUT: Final = re.compile(r"_(tn|nn|nt|tt)(?:_|$)", re.IGNORECASE)
_ITEM_BYTES: Final[Mapping[Dtype, int]] = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
_STREAMING: Final[Mapping[str, int]] = {
    "add": 3, "add_": 3, "sub": 3, "sub_": 3, "mul": 3, "mul_": 3, "div": 3, "div_": 3, "copy_": 2, "gelu": 2,
    "silu": 2, "relu": 2, "tanh": 2, "exp": 2, "neg": 2, "sqrt": 2, "rsqrt": 2, "sigmoid": 2,
}  # fmt: skip
"""By elementwise operator: the number of tensors it moves if all inputs have the same shape."""
_BACKWARD: Final = "autograd::engine::evaluate_function"


class Observation(NamedTuple):
    """Measured times of one piece of work, which determine a rate."""

    rate: GpuRate | HostRate
    case: str
    work: float
    """FLOPs, bytes, or units of host work. Work divided by time is the rate, or the inverse of the rate."""
    samples_s: tuple[float, ...]


class DerivedRates(NamedTuple):
    """Rates derived from measured times, and the reasons why all other rates could not be derived."""

    observations: tuple[Observation, ...]
    unseen: Mapping[GpuRate | HostRate, str]


def derive_rates(trace: Trace, gpu: GpuRates) -> DerivedRates:
    """Derive the rates of a GPU and its host from a trace. Raises LogError if the trace has no kernels or no shapes."""
    if not (trace.work.kind == KERNEL).any():
        raise LogError(f"{trace.title} has no GPU kernels: rates cannot be derived from it")
    if (trace.operators.shapes == NONE).all():
        raise LogError(
            f"{trace.title} has no operator shapes, which are needed to identify kernels: "
            "record it with torch.profiler.profile(record_shapes=True)"
        )
    launched = _KernelLaunches.of(trace)
    observations = [
        *_kernel_rates(trace, launched, gpu),
        *_gaps(trace, launched),
        *_launches(trace),
        *_host_rates(trace, launched),
    ]
    seen = {observation.rate for observation in observations}
    unseen = {name: _UNSEEN_REASONS.get(name, _TOO_LITTLE) for name in (*GPU_RATES, *HOST_RATES) if name not in seen}
    return DerivedRates(tuple(observations), unseen)


_TOO_LITTLE: Final = "the trace has no sufficiently large work of this kind, or too little"
_UNSEEN_REASONS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("attention_forward", "attention_backward"), "a trace does not show whether attention is causal"),
    **dict.fromkeys(("indexed", "transpose"), "a trace does not show the layout of tensors"),
    **dict.fromkeys(("scalar", "synchronize"), "it cannot be distinguished from other Python code, or from waiting"),
    **dict.fromkeys(("kernel_s", "gap_s"), "the trace has no kernel small enough, or none that waits for another"),
}


@dataclass(frozen=True)
class _KernelLaunches:
    """Positions of kernels, of their launch calls, and of the operators around these calls (NONE if unknown)."""

    rows: Integers
    launch: Integers
    operator: Integers

    @classmethod
    def of(cls, trace: Trace) -> _KernelLaunches:
        rows = np.flatnonzero((trace.work.kind == KERNEL) & (trace.work.correlation != NONE))
        order = np.argsort(trace.launches.correlation, kind="stable")
        known = trace.launches.correlation[order]
        launch = np.full(len(rows), NONE, np.int64)
        if len(order):
            place = np.minimum(np.searchsorted(known, trace.work.correlation[rows]), len(order) - 1)
            launch = np.where(known[place] == trace.work.correlation[rows], order[place], NONE)
        rows, launch = rows[launch != NONE], launch[launch != NONE]
        operators, launches = trace.operators, trace.launches
        nesting = Nesting.of(operators.thread, operators.start_ns, operators.duration_ns)
        return cls(rows, launch, nesting.innermost(launches.thread[launch], launches.start_ns[launch]))


def _kernel_rates(trace: Trace, launched: _KernelLaunches, gpu: GpuRates) -> Iterator[Observation]:
    """Yield observations of operators that launch a single kernel, if the kernel is limited by a single rate."""
    by_kernel: dict[Kernel, list[float]] = defaultdict(list)
    count = np.bincount(launched.operator[launched.operator != NONE], minlength=len(trace.operators.name))
    identified: dict[tuple[int, int, int], Kernel | None] = {}
    for row, operator in zip(launched.rows.tolist(), launched.operator.tolist(), strict=True):
        if operator == NONE or count[operator] != 1 or trace.operators.shapes[operator] == NONE:
            continue
        key = (int(trace.operators.name[operator]), int(trace.operators.shapes[operator]), int(trace.work.name[row]))
        if key not in identified:
            identified[key] = _identify_kernel(*(trace.names[each] for each in key))
        if (kernel := identified[key]) is not None and trace.work.duration_ns[row] > 0:
            by_kernel[kernel].append(float(trace.work.duration_ns[row]) / 1e9)
    drawn = gpu.drawn()
    by_total_time = sorted(by_kernel, key=lambda kernel: -sum(by_kernel[kernel]))
    cases: dict[str, int] = defaultdict(int)
    for kernel, predicted_s in zip(
        by_total_time, seconds(by_total_time, gpu, drawn)[:, 0].tolist() if by_total_time else (), strict=True
    ):
        name = _limiting_rate(kernel, predicted_s, gpu)
        if name is None or cases[name] == MAX_CASES:
            continue
        samples_s = tuple(by_kernel[kernel])
        rate = 1 / median(samples_s) if name == "kernel_s" else _rate(name, kernel, median(samples_s), gpu)
        if rate is not None:
            cases[name] += 1
            yield Observation(name, _kernel_title(kernel), rate * median(samples_s), samples_s)


def _rate(name: GpuRate, kernel: Kernel, measured_s: float, gpu: GpuRates) -> float | None:
    """Return the rate with which the model predicts the measured time; None if that time hardly depends on the rate."""
    drawn = dict(gpu.drawn())

    def predicted_s() -> float:
        return float(seconds([kernel], gpu, drawn)[0, 0])

    for _ in range(_ROUNDS):
        drawn[name] = drawn[name] * np.clip(predicted_s() / measured_s, 0.5, 2.0)
    found, before_s = float(drawn[name][0]), predicted_s()
    drawn[name] = drawn[name] / 1.1
    return found if predicted_s() / before_s > 1 + 0.1 * _MIN_DEPENDENCE else None


def _limiting_rate(kernel: Kernel, predicted_s: float, gpu: GpuRates) -> GpuRate | None:
    drawn = gpu.drawn()
    if kernel.kind == "gemm":
        long = predicted_s >= MIN_PRODUCT_S and limit(kernel, drawn) == "matmul"
        return matmul_rate(kernel, drawn) if long and not is_unaligned(kernel) else None
    if kernel.bytes >= MIN_BYTES:
        return "reduce" if kernel.kind == "softmax" else "stream"
    return "kernel_s" if kernel.bytes <= TINY_BYTES and kernel.kind == "map" else None


def _identify_kernel(operator: str, shapes: str, name: str) -> Kernel | None:
    bare = operator.removeprefix("aten::")
    sizes = _sizes(shapes)
    dtype = next((dtype for dtype, pattern in _DTYPES if pattern.search(name[:400])), None)
    if dtype is None or not sizes:
        return None
    item = _ITEM_BYTES[dtype]
    if bare in PRODUCTS:
        operands = sizes[1:3] if bare in ("addmm", "baddbmm") else sizes[:2]
        if len(operands) < 2 or any(len(operand) not in (2, 3) for operand in operands):
            return None
        (*batches, m, k), (*_, inner, n) = operands
        batch = batches[0] if batches else 1
        if inner != k or not batch * m * n * k:
            return None
        layout = found[1].upper() if (found := _LAYOUT.search(name[:400])) else "TN"
        moved = item * batch * (m * k + k * n + m * n)
        return Kernel("gemm", bare, dtype, moved, batch * m * n, 2 * batch * m * n * k, (batch, m, n, k), layout)
    elements = int(np.prod(sizes[0]))
    if bare in _STREAMING and "vectorized" in name and all(size in (sizes[0], []) for size in sizes):
        moved = 1 + sum(size == sizes[0] for size in sizes) if bare != "copy_" else 2
        return Kernel("map", bare, dtype, min(moved, _STREAMING[bare]) * item * elements, elements)
    if bare == "_softmax" and elements:
        return Kernel(
            "softmax", bare, dtype, 2 * item * elements, elements, dims=(elements // sizes[0][-1], sizes[0][-1])
        )
    return None


def _sizes(shapes: str) -> list[list[int]]:
    try:
        parsed = json.loads(shapes) if len(shapes) <= 4000 else None
    except ValueError:
        return []
    if not isinstance(parsed, list) or not parsed:
        return []
    sizes = [each for each in parsed if isinstance(each, list)]
    is_valid = all(isinstance(size, int) and 0 <= size < 2**40 for each in sizes for size in each)
    return sizes if is_valid and sizes and sizes[0] else []


def _kernel_title(kernel: Kernel) -> str:
    if kernel.kind == "gemm":
        return f"{kernel.dtype} {kernel.layout} {' × '.join(map(str, kernel.dims[kernel.dims[0] == 1 :]))}"
    return f"{kernel.name} of {kernel.elements:,} {kernel.dtype}"


def _gaps(trace: Trace, launched: _KernelLaunches) -> Iterator[Observation]:
    work, launches = trace.work, trace.launches
    order = np.lexsort((work.start_ns[launched.rows], work.stream[launched.rows], work.device[launched.rows]))
    rows, launch = launched.rows[order], launched.launch[order]
    end_ns = work.start_ns[rows] + work.duration_ns[rows]
    gaps_s = (work.start_ns[rows[1:]] - end_ns[:-1]) / 1e9
    issued_ns = launches.start_ns[launch[1:]] + launches.duration_ns[launch[1:]]
    same_stream = (work.stream[rows[1:]] == work.stream[rows[:-1]]) & (work.device[rows[1:]] == work.device[rows[:-1]])
    queued = same_stream & (issued_ns < work.start_ns[rows[:-1]]) & (gaps_s > 0) & (gaps_s < MAX_GAP_S)
    if queued.sum() >= _CHUNKS:
        yield Observation("gap_s", f"{queued.sum():,} pairs of kernels", 1.0, _quantiles(gaps_s[queued]))


def _launches(trace: Trace) -> Iterator[Observation]:
    launching = np.array(["launchkernel" in name.lower() for name in trace.names], bool)
    rows = launching[trace.launches.name] & (trace.launches.duration_ns > 0)
    taken_s = np.sort(trace.launches.duration_ns[rows] / 1e9)
    if len(taken_s) >= _CHUNKS:
        faster = taken_s[: (len(taken_s) + 1) // 2]
        yield Observation("launch", f"{len(taken_s):,} calls, the faster half", 1.0, _quantiles(faster))


def _host_rates(trace: Trace, launched: _KernelLaunches) -> Iterator[Observation]:
    """Yield observations of the host's time per operator and per view, separately for forward and autograd threads."""
    operators, launches = trace.operators, trace.launches
    nesting = Nesting.of(operators.thread, operators.start_ns, operators.duration_ns)
    is_aten = np.array([name.startswith("aten::") for name in trace.names], bool)[operators.name]
    outer = np.zeros(len(operators.name), bool)
    outer[nesting.parents[(nesting.parents != NONE) & is_aten]] = True
    launching = np.zeros(len(operators.name), bool)
    launching[launched.operator[launched.operator != NONE]] = True
    # The host's own work inside the runtime counts as launching. Waiting inside the runtime does not count as work.
    launch_calls_s = np.zeros(len(operators.name))
    inside = nesting.innermost(launches.thread, launches.start_ns)
    np.add.at(launch_calls_s, inside[inside != NONE], launches.duration_ns[inside != NONE] / 1e9)
    of_autograd = np.array([name.startswith(_BACKWARD) for name in trace.names], bool)[operators.name]
    backward = set(operators.thread[of_autograd].tolist())
    for suffix in ("", "_backward"):
        threads = [each for each in set(operators.thread.tolist()) if (each in backward) == (suffix == "_backward")]
        leaf = np.flatnonzero(is_aten & (launching | ~outer) & np.isin(operators.thread, threads))
        leaf = leaf[np.lexsort((operators.start_ns[leaf], operators.thread[leaf]))]
        until_next_s = np.diff(operators.start_ns[leaf]) / 1e9 - launch_calls_s[leaf[:-1]]
        is_valid = (until_next_s > 0) & (until_next_s < MAX_PAUSE_S)
        work_units = np.where(launching[leaf[:-1]], 1.0, VIEW_SHARE)[is_valid]
        if is_valid.sum() < 20 * _CHUNKS:
            continue
        chunks = zip(np.array_split(until_next_s[is_valid], _CHUNKS), np.array_split(work_units, _CHUNKS), strict=True)
        each_s = tuple(float(taken.sum() / work.sum()) for taken, work in chunks)
        case = f"{int(launching[leaf].sum()):,} operators, {int((~launching[leaf]).sum()):,} views, profiled"
        yield Observation(f"operator{suffix}", case, 1.0, each_s)  # type: ignore[arg-type]
        yield Observation(f"view{suffix}", case, 1.0 / VIEW_SHARE, each_s)  # type: ignore[arg-type]


def _quantiles(values_s: np.ndarray) -> tuple[float, ...]:
    return tuple(np.quantile(values_s, np.linspace(0.1, 0.9, _CHUNKS)).tolist())
