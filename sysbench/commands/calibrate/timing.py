"""Times a call over and over until the device's clocks have settled."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from sysbench.commands.calibrate.record import RateName
from sysbench.lab.clocks import clock_for
from sysbench.log.events import DeviceInfo

SAMPLES = 7
"""Samples kept: the last ones, which have settled."""

SETTLED_SHARE = 0.02
"""Samples within this share of their median have settled."""

BLOCK_S = {"cuda": 0.005, "mps": 0.01, "cpu": 0.01}
"""Approximate length of a sample: far longer than reading a clock or waiting for a device."""

MOST_CALLS = 500
"""Most calls in one sample: CUDA's queue holds 1,024 launches, and the device must not run out of them."""


class Timed(NamedTuple):
    """A piece of work and its samples."""

    rate: RateName
    case: str
    counts: bool
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

        On CUDA this is the device's time, without launches; elsewhere the host's.
        """
        clock = clock_for(self.device, without_launches=True)
        call()  # the first call loads libraries and chooses kernels

        def sample(calls: int) -> float:
            def block() -> None:
                for _ in range(calls):
                    call()

            step = clock.measure([("work", block)], "phase").step
            return float(step.device_s if step.device_s is not None else step.wall_s or 0.0) / calls

        until_s = time.perf_counter() + share * self.budget_s
        one_s = max(min(sample(1), sample(1)), 1e-9)
        calls = max(1, min(MOST_CALLS, round(BLOCK_S[self.device.type] / one_s)))
        taken_s: list[float] = []
        while not _settled(taken_s) and (len(taken_s) < 2 or time.perf_counter() < until_s):
            taken_s.append(sample(calls))
        return taken_s[-SAMPLES:]


def _settled(samples_s: Sequence[float]) -> bool:
    last = sorted(samples_s[-SAMPLES:])
    return len(last) == SAMPLES and last[-1] - last[0] <= SETTLED_SHARE * last[SAMPLES // 2]
