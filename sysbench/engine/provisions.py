"""What the program that starts a run gives it, besides the options of its user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sysbench.engine.plan import PlacedCell
from sysbench.engine.process import Launcher
from sysbench.log.events import Event, ThreadsProbe, Turn

if TYPE_CHECKING:
    from sysbench.engine.rendezvous.rank_zero import RankConnections

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


@dataclass(frozen=True)
class Surroundings:
    """What the engine is given for a run."""

    log_name: str | None = None
    """Name of the log without its suffix; None for a name from the time and the command."""
    turn: Turn | None = None
    """The run's place in a comparison of two arms, if it belongs to one."""
    ceilings: bool = True
    threads_probe: ThreadsProbe | None = None
    """Choice of CPU threads by an earlier run that this one is compared with; if None, the run makes its own."""
    links: RankConnections | None = None
    """Other ranks started by torchrun or srun, if any."""
    in_experiment: bool = False
    """Whether the run belongs to an experiment, whose simulated runs share one worker."""
    first_events: tuple[Event, ...] = ()
    """Events that the log has after that of the start."""


ALONE: Final = Surroundings()
