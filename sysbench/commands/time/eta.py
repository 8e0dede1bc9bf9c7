"""How long a cell and a run will still take, from what they have taken so far."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from sysbench import formulas
from sysbench.commands.time.live_state import Current, Done, LiveState, Planned
from sysbench.render.dashboard.lines import remembered
from sysbench.render.dashboard.run_state import mean_and_deviation

RECENT = 10
"""As many of the last steps say how long the next one takes."""

MODELS = 20
"""As many of the last finished cells are asked what a waiting cell may be like."""

_DECISIVE = ("device", "precision", "execution", "attention", "mode", "size")
"""What decides how fast FLOPs are done; how many there are is known."""

_MEDIAN_WIDTH = 2 * 1.96 * math.sqrt(math.pi / 2)
"""Width of the 95 % interval of a normal sample's median, in standard deviations over the root of its size."""


def expected_steps(current: Current) -> int:
    """How many measured steps the cell will have: with `--until`, as many as its interval seems to need."""
    cell, measured = current.cell, current.measured
    if cell.until is None or len(measured) < 3:
        return cell.steps
    mean_s, deviation_s = mean_and_deviation([step.total_s for step in measured])
    needed = math.ceil((_MEDIAN_WIDTH * deviation_s / (mean_s * cell.until)) ** 2)
    return min(cell.max_steps, max(cell.steps, needed, len(measured) + 1))


def cell_left_s(current: Current) -> float | None:
    """Seconds until the cell is measured; None before its first step."""
    if current.outcome is not None:
        return 0.0
    if not current.steps:
        return None
    warmed_up = len(current.steps) - len(current.measured)
    left = max(0, current.cell.warmup - warmed_up) * (not current.measured)
    left += expected_steps(current) - len(current.measured)
    return left * _step_s(current)


def run_left_s(state: LiveState) -> float | None:
    """Seconds until every cell is measured; None before there is anything to go by.

    The steps of waiting cells are forecast by their FLOPs at the speed of the finished cell most like each, and what a
    cell costs beside its steps by the average. While no cell is finished, the current one's speed stands for all.
    """
    current = state.current
    left_s = cell_left_s(current) if current else 0.0
    if left_s is None:
        return None
    key = state.running
    if any(done.step for done in state.done):
        return left_s + _waiting_s(state.planned, state.done, key)
    waiting_flops = _waiting_flops(state.planned, state.done, key)
    if not waiting_flops or current is None:
        return None if waiting_flops else left_s
    return left_s + waiting_flops * _step_s(current) / formulas.step_flops_of(current.cell)


def _step_s(current: Current) -> float:
    """A typical recent step; the very first one is much slower, and typical only while it is alone."""
    recent = current.steps[1:][-RECENT:] or current.steps
    return statistics.median(step.total_s for step in recent)


def _waiting(planned: Iterable[Planned], done: Iterable[Done], current_key: str) -> list[Planned]:
    started = {each.key for each in done} | {current_key}
    return [each for each in planned if each.key not in started]


def _flops(planned: Planned) -> int:
    return _steps_of(planned) * planned.step_flops


@remembered
def _waiting_flops(planned: tuple[Planned, ...], done: tuple[Done, ...], current_key: str) -> int:
    return sum(_flops(each) for each in _waiting(planned, done, current_key))


@remembered
def _waiting_s(planned: tuple[Planned, ...], done: tuple[Done, ...], current_key: str) -> float:
    by_key = {each.key: each for each in planned}
    measured = [(by_key[each.key], each) for each in done if each.step and each.key in by_key]
    seen = [(cell, each.step[0] / cell.step_flops) for cell, each in measured if each.step]
    beside_s = [max(0.0, each.took_s - _steps_of(cell) * each.step[0]) for cell, each in measured if each.step]
    waiting = _waiting(planned, done, current_key)
    steps_s = (_flops(each) * _seconds_per_flop(each, seen[-MODELS:]) for each in waiting)
    return math.fsum(steps_s) + len(waiting) * statistics.fmean(beside_s or [0.0])


def _steps_of(planned: Planned) -> int:
    return planned.cell.warmup + planned.cell.steps


def _seconds_per_flop(planned: Planned, seen: Sequence[tuple[Planned, float]]) -> float:
    """That of the cell most like it: alike in what decides the speed, and of those alike the latest."""
    likeness = [_likeness(planned, other) for other, _ in seen]
    return seen[max(range(len(seen)), key=lambda position: (likeness[position], position))][1]


def _likeness(one: Planned, other: Planned) -> int:
    return sum(getattr(one.cell, axis) == getattr(other.cell, axis) for axis in _DECISIVE)
