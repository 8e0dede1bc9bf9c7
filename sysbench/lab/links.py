"""The highest bandwidth between the ranks of a cell, with which that of their collectives is compared."""

from __future__ import annotations

import torch
import torch.distributed as dist

from sysbench.lab.clocks import clock_for
from sysbench.lab.strategies import agreed

BUDGET_S = 0.5
SMALLEST_BYTES = 1024**2
LARGEST_BYTES = 1024**3
REPEATS = 3


def fastest_all_reduce(device: torch.device, budget_s: float = BUDGET_S) -> tuple[int, float]:
    """Return the message size in bytes and the bandwidth in bytes/s of the fastest all-reduce of all ranks.

    Messages double in size until they have taken `budget_s` seconds; each is reduced a few times after one that does
    not count. The bandwidth is busBW as nccl-tests defines it: message / time × 2(n-1)/n for n ranks. Every rank of the
    group must call this; a time is that of the slowest rank, so that all agree on the next size.
    """
    clock, ranks = clock_for(device), dist.get_world_size()
    best, size_bytes, left_s, next_s = (0, 0.0), SMALLEST_BYTES, budget_s, 0.0
    while size_bytes <= LARGEST_BYTES and next_s <= left_s:
        message = torch.zeros(size_bytes // 4, device=device)

        def reduce(message: torch.Tensor = message) -> float:
            agreed()
            return agreed(clock.measure({"all-reduce": lambda: dist.all_reduce(message)}, "phase").wall_s)

        times_s = [reduce() for _ in range(1 + REPEATS)]
        fastest_s = min(times_s[1:])
        rate = size_bytes / fastest_s * 2 * (ranks - 1) / ranks
        best = max(best, (size_bytes, rate), key=lambda each: each[1])
        left_s -= sum(times_s)
        size_bytes, next_s = 2 * size_bytes, 2 * sum(times_s)
    return best
