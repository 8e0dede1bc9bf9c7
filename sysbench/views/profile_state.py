"""What a run of `sysbench profile` has come to, folded from its events; what is shown meanwhile is drawn from this."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sysbench.events import (
    CellFinished,
    CellStarted,
    DeviceInfo,
    Event,
    ProfileRead,
    Reading,
    RunResumed,
    RunStarted,
    Stage,
    StageEntered,
    StepMeasured,
    TorchInfo,
    TraceWritten,
    WorkerReady,
)
from sysbench.outcomes import LASTING, Outcome
from sysbench.profile_summary import ProfileSummary
from sysbench.specs.profile import ProfileCell, ProfileSpec


@dataclass(frozen=True)
class CellState:
    """A cell of the run, as far as it is known."""

    cell: ProfileCell
    device: DeviceInfo | None = None
    timing: bool = False
    """Whether the step is being timed, in the process that comes first."""
    stage: Stage | None = None
    stage_since_s: float = 0.0
    timed_s: tuple[float, ...] = ()
    """The unprofiled steps."""
    profiled_s: tuple[float, ...] = ()
    trace_bytes: int | None = None
    summary: ProfileSummary | None = None
    outcome: Outcome | None = None
    """How it ended; None while it goes on or waits."""
    detail: str | None = None


@dataclass(frozen=True)
class ProfileState:
    """A run at one moment."""

    started_s: float = 0.0
    cells: tuple[tuple[str, CellState], ...] = ()
    """By key, in the order of the run."""
    torch: TorchInfo | None = None
    current: str | None = None
    """The key of the cell that runs, or ran last."""
    reading: Reading | None = None

    @property
    def now(self) -> CellState | None:
        """The cell that runs, or ran last."""
        return dict(self.cells).get(self.current) if self.current is not None else None

    @property
    def done(self) -> int:
        """How many cells are over."""
        return sum(cell.outcome is not None for _, cell in self.cells)


def advance(state: ProfileState, event: Event) -> ProfileState:
    """The state after one more event; an event that changes nothing shown leaves it as it is."""
    handle = _HANDLERS.get(type(event))
    return handle(state, event) if handle else state


def _run_started(state: ProfileState, event: RunStarted) -> ProfileState:
    cells = ProfileSpec.model_validate(event.spec).cells()
    return ProfileState(started_s=event.at_s, cells=tuple((cell.key, CellState(cell)) for cell in cells))


def _run_resumed(state: ProfileState, event: RunResumed) -> ProfileState:
    """What will be run again waits once more."""
    cells = tuple((key, cell if cell.outcome in LASTING else CellState(cell.cell)) for key, cell in state.cells)
    return ProfileState(started_s=event.at_s, cells=cells, torch=state.torch)


def _worker_ready(state: ProfileState, event: WorkerReady) -> ProfileState:
    return replace(state, torch=event.torch)


def _cell_started(state: ProfileState, event: CellStarted) -> ProfileState:
    """A cell begins, or the timing that comes before one; then it is the first that waits for such a timing."""
    for key, cell in state.cells:
        fresh, now = CellState(cell.cell, event.device, stage_since_s=event.at_s), replace(state, current=key)
        if key == event.cell:
            return _put(now, key, replace(fresh, timed_s=cell.timed_s))
        if cell.outcome is None and _timing_of(cell) == event.cell:
            return _put(now, key, replace(fresh, timing=True))
    return state


def _timing_of(cell: CellState) -> str | None:
    return cell.cell.timed_first.key if cell.cell.timed_first is not None else None


def _put(state: ProfileState, key: str, cell: CellState) -> ProfileState:
    return replace(state, cells=tuple((each, cell if each == key else old) for each, old in state.cells))


def _in_cell(change: Callable[[CellState, Any], CellState]) -> Callable[[ProfileState, Any], ProfileState]:
    """A change to the cell that the event is about, or to the one that is being timed first."""

    def handle(state: ProfileState, event: Any) -> ProfileState:
        now, key = state.now, str(event.cell)
        if state.current is not None and now is not None and now.timing and _timing_of(now) == key:
            key = state.current
        cell = dict(state.cells).get(key)
        return _put(state, key, change(cell, event)) if cell is not None else state

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


def _reading(state: ProfileState, event: Reading) -> ProfileState:
    return replace(state, reading=event)


_HANDLERS: dict[type, Callable[[ProfileState, Any], ProfileState]] = {
    RunStarted: _run_started,
    RunResumed: _run_resumed,
    WorkerReady: _worker_ready,
    CellStarted: _cell_started,
    Reading: _reading,
    StageEntered: _in_cell(lambda cell, event: replace(cell, stage=event.stage, stage_since_s=event.at_s)),
    StepMeasured: _in_cell(_step_measured),
    TraceWritten: _in_cell(lambda cell, event: replace(cell, trace_bytes=event.size_bytes)),
    ProfileRead: _in_cell(lambda cell, event: replace(cell, summary=event.summary)),
    CellFinished: _in_cell(_cell_finished),
}
