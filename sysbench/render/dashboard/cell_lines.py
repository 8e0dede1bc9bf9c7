"""Progress output for streams other than a terminal: one line for every finished cell, without control codes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce

from rich.console import Console

from sysbench.log.events import CellFinished, Event, Reading, RunResumed, WorkerReady
from sysbench.render import theme
from sysbench.render.dashboard.experiment_progress import ExperimentProgress
from sysbench.render.dashboard.progress import Progress
from sysbench.render.dashboard.run_state import RunState
from sysbench.render.dashboard.screen import CellScreen


class CellLines(Progress):
    """One line for the device, one for each finished cell, and those for what cannot wait until then.

    `earlier` are the events in the log of a resumed run; `overall` is the progress of its experiment.
    """

    def __init__(
        self,
        console: Console,
        *,
        view: type[CellScreen],
        earlier: Iterable[Event] = (),
        overall: ExperimentProgress | None = None,
    ) -> None:
        super().__init__()
        self._view = view
        self._overall = overall
        self._file = console.file
        self._encoding = console.encoding
        self._is_broken = False
        self._said: set[str] = set()
        """Kinds of warnings that have been written."""
        self.state = reduce(view.advance, earlier, view.initial)

    def show(self, event: Event) -> None:
        """Write the lines for this event; if the stream breaks, the output ends."""
        before = self.state
        self.state = self._view.advance(before, event)
        suffix = ""
        if self._overall is not None:
            self._overall.update(event)
            suffix = f"  ({self._overall.describe(event.at_s)})" if isinstance(event, CellFinished) else ""
        for text in self._lines(event, before):
            self._write(text.strip() + suffix)

    def _lines(self, event: Event, before: RunState) -> Iterator[str]:
        state, view = self.state, self._view
        if isinstance(event, WorkerReady) and before.torch is None:
            yield view.device_line(state)
        elif isinstance(event, RunResumed):
            yield f"resumed: {event.keep} finished cell{'' if event.keep == 1 else 's'} kept"
        elif isinstance(event, Reading) and state.interference and self._says_first("interference"):
            yield state.interference
        elif isinstance(event, CellFinished) and (cell := state.ended.get(event.cell)) is not None:
            yield f"{len(state.ended)}/{len(state.planned)} {view.label(cell, state)}  {view.result(cell)}"
        if news := view.news(state, event):
            yield news
        first_run = self._overall is None or self._overall.number <= 1
        if first_run and (notice := view(state, event.at_s).notice()) and self._says_first("notice"):
            yield " → ".join(notice)

    def _says_first(self, kind: str) -> bool:
        is_first = kind not in self._said
        self._said.add(kind)
        return is_first

    def _write(self, text: str) -> None:
        if self._is_broken:
            return
        try:
            self._file.write(theme.terminal_line(text, self._encoding) + "\n")
            self._file.flush()
        except OSError:
            self._is_broken = True  # nobody reads the output any more; the run continues
