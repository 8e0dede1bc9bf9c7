"""Progress of a timing run: what its dashboard adds to that of all commands, and an estimate of the remaining time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Self

from rich.console import Console
from rich.text import Text

from sysbench import formulas, units
from sysbench.commands.time.effort import exceeds_limit
from sysbench.commands.time.elsewhere import elsewhere_line
from sysbench.commands.time.spec import TimeCell
from sysbench.log.events import CellFinished, ModelBuilt, OfRank, PhaseEntered, StepEstimated, StepMeasured
from sysbench.log.predictions import PredictedElsewhere, PredictedTime, StepPredicted
from sysbench.render import theme
from sysbench.render.dashboard import run_state
from sysbench.render.dashboard.remaining import round_remaining, waiting_s
from sysbench.render.dashboard.run_state import CellState, RunState, cell_handler, mean_and_deviation
from sysbench.render.dashboard.screen import (
    LABEL_WIDTH,
    MODEL_AXES,
    CellScreen,
    Progress,
    clock_time,
    labelled,
    wrapped,
)
from sysbench.spec.quantities import time_limit_word

SLOW_RUN_S = 30.0

SLOW_STEP_S = 10.0
"""A first step this long shows that the run is slow, even though later steps will be faster."""

MIN_PHASE_SHARE = 0.01
"""Smallest share of a step at which a phase is shown."""

MIN_SPARKLINE_SPAN = 0.05
"""Smallest span of a sparkline as a share of its lowest value, so that noise does not look like an event."""


# --- the state


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
    step: tuple[float, float] | None = None
    """Mean and standard deviation of the finished cell's step time; None if nothing was measured."""
    estimated_s: float | None = None
    """Step time expected before the first step."""
    phase: str = ""
    """The phase of the running step, if the step is long."""
    last_step_at_s: float | None = None
    """When the last step ended."""

    def final_state(self) -> Self:
        """Return the finished cell without its individual steps."""
        return replace(self, steps=())

    @property
    def measured(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if not step.warmup)

    @property
    def completed(self) -> int:
        """Number of measured steps, with those of an earlier attempt that is continued."""
        return self.measured[-1].index + 1 if self.measured else 0

    @cached_property
    def step_flops(self) -> int:
        """FLOPs of a step; for a custom model, whose FLOPs are unknown, the number of tokens instead."""
        return formulas.step_flops_of(self.cell) or self.cell.grad_accum * self.cell.tokens

    @property
    def step_s(self) -> float | None:
        """Mean of the finished cell; before, the median of recent steps, or the expected time before the first."""
        recent = self.steps[1:][-RECENT_STEPS:] or self.steps
        if self.step is not None:
            return self.step[0]
        return statistics.median(step.total_s for step in recent) if recent else self.estimated_s

    @property
    def pace_s(self) -> float | None:
        return None if self.step_s is None or self.outcome not in (None, "ok") else self.step_s / self.step_flops

    @property
    def outside_s(self) -> float:
        return max(0.0, self.took_s - self.expected_s(self.pace_s or 0.0))

    def expected_s(self, pace_s: float) -> float:
        return (self.cell.warmup + self.cell.steps) * self.step_flops * pace_s


@dataclass(frozen=True)
class LiveState(RunState[TimedCell]):
    """State of a timing run at one moment."""

    elsewhere: PredictedElsewhere | None = None
    """What a step is predicted to take on a GPU, on a machine without one."""


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
    cell = replace(cell, phase="", last_step_at_s=event.at_s)
    if cell.cell.ranks > 1:
        # Ranks begin each step together, so that no rank is more than one step ahead.
        for position in range(max(len(cell.steps) - 2, 0), len(cell.steps)):
            if ((other := cell.steps[position]).index, other.warmup) == (step.index, step.warmup):
                slowest = max(other, step, key=lambda each: each.total_s)
                return replace(cell, steps=(*cell.steps[:position], slowest, *cell.steps[position + 1 :]))
    return replace(cell, steps=(*cell.steps, step))


def _cell_finished(cell: TimedCell, event: CellFinished) -> TimedCell:
    times_s = [step.total_s for step in cell.measured]
    return replace(run_state.finished(cell, event), step=mean_and_deviation(times_s) if times_s else None)


_HANDLERS = run_state.handlers(
    LiveState,
    TimedCell,
    {
        ModelBuilt: cell_handler(lambda cell, event: replace(cell, parameters=event.parameters)),
        StepMeasured: cell_handler(_step_measured),
        OfRank: cell_handler(
            lambda cell, event: _step_measured(cell, event.said) if isinstance(event.said, StepMeasured) else cell
        ),
        StepEstimated: cell_handler(
            lambda cell, event: replace(cell, estimated_s=event.step_s, limit_s=event.max_time_s)
        ),
        PhaseEntered: cell_handler(lambda cell, event: replace(cell, phase=event.phase)),
        PredictedElsewhere: lambda run, event: replace(run, elsewhere=event),
        StepPredicted: cell_handler(lambda cell, event: replace(cell, predicted=event.step)),
        CellFinished: cell_handler(_cell_finished),
    },
)

advance = partial(run_state.advance, _HANDLERS)
"""Return the state after another event; the state is unchanged if the event affects nothing on screen."""


# --- the remaining time

RECENT_STEPS = 10


_MEDIAN_CI_WIDTH = 2 * 1.96 * math.sqrt(math.pi / 2)
"""Width of the 95% CI of the median of normal samples, in units of std / sqrt(number of samples)."""


def expected_steps(current: TimedCell) -> int:
    """Return how many steps the cell will measure; with `--until`, an estimate from the spread of the steps so far."""
    cell, measured = current.cell, current.measured
    if cell.until is None or len(measured) < 3:
        return cell.steps
    mean_s, deviation_s = mean_and_deviation([step.total_s for step in measured])
    needed = math.ceil((_MEDIAN_CI_WIDTH * deviation_s / (mean_s * cell.until)) ** 2)
    return min(cell.max_steps, max(cell.steps, needed, len(measured) + 1))


def cell_remaining_s(current: TimedCell, now_s: float | None = None) -> float | None:
    """Return the remaining seconds of the cell at `now_s`, or at its last step; None if nothing is known of its steps.

    A time limit ends the cell earlier than the number of steps, but not within a step.
    """
    if current.outcome is not None:
        return 0.0
    step_s = current.step_s
    if step_s is None:
        return None
    warmup_steps = len(current.steps) - len(current.measured)
    steps_left = max(0, current.cell.warmup - warmup_steps) * (not current.measured)
    steps_left += expected_steps(current) - current.completed
    left_s = steps_left * step_s
    began_s = current.stage_since_s if current.last_step_at_s is None else current.last_step_at_s
    in_step_s = max(0.0, now_s - began_s) if now_s is not None else 0.0
    if current.limit_s is not None and current.started_s is not None:
        # Decided when the step began: another one is taken only if it fits.
        until_limit_s = max(0.0, current.limit_s - (began_s - current.started_s))
        left_s = min(left_s, max(1, until_limit_s // step_s) * step_s)
    return max(0.0, left_s - in_step_s)


def run_remaining_s(state: LiveState, now_s: float | None = None) -> float | None:
    """Return the remaining seconds of the run; None if nothing is known of its steps."""
    now_left_s = cell_remaining_s(state.current_cell, now_s) if state.current_cell else 0.0
    others_s = waiting_s(state)
    return None if now_left_s is None or others_s is None else now_left_s + others_s


def slow_without_gpu(state: LiveState, now_s: float) -> tuple[str, str] | None:
    """Return what a long run on a machine without a GPU takes, and its remedy; None for a short one.

    Known from the estimate, or from two steps, or from one very slow step. The notice disappears after the first cell,
    because the user has seen it by then.
    """
    now = state.current_cell
    without_gpu = bool(state.devices) and all(device.type == "cpu" for device in state.devices)
    if not without_gpu or state.host is None or now is None or now.outcome is not None or state.ended:
        return None
    if now.estimated_s is None and (not now.steps or (len(now.steps) == 1 and now.steps[0].total_s < SLOW_STEP_S)):
        return None
    left_s, step_s = run_remaining_s(state, now_s), now.step_s
    estimated_s = now_s - state.started_s + (left_s or 0.0)
    if left_s is None or step_s is None or estimated_s < SLOW_RUN_S:
        return None
    if not now.steps and now.limit_s is not None and exceeds_limit(now.cell, step_s, now.limit_s):
        return None  # the cell is about to be skipped, with the same remedy
    cores = state.host.physical_cores or state.host.logical_cores
    is_measured = bool(now.steps)
    step = units.seconds(step_s) if is_measured or step_s < 10 else units.duration(step_s)
    whole = f"this needs about {units.duration(round_remaining(estimated_s))}"
    remedy = f"{'--size tiny' if now.cell.size != 'tiny' else 'fewer --steps, or a shorter --ctx,'} for a quick look"
    full_s = (now.cell.warmup + now.cell.steps) * step_s
    if now.limit_s is not None and full_s > now.limit_s:
        whole = f"{whole} (--max-time {time_limit_word(now.limit_s)})"
        remedy += f", or --max-time none for all {now.cell.warmup} + {now.cell.steps} steps: {units.duration(full_s)}"
    beginning = "Timing" if state.elsewhere is not None else "No GPU here: timing"
    return (
        f"{beginning} on the CPU ({cores} core{'' if cores == 1 else 's'}). "
        f"A step takes {'' if is_measured else 'about '}{step}, so {whole}.",
        remedy,
    )


# --- the screen


class TimeScreen(CellScreen[TimedCell]):
    """The display of a timing run, with a chart of the steps so far."""

    state: LiveState
    initial = LiveState()
    advance = staticmethod(advance)

    @staticmethod
    def result(cell: TimedCell) -> str:
        """Return the result of a cell in a few words: `step 105.6 ± 0.2 ms`."""
        if cell.outcome == "ok" and cell.predicted:
            step = cell.predicted
            return f"PREDICTED step {units.seconds_with_interval(step.point_s, step.low_s, step.high_s)}"
        if cell.outcome == "ok" and cell.step:
            return f"step {units.seconds_with_deviation(*cell.step)}"
        return CellScreen.result(cell)

    @classmethod
    def labelled(cls, cell: TimedCell) -> tuple[str, ...]:
        return (*MODEL_AXES, *(["simulate"] if cell.cell.simulate else []))

    def cell_remaining_s(self) -> float | None:
        now = self.state.current_cell
        return cell_remaining_s(now, self.now_s) if now and now.stage not in (None, "building", "compiling") else None

    def remaining_s(self) -> float | None:
        return run_remaining_s(self.state, self.now_s)

    def notice(self) -> tuple[str, str] | None:
        return slow_without_gpu(self.state, self.now_s)

    def notice_lines(self, console: Console, width: int) -> Iterator[Text]:
        if self.state.elsewhere is not None and not self.state.ended:
            yield from wrapped(elsewhere_line(self.state.elsewhere), theme.ACCENT, console, width)
        yield from super().notice_lines(console, width)

    def facts(self, cell: TimedCell) -> Iterable[str]:
        if cell.parameters:
            yield f"{units.count(cell.parameters)} parameters"
            if (shape := cell.cell.shape_with_formulas) is not None:
                yield f"{units.flops(formulas.forward_flops(shape, cell.cell.ctx, cell.cell.batch))} forward"

    def progress(self, cell: TimedCell) -> Progress:
        if cell.stage in (None, "building", "compiling"):
            return Progress()
        warming_up = cell.stage == "warming-up"
        completed = len(cell.steps) if warming_up else cell.completed
        total = cell.cell.warmup if warming_up else expected_steps(cell)
        texts = (
            (f"{completed}/{total}", ""),
            (_step_time(cell), "bold"),
            (f"until {units.share(cell.cell.until)}" if cell.cell.until and not warming_up else "", theme.QUIET),
            (self._in_step(cell), ""),
        )
        return Progress(completed, total, texts)

    def _in_step(self, cell: TimedCell) -> str:
        """Return the phase of a long step, and how long the step has run: `backward 0:41`; empty for short ones."""
        if not cell.phase:
            return ""
        began_s = cell.stage_since_s if cell.last_step_at_s is None else cell.last_step_at_s
        return f"{cell.phase} {clock_time(self.now_s - began_s)}"

    def chart(self, console: Console, width: int) -> Iterator[Text]:
        now = self.state.current_cell
        yield _trend(now.steps, width) if now and now.steps else Text()
        yield _phases(now.measured, width) if now and now.measured else Text()


def _trend(steps: Sequence[Step], width: int) -> Text:
    """Return a sparkline of recent steps; the very first step is omitted because it would flatten the others."""
    shown = (steps[1:] or steps)[-max(1, width - LABEL_WIDTH) :]
    low, high = min(step.total_s for step in shown), max(step.total_s for step in shown)
    span = max(high - low, MIN_SPARKLINE_SPAN * low)
    levels = [int((step.total_s - low) / span * (len(theme.SPARKS) - 1) + 0.5) if span else 0 for step in shown]
    marks = [
        (theme.SPARKS[level], theme.QUIET if step.warmup else "cyan") for level, step in zip(levels, shown, strict=True)
    ]
    return labelled("step", marks, width, separator="")


def _phases(measured: Sequence[Step], width: int) -> Text:
    """Return the mean time of each phase."""
    by_phase: dict[str, list[float]] = {}
    for name, seconds in (phase for step in measured for phase in step.phases):
        by_phase.setdefault(name, []).append(seconds)
    means = {name: statistics.fmean(values) for name, values in by_phase.items()}
    texts = [
        (f"{name} {units.seconds(mean_s)}", theme.PHASE_STYLES.get(name, ""))
        for name, mean_s in means.items()
        if mean_s >= MIN_PHASE_SHARE * sum(means.values())
    ]
    return labelled("phases", texts, width)


def _step_time(cell: TimedCell) -> str:
    if len(cell.measured) > 1:
        return units.seconds_with_deviation(*mean_and_deviation([step.total_s for step in cell.measured]))
    return units.seconds(cell.steps[-1].total_s) if cell.steps else ""
