"""What watches a run: something that is shown every event, and cleans up after itself."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from sysbench.events import Event


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
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        pass

    def show(self, event: Event) -> None:
        """Look away."""
