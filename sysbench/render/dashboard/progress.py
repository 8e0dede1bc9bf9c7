"""What watches a run: something that is shown every event, and cleans up after itself.

What is being waited for, where nothing else moves on the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from sysbench.log.events import Event
from sysbench.stderr import printable

if TYPE_CHECKING:
    from rich.console import Console


class Progress(Protocol):
    """A context manager that is shown the events of a run as they come."""

    def __enter__(self) -> Self:
        """Begin showing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop showing, and leave the terminal as it was."""

    def show(self, event: Event) -> None:
        """Take in one event, and show what it changes if it is time to. Never raises for a lost terminal."""


class Silent:
    """Shows nothing, and passes every event on to `told`."""

    def __init__(self, told: Callable[[Event], object] | None = None) -> None:
        self._told = told

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def show(self, event: Event) -> None:
        """Pass it on."""
        if self._told is not None:
            self._told(event)


@contextmanager
def waiting(what: str, console: Console | None = None, *, silent: bool = False) -> Iterator[Callable[[str], None]]:
    """Say on a terminal what is being waited for, and take it back afterwards; yields how to say something else.

    Nothing is said where stderr is no terminal, or `console`, where what is waited for goes, is none.
    """
    if silent or not sys.stderr.isatty() or (console is not None and not console.is_terminal):
        yield lambda other: None
        return
    from rich.console import Console as Terminal
    from rich.markup import escape

    with Terminal(stderr=True).status(f" {escape(printable(what))}") as status:
        yield lambda other: status.update(f" {escape(printable(other))}")
