"""Measures the fixed cost of a kernel, with kernels that do next to nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch.profiler import ProfilerActivity, profile

from sysbench.commands.calibrate.spec import CalibrateCell
from sysbench.commands.calibrate.timing import Bench, Timed
from sysbench.lab.devices import synchronize

KERNELS = 200
"""Kernels launched in a row: few enough for a queue of 1,024."""

REPEATS = 7


def launch(cell: CalibrateCell, bench: Bench) -> Iterator[Timed]:
    """Time a kernel, the gap to the next and the host's launch on CUDA; elsewhere whatever can be told apart."""
    one = torch.zeros(1, device=bench.device)
    steps = [torch.zeros(()) for _ in range(KERNELS)]
    yield Timed("scalar", "adding 1 to a number", True, KERNELS, _host_s(bench, lambda: torch._foreach_add_(steps, 1)))
    if bench.device.type == "cpu":
        return
    here = torch.zeros(1)
    waiting_s = _host_s(bench, lambda: synchronize(bench.device))
    yield Timed("synchronize", "waiting for an idle device", True, 1, waiting_s)
    # An operator costs the host the same on any device; what is left is its launch.
    issued_s = _host_s(bench, lambda: [one.add_(1) for _ in range(KERNELS)])
    without_s = min(_host_s(bench, lambda: [here.add_(1) for _ in range(KERNELS)]))
    launches_s = [max(each - without_s, 1e-9 * KERNELS) for each in issued_s]
    yield Timed("launch", f"{KERNELS} × add to one element", True, KERNELS, launches_s)
    if bench.device.type == "cuda":
        kernels_s = _kernels_s(lambda: [one.add_(1) for _ in range(KERNELS)])
        if kernels_s:
            yield Timed("kernel_s", "add to one element", True, 1, kernels_s)
            both_s = bench.seconds(lambda: one.add_(1), 0.3)
            gaps_s = [max(each - min(kernels_s), 1e-9) for each in both_s]
            yield Timed("gap_s", "between adds to one element", True, 1, gaps_s)


def _host_s(bench: Bench, call: Callable[[], object]) -> list[float]:
    """Measure the seconds until a call returns, each time from an idle device."""
    taken_s = []
    for _ in range(REPEATS + 1):
        synchronize(bench.device)
        began_s = time.perf_counter()
        call()
        taken_s.append(time.perf_counter() - began_s)
    synchronize(bench.device)
    return taken_s[1:]


def _kernels_s(call: Callable[[], object]) -> list[float]:
    """Return the profiler's durations of the last kernels that a call launches, in seconds."""
    call()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        call()
        torch.cuda.synchronize()
    events = [event for event in profiled.events() or () if str(event.device_type).endswith("CUDA")]
    return [event.time_range.elapsed_us() / 1e6 for event in events][-REPEATS:]
