"""Ceilings of this machine: the highest measured rates of a matrix product, and of an all-reduce between ranks."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from sysbench.lab.clocks import Clock, clock_for
from sysbench.lab.devices import PREEMPTIONS_PER_S, preemptions, torch_device, using_threads
from sysbench.lab.memory import allocator
from sysbench.lab.precision import compute_dtype, matmul_precision
from sysbench.lab.strategies import max_over_ranks
from sysbench.log.events import CeilingMeasured, DeviceInfo
from sysbench.spec.steps import Precision

BUDGET_S = 0.25
SMALLEST_SIZE = 256
LARGEST_SIZE = 16_384
REPEATS = 5

ALL_REDUCE_BUDGET_S = 0.5
SMALLEST_MESSAGE_BYTES = 1024**2
LARGEST_MESSAGE_BYTES = 1024**3
ALL_REDUCE_REPEATS = 3


def measure(
    device: DeviceInfo,
    precision: Precision,
    threads: int | None = None,
    *,
    budget_s: float = BUDGET_S,
    clock: Clock | None = None,
) -> CeilingMeasured:
    """Measure the best rate of (n, n) × (n, n) products, doubling n while the next size fits within `budget_s` seconds.

    A ceiling is the attainable rate, not the typical one: the fastest product counts, after one warm-up for each size.
    The warm-up counts as if it took as long, because the very first product also loads the library. The ceiling is
    disturbed if the fastest product lost its cores to other processes.
    """
    target = torch_device(device)
    stopwatch = clock or clock_for(target)
    best_flops_per_s, best_size, is_disturbed = 0.0, SMALLEST_SIZE, False
    size, left_s, next_s = SMALLEST_SIZE, budget_s, 0.0
    with matmul_precision(precision), using_threads(threads):
        while size <= LARGEST_SIZE and next_s <= left_s:
            products = _products(size, compute_dtype(precision), target, stopwatch, left_s)
            fastest_s, preempted = min(products)
            if (flops_per_s := 2 * size**3 / fastest_s) >= best_flops_per_s:
                best_flops_per_s, best_size = flops_per_s, size
                allowed = 1 + PREEMPTIONS_PER_S * torch.get_num_threads() * fastest_s
                is_disturbed = target.type == "cpu" and preempted > allowed
            left_s -= sum(seconds for seconds, _ in products) + fastest_s
            size, next_s = 2 * size, 2 * 8 * fastest_s
    allocator.release(target)
    return CeilingMeasured(
        at_s=time.time(),
        device=device.torch_name,
        precision=precision,
        threads=threads,
        matmul_flops_per_s=best_flops_per_s,
        matmul_size=best_size,
        disturbed=is_disturbed,
    )


def _products(
    size: int, dtype: torch.dtype, device: torch.device, clock: Clock, budget_s: float
) -> list[tuple[float, int]]:
    """Time products of one size: at least one, and up to `REPEATS` within `budget_s`."""
    left, right = torch.rand((2, size, size), device=device).sub_(0.5).to(dtype)
    product = torch.empty_like(left)

    def timed() -> tuple[float, int]:
        before = preemptions()
        seconds = clock.measure([("product", lambda: torch.mm(left, right, out=product))], "phase").wall_s
        return seconds, preemptions() - before

    timed()
    products = [timed()]
    while len(products) < REPEATS and sum(seconds for seconds, _ in products) + products[-1][0] <= budget_s:
        products.append(timed())
    return products


def fastest_all_reduce(device: torch.device, clock: Clock | None = None) -> tuple[int, float]:
    """Return the message size (bytes) and the bandwidth (bytes/s) of the fastest all-reduce over all ranks.

    The bandwidth is busBW as nccl-tests defines it: message size / time × 2(n − 1)/n for n ranks. Every rank of the
    group must call this function. The slowest rank determines each time, so that all ranks choose the same next size.
    """
    clock, ranks = clock or clock_for(device), dist.get_world_size()
    dist.all_reduce(torch.zeros(1, device=device))  # the first call connects the ranks, which can take a second
    best, size_bytes, left_s, next_s = (0, 0.0), SMALLEST_MESSAGE_BYTES, ALL_REDUCE_BUDGET_S, 0.0
    while size_bytes <= LARGEST_MESSAGE_BYTES and next_s <= left_s:
        message = torch.zeros(size_bytes // 4, device=device)

        def reduce(message: torch.Tensor = message) -> float:
            max_over_ranks()
            return max_over_ranks(clock.measure([("all-reduce", lambda: dist.all_reduce(message))], "phase").wall_s)

        times_s = [reduce() for _ in range(1 + ALL_REDUCE_REPEATS)]
        fastest_s = min(times_s[1:])
        rate = size_bytes / fastest_s * 2 * (ranks - 1) / ranks
        best = max(best, (size_bytes, rate), key=lambda each: each[1])
        left_s -= sum(times_s)
        size_bytes, next_s = 2 * size_bytes, 2 * sum(times_s)
    return best
