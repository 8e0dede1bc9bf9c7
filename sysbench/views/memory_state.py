"""What a run of `sysbench memory` has come to, folded from its events; what is shown meanwhile is drawn from this."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sysbench.events import (
    CandidateTried,
    CellFinished,
    CellStarted,
    DeviceInfo,
    Event,
    GpuSimulated,
    LargestFound,
    PeakMeasured,
    PhaseMemoryMeasured,
    Reading,
    RunStarted,
    Stage,
    StageEntered,
    TorchInfo,
    VerdictReached,
    WorkerReady,
)
from sysbench.outcomes import Outcome
from sysbench.specs.kinds import cell_of
from sysbench.specs.memory import MemoryCell, MemorySpec


@dataclass(frozen=True)
class CellState:
    """A cell of the run, as far as it is known."""

    cell: MemoryCell
    device: DeviceInfo | None = None
    gpu: GpuSimulated | None = None
    stage: Stage | None = None
    stage_since_s: float = 0.0
    phases: tuple[PhaseMemoryMeasured, ...] = ()
    peak: PeakMeasured | None = None
    verdict: VerdictReached | None = None
    tried: tuple[CandidateTried, ...] = ()
    found: LargestFound | None = None
    outcome: Outcome | None = None
    """How it ended; None while it goes on or waits."""
    detail: str | None = None

    @property
    def capacity_bytes(self) -> int | None:
        """The memory of the GPU that it is about."""
        if self.gpu is not None:
            return self.gpu.memory_bytes
        return self.device.memory_bytes if self.device is not None else None


@dataclass(frozen=True)
class MemoryState:
    """A run at one moment."""

    started_s: float = 0.0
    cells: tuple[tuple[str, CellState], ...] = ()
    """By key, in the order of the run."""
    torch: TorchInfo | None = None
    current: str | None = None
    """The key of the cell that runs, or ran last."""
    last_known: str | None = None
    """The key of the cell of which a phase was heard last."""
    reading: Reading | None = None

    @property
    def now(self) -> CellState | None:
        """The cell that runs, or ran last."""
        return dict(self.cells).get(self.current) if self.current is not None else None

    @property
    def known(self) -> CellState | None:
        """The cell whose phases were heard last: a simulation knows all of them at once, at its end."""
        last = dict(self.cells).get(self.last_known) if self.last_known is not None else None
        return last if last is not None and last.phases else None

    @property
    def done(self) -> int:
        """How many cells are over."""
        return sum(cell.outcome is not None for _, cell in self.cells)


def advance(state: MemoryState, event: Event) -> MemoryState:
    """The state after one more event; an event that changes nothing shown leaves it as it is."""
    handle = _HANDLERS.get(type(event))
    return handle(state, event) if handle else state


def _run_started(state: MemoryState, event: RunStarted) -> MemoryState:
    cells = MemorySpec.model_validate(event.spec).cells()
    return MemoryState(started_s=event.at_s, cells=tuple((cell.key, CellState(cell)) for cell in cells))


def _worker_ready(state: MemoryState, event: WorkerReady) -> MemoryState:
    return replace(state, torch=event.torch)


def _cell_started(state: MemoryState, event: CellStarted) -> MemoryState:
    cell = cell_of(event.axes)
    if not isinstance(cell, MemoryCell):
        return state
    fresh = CellState(cell, event.device, stage_since_s=event.at_s)
    return _put(replace(state, current=event.cell), event.cell, fresh)


def _reading(state: MemoryState, event: Reading) -> MemoryState:
    return replace(state, reading=event)


def _put(state: MemoryState, key: str, cell: CellState) -> MemoryState:
    return replace(state, cells=tuple((each, cell if each == key else old) for each, old in state.cells))


def _in_cell(change: Callable[[CellState, Any], CellState]) -> Callable[[MemoryState, Any], MemoryState]:
    """A change to the cell that the event is about; what is said of one that is not of this run changes nothing."""

    def handle(state: MemoryState, event: Any) -> MemoryState:
        cell = dict(state.cells).get(event.cell)
        return _put(state, event.cell, change(cell, event)) if cell is not None else state

    return handle


def _phase_measured(state: MemoryState, event: PhaseMemoryMeasured) -> MemoryState:
    add = _in_cell(lambda cell, said: replace(cell, phases=(*cell.phases, said)))
    return replace(add(state, event), last_known=event.cell)


_HANDLERS: dict[type, Callable[[MemoryState, Any], MemoryState]] = {
    RunStarted: _run_started,
    WorkerReady: _worker_ready,
    CellStarted: _cell_started,
    Reading: _reading,
    GpuSimulated: _in_cell(lambda cell, event: replace(cell, gpu=event)),
    StageEntered: _in_cell(lambda cell, event: replace(cell, stage=event.stage, stage_since_s=event.at_s)),
    PhaseMemoryMeasured: _phase_measured,
    PeakMeasured: _in_cell(lambda cell, event: replace(cell, peak=event)),
    VerdictReached: _in_cell(lambda cell, event: replace(cell, verdict=event)),
    CandidateTried: _in_cell(lambda cell, event: replace(cell, tried=(*cell.tried, event))),
    LargestFound: _in_cell(lambda cell, event: replace(cell, found=event)),
    CellFinished: _in_cell(lambda cell, event: replace(cell, outcome=event.outcome, detail=event.detail)),
}
