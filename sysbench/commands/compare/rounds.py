"""Two arms measured in turns: rounds over fresh processes, each run of which has a log of its own.

In every round each arm is run once, in a process of its own; which of them goes first alternates (A B, B A,
A B, …), so that whatever drifts meanwhile falls on both alike. Whatever becomes of a comparison, the logs of the rounds
that have been finished are there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from sysbench.engine import session
from sysbench.engine.interrupts import catch_interrupts
from sysbench.engine.launchers import Launcher
from sysbench.log.events import Event, RunFinished
from sysbench.log.round_logs import Arm, log_name
from sysbench.log.storage import cannot_write, make_directory
from sysbench.spec.cell import RunSpec
from sysbench.spec.run import RunOptions


@dataclass(frozen=True)
class Turn:
    """One run of one arm."""

    round: int
    """From 1."""
    arm: Arm
    log: Path
    interrupted: bool = False
    """The user has stopped it, and with it the whole comparison."""

    @property
    def closes_round(self) -> bool:
        """Whether both arms have had their turn in this round."""
        return self.arm == order(self.round)[1]


def order(number: int) -> tuple[Arm, Arm]:
    """Which arm goes first in a round."""
    return ("A", "B") if number % 2 else ("B", "A")


def new_directory(out: Path) -> Path:
    """A directory for a comparison that begins now; raises OutputError."""
    make_directory(out)
    stem = f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}-compare"
    for number in count(1):
        path = out / (stem if number == 1 else f"{stem}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise cannot_write(path, error) from error
        return path
    raise AssertionError("there is always a next number")


def carry_out(
    specs: Mapping[Arm, RunSpec],
    rounds: int,
    directory: Path,
    options: RunOptions,
    show: Callable[[int, Arm, Event], None],
    launcher: Launcher | None = None,
) -> Iterator[Turn]:
    """Run all rounds; each turn is handed over when its log is complete, and the last one may be interrupted.

    `show` is told every event as it comes. The signals that stop a program end it in order, whenever they come. Raises
    as a session does: UsageError when this machine is not the one that was asked for, SysbenchError when no worker can
    be started, OutputError when nothing can be written any more.
    """
    with catch_interrupts() as interrupts:
        for number in range(1, rounds + 1):
            for arm in order(number):
                if interrupts.requested:
                    return
                turn = _turn(specs[arm], number, arm, directory, options, show, launcher)
                yield turn
                if turn.interrupted:
                    return


def _turn(
    spec: RunSpec,
    number: int,
    arm: Arm,
    directory: Path,
    options: RunOptions,
    show: Callable[[int, Arm, Event], None],
    launcher: Launcher | None,
) -> Turn:
    one = options.model_copy(update={"out": directory / arm, "log_name": log_name(number)})
    with session.run(spec, one, launcher=launcher) as running:
        turn = Turn(number, arm, running.log_path)
        for event in running:
            show(number, arm, event)
            if isinstance(event, RunFinished) and event.status == "interrupted":
                turn = replace(turn, interrupted=True)
    return turn
