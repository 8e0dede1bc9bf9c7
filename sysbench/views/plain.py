"""Progress where there is no terminal: one line per finished cell, and not one control code."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from rich.console import Console

from sysbench import units
from sysbench.events import CellFinished, Event, RunResumed, WorkerReady
from sysbench.views import theme
from sysbench.views.screen import slow_without_gpu
from sysbench.views.state import Done, LiveState, Planned, advance, folded
from sysbench.views.tables import axes


class PlainProgress:
    """Writes a line for what is measured on, and one for every cell when it is over.

    A stream that cannot be written to any more (a closed pipe, a full disk) ends the progress, not the run. `earlier`
    are the events of the log that a resumed run continues.
    """

    def __init__(self, console: Console, *, earlier: Iterable[Event] = ()) -> None:
        self._file = console.file
        self._encoding = console.encoding
        self._state = folded(earlier)
        self._lost = False
        self._warned = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def show(self, event: Event) -> None:
        """Write what this event gives reason to write."""
        before = self._state
        self._state = advance(before, event)
        if isinstance(event, WorkerReady) and not before.devices:
            self._write(device_line(self._state))
        elif isinstance(event, RunResumed):
            self._write(f"resumed: {event.keep} finished cell{'' if event.keep == 1 else 's'} kept")
        elif isinstance(event, CellFinished):
            self._write(cell_line(self._state))
        elif not self._warned and (said := slow_without_gpu(self._state, event.at_s)):
            self._warned = True
            self._write(f"{said[0]} → {said[1]}")

    def _write(self, text: str) -> None:
        if self._lost:
            return
        try:
            self._file.write(theme.fitted(text.strip(), self._encoding) + "\n")
            self._file.flush()
        except OSError:
            self._lost = True


def device_line(state: LiveState) -> str:
    """What is measured on: `NVIDIA H200 · torch 2.13.0`."""
    name = state.device.name if state.device else "no device"
    if state.device is not None and state.device.type == "cpu" and state.torch:
        name = f"{name} ({state.torch.threads} thread{'' if state.torch.threads == 1 else 's'})"
    return f"{name} · torch {state.torch.torch}" if state.torch else name


def cell_line(state: LiveState) -> str:
    """The cell that finished last: `1/8 small ctx 128 fp32 train  step 105.6 ± 0.2 ms`."""
    done = state.done[-1]
    by_key = {planned.key: planned for planned in state.planned}
    planned = by_key.get(done.key)
    count = f"{len(state.done)}/{len(state.planned)}"
    return f"{count} {_named(planned, state)}  {_result(done)}"


def _named(planned: Planned | None, state: LiveState) -> str:
    if planned is None:
        return "a cell of another run"
    differing = axes.varying([each.cell.model_dump() for each in state.planned])
    always = ("size", "ctx", "precision", "mode")
    return axes.label(planned.cell.model_dump(), [*always, *(axis for axis in differing if axis not in always)])


def _result(done: Done) -> str:
    if done.outcome == "ok" and done.step:
        return f"step {units.seconds_with_deviation(*done.step)}"
    return f"{done.outcome}: {done.detail}" if done.detail else done.outcome
