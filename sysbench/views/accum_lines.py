"""Progress of `sysbench accum`: a line for every experiment when it is over. They are too short for a picture."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from rich.console import Console

from sysbench.events import CellFinished, Event, RunResumed, RunStarted
from sysbench.specs.accum import AccumSpec
from sysbench.views import theme


class AccumLines:
    """Writes to a stream until that cannot be written to any more."""

    def __init__(self, console: Console, *, earlier: Iterable[Event] = ()) -> None:
        self._file = console.file
        self._encoding = console.encoding
        self._cells = 0
        self._finished = 0
        self._titles: dict[str, str] = {}
        self._lost = False
        for event in earlier:
            self._note(event)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def show(self, event: Event) -> None:
        """Write what this event gives reason to write."""
        self._note(event)
        if isinstance(event, RunResumed):
            self._write(f"resumed: {event.keep} finished cell{'' if event.keep == 1 else 's'} kept")
        elif isinstance(event, CellFinished):
            result = f"{event.outcome}: {event.detail}" if event.detail else event.outcome
            self._write(f"{self._finished}/{self._cells} {self._titles.get(event.cell, event.cell)}  {result}")

    def _note(self, event: Event) -> None:
        match event:
            case RunStarted():
                cells = list(AccumSpec.model_validate(event.spec).cells())
                self._cells, self._titles = len(cells), {cell.key: cell.title for cell in cells}
            case RunResumed():
                self._finished = event.keep
            case CellFinished():
                self._finished += 1

    def _write(self, text: str) -> None:
        if self._lost:
            return
        try:
            self._file.write(theme.fitted(text, self._encoding) + "\n")
            self._file.flush()
        except OSError:
            self._lost = True  # nobody reads on; the run goes on
