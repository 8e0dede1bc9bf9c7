"""What a run of `sysbench memory` has come to, folded from its events; what is shown meanwhile is drawn from this."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sysbench.events import (
    CandidateTried,
    Event,
    GpuSimulated,
    LargestFound,
    PeakMeasured,
    PhaseMemoryMeasured,
    VerdictReached,
)
from sysbench.specs.memory import MemoryCell
from sysbench.views import run_state
from sysbench.views.run_state import RunState, in_cell


@dataclass(frozen=True)
class CellState(run_state.CellState):
    """A cell of the run, as far as it is known."""

    cell: MemoryCell
    gpu: GpuSimulated | None = None
    phases: tuple[PhaseMemoryMeasured, ...] = ()
    peak: PeakMeasured | None = None
    verdict: VerdictReached | None = None
    tried: tuple[CandidateTried, ...] = ()
    found: LargestFound | None = None

    @property
    def capacity_bytes(self) -> int | None:
        """The memory of the GPU that it is about."""
        if self.gpu is not None:
            return self.gpu.memory_bytes
        return self.device.memory_bytes if self.device is not None else None


@dataclass(frozen=True)
class MemoryState(RunState[CellState]):
    """A run at one moment."""

    last_known: str | None = None
    """The key of the cell of which a phase was heard last."""

    @property
    def known(self) -> CellState | None:
        """The cell whose phases were heard last: a simulation knows all of them at once, at its end."""
        last = dict(self.cells).get(self.last_known) if self.last_known is not None else None
        return last if last is not None and last.phases else None


def advance(state: MemoryState, event: Event) -> MemoryState:
    """The state after one more event; an event that changes nothing shown leaves it as it is."""
    after: MemoryState = run_state.advance(_HANDLERS, state, event)
    return after


def _phase_measured(state: MemoryState, event: PhaseMemoryMeasured) -> Any:
    add = in_cell(lambda cell, said: replace(cell, phases=(*cell.phases, said)))
    return replace(add(state, event), last_known=event.cell)


_HANDLERS = run_state.handlers(
    MemoryState,
    CellState,
    {
        GpuSimulated: in_cell(lambda cell, event: replace(cell, gpu=event)),
        PhaseMemoryMeasured: _phase_measured,
        PeakMeasured: in_cell(lambda cell, event: replace(cell, peak=event)),
        VerdictReached: in_cell(lambda cell, event: replace(cell, verdict=event)),
        CandidateTried: in_cell(lambda cell, event: replace(cell, tried=(*cell.tried, event))),
        LargestFound: in_cell(lambda cell, event: replace(cell, found=event)),
    },
)
