"""How many CPU threads are worth using now: threads wait for each other if other processes use some of the cores."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import torch

from sysbench.lab.devices import disturbed, preemptions, using_threads
from sysbench.log.events import ThreadsProbed

BUDGET_S = 0.5
"""Time for all trials. A trial of two numbers takes half of what is left."""

QUIET_S = 0.1

MIN_ROUNDS = 3

CLEARLY_FASTER_SHARE = 0.8
"""Fewer threads are chosen if they need less than this share of the time of more threads: a smaller difference may
come from the moment of the trial."""

ROWS_PER_THREAD = 128
WIDTH = 512


@dataclass(frozen=True)
class Instruments:
    """What the choice is based on."""

    seconds: Callable[[int], float]
    """Runs the same work once on this many threads, and returns its duration in seconds."""
    preemptions: Callable[[], int]
    """Counts how often threads of this process have been preempted."""
    clock: Callable[[], float] = time.perf_counter


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

    return choose(default, Instruments(seconds, preemptions))


def choose(default: int, instruments: Instruments) -> ThreadsProbed:
    """If something disturbs the threads, halve their number until they are clearly faster, and as long as they are.

    An undisturbed machine keeps all threads, even if the work is too small to profit from them. The mean time counts,
    because contention comes and goes.
    """
    means_s: dict[int, float] = {}
    chosen, fewer, left_s = default, default // 2, BUDGET_S
    while fewer >= 1:
        trial = _compare(chosen, fewer, left_s / 2, instruments)
        left_s -= trial.took_s
        means_s |= {chosen: trial.more_s, fewer: trial.fewer_s}
        is_faster = trial.fewer_s < CLEARLY_FASTER_SHARE * trial.more_s
        if not trial.is_disturbed or (chosen < default and not is_faster):
            break
        chosen = fewer if is_faster else chosen
        fewer //= 2
    return ThreadsProbed(
        at_s=time.time(), default=default, threads=chosen, mean_s=list(means_s.items()) or [(default, 0.0)]
    )


@dataclass(frozen=True)
class _Trial:
    more_s: float
    fewer_s: float
    is_disturbed: bool
    took_s: float


def _compare(more: int, fewer: int, budget_s: float, instruments: Instruments) -> _Trial:
    """Run the work on either number of threads in turn, until the time is up or the machine has proved quiet."""
    seconds, clock = instruments.seconds, instruments.clock
    seconds(more), seconds(fewer)  # the first use of a number of threads creates them
    began_s, preempted = clock(), instruments.preemptions()
    more_s: list[float] = []
    fewer_s: list[float] = []
    while True:
        more_s.append(seconds(more))
        fewer_s.append(seconds(fewer))
        took_s = clock() - began_s
        is_disturbed = disturbed(more_s, instruments.preemptions() - preempted, more)
        if len(more_s) >= MIN_ROUNDS and took_s > (budget_s if is_disturbed else QUIET_S):
            return _Trial(fmean(more_s), fmean(fewer_s), is_disturbed, took_s)
