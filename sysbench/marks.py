"""Marks in a program's own training loop: where a phase begins and ends, and where a step ends.

They do nothing unless `sysbench.record` or `sysbench.measure` is active, so they may stay in a script. This module
imports nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` takes longer to import than everything else here

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Protocol

    class Marked(Protocol):
        """What is told about the marks while it is active."""

        def phase(self, name: str) -> AbstractContextManager[None]:
            """Return the context in which this phase runs."""

        def step(self) -> None:
            """End the current step."""


active: Marked | None = None
"""The one recording or measurement of this process."""


class _Nothing:
    """A context that does nothing."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None


NOTHING = _Nothing()


def phase(name: str) -> AbstractContextManager[None]:
    """Mark what runs inside `with sysbench.phase("forward"):` as a phase of the step.

    Phases follow each other: one inside another raises SysbenchError. In other threads than the one that records, and
    without a recording, the mark does nothing.
    """
    return NOTHING if active is None else active.phase(name)


def step() -> None:
    """Mark the end of a step; from then on, only these marks end steps, and a phase may occur several times in one.

    Without any such mark, a step ends when its first phase begins again.
    """
    if active is not None:
        active.step()
