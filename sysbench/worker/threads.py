"""How many CPU threads are worth using now: threads wait for each other if other processes use some of the cores."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean

import torch

from sysbench.engine.sensors.worker_tree import machine_s
from sysbench.lab.devices import disturbed, preemptions, using_threads
from sysbench.log.events import ThreadsProbed

BUDGET_S = 0.5
"""Time for all trials. A trial of two numbers takes half of what is left."""

QUIET_S = 0.1

MIN_ROUNDS = 3

CLEARLY_FASTER_SHARE = 0.8
"""Fewer threads are chosen if they need less than this share of the time of more threads."""

ABOUT_AS_FAST_SHARE = 1.25
"""The limit instead, if more threads need cores that other processes use: contention comes and goes within seconds."""

SPARE_CORES = 0.5
"""Other processes may use this part of a core, on average, without taking one from the threads."""

ROWS_PER_THREAD = 128
WIDTH = 512


@dataclass(frozen=True)
class Instruments:
    """What the choice is based on."""

    seconds: Callable[[int], float]
    """Runs the same work once on this many threads, and returns its duration in seconds."""
    preemptions: Callable[[], int]
    """Counts how often threads of this process have been preempted."""
    foreign_s: Callable[[], float]
    """CPU time that other processes have used, in seconds."""
    clock: Callable[[], float] = time.perf_counter
    cores: int = field(default_factory=lambda: os.cpu_count() or 1)


def probe() -> ThreadsProbed:
    """Choose the number of CPU threads by timing small products and activations, as in a training step."""
    default = torch.get_num_threads()
    inputs, weight = torch.rand(ROWS_PER_THREAD * default, WIDTH), torch.rand(WIDTH, WIDTH)

    def seconds(threads: int) -> float:
        with using_threads(threads):
            started_s = time.perf_counter()
            for _ in range(3):
                torch.nn.functional.gelu(inputs @ weight).sum()
            return time.perf_counter() - started_s

    return choose(default, Instruments(seconds, preemptions, lambda: machine_s()[0] - time.process_time()))


def choose(default: int, instruments: Instruments) -> ThreadsProbed:
    """Halve the number of threads as long as something disturbs them and fewer are faster.

    An undisturbed machine keeps all threads, even if the work is too small to profit from them. The mean time counts,
    because contention comes and goes.
    """
    means_s: dict[int, float] = {}
    chosen, left_s = default, BUDGET_S
    while chosen > 1:
        trial = _compare(chosen, chosen // 2, left_s / 2, instruments)
        left_s -= trial.took_s
        means_s |= {chosen: trial.more_s, chosen // 2: trial.fewer_s}
        is_crowded = chosen + trial.foreign_cores > instruments.cores + SPARE_CORES
        limit_share = ABOUT_AS_FAST_SHARE if is_crowded else CLEARLY_FASTER_SHARE
        if not trial.is_disturbed or trial.fewer_s >= limit_share * trial.more_s:
            break
        chosen //= 2
    return ThreadsProbed(
        at_s=time.time(), default=default, threads=chosen, mean_s=list(means_s.items()) or [(default, 0.0)]
    )


@dataclass(frozen=True)
class _Trial:
    more_s: float
    fewer_s: float
    is_disturbed: bool
    foreign_cores: float
    took_s: float


def _compare(more: int, fewer: int, budget_s: float, instruments: Instruments) -> _Trial:
    """Run the work on either number of threads in turn, until the time is up or the machine has proved quiet."""
    seconds, clock = instruments.seconds, instruments.clock
    seconds(more), seconds(fewer)  # the first use of a number of threads creates them
    began_s, preempted, foreign_s = clock(), instruments.preemptions(), instruments.foreign_s()
    more_s: list[float] = []
    fewer_s: list[float] = []
    while True:
        more_s.append(seconds(more))
        fewer_s.append(seconds(fewer))
        took_s = clock() - began_s
        is_disturbed = disturbed(more_s, instruments.preemptions() - preempted, more)
        if len(more_s) >= MIN_ROUNDS and took_s > (budget_s if is_disturbed else QUIET_S):
            foreign_cores = (instruments.foreign_s() - foreign_s) / took_s
            return _Trial(fmean(more_s), fmean(fewer_s), is_disturbed, foreign_cores, took_s)
