"""The state of a run, cell by cell, folded from its events: the common part of all live views."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar

from sysbench.command import spec_of
from sysbench.log.events import (
    CellFinished,
    CellStarted,
    DeviceInfo,
    Event,
    Reading,
    RunResumed,
    RunStarted,
    Stage,
    StageEntered,
    TorchInfo,
    WorkerReady,
)
from sysbench.log.outcomes import LASTING, Outcome

HOT: frozenset[str] = frozenset({"warming-up", "measuring"})
"""Stages in which the worker's steps are timed, so that other load on the machine would disturb them."""


@dataclass(frozen=True)
class CellState:
    """The known state of a cell."""

    cell: Any
    """The cell, of the command's own class."""
    device: DeviceInfo | None = None
    started_s: float | None = None
    stage: Stage | None = None
    stage_since_s: float = 0.0
    outcome: Outcome | None = None
    """Outcome; None while it is running or waiting."""
    detail: str | None = None


AnyCell = TypeVar("AnyCell", bound=CellState)


@dataclass(frozen=True)
class RunState(Generic[AnyCell]):
    """State of a run at one moment."""

    started_s: float = 0.0
    cells: tuple[tuple[str, AnyCell], ...] = ()
    """Cells by key, in the order of the run."""
    torch: TorchInfo | None = None
    devices: tuple[DeviceInfo, ...] = ()
    current: str | None = None
    """Key of the cell that is running, or ran last."""
    reading: Reading | None = None

    @property
    def now(self) -> AnyCell | None:
        """The cell that is running, or ran last."""
        return dict(self.cells).get(self.current) if self.current is not None else None

    @property
    def done(self) -> int:
        """Number of finished cells."""
        return sum(cell.outcome is not None for _, cell in self.cells)

    def put(self, key: str, cell: AnyCell) -> Self:
        """Return the state with this cell replaced."""
        return replace(self, cells=tuple((each, cell if each == key else old) for each, old in self.cells))


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation, which is 0 for a single value."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


Handler = Callable[[Any, Any], Any]
"""A function from a state and an event to the next state."""


def in_cell(change: Callable[[Any, Any], Any]) -> Handler:
    """Apply a change to the cell of an event; an event about a cell of another run changes nothing."""

    def handle(state: RunState[Any], event: Any) -> RunState[Any]:
        cell = dict(state.cells).get(event.cell)
        return state.put(event.cell, change(cell, event)) if cell is not None else state

    return handle


def handlers(state: type[RunState[Any]], cell: type[CellState], others: Mapping[type, Handler]) -> dict[type, Handler]:
    """Return the handler of each event for runs of these cells; `others` are added, or replace common ones."""

    def started(_: RunState[Any], event: RunStarted) -> RunState[Any]:
        cells = spec_of(event.spec).cells()
        return state(started_s=event.at_s, cells=tuple((each.key, cell(each)) for each in cells))

    def resumed(before: RunState[Any], event: RunResumed) -> RunState[Any]:
        """Cells that will run again return to waiting."""
        kept = ((key, each if each.outcome in LASTING else cell(each.cell)) for key, each in before.cells)
        return state(started_s=event.at_s, cells=tuple(kept))

    def cell_started(before: RunState[Any], event: CellStarted) -> RunState[Any]:
        waiting = dict(before.cells).get(event.cell)
        if waiting is None:
            return before
        now = cell(waiting.cell, event.device, started_s=event.at_s, stage_since_s=event.at_s)
        return replace(before, current=event.cell).put(event.cell, now)

    return {
        RunStarted: started,
        RunResumed: resumed,
        CellStarted: cell_started,
        WorkerReady: lambda run, event: replace(run, torch=event.torch, devices=tuple(event.devices)),
        Reading: lambda run, event: replace(run, reading=event),
        StageEntered: in_cell(lambda each, event: replace(each, stage=event.stage, stage_since_s=event.at_s)),
        CellFinished: in_cell(lambda each, event: replace(each, outcome=event.outcome, detail=event.detail)),
        **others,
    }


def advance(handlers: Mapping[type, Handler], state: Any, event: Event) -> Any:
    """Return the state after an event; it is unchanged if the event affects nothing that is shown."""
    handle = handlers.get(type(event))
    return handle(state, event) if handle else state
