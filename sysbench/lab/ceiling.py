"""The highest rate of a matrix product on this device, with which the rate of a step is compared."""

from __future__ import annotations

import time

import torch

from sysbench.lab import allocator
from sysbench.lab.clocks import Clock, clock_for
from sysbench.lab.devices import computing_on, torch_device
from sysbench.lab.precision import compute_dtype, matmul_precision
from sysbench.log.events import CeilingMeasured, DeviceInfo
from sysbench.spec.model import Precision

BUDGET_S = 0.25
SMALLEST_SIZE = 256
LARGEST_SIZE = 16_384
REPEATS = 5


def measure(
    device: DeviceInfo,
    precision: Precision,
    threads: int | None = None,
    *,
    budget_s: float = BUDGET_S,
    clock: Clock | None = None,
) -> CeilingMeasured:
    """Measure the best rate of (n, n) × (n, n), over sizes that double until products have taken `budget_s` seconds.

    A ceiling is what can be reached, not what is usual: the fastest product counts, after one of each size to warm up.
    That warm-up counts towards the budget as much as the fastest product does: the very first one also loads the
    library, which is none of its business. The format is set explicitly, as it is for cells. `threads` is
    the number of CPU threads, None leaves it to torch.
    """
    target = torch_device(device)
    stopwatch = clock or clock_for(target)
    best_flops_per_s, best_size = 0.0, SMALLEST_SIZE
    size, left_s, next_s = SMALLEST_SIZE, budget_s, 0.0
    with matmul_precision(precision), computing_on(threads):
        while size <= LARGEST_SIZE and next_s <= left_s:
            times_s = _product_times_s(size, compute_dtype(precision), target, stopwatch, left_s)
            fastest_s = min(times_s)
            best_flops_per_s, best_size = max((best_flops_per_s, best_size), (2 * size**3 / fastest_s, size))
            left_s -= sum(times_s) + fastest_s
            size, next_s = 2 * size, 2 * 8 * fastest_s
    allocator.release(target)
    return CeilingMeasured(
        at_s=time.time(),
        device=device.torch_name,
        precision=precision,
        threads=threads,
        matmul_flops_per_s=best_flops_per_s,
        matmul_size=best_size,
    )


def _product_times_s(size: int, dtype: torch.dtype, device: torch.device, clock: Clock, budget_s: float) -> list[float]:
    """Return the durations in seconds of products of one size: at least one, and up to `REPEATS` within `budget_s`."""
    left, right = torch.rand((2, size, size), device=device).sub_(0.5).to(dtype)
    product = torch.empty_like(left)

    def seconds() -> float:
        return clock.measure({"product": lambda: torch.mm(left, right, out=product)}, "phase").wall_s

    seconds()
    times_s = [seconds()]
    while len(times_s) < REPEATS and sum(times_s) + times_s[-1] <= budget_s:
        times_s.append(seconds())
    return times_s
