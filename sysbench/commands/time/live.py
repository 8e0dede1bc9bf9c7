"""Progress of a timing run: what its dashboard adds to that of all commands, and an estimate of the remaining time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Self

from rich.text import Text

from sysbench import cells as axes
from sysbench import formulas, units
from sysbench.commands.time.elsewhere import elsewhere_line
from sysbench.commands.time.spec import TimeCell
from sysbench.log.events import CellFinished, ModelBuilt, OfRank, PhaseEntered, StepEstimated, StepMeasured
from sysbench.log.predictions import PredictedElsewhere, PredictedTime, StepPredicted
from sysbench.render import theme
from sysbench.render.dashboard import run_state
from sysbench.render.dashboard.board import Quantity
from sysbench.render.dashboard.canvas import Canvas, memoized, remaining_text, round_remaining
from sysbench.render.dashboard.run_state import CellState, RunState, cell_handler, mean_and_deviation
from sysbench.render.dashboard.screen import (
    BELOW,
    DETAILS,
    MODEL_AXES,
    NOTICE,
    SENSORS,
    CellScreen,
    Progress,
    Slot,
    fixed,
)
from sysbench.render.table import Cell, Column, Measure, Table, Tone, Word
from sysbench.spec.time_limit import time_limit_word

FEW_STEPS, MAX_STEPS = 3, 10
"""Steps that are listed at least and at most, if there is room."""

STEPS_HEADING_LINES = 3
"""Lines of the table of steps besides the steps: titles, units, and the mean."""

SLOW_RUN_S = 30.0

SLOW_STEP_S = 10.0
"""A first step this long shows that the run is slow, even though later steps will be faster."""

MAX_PHASE_BAR_WIDTH = 32
MIN_PHASE_SHARE = 0.005

MIN_SPARKLINE_SPAN = 0.05
"""Smallest span of a sparkline as a share of its lowest value, so that noise does not look like an event."""

PHASE_IMPORTANCE = {"forward": 1, "backward": 1, "optimizer": 2, "zero_grad": 4, "loss": 3}


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
    limit_s: float | None = None
    """Time limit of the cell in seconds; None if none is known."""
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
    def flops(self) -> int:
        """FLOPs of all steps; for a custom model, whose FLOPs are unknown, the number of tokens instead."""
        return (self.cell.warmup + self.cell.steps) * self.step_flops

    @cached_property
    def step_flops(self) -> int:
        return formulas.step_flops_of(self.cell) or self.cell.grad_accum * self.cell.tokens


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
    step_s = _step_s(current)
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
    """Return the remaining seconds of the run; None if nothing is known of its steps.

    A waiting cell takes as long per FLOP as the last finished cell with the same choices, otherwise as the median of
    all, and as long outside its steps as finished cells on average, but not longer than a time limit. Until a cell has
    finished, the current one counts.
    """
    now = state.current_cell
    left_s = cell_remaining_s(now, now_s) if now else 0.0
    if left_s is None:
        return None
    if any(cell.step for cell in state.ended.values()):
        return left_s + _waiting_s(state.planned, state.ended, state.running)
    waiting = _waiting(state.planned, state.ended, state.running)
    if not waiting or now is None:
        return None if waiting else left_s
    step_s = _step_s(now)
    if step_s is None:
        return None
    limit_s = now.limit_s or math.inf
    return left_s + math.fsum(min(cell.flops * step_s / now.step_flops, limit_s) for cell in waiting)


def _step_s(current: TimedCell) -> float | None:
    """Return the median time of recent steps, or the expected one before the first."""
    recent = current.steps[1:][-RECENT_STEPS:] or current.steps
    return statistics.median(step.total_s for step in recent) if recent else current.estimated_s


Cells = Mapping[str, TimedCell]


def _waiting(planned: Cells, ended: Cells, running: str) -> list[TimedCell]:
    return [cell for key, cell in planned.items() if key not in ended and key != running]


@memoized
def _waiting_s(planned: Cells, ended: Cells, running: str) -> float:
    timed = [(cell, cell.step[0]) for cell in ended.values() if cell.step]
    paces = {_choices(cell.cell): step_s / cell.step_flops for cell, step_s in timed}
    typical = statistics.median(paces.values())
    outside_s = statistics.fmean(
        max(0.0, cell.took_s - (cell.cell.warmup + cell.cell.steps) * step_s) for cell, step_s in timed
    )
    waiting = _waiting(planned, ended, running)
    limit_s = max((cell.limit_s for cell in ended.values() if cell.limit_s), default=math.inf)
    return math.fsum(min(cell.flops * paces.get(_choices(cell.cell), typical) + outside_s, limit_s) for cell in waiting)


def _choices(cell: TimeCell) -> tuple[object, ...]:
    return tuple(cell.axis_value(name) for name, axis in axes.AXES.items() if axis.role in ("device", "choice"))


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
    left_s, step_s = run_remaining_s(state, now_s), _step_s(now)
    estimated_s = now_s - state.started_s + (left_s or 0.0)
    if left_s is None or step_s is None or estimated_s < SLOW_RUN_S:
        return None
    cores = state.host.physical_cores or state.host.logical_cores
    about = "" if now.steps else "about "
    whole = f"this needs about {units.duration(round_remaining(estimated_s))}"
    remedy = f"{'--size tiny' if now.cell.size != 'tiny' else 'fewer --steps, or a shorter --ctx,'} for a quick look"
    full_s = (now.cell.warmup + now.cell.steps) * step_s
    if now.limit_s is not None and full_s > now.limit_s:
        whole = f"{whole} (--max-time {time_limit_word(now.limit_s)})"
        remedy += f", or --max-time none for all {now.cell.warmup} + {now.cell.steps} steps: {units.duration(full_s)}"
    return (
        f"No GPU here: timing on the CPU ({cores} core{'' if cores == 1 else 's'}). "
        f"A step takes {about}{units.seconds(step_s)}, so {whole}.",
        remedy,
    )


# --- the screen


class TimeScreen(CellScreen[LiveState]):
    """The display of a timing run: steps by phase, and a board of step times."""

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

    def quantities(self) -> Sequence[Quantity]:
        return (Quantity("step", "s", lambda cell: Measure(*cell.step) if cell.step else None),)

    def remaining_s(self) -> float | None:
        return run_remaining_s(self.state, self.now_s)

    def notice(self) -> tuple[str, str] | None:
        return slow_without_gpu(self.state, self.now_s)

    def facts(self, cell: TimedCell) -> Iterable[str]:
        if cell.parameters:
            yield f"{units.count(cell.parameters)} parameters"
            if (shape := cell.cell.shape_with_formulas) is not None:
                yield f"{units.flops(formulas.forward_flops(shape, cell.cell.ctx, cell.cell.batch))} forward"

    def progress(self, cell: TimedCell) -> Progress:
        if cell.stage in (None, "building", "compiling"):
            return Progress()
        warming_up, left_s = cell.stage == "warming-up", cell_remaining_s(cell, self.now_s)
        completed = len(cell.steps) if warming_up else cell.completed
        total = cell.cell.warmup if warming_up else expected_steps(cell)
        texts = (
            (f"{completed}/{total}", ""),
            (_step_time(cell), "bold"),
            (self._in_step(cell), ""),
            (remaining_text(left_s) if left_s is not None else "", theme.QUIET),
            (f"until {units.share(cell.cell.until)}" if cell.cell.until and not warming_up else "", theme.QUIET),
        )
        return Progress(completed, total, texts)

    def _in_step(self, cell: TimedCell) -> str:
        """Return the phase of a long step, and how long the step has run: `backward 0:41`; empty for short ones."""
        if not cell.phase:
            return ""
        began_s = cell.stage_since_s if cell.last_step_at_s is None else cell.last_step_at_s
        seconds = max(0, int(self.now_s - began_s))
        return f"{cell.phase} {seconds // 60}:{seconds % 60:02d}"

    def details(self, canvas: Canvas) -> Iterator[Slot]:
        if self.state.elsewhere is not None and not self.state.ended:
            yield fixed(NOTICE, canvas.wrap(elsewhere_line(self.state.elsewhere), theme.ACCENT), gap=True)
        steps = self.state.current_cell.steps if self.state.current_cell else ()
        yield fixed(DETAILS, [_trend(canvas, steps) if steps else Text()])
        measured = [step for step in steps if not step.warmup]
        yield fixed(SENSORS, [_phase_shares(canvas, measured) if measured else Text()])

    def below(self, canvas: Canvas) -> Iterator[Slot]:
        steps = self.state.current_cell.steps if self.state.current_cell else ()
        if steps:
            yield Slot(
                BELOW,
                lambda height: canvas.table(_steps(steps, min(MAX_STEPS, height - STEPS_HEADING_LINES))) or [],
                STEPS_HEADING_LINES + FEW_STEPS,
                STEPS_HEADING_LINES + MAX_STEPS,
                gap=True,
            )


def _trend(canvas: Canvas, steps: Sequence[Step]) -> Text:
    """Return a sparkline of recent steps; the very first step is omitted because it would flatten the others."""
    line = canvas.label("step")
    shown = (steps[1:] or steps)[-(canvas.width - line.cell_len) :]
    low, high = min(step.total_s for step in shown), max(step.total_s for step in shown)
    span = max(high - low, MIN_SPARKLINE_SPAN * low)
    for step in shown:
        level = int((step.total_s - low) / span * (len(theme.SPARKS) - 1) + 0.5) if span else 0
        mark = theme.terminal_line(theme.SPARKS[level], canvas.encoding)
        line.append(mark, theme.QUIET if step.warmup else "cyan")
    return line


def _mean_phases(steps: Sequence[Step]) -> dict[str, float]:
    by_phase: dict[str, list[float]] = {}
    for step in steps:
        for name, seconds in step.phases:
            by_phase.setdefault(name, []).append(seconds)
    return {name: statistics.fmean(values) for name, values in by_phase.items()}


def _phase_shares(canvas: Canvas, measured: Sequence[Step]) -> Text:
    """Return the share of each phase in the mean step, as a bar and as text."""
    means = _mean_phases(measured)
    whole = sum(means.values())
    parts = [(name, mean / whole) for name, mean in means.items() if mean / whole >= MIN_PHASE_SHARE]
    line = canvas.label("phases")
    room = canvas.width - line.cell_len
    words = [(f"{name} {units.share(part)}", theme.PHASE_STYLES.get(name, "")) for name, part in parts]
    legend = canvas.join(words, room)
    longest = min(MAX_PHASE_BAR_WIDTH, room - legend.cell_len - 2)
    if longest >= 8:
        bar, cumulative_share = Text(), 0.0
        mark = theme.terminal_line("█", canvas.encoding)
        for name, part in parts:
            cumulative_share += part
            cells = round(cumulative_share * longest) - bar.cell_len
            # Without block characters, the bar consists of the phases' first letters.
            bar.append((mark if mark == "█" else name[0]) * cells, theme.PHASE_STYLES.get(name, ""))
        line.append_text(bar).append("  ")
    return line.append_text(legend)


def _step_time(cell: TimedCell) -> str:
    if len(cell.measured) > 1:
        return units.seconds_with_deviation(*mean_and_deviation([step.total_s for step in cell.measured]))
    return units.seconds(cell.steps[-1].total_s) if cell.steps else ""


def _steps(steps: Sequence[Step], rows: int) -> Table:
    shown, measured = steps[-rows:], [step for step in steps if not step.warmup]
    names = list(dict.fromkeys(name for step in shown for name, _ in step.phases))
    phases = (Column(name, name, "s", importance=PHASE_IMPORTANCE.get(name, 1)) for name in names)
    columns = (Column("step", "step"), *phases, Column("whole", "whole step", "s"))
    body: list[tuple[Cell, ...]] = []
    for step in shown:
        tone: Tone = "quiet" if step.warmup else "plain"
        taken = dict(step.phases)
        cells = (Measure(taken[name], tone=tone) if name in taken else None for name in names)
        label = f"warm-up {step.index + 1}" if step.warmup else str(step.index + 1)
        body.append((Word(label, tone), *cells, Measure(step.total_s, tone=tone, excluded=step.warmup)))
    if measured:
        means = _mean_phases(measured)
        whole = Measure(statistics.fmean(step.total_s for step in measured), tone="strong")
        body.append(
            ("mean", *(Measure(means[name], tone="strong") if name in means else None for name in names), whole)
        )
    return Table("steps", "", columns, tuple(body))
