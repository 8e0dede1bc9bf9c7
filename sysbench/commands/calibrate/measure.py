"""Measurement of rates: each piece of work is timed repeatedly, until the device's clocks have settled.

Each cell is one part of a calibration. Matrix products and fused attention give FLOP/s by precision. Elementwise
kernels, reductions, broadcasts and transposing copies give the speed of moving data. Kernels that do almost nothing
give the fixed cost of a kernel. The host's time per operator is derived from the time that twelve more layers add to a
step of a narrow model: such a model hardly uses the device, and the fixed cost of a step cancels out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.profiler import ProfilerActivity, profile

from sysbench.commands.calibrate.record import RateName, RatesKnown, WorkTimed
from sysbench.commands.calibrate.spec import CalibrateCell, Part
from sysbench.errors import UsageError
from sysbench.interpreter import gc_paused
from sysbench.lab.clocks import clock_for, until_hidden
from sysbench.lab.devices import synchronize, torch_device
from sysbench.lab.memory import allocator
from sysbench.lab.precision import compute_dtype, matmul_precision
from sysbench.lab.step import TrainingStep
from sysbench.log.events import DeviceInfo, Event, StageEntered
from sysbench.predict.kernels import LARGEST_REUSED_BYTES
from sysbench.predict.trace import HOST_WORK, PhaseTrace
from sysbench.predict.tracing import trace
from sysbench.simulate.gpu import Gpu
from sysbench.spec import hardware
from sysbench.spec.cell import DeviceType
from sysbench.spec.grid import ModelShape
from sysbench.spec.knobs import has_fp8
from sysbench.spec.model import ModelCell
from sysbench.spec.steps import Phase, Precision

SAMPLES = 7
"""Number of samples kept: the last ones, which have settled."""

SETTLED_SHARE = 0.02
"""Samples within this share of their median have settled."""

BLOCK_S = {"cuda": 0.005, "mps": 0.01, "cpu": 0.01}
"""Approximate length of a sample: far longer than reading a clock or waiting for a device."""

MAX_CALLS = 500
"""Maximum number of calls in a sample: beyond CUDA's queue of 1,024 launches, the device might wait for the host."""


class Timed(NamedTuple):
    """A timed piece of work, and its samples."""

    rate: RateName
    case: str
    work: float
    samples_s: list[float]


@dataclass(frozen=True)
class Bench:
    """A device, and the time budget for all measurements on it."""

    info: DeviceInfo
    device: torch.device
    budget_s: float

    def seconds(self, call: Callable[[], object], share: float) -> list[float]:
        """Time a call until its samples settle or `share` of the budget is used up; return the last samples in seconds.

        `share` is a fraction. On CUDA, a sample is device time without launches; elsewhere, it is host time.
        """
        clock = clock_for(self.device, without_launches=True)
        call()  # the first call loads libraries and chooses kernels

        def sample(calls: int) -> float:
            def run_calls() -> None:
                for _ in range(calls):
                    call()

            step = until_hidden(lambda: clock.measure([("work", run_calls)], "phase").step)
            return float(step.device_s if step.device_s is not None else step.wall_s or 0.0) / calls

        until_s = time.perf_counter() + share * self.budget_s
        one_s = max(min(sample(1), sample(1)), 1e-9)
        calls = max(1, min(MAX_CALLS, round(BLOCK_S[self.device.type] / one_s)))
        taken_s: list[float] = []
        while not _have_settled(taken_s) and (len(taken_s) < 2 or time.perf_counter() < until_s):
            taken_s.append(sample(calls))
        return taken_s[-SAMPLES:]


def _have_settled(samples_s: Sequence[float]) -> bool:
    last = sorted(samples_s[-SAMPLES:])
    return len(last) == SAMPLES and last[-1] - last[0] <= SETTLED_SHARE * last[SAMPLES // 2]


SIDES: Mapping[DeviceType, int] = {"cuda": 9216, "mps": 4096, "cpu": 2048}
"""Sides of square fp32 tensors. Three of them take 1 GB on a GPU, far more than its L2. On a CPU, where a model's
tensors are about as large as the caches, each takes 16 MiB."""

MEMORY_SHARE = 1 / 8
"""Fraction of the device's memory that all tensors together may occupy."""

ITEM_BYTES = 4


def memory(cell: CalibrateCell, bench: Bench) -> Iterator[Timed]:
    """Time kernels that move data. Each call allocates its result, as in a model.

    On a CPU, allocating a result costs as much as filling it.
    """
    side = SIDES[bench.info.type]
    while bench.info.memory_bytes and 4 * ITEM_BYTES * side * side > MEMORY_SHARE * bench.info.memory_bytes:
        side //= 2
    one, other = (torch.rand(side, side, device=bench.device) for _ in range(2))
    row = torch.rand(side, device=bench.device)
    elements, shape = float(side * side), f"{side} × {side}"
    cases: tuple[tuple[RateName, str, float, Callable[[], object]], ...] = (
        ("stream", f"add {shape}", 3 * ITEM_BYTES * elements, lambda: torch.add(one, other)),
        ("stream", f"copy {shape}", 2 * ITEM_BYTES * elements, lambda: one.clone()),
        ("reduce", f"sum of rows {shape}", ITEM_BYTES * elements, lambda: one.sum(-1)),
        ("reduce", f"softmax of rows {shape}", 2 * ITEM_BYTES * elements, lambda: one.softmax(-1)),
        ("indexed", f"times a row {shape}", elements, lambda: one * row),
        ("transpose", f"transposing copy {shape}", elements, lambda: one.t().contiguous()),
    )
    for rate, case, work, call in cases:
        yield Timed(rate, case, work, bench.seconds(call, 1 / len(cases)))
    if bench.device.type == "cpu":
        size_bytes = 2 * LARGEST_REUSED_BYTES
        new = bench.seconds(lambda: torch.empty(size_bytes, dtype=torch.uint8).zero_(), 1 / len(cases))
        yield Timed("new_memory", f"first write to {size_bytes // 1024**2} MiB", size_bytes, new)


KERNELS = 200
"""Number of kernels launched in a row, few enough for a queue of 1,024."""

REPEATS = 7


def launch(cell: CalibrateCell, bench: Bench) -> Iterator[Timed]:
    """Time the fixed costs of a kernel: its run time, the gap to the next kernel, and the host time to launch it.

    The run time and the gap are measured on CUDA only. On a CPU, only the rate `scalar` is measured.
    """
    one = torch.zeros(1, device=bench.device)
    steps = [torch.zeros(()) for _ in range(KERNELS)]
    yield Timed("scalar", "adding 1 to a number", KERNELS, _host_s(bench, lambda: torch._foreach_add_(steps, 1)))
    if bench.device.type == "cpu":
        return
    on_cpu = torch.zeros(1)
    waiting_s = _host_s(bench, lambda: synchronize(bench.device))
    yield Timed("synchronize", "waiting for an idle device", 1, waiting_s)
    # An operator takes the host equally long on any device; the remaining time is that of its launch.
    issued_s = _host_s(bench, lambda: [one.add_(1) for _ in range(KERNELS)])
    operators_s = min(_host_s(bench, lambda: [on_cpu.add_(1) for _ in range(KERNELS)]))
    launches_s = [max(each - operators_s, 1e-9 * KERNELS) for each in issued_s]
    yield Timed("launch", f"{KERNELS} × add to one element", KERNELS, launches_s)
    if bench.device.type == "cuda":
        kernels_s = _kernels_s(lambda: [one.add_(1) for _ in range(KERNELS)])
        if kernels_s:
            yield Timed("kernel_s", "add to one element", 1, kernels_s)
            with_gaps_s = bench.seconds(lambda: one.add_(1), 0.3)
            gaps_s = [max(gap_s - min(kernels_s), 1e-9) for gap_s in with_gaps_s]
            yield Timed("gap_s", "between adds to one element", 1, gaps_s)


def _host_s(bench: Bench, call: Callable[[], object]) -> list[float]:
    """Time a call on the host several times, each time starting with an idle device; return the seconds."""
    taken_s = []
    for _ in range(REPEATS + 1):
        synchronize(bench.device)
        began_s = time.perf_counter()
        call()
        taken_s.append(time.perf_counter() - began_s)
    synchronize(bench.device)
    return taken_s[1:]


def _kernels_s(call: Callable[[], object]) -> list[float]:
    call()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        call()
        torch.cuda.synchronize()
    events = [event for event in profiled.events() or () if str(event.device_type).endswith("CUDA")]
    return [event.time_range.elapsed_us() / 1e6 for event in events][-REPEATS:]


PRECISIONS: Mapping[DeviceType, tuple[Precision, ...]] = {
    "cuda": ("fp32", "tf32", "bf16", "fp16"),
    "mps": ("fp32", "bf16", "fp16"),
    "cpu": ("fp32", "bf16"),
}

TENSOR_CORES_FOR_TF32_AND_BF16 = (8, 0)
"""First compute capability with tensor cores for tf32 and bf16."""

RATE_OF: Mapping[Precision, RateName] = {
    "fp32": "matmul_fp32",
    "tf32": "matmul_tf32",
    "bf16": "matmul_half",
    "fp16": "matmul_half",
}

LAYOUTS: Mapping[str, Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]] = {
    "TN": lambda left, right: (left, right.t()),
    "NN": lambda left, right: (left, right),
    "NT": lambda left, right: (left.t(), right),
}
"""cuBLAS's names of layouts, weights first: TN for a linear layer's forward, NN for the gradient of its input, NT for
the gradient of its weights. The operands are square, so that any of them can be transposed."""

SIZES: Mapping[DeviceType, int] = {"cuda": 4096, "mps": 2048, "cpu": 1024}
"""Side of a large product, which keeps the device busy for milliseconds."""


def available(device: DeviceInfo) -> tuple[Precision, ...]:
    """Return the precisions to measure on a device. NVIDIA GPUs before Ampere have no tf32, and only emulate bf16."""
    found = PRECISIONS[device.type]
    if device.type == "cuda":
        major, _, minor = (device.compute_capability or "8.0").partition(".")
        if (int(major), int(minor)) < TENSOR_CORES_FOR_TF32_AND_BF16:
            return tuple(each for each in found if each in ("fp32", "fp16"))
    return found


def matmul(cell: CalibrateCell, bench: Bench) -> Iterator[Timed]:
    """Time large matrix products in three layouts."""
    precisions = cell.precisions or available(bench.info)
    generator = torch.Generator().manual_seed(cell.seed)
    size = SIZES[bench.info.type]
    share = 1 / (len(precisions) * len(LAYOUTS))
    for precision in precisions:
        rate, dtype = RATE_OF[precision], compute_dtype(precision)

        def random(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.rand(shape, generator=generator).sub_(0.5).to(bench.device, dtype)

        with matmul_precision(precision):
            left, right = random(size, size), random(size, size)
            for name, arrange in LAYOUTS.items():
                operands = arrange(left, right)
                samples_s = bench.seconds(partial(torch.mm, *operands), share)
                yield Timed(rate, f"{precision} {name} {size} × {size} × {size}", 2.0 * size**3, samples_s)
        allocator.release(bench.device)
    if not cell.precisions and bench.device.type == "cuda" and has_fp8(torch.cuda.get_device_capability(bench.device)):
        yield _fp8(bench, size, share)


def _fp8(bench: Bench, size: int, share: float) -> Timed:
    """Time a large product in fp8, in the one layout that there is, with one scale for each operand."""
    left, right = (torch.ones(size, size, device=bench.device).to(torch.float8_e4m3fn) for _ in range(2))
    one = torch.ones((), device=bench.device)
    product = partial(torch._scaled_mm, left, right.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
    return Timed("matmul_fp8", f"fp8 TN {size} × {size} × {size}", 2.0 * size**3, bench.seconds(product, share))


ATTENTION: Mapping[DeviceType, tuple[int, int, int, int]] = {
    "cuda": (4, 16, 4096, 128),
    "mps": (2, 8, 1024, 128),
    "cpu": (1, 4, 1024, 128),
}
"""batch, heads, positions, width of a head."""


def attention(cell: CalibrateCell, bench: Bench) -> Iterator[Timed]:
    """Time the fused attention that PyTorch selects, forward and backward, for 16-bit inputs without a causal mask."""
    shape = ATTENTION[bench.info.type]
    batch, heads, ctx, width = shape
    dtype = torch.bfloat16 if "bf16" in available(bench.info) else torch.float16
    q, k, v = (torch.rand(shape, device=bench.device, dtype=dtype).requires_grad_() for _ in "qkv")
    gradient = torch.rand(shape, device=bench.device, dtype=dtype)
    output = scaled_dot_product_attention(q, k, v)

    def backward() -> None:
        torch.autograd.grad(output, (q, k, v), gradient, retain_graph=True)

    # Forward has two products; backward repeats the first one, and has two products for each of the two.
    forward_flops = 2 * 2.0 * batch * heads * ctx * ctx * width
    name = "bf16" if dtype == torch.bfloat16 else "fp16"
    case = f"{name} {batch} × {heads} × {ctx} × {width}"
    forward_s = bench.seconds(lambda: scaled_dot_product_attention(q, k, v), 0.4)
    yield Timed("attention_forward", case, forward_flops, forward_s)
    yield Timed("attention_backward", case, 2.5 * forward_flops, bench.seconds(backward, 0.6))


DEPTHS = (2, 14)

VIEW_SHARE = 0.2
"""Cost of a view relative to an operator: 1.6 of 8.0 µs forward, 1.3 of 6.5 µs backward on an Emerald Rapids Xeon."""

LAUNCH_S = 4.5e-6
"""Assumed host time of launching a kernel on CUDA, typically 4 to 5 µs."""

STEPS = 7
MIN_STEPS, MAX_STEPS = 9, 60

RATES: Mapping[Phase, tuple[RateName, RateName]] = {
    "forward": ("operator", "view"),
    "backward": ("operator_backward", "view_backward"),
}


def host(cell: CalibrateCell, bench: Bench) -> Iterator[Timed]:
    """Time operators and views on the thread that issues them, separately for forward and backward."""
    shallow, deep = (_narrow_model(layers, cell.seed, bench.device.type) for layers in DEPTHS)
    taken_s = [_phases_s(each, bench) for each in (shallow, deep)]
    gpu = Gpu("", 1 << 40, (8, 0))
    phases_of_depth = [{phase.name: phase for phase in trace(each, gpu)[0].phases} for each in (shallow, deep)]
    for phase, (operator, view) in RATES.items():
        operators, views = (
            _count(phases_of_depth[1][phase], work) - _count(phases_of_depth[0][phase], work)
            for work in ("operator", "view")
        )
        launched = len(phases_of_depth[1][phase].kernels) - len(phases_of_depth[0][phase].kernels)
        launching_s = launched * LAUNCH_S if bench.device.type == "cuda" else 0.0
        base_s = median(taken_s[0][phase])
        added_s = [max(each - base_s - launching_s, 1e-6) for each in taken_s[1][phase]]
        work_units = operators + VIEW_SHARE * views
        case = f"{operators} operators, {views} views in {DEPTHS[1] - DEPTHS[0]} layers"
        yield Timed(operator, f"{phase}: {case}", work_units, added_s)
        yield Timed(view, f"{phase}: {case}", work_units / VIEW_SHARE, added_s)


def _count(phase: PhaseTrace, work: str) -> int:
    return int((phase.host == HOST_WORK.index(work)).sum())


def _narrow_model(layers: int, seed: int, device: str) -> ModelCell:
    return ModelCell(
        size="narrow",
        model=ModelShape(d_model=32, d_ff=64, layers=layers, heads=2, vocab=64),
        ctx=8,
        batch=1,
        precision="fp32",
        device=device,
        attention="naive",
        execution="eager",
        optimizer="foreach",
        seed=seed,
        mode="forward-backward",
    )


def _phases_s(cell: ModelCell, bench: Bench) -> dict[str, list[float]]:
    step, clock = TrainingStep(cell, bench.device), clock_for(bench.device)
    until_s = time.perf_counter() + bench.budget_s / len(DEPTHS)
    taken_s: dict[str, list[float]] = {}
    for number in range(MAX_STEPS):
        if number >= MIN_STEPS and time.perf_counter() > until_s:
            break
        step.forget()
        for name, sample in clock.measure(step.phases, "phase").phases.items():
            seconds = sample.wall_s if sample.enqueue_s is None else sample.enqueue_s
            taken_s.setdefault(name, []).append(seconds or 0.0)
    return {name: each[-STEPS:] for name, each in taken_s.items()}


UPDATED_ELEMENTS = 1 << 24
"""Size of the parameter that the host updates: with gradient and moments 256 MiB, more than its caches hold."""

COPIED_BYTES = 1 << 28


def link(cell: CalibrateCell, bench: Bench) -> Iterator[Timed]:
    """Time AdamW on the host, and copies between pinned memory and the device; a device of its own has a link."""
    parameter = torch.zeros(UPDATED_ELEMENTS)
    parameter.grad = torch.full_like(parameter, 1e-3)
    updates_s = _host_s(bench, torch.optim.AdamW([parameter], fused=True).step)
    updated_bytes = 7.0 * ITEM_BYTES * UPDATED_ELEMENTS
    yield Timed("update", f"fused AdamW, {UPDATED_ELEMENTS:,} parameters", updated_bytes, updates_s)
    if bench.device.type != "cuda":
        return
    pinned = torch.zeros(COPIED_BYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.zeros(COPIED_BYTES, dtype=torch.uint8, device=bench.device)
    copies: tuple[tuple[RateName, Tensor, Tensor], ...] = (
        ("device_to_host", pinned, there),
        ("host_to_device", there, pinned),
    )
    for rate, to, source in copies:
        samples_s = bench.seconds(partial(to.copy_, source, non_blocking=True), 1 / 2)
        yield Timed(rate, f"{COPIED_BYTES >> 20} MiB {rate.replace('_', ' ')}", COPIED_BYTES, samples_s)


PARTS: Mapping[Part, Callable[[CalibrateCell, Bench], Iterator[Timed]]] = {
    "matmul": matmul,
    "attention": attention,
    "memory": memory,
    "launch": launch,
    "host": host,
    "link": link,
}


def run(cell: CalibrateCell, device: DeviceInfo, artifact: Path | None = None) -> Iterator[Event]:
    target = torch_device(device)
    yield StageEntered(at_s=time.time(), cell=cell.key, stage="measuring")
    slug = hardware.slug_of(device.name, device.memory_bytes)
    try:
        before = hardware.by_name(slug).rates
    except UsageError:
        before = {}
    yield RatesKnown(at_s=time.time(), cell=cell.key, slug=slug, rates=dict(before))
    try:
        with gc_paused(collect_first=True):
            for timed in PARTS[cell.part](cell, Bench(device, target, cell.budget_s)):
                yield WorkTimed(at_s=time.time(), cell=cell.key, **timed._asdict())
    finally:
        allocator.release(target)
