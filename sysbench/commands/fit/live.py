"""Live state of a run of `sysbench fit`: what was tried, and the best of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from rich.console import Console
from rich.text import Text

from sysbench import units
from sysbench.commands.fit.record import CombinationTried, ExtentFound, PeakExplained
from sysbench.commands.fit.spec import FitCell
from sysbench.commands.fit.suggestions import best_trial, words
from sysbench.log.events import Event
from sysbench.render import theme
from sysbench.render.dashboard import run_state
from sysbench.render.dashboard.run_state import RunState, cell_handler
from sysbench.render.dashboard.screen import CellScreen, Progress

MAX_NAMED_GPUS = 4
"""Largest number of GPUs that are listed by name."""

MAX_GPU_LINES = 8
"""Largest number of GPUs whose answer so far is shown."""

MAX_CAUSES = 3
"""Number of causes of the peak that are shown."""


@dataclass(frozen=True)
class CellState(run_state.CellState):
    """State of the question during the run."""

    cell: FitCell
    explained: PeakExplained | None = None
    tried: tuple[CombinationTried, ...] = ()
    extents: tuple[ExtentFound, ...] = ()


FitState = RunState[CellState]

_HANDLERS = run_state.handlers(
    FitState,
    CellState,
    {
        PeakExplained: cell_handler(lambda cell, event: replace(cell, explained=event)),
        CombinationTried: cell_handler(lambda cell, event: replace(cell, tried=(*cell.tried, event))),
        ExtentFound: cell_handler(lambda cell, event: replace(cell, extents=(*cell.extents, event))),
    },
)


class FitScreen(CellScreen[CellState]):
    """The display of a run, with the best answer so far for each GPU."""

    initial = FitState()
    advance = staticmethod(partial(run_state.advance, _HANDLERS))
    times_steps = False

    @staticmethod
    def result(cell: CellState) -> str:
        if cell.extents:
            return f"limits of {len({extent.gpu for extent in cell.extents})} GPUs"
        if not cell.tried:
            return f"{cell.outcome}: {cell.detail}" if cell.detail else str(cell.outcome)
        simulated = f"{len(cell.tried)} combinations" if len(cell.tried) > 1 else "1 combination"
        return f"{simulated} simulated, {sum(tried.fits for tried in cell.tried)} fit"

    @staticmethod
    def news(state: FitState, event: Event) -> str | None:
        """Return the answer for a GPU when it is known: as asked, and the first combination that fits."""
        cell = state.current_cell
        if cell is None or not isinstance(event, CombinationTried):
            return None
        others = [each for each in cell.tried if each.gpu == event.gpu and each is not event]
        if event.changes and (not event.is_safe or any(each.is_safe for each in others)):
            return None
        line = FitScreen._so_far(cell, event.gpu, len(event.gpu)).plain
        causes = [] if event.changes or event.fits else [each.plain for each in FitScreen._causes(cell)]
        return "; ".join((line, *causes))

    def where(self, cell: CellState) -> str:
        gpus = cell.cell.on
        return f"simulated for {', '.join(gpus) if len(gpus) <= MAX_NAMED_GPUS else f'{len(gpus)} GPUs'}"

    def progress(self, cell: CellState) -> Progress:
        if cell.extents:
            extent = cell.extents[-1]
            done = f"{len(cell.extents)} of {2 * len(cell.cell.on)} limits"
            return Progress(texts=((done, ""), (f"{extent.gpu}: {extent.axis} {extent.largest or 'none'}", "bold")))
        if not cell.tried:
            return Progress()
        last = words(cell.tried[-1].changes) or "as asked"
        return Progress(texts=((f"{len(cell.tried)} simulated", "bold"), (f"last: {last}", "")))

    def chart(self, console: Console, width: int) -> Iterator[Text]:
        cell = self.state.current_cell
        if cell is not None and cell.tried:
            gpus = dict.fromkeys(trial.gpu for trial in cell.tried)
            yield from (self._so_far(cell, gpu, max(map(len, gpus))) for gpu in list(gpus)[:MAX_GPU_LINES])
            yield from self._causes(cell)

    @staticmethod
    def _causes(cell: CellState) -> Iterator[Text]:
        if cell.explained is not None:
            peak_bytes = cell.explained.allocated_peak_bytes
            shares = (f"{cause.kind} {units.share(cause.size_bytes / peak_bytes)}" for cause in cell.explained.causes)
            yield Text(f"peak as asked: {', '.join(itertools.islice(shares, MAX_CAUSES))}", theme.QUIET)

    @staticmethod
    def _so_far(cell: CellState, gpu: str, width: int) -> Text:
        asked = next(trial for trial in cell.tried if trial.gpu == gpu)
        best = best_trial(cell.tried, gpu, faster=cell.cell.faster)
        trial = best or asked
        spare = f"{units.size(abs(trial.margin_bytes))} {'to spare' if trial.fits else 'missing'}"
        step = f", a step of {units.seconds(trial.step.point_s)}" if best and trial.step else ""
        changes = f" with {words(best.changes)}" if best else " as asked"
        line = Text.assemble((gpu.ljust(width + 2), theme.QUIET))
        return line.append(f"{spare}{step}{changes}", theme.GOOD if trial.fits else theme.BAD)
