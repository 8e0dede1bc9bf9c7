"""How many steps of a cell are worth their time: all that were asked for or, within a time limit, those that fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

from sysbench.commands.time.spec import Effort, TimeCell
from sysbench.log.events import Ending
from sysbench.statistics import has_enough_samples

LEAST_STEPS = 3
"""Another warm-up step is taken only if so many steps still fit after it."""

STEADY_SHARE = 0.95
"""A warm-up is over once a step takes at least this share of the one before."""

RECENT_STEPS = 3

UNCERTAINTY = 2.0
"""How many times as long as estimated a step may take, or the reverse."""


def exceeds_limit(cell: TimeCell, estimated_s: float, limit_s: float) -> bool:
    """Whether even one step, which is estimated to take this long, would clearly exceed the time limit."""
    return cell.may_cut("steps") and estimated_s > UNCERTAINTY * limit_s


class StepBudget:
    """Decides, after each step of a cell, whether another one is worth its time.

    Without a limit, all warm-up steps and steps are taken. Within a limit, at least one step is measured. While
    everything still fits, nothing is left out. Otherwise the warm-up ends as soon as steps are steady, or leave time
    for only LEAST_STEPS steps; then steps are measured as long as another one fits.
    """

    def __init__(self, cell: TimeCell, limit_s: float | None, elapsed_s: Callable[[], float]) -> None:
        """`elapsed_s` returns the seconds since the cell began; all ranks must get the same answer."""
        self.limit_s = limit_s
        self._cell, self._elapsed_s = cell, elapsed_s
        self.warmup_end: Ending = "complete"
        self.steps_end: Ending = "complete"

    @property
    def left_s(self) -> float:
        """Seconds until the limit; infinite without one."""
        return math.inf if self.limit_s is None else self.limit_s - self._elapsed_s()

    def _may_cut(self, effort: Effort) -> bool:
        return self.limit_s is not None and self._cell.may_cut(effort)

    def wants_warmup(self, warmup_s: Sequence[float]) -> bool:
        """Whether to take another warm-up step after these."""
        done = len(warmup_s)
        if done >= self._cell.warmup:
            return False
        if not self._may_cut("warmup") or not done:
            return True
        step_s, left_s = warmup_s[-1], self.left_s
        if (self._cell.warmup - done + self._cell.steps) * step_s <= left_s:
            return True
        is_steady = done > 1 and step_s >= STEADY_SHARE * warmup_s[-2]
        if not is_steady and (1 + LEAST_STEPS) * step_s <= left_s:
            return True
        self.warmup_end = "steady" if is_steady else "time"
        return False

    def is_last_step(self, warmup_s: Sequence[float]) -> bool:
        """Whether the last of these warm-up steps must serve as the measurement, because no other step fits."""
        cuts = self._may_cut("warmup") and self._may_cut("steps")
        if not (cuts and warmup_s and warmup_s[-1] > self.left_s):
            return False
        self.warmup_end = "time"
        return True

    def wants_step(self, steps_s: Sequence[float]) -> bool:
        """Whether to measure another step after these."""
        cell = self._cell
        if has_enough_samples(steps_s, cell.steps, cell.until, cell.max_steps):
            return False
        if not self._may_cut("steps") or not steps_s or median(steps_s[-RECENT_STEPS:]) <= self.left_s:
            return True
        self.steps_end = "time"
        return False
