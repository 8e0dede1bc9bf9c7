"""Progress output for streams other than a terminal: one line for every finished cell, without control codes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial, reduce
from typing import Any, Generic, TypeVar

from rich.console import Console

from sysbench import cells as axes
from sysbench.log.cautions import fewer_threads
from sysbench.log.events import CellFinished, Event, Reading, RunResumed, ThreadsProbed, WorkerReady
from sysbench.render import theme
from sysbench.render.dashboard import run_state
from sysbench.render.dashboard.experiment_progress import ExperimentProgress
from sysbench.render.dashboard.progress import PassiveProgress
from sysbench.render.dashboard.run_state import CellState, RunState

State = TypeVar("State")


class Lines(PassiveProgress, Generic[State]):
    """Base class of line-by-line progress output.

    If the stream breaks (closed pipe, full disk), the output ends, but the run continues. `earlier` are the events in
    the log of a resumed run; `overall` is the progress of its experiment.
    """

    initial: State
    """State before the first event."""
    advance: Callable[[Any, Event], Any]
    """Function that returns the state after another event."""

    def __init__(
        self, console: Console, *, earlier: Iterable[Event] = (), overall: ExperimentProgress | None = None
    ) -> None:
        self._overall = overall
        self._file = console.file
        self._encoding = console.encoding
        self._is_broken = False
        self.state = reduce(type(self).advance, earlier, self.initial)

    def format_event(self, event: Event, before: State) -> Iterator[str]:
        """Yield the progress lines for an event; `before` is the state before the event."""
        raise NotImplementedError

    def show(self, event: Event) -> None:
        """Write the progress lines for this event."""
        before = self.state
        self.state = type(self).advance(before, event)
        suffix = ""
        if self._overall is not None:
            self._overall.update(event)
            suffix = f"  ({self._overall.describe(event.at_s)})" if isinstance(event, CellFinished) else ""
        for text in self.format_event(event, before):
            self._write(text.strip() + suffix)

    def _write(self, text: str) -> None:
        if self._is_broken:
            return
        try:
            self._file.write(theme.terminal_line(text, self._encoding) + "\n")
            self._file.flush()
        except OSError:
            self._is_broken = True  # nobody reads the output any more; the run continues


def resumed_line(event: RunResumed) -> str:
    """Return a line such as `resumed: 3 finished cells kept`."""
    return f"resumed: {event.keep} finished cell{'' if event.keep == 1 else 's'} kept"


class CellLines(Lines[RunState[Any]]):
    """Progress lines of a run with cells: one for the device, and one for each finished cell."""

    always_labelled: tuple[str, ...] = ()
    """Axes that are always part of a cell's label, even if all cells agree in them."""

    _has_warned = False

    @staticmethod
    def result(cell: Any) -> str:
        """Return the outcome of a cell in a few words."""
        return f"{cell.outcome}: {cell.detail}" if cell.detail else str(cell.outcome)

    def format_event(self, event: Event, before: RunState[Any]) -> Iterator[str]:
        """Yield a line for the device, for cells kept from an earlier run, for warnings, and for each finished cell."""
        if isinstance(event, WorkerReady) and before.torch is None:
            simulated = all(cell.cell.simulated for _, cell in before.cells)
            names = [] if simulated else [device.name for device in event.devices[:1]]
            yield " · ".join([*names, f"torch {event.torch.torch}"])
        elif isinstance(event, RunResumed):
            yield resumed_line(event)
        elif isinstance(event, ThreadsProbed) and (threads := fewer_threads(event, self.state.kind)):
            yield " → ".join(threads)
        elif isinstance(event, Reading) and self.state.interference and not self._has_warned:
            self._has_warned = True
            yield self.state.interference
        elif isinstance(event, CellFinished) and (cell := self.state.ended.get(event.cell)) is not None:
            count = f"{self.state.done}/{len(self.state.planned)}"
            yield f"{count} {self.label_of(cell)}  {self.result(cell)}"

    def label_of(self, cell: Any) -> str:
        """Return the label of the cell within its run."""
        return label(cell, self.state, self.always_labelled)


class TitledLines(CellLines):
    """Progress lines with the title of each cell, for commands whose cells are too short for a dashboard."""

    initial = RunState[CellState]()
    advance = staticmethod(partial(run_state.advance, run_state.handlers(RunState, CellState, {})))

    def label_of(self, cell: CellState) -> str:
        """Return the title of the cell."""
        return str(cell.cell.title)


def label(cell: CellState, state: RunState[Any], always_labelled: tuple[str, ...]) -> str:
    """Label a cell by the axes in which the cells of the run differ, and by those in `always_labelled`."""
    differing = axes.varying([each.cell.model_dump() for each in state.planned.values()])
    return axes.label(
        cell.cell.model_dump(), [*always_labelled, *(axis for axis in differing if axis not in always_labelled)]
    )
