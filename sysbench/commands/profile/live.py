"""Live state of a run of `sysbench profile`, folded from events, and the progress on its dashboard."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sysbench import units
from sysbench.commands.profile.record import ProfileRead
from sysbench.commands.profile.spec import ProfileCell
from sysbench.log.events import CellFinished, CellStarted, StageEntered, StepMeasured
from sysbench.log.predictions import PredictedTime, StepPredicted
from sysbench.render.dashboard import run_state
from sysbench.render.dashboard.run_state import Handler, RunState, cell_handler, mean_and_deviation, with_cell
from sysbench.render.dashboard.screen import CellScreen, Progress
from sysbench.trace.summary import ProfileSummary


@dataclass(frozen=True)
class CellState(run_state.CellState):
    """State of one cell during the run."""

    cell: ProfileCell
    timing: bool = False
    """Whether the first process is currently timing the step without a profiler."""
    timed_s: tuple[float, ...] = ()
    """Times of the unprofiled steps."""
    profiled_s: tuple[float, ...] = ()
    predicted: PredictedTime | None = None
    summary: ProfileSummary | None = None


ProfileState = RunState[CellState]
"""State of a run."""


def _cell_started(state: ProfileState, event: CellStarted) -> ProfileState:
    for key, cell in state.cells:
        fresh, now = CellState(cell.cell, event.device, stage_since_s=event.at_s), replace(state, current_key=key)
        if key == event.cell:
            return with_cell(now, key, replace(fresh, timed_s=cell.timed_s))
        if cell.outcome is None and _timing_key(cell) == event.cell:
            return with_cell(now, key, replace(fresh, timing=True))
    return state


def _timing_key(cell: CellState) -> str | None:
    return cell.cell.reference_time_cell.key if cell.cell.reference_time_cell is not None else None


def _in_cell_or_timing(change: Callable[[CellState, Any], CellState]) -> Handler:
    """Return a handler that applies `change` to the cell of the event."""
    change_cell = cell_handler(change)

    def handle(state: ProfileState, event: Any) -> Any:
        now = state.current_cell
        if state.current_key is not None and now is not None and now.timing and _timing_key(now) == event.cell:
            return with_cell(state, state.current_key, change(now, event))
        return change_cell(state, event)

    return handle


def _step_measured(cell: CellState, event: StepMeasured) -> CellState:
    if event.warmup or event.step.wall_s is None:
        return cell
    if cell.timing:
        return replace(cell, timed_s=(*cell.timed_s, event.step.wall_s))
    return replace(cell, profiled_s=(*cell.profiled_s, event.step.wall_s))


def _cell_finished(cell: CellState, event: CellFinished) -> CellState:
    """Record the end of a cell. The end of a timing run leaves the cell itself unfinished."""
    if cell.timing:
        return replace(cell, timing=False, stage=None, stage_since_s=event.at_s)
    return replace(cell, outcome=event.outcome, detail=event.detail)


_HANDLERS = run_state.handlers(
    ProfileState,
    CellState,
    {
        CellStarted: _cell_started,
        StageEntered: _in_cell_or_timing(
            lambda cell, event: replace(cell, stage=event.stage, stage_since_s=event.at_s)
        ),
        StepMeasured: _in_cell_or_timing(_step_measured),
        ProfileRead: _in_cell_or_timing(lambda cell, event: replace(cell, summary=event.summary)),
        StepPredicted: _in_cell_or_timing(lambda cell, event: replace(cell, predicted=event.step)),
        CellFinished: _in_cell_or_timing(_cell_finished),
    },
)

advance = partial(run_state.advance, _HANDLERS)
"""Return the state after one more event; unchanged if the event affects nothing on the screen."""


class ProfileScreen(CellScreen[CellState]):
    """The display of a run: the current task, and results of earlier ones."""

    initial = ProfileState()
    advance = staticmethod(advance)

    @staticmethod
    def result(cell: CellState) -> str:
        return result(cell)

    def progress(self, cell: CellState) -> Progress:
        if not cell.timing:
            return Progress()
        count, total = len(cell.timed_s), cell.cell.steps
        texts = [(f"{count}/{total}", ""), ("without a profiler", "")]
        texts += [(units.seconds_with_deviation(*mean_and_deviation(cell.timed_s)), "bold")] if count > 1 else []
        return Progress(count, total if cell.stage == "measuring" else 0, tuple(texts))


def _calls_per_step(summary: ProfileSummary) -> str:
    calls = sum(summary.spent.calls) // summary.steps
    return f"{units.count(calls)} {'kernels' if summary.source == 'device' else 'operators'} per step"


def result(cell: CellState) -> str:
    """Return the result of a cell as text: `step 205 ms, 260 ms profiled, 1,431 kernels per step`."""
    if cell.summary is None or cell.outcome != "ok":
        return f"{cell.outcome}: {cell.detail}" if cell.detail else str(cell.outcome)
    words = [f"step {units.seconds(statistics.fmean(cell.timed_s))}"] if cell.timed_s else []
    words += [f"{units.seconds(statistics.fmean(cell.profiled_s))} profiled"] if cell.profiled_s else []
    if (step := cell.predicted) is not None:
        words.append(f"PREDICTED step {units.seconds_with_interval(step.point_s, step.low_s, step.high_s)}")
    return ", ".join([*words, _calls_per_step(cell.summary)])
