"""What the program that starts a command's run gives it, for the engine and for what is shown, and what it gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sysbench.engine.provisions import Surroundings
from sysbench.log.events import Event

if TYPE_CHECKING:
    from sysbench.log.records import RunRecord
    from sysbench.render.dashboard.experiment_progress import ExperimentProgress


@dataclass(frozen=True)
class RunSurroundings(Surroundings):
    """What a run of a command is given: by a terminal nothing, by an experiment or a program what it shares or shows.

    overall  progress of the experiment to which the run belongs
    watch    called with every event of a quiet run
    shown    whether to print the result
    """

    overall: ExperimentProgress | None = None
    watch: Callable[[Event], object] | None = None
    shown: bool = True


ALONE: Final = RunSurroundings()


@dataclass(frozen=True)
class RunResult:
    """Record and files of a run."""

    record: RunRecord
    files: tuple[Path, ...] = ()
    """Files written besides the log and the record."""
