"""Live state of a run of `sysbench fit`: what was tried last."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from sysbench import units
from sysbench.commands.fit.record import CombinationTried
from sysbench.commands.fit.spec import FitCell
from sysbench.commands.fit.suggestions import words
from sysbench.render.dashboard import run_state
from sysbench.render.dashboard.run_state import RunState, cell_handler
from sysbench.render.dashboard.screen import CellScreen, Progress


@dataclass(frozen=True)
class CellState(run_state.CellState):
    """State of the question during the run."""

    cell: FitCell
    tried: tuple[CombinationTried, ...] = ()


FitState = RunState[CellState]

_HANDLERS = run_state.handlers(
    FitState,
    CellState,
    {CombinationTried: cell_handler(lambda cell, event: replace(cell, tried=(*cell.tried, event)))},
)


class FitScreen(CellScreen[FitState]):
    """The display of a run: the combination that was tried last."""

    initial = FitState()
    advance = staticmethod(partial(run_state.advance, _HANDLERS))
    times_steps = False

    @staticmethod
    def result(cell: CellState) -> str:
        if not cell.tried:
            return f"{cell.outcome}: {cell.detail}" if cell.detail else str(cell.outcome)
        return f"{len(cell.tried)} combinations tried, {sum(each.fits for each in cell.tried)} fit"

    def where(self, cell: CellState) -> str:
        return f"simulated for {', '.join(cell.cell.on)}"

    def progress(self, cell: CellState) -> Progress:
        if not cell.tried:
            return Progress()
        last = cell.tried[-1]
        spare = f"{units.size(abs(last.margin_bytes))} {'to spare' if last.fits else 'missing'}"
        tried = f"{len(cell.tried)} tried, last: {words(last.changes) or 'as asked'}"
        return Progress(texts=((tried, ""), (f"{last.gpu}: {spare}", "bold")))
