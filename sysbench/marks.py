"""Marks in a program's own training loop, for phases and for the end of steps.

Marks do nothing unless `sysbench.record` or `sysbench.measure` is active, so they may stay in a script. This module
imports nothing, so that scripts with marks start quickly.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` takes longer to import than everything else here

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Protocol

    class ActiveRecording(Protocol):
        """Interface of the active recording, which receives the marks."""

        def phase(self, name: str) -> AbstractContextManager[None]:
            """Return a context manager that marks its block as this phase."""

        def step(self) -> None:
            """End the current step."""


active: ActiveRecording | None = None
"""The active recording or measurement of this process."""


class _NullContext:
    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None


NULL_CONTEXT = _NullContext()


def phase(name: str) -> AbstractContextManager[None]:
    """Mark the block `with sysbench.phase("forward"):` as a phase of the step.

    Phases cannot be nested: a phase inside another one raises SysbenchError. The mark does nothing outside a recording,
    or in a thread other than the recording one.
    """
    return NULL_CONTEXT if active is None else active.phase(name)


def step() -> None:
    """Mark the end of a step. From then on, only these marks end steps, and a phase may run several times per step.

    Without these marks, a step ends when its first phase begins again.
    """
    if active is not None:
        active.step()
