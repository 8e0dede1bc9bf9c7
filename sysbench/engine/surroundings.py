"""What the program that starts a run gives it, besides the options of its user."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sysbench.engine.rendezvous.rank_zero import RankConnections
    from sysbench.log.events import ThreadsProbe


@dataclass(frozen=True)
class Surroundings:
    """What the engine is given for a run."""

    log_name: str | None = None
    """Name of the log without its suffix; None for a name from the time and the command."""
    ceilings: bool = True
    threads_probe: ThreadsProbe | None = None
    """Choice of CPU threads by an earlier run that this one is compared with; if None, the run makes its own."""
    links: RankConnections | None = None
    """Other ranks started by torchrun or srun, if any."""
    in_experiment: bool = False
    """Whether the run belongs to an experiment, whose simulated runs share one worker."""


ALONE: Final = Surroundings()
