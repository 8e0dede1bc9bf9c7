"""Progress displays of a run, and `show_status`, which shows what the program is waiting for outside a run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sysbench.log.events import Event
from sysbench.stderr import printable

if TYPE_CHECKING:
    from rich.console import Console


class Progress:
    """A progress display, which receives the events of a run; this one shows nothing and only passes them on."""

    def __init__(self, callback: Callable[[Event], object] | None = None) -> None:
        self._callback = callback

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def show(self, event: Event) -> None:
        """Process one event, and update the display if an update is due. Does not raise if the terminal is lost."""
        if self._callback is not None:
            self._callback(event)


@contextmanager
def show_status(text: str, console: Console | None = None, *, silent: bool = False) -> Iterator[Callable[[str], None]]:
    """Show a status line on the terminal during the block; yields a function that changes its text.

    Shows nothing if `silent` is set, or if stderr or `console` is not a terminal.
    """
    if silent or not sys.stderr.isatty() or (console is not None and not console.is_terminal):
        yield lambda other: None
        return
    from rich.console import Console as Terminal
    from rich.markup import escape

    with Terminal(stderr=True).status(f" {escape(printable(text))}") as status:
        yield lambda other: status.update(f" {escape(printable(other))}")
