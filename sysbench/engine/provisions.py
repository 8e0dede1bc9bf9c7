"""What is arranged for single cells of a run, beside what all of them get."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sysbench.engine.launchers import Launcher
from sysbench.engine.plan import PlacedCell
from sysbench.log.events import Event

Reader = Callable[[PlacedCell, Path], Iterator[Event]]
"""Says in events what an artifact comes down to; raises SysbenchError when it is of no use, and with it its cell."""


def _as_it_is(placed: PlacedCell, artifact: Path) -> Iterator[Event]:
    return iter(())


@dataclass(frozen=True)
class Provisions:
    """By the keys of cells."""

    artifacts: Mapping[str, Path] = field(default_factory=dict)
    """Where their worker leaves what is too large for events."""
    launchers: Mapping[str, Launcher] = field(default_factory=dict)
    """How their worker is started, where that is not as for all others."""
    read: Reader = _as_it_is
    """Reads each artifact as soon as it is complete, which under a launcher that wraps is when the worker is gone."""
