"""The state of a timing run, folded from its events, and an estimate of the remaining time.

The estimate is based on the durations of cells and steps so far.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import eq
from typing import Self

from sysbench import cells as axes
from sysbench import formulas
from sysbench.commands.time.spec import TimeCell
from sysbench.log.events import CellFinished, ModelBuilt, OfRank, StepMeasured
from sysbench.log.predictions import PredictedTime, StepPredicted
from sysbench.render.dashboard import run_state
from sysbench.render.dashboard.canvas import memoized
from sysbench.render.dashboard.run_state import CellState, RunState, cell_handler, mean_and_deviation


@dataclass(frozen=True)
class Step:
    """One step: its phases and their sum in seconds."""

    index: int
    warmup: bool
    phases: tuple[tuple[str, float], ...]
    total_s: float


@dataclass(frozen=True)
class TimedCell(CellState):
    """The state of one cell."""

    cell: TimeCell
    parameters: int | None = None
    steps: tuple[Step, ...] = ()
    predicted: PredictedTime | None = None
    """Predicted step of a cell for a simulated GPU."""
    phases: tuple[tuple[str, float, float], ...] = ()
    """Name, mean and standard deviation in seconds of every phase of the finished cell, then of `step`."""

    def final_state(self) -> Self:
        """Return the finished cell without its individual steps."""
        return replace(self, steps=())

    @property
    def measured(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if not step.warmup)

    @property
    def step(self) -> tuple[float, float] | None:
        """Mean and standard deviation of the finished cell's step time; None if nothing was measured."""
        return next(((mean, deviation) for name, mean, deviation in self.phases if name == "step"), None)

    @property
    def step_count(self) -> int:
        return self.cell.warmup + self.cell.steps

    @cached_property
    def step_flops(self) -> int:
        """FLOPs of one step; for a custom model, whose FLOPs are unknown, its number of tokens instead."""
        return formulas.step_flops_of(self.cell) or self.cell.grad_accum * self.cell.tokens


LiveState = RunState[TimedCell]
"""State of a timing run at one moment."""


def phase_means(steps: Iterable[Step]) -> tuple[tuple[str, float, float], ...]:
    """Return name, mean and standard deviation (seconds) of every phase of these steps, then of the whole step."""
    by_phase: dict[str, list[float]] = {}
    totals: list[float] = []
    for step in steps:
        totals.append(step.total_s)
        for name, seconds in step.phases:
            by_phase.setdefault(name, []).append(seconds)
    if not totals:
        return ()
    return tuple((name, *mean_and_deviation(values)) for name, values in (*by_phase.items(), ("step", totals)))


def _step_measured(cell: TimedCell, event: StepMeasured) -> TimedCell:
    """Add a step; phases use the host's clock, or the device's clock if the host did not wait for them."""
    if event.step.wall_s is None:
        return cell
    phases = tuple(
        (name, seconds)
        for name, sample in event.phases.items()
        if (seconds := sample.wall_s if sample.wall_s is not None else sample.device_s) is not None
    )
    step = Step(event.index, event.warmup, phases, event.step.wall_s)
    if cell.cell.ranks > 1:
        # Ranks begin each step together, so that no rank is more than one step ahead.
        for position in range(max(len(cell.steps) - 2, 0), len(cell.steps)):
            if ((other := cell.steps[position]).index, other.warmup) == (step.index, step.warmup):
                slowest = max(other, step, key=lambda each: each.total_s)
                return replace(cell, steps=(*cell.steps[:position], slowest, *cell.steps[position + 1 :]))
    return replace(cell, steps=(*cell.steps, step))


def _cell_finished(cell: TimedCell, event: CellFinished) -> TimedCell:
    return replace(run_state.finished(cell, event), phases=phase_means(cell.measured))


_HANDLERS = run_state.handlers(
    LiveState,
    TimedCell,
    {
        ModelBuilt: cell_handler(lambda cell, event: replace(cell, parameters=event.parameters)),
        StepMeasured: cell_handler(_step_measured),
        OfRank: cell_handler(
            lambda cell, event: _step_measured(cell, event.said) if isinstance(event.said, StepMeasured) else cell
        ),
        StepPredicted: cell_handler(lambda cell, event: replace(cell, predicted=event.step)),
        CellFinished: cell_handler(_cell_finished),
    },
)

advance = partial(run_state.advance, _HANDLERS)
"""Return the state after another event; the state is unchanged if the event affects nothing on screen."""


# --- forecast

RECENT_STEPS = 10
"""Number of recent steps from which the duration of the next one is predicted."""

MAX_REFERENCE_CELLS = 20
"""Number of recently finished cells with which a waiting cell is compared."""

_SPEED_ROLES = ("device", "scale", "work", "choice")
"""Roles of axes that affect the speed in FLOP/s; so does the size of the model."""

_MEDIAN_CI_WIDTH = 2 * 1.96 * math.sqrt(math.pi / 2)
"""Width of the 95 % CI of the median of normal samples, in units of std / sqrt(number of samples)."""


def expected_steps(current: TimedCell) -> int:
    """Return how many steps the cell will measure; with `--until`, an estimate from the spread of the steps so far."""
    cell, measured = current.cell, current.measured
    if cell.until is None or len(measured) < 3:
        return cell.steps
    mean_s, deviation_s = mean_and_deviation([step.total_s for step in measured])
    needed = math.ceil((_MEDIAN_CI_WIDTH * deviation_s / (mean_s * cell.until)) ** 2)
    return min(cell.max_steps, max(cell.steps, needed, len(measured) + 1))


def cell_remaining_s(current: TimedCell) -> float | None:
    """Return the remaining seconds of the cell; None before its first step."""
    if current.outcome is not None:
        return 0.0
    if not current.steps:
        return None
    warmup_steps = len(current.steps) - len(current.measured)
    steps_left = max(0, current.cell.warmup - warmup_steps) * (not current.measured)
    steps_left += expected_steps(current) - len(current.measured)
    return steps_left * _step_s(current)


def run_remaining_s(state: LiveState) -> float | None:
    """Return the remaining seconds of the run; None before the first step.

    A waiting cell's step times are predicted from its FLOPs and the speed of the most similar finished cell, and its
    time outside steps from the average over finished cells. Until a cell has finished, the speed of the current cell is
    used.
    """
    now = state.current_cell
    left_s = cell_remaining_s(now) if now else 0.0
    if left_s is None:
        return None
    if any(each.step for each in state.ended.values()):
        return left_s + _waiting_s(state.planned, state.ended, state.running)
    waiting_flops = _waiting_flops(state.planned, state.ended, state.running)
    if not waiting_flops or now is None:
        return None if waiting_flops else left_s
    return left_s + waiting_flops * _step_s(now) / now.step_flops


def _step_s(current: TimedCell) -> float:
    """Return the median time of recent steps."""
    recent = current.steps[1:][-RECENT_STEPS:] or current.steps
    return statistics.median(step.total_s for step in recent)


Cells = Mapping[str, TimedCell]


@memoized
def _waiting_flops(planned: Cells, ended: Cells, running: str) -> int:
    return sum(each.step_count * each.step_flops for each in _waiting(planned, ended, running))


@memoized
def _waiting_s(planned: Cells, ended: Cells, running: str) -> float:
    timed = [(each, each.step[0]) for each in ended.values() if each.step]
    references = [(each, step_s / each.step_flops) for each, step_s in timed][-MAX_REFERENCE_CELLS:]
    overheads_s = [max(0.0, each.took_s - each.step_count * step_s) for each, step_s in timed]
    waiting = _waiting(planned, ended, running)
    paces = _Paces(references)
    steps_s = (each.step_count * each.step_flops * paces.seconds_per_flop(each.cell) for each in waiting)
    return math.fsum(steps_s) + len(waiting) * statistics.fmean(overheads_s or [0.0])


def _waiting(planned: Cells, ended: Cells, running: str) -> list[TimedCell]:
    return [each for key, each in planned.items() if key not in ended and key != running]


class _Paces:
    def __init__(self, references: Sequence[tuple[TimedCell, float]]) -> None:
        self._axes = [name for name, axis in axes.AXES.items() if name == "size" or axis.role in _SPEED_ROLES]
        self._references = [(self._values(timed.cell), pace) for timed, pace in references]
        self._known: dict[tuple[object, ...], float] = {}

    def seconds_per_flop(self, waiting: TimeCell) -> float:
        """Return the pace of the finished cell with the most values in common; of several, the latest one."""
        values = self._values(waiting)
        if values not in self._known:
            _, self._known[values] = max(
                reversed(self._references), key=lambda reference: sum(map(eq, reference[0], values))
            )
        return self._known[values]

    def _values(self, cell: TimeCell) -> tuple[object, ...]:
        return tuple([cell.axis_value(name) for name in self._axes])
