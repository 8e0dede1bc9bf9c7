"""Special handling of individual cells of a run: paths for large results, and launchers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sysbench.engine.plan import PlacedCell
from sysbench.engine.process import Launcher
from sysbench.log.events import Event

Reader = Callable[[PlacedCell, Path], Iterator[Event]]
"""Yields events with the content of an artifact; raises SysbenchError if the artifact is unusable: the cell then fails.
"""


@dataclass(frozen=True)
class Provisions:
    """Paths for large results and special launchers, by cell key."""

    artifacts: Mapping[str, Path] = field(default_factory=dict)
    """Path to which the worker writes results that are too large for events; ranks other than 0
    write beside this path (`path_of_rank`).
    """
    launchers: Mapping[str, Launcher] = field(default_factory=dict)
    """Launcher of the cell's worker, if not the default launcher."""
    read: Reader = lambda placed, artifact: iter(())
    """Reads each artifact as soon as it is complete; with a wrapping launcher, that is after the worker has ended."""
