"""What a run of `sysbench profile` has come to, folded from its events; what is shown meanwhile is drawn from this."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sysbench.events import CellFinished, CellStarted, Event, ProfileRead, StageEntered, StepMeasured, TraceWritten
from sysbench.profile_summary import ProfileSummary
from sysbench.specs.profile import ProfileCell
from sysbench.views import run_state
from sysbench.views.run_state import Handler, RunState, in_cell


@dataclass(frozen=True)
class CellState(run_state.CellState):
    """A cell of the run, as far as it is known."""

    cell: ProfileCell
    timing: bool = False
    """Whether the step is being timed, in the process that comes first."""
    timed_s: tuple[float, ...] = ()
    """The unprofiled steps."""
    profiled_s: tuple[float, ...] = ()
    trace_bytes: int | None = None
    summary: ProfileSummary | None = None


ProfileState = RunState[CellState]
"""A run at one moment."""


def advance(state: ProfileState, event: Event) -> ProfileState:
    """The state after one more event; an event that changes nothing shown leaves it as it is."""
    after: ProfileState = run_state.advance(_HANDLERS, state, event)
    return after


def _cell_started(state: ProfileState, event: CellStarted) -> ProfileState:
    """A cell begins, or the timing that comes before one; then it is the first that waits for such a timing."""
    for key, cell in state.cells:
        fresh, now = CellState(cell.cell, event.device, stage_since_s=event.at_s), replace(state, current=key)
        if key == event.cell:
            return now.put(key, replace(fresh, timed_s=cell.timed_s))
        if cell.outcome is None and _timing_of(cell) == event.cell:
            return now.put(key, replace(fresh, timing=True))
    return state


def _timing_of(cell: CellState) -> str | None:
    return cell.cell.timed_first.key if cell.cell.timed_first is not None else None


def _of_cell(change: Callable[[CellState, Any], CellState]) -> Handler:
    """A change to the cell that the event is about, or to the one that is being timed first."""
    in_its_own = in_cell(change)

    def handle(state: ProfileState, event: Any) -> Any:
        now = state.now
        if state.current is not None and now is not None and now.timing and _timing_of(now) == event.cell:
            return state.put(state.current, change(now, event))
        return in_its_own(state, event)

    return handle


def _step_measured(cell: CellState, event: StepMeasured) -> CellState:
    if event.warmup or event.step.wall_s is None:
        return cell
    if cell.timing:
        return replace(cell, timed_s=(*cell.timed_s, event.step.wall_s))
    return replace(cell, profiled_s=(*cell.profiled_s, event.step.wall_s))


def _cell_finished(cell: CellState, event: CellFinished) -> CellState:
    """A timing that is over is not the end of its cell: that has an event of its own, whatever comes of it."""
    if cell.timing:
        return replace(cell, timing=False, stage=None, stage_since_s=event.at_s)
    return replace(cell, outcome=event.outcome, detail=event.detail)


_HANDLERS = run_state.handlers(
    ProfileState,
    CellState,
    {
        CellStarted: _cell_started,
        StageEntered: _of_cell(lambda cell, event: replace(cell, stage=event.stage, stage_since_s=event.at_s)),
        StepMeasured: _of_cell(_step_measured),
        TraceWritten: _of_cell(lambda cell, event: replace(cell, trace_bytes=event.size_bytes)),
        ProfileRead: _of_cell(lambda cell, event: replace(cell, summary=event.summary)),
        CellFinished: _of_cell(_cell_finished),
    },
)
