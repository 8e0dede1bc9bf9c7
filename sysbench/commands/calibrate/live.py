"""Progress of `sysbench calibrate`: a line for every part when it is over. They are too short for a picture."""

from __future__ import annotations

from typing import Any

from sysbench.log.events import Event
from sysbench.render.dashboard import run_state
from sysbench.render.dashboard.cell_lines import CellLines
from sysbench.render.dashboard.run_state import CellState, RunState

_HANDLERS = run_state.handlers(RunState, CellState, {})


def result(cell: CellState) -> str:
    """How it ended."""
    return f"{cell.outcome}: {cell.detail}" if cell.detail else str(cell.outcome)


def advance(state: RunState[Any], event: Event) -> RunState[Any]:
    """What is known after one more event."""
    after: RunState[Any] = run_state.advance(_HANDLERS, state, event)
    return after


class CalibrateLines(CellLines):
    """One for each part."""

    blank = RunState[CellState]()
    advance = staticmethod(advance)
    result = staticmethod(result)

    def named(self, cell: CellState) -> str:
        """By its part."""
        return str(cell.cell.title)
