"""Live state of a run of `sysbench fit`: what was tried last."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from sysbench import units
from sysbench.commands.fit.record import CombinationEstimated, CombinationTried, ExtentFound, StepSurveyed
from sysbench.commands.fit.spec import FitCell
from sysbench.commands.fit.suggestions import words
from sysbench.render.dashboard import run_state
from sysbench.render.dashboard.run_state import RunState, cell_handler
from sysbench.render.dashboard.screen import CellScreen, Progress

MAX_NAMED_GPUS = 4
"""Largest number of GPUs that are listed by name."""


@dataclass(frozen=True)
class CellState(run_state.CellState):
    """State of the question during the run."""

    cell: FitCell
    tried: tuple[CombinationTried, ...] = ()
    estimated: int = 0
    last: CombinationTried | CombinationEstimated | None = None
    extents: tuple[ExtentFound, ...] = ()
    surveyed: int = 0


FitState = RunState[CellState]

_HANDLERS = run_state.handlers(
    FitState,
    CellState,
    {
        CombinationTried: cell_handler(lambda cell, event: replace(cell, tried=(*cell.tried, event), last=event)),
        CombinationEstimated: cell_handler(lambda cell, event: replace(cell, estimated=cell.estimated + 1, last=event)),
        StepSurveyed: cell_handler(lambda cell, event: replace(cell, surveyed=cell.surveyed + 1)),
        ExtentFound: cell_handler(lambda cell, event: replace(cell, extents=(*cell.extents, event))),
    },
)


class FitScreen(CellScreen[FitState]):
    """The display of a run: the last combination."""

    initial = FitState()
    advance = staticmethod(partial(run_state.advance, _HANDLERS))
    times_steps = False

    @staticmethod
    def result(cell: CellState) -> str:
        if cell.extents:
            return f"limits of {len({each.gpu for each in cell.extents})} GPUs"
        if not cell.tried:
            return f"{cell.outcome}: {cell.detail}" if cell.detail else str(cell.outcome)
        return f"{len(cell.tried)} combinations simulated, {sum(each.fits for each in cell.tried)} fit"

    def where(self, cell: CellState) -> str:
        gpus = cell.cell.on
        return f"simulated for {', '.join(gpus) if len(gpus) <= MAX_NAMED_GPUS else f'{len(gpus)} GPUs'}"

    def progress(self, cell: CellState) -> Progress:
        if cell.extents:
            found = cell.extents[-1]
            done = f"{len(cell.extents)} of {2 * len(cell.cell.on)} limits"
            return Progress(texts=((done, ""), (f"{found.gpu}: {found.axis} {found.largest or 'none'}", "bold")))
        if cell.last is None or not cell.tried:
            return Progress()
        estimated = f"{cell.estimated} estimated, " if cell.estimated else ""
        counts = f"{estimated}{len(cell.tried)} simulated, last: {words(cell.last.changes) or 'as asked'}"
        if cell.surveyed:
            counts = f"{cell.surveyed} steps of the page simulated"
        simulated = cell.tried[-1]
        spare = f"{units.size(abs(simulated.margin_bytes))} {'to spare' if simulated.fits else 'missing'}"
        return Progress(texts=((counts, ""), (f"{simulated.gpu}: {spare}", "bold")))
