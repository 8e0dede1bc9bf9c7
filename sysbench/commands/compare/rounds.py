"""Rounds of two arms in fresh processes, each run with its own log.

Every round runs each arm once, in alternating order (A B, B A, A B, …), so that drift affects both arms equally. The
logs of finished rounds remain if the comparison is aborted.
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
    """Whether the user interrupted it, and with it the whole comparison."""

    @property
    def closes_round(self) -> bool:
        """Whether this is the second turn of its round."""
        return self.arm == order(self.round)[1]


def order(number: int) -> tuple[Arm, Arm]:
    """The order of the arms in a round."""
    return ("A", "B") if number % 2 else ("B", "A")


def new_directory(out: Path) -> Path:
    """Create a directory for a comparison that starts now; raises OutputError."""
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
    """Run all rounds; yields each turn when its log is complete. The last turn may be interrupted.

    `show` receives every event. Signals that stop a program end the rounds in an orderly way. Raises UsageError if this
    machine lacks what the spec requires, SysbenchError if no worker starts, and OutputError if a file is not writable.
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
