"""A run at one moment, cell by cell, folded from its events: what the live views of several commands have in common."""

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
"""Stages in which the worker's steps are timed, and whatever else runs on the machine disturbs them."""


@dataclass(frozen=True)
class CellState:
    """A cell of the run, as far as it is known."""

    cell: Any
    """The command's own cell."""
    device: DeviceInfo | None = None
    started_s: float | None = None
    stage: Stage | None = None
    stage_since_s: float = 0.0
    outcome: Outcome | None = None
    """How it ended; None while it goes on or waits."""
    detail: str | None = None


AnyCell = TypeVar("AnyCell", bound=CellState)


@dataclass(frozen=True)
class RunState(Generic[AnyCell]):
    """A run at one moment."""

    started_s: float = 0.0
    cells: tuple[tuple[str, AnyCell], ...] = ()
    """By key, in the order of the run."""
    torch: TorchInfo | None = None
    devices: tuple[DeviceInfo, ...] = ()
    current: str | None = None
    """The key of the cell that runs, or ran last."""
    reading: Reading | None = None

    @property
    def now(self) -> AnyCell | None:
        """The cell that runs, or ran last."""
        return dict(self.cells).get(self.current) if self.current is not None else None

    @property
    def done(self) -> int:
        """How many cells are over."""
        return sum(cell.outcome is not None for _, cell in self.cells)

    def put(self, key: str, cell: AnyCell) -> Self:
        """The same with this cell in its place."""
        return replace(self, cells=tuple((each, cell if each == key else old) for each, old in self.cells))


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; 0 for the deviation of a single value."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, 0.0
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


Handler = Callable[[Any, Any], Any]
"""The state after an event."""


def in_cell(change: Callable[[Any, Any], Any]) -> Handler:
    """A change to the cell that the event is about; what is said of one that is not of this run changes nothing."""

    def handle(state: RunState[Any], event: Any) -> RunState[Any]:
        cell = dict(state.cells).get(event.cell)
        return state.put(event.cell, change(cell, event)) if cell is not None else state

    return handle


def handlers(state: type[RunState[Any]], cell: type[CellState], others: Mapping[type, Handler]) -> dict[type, Handler]:
    """What each event does to a run of these cells; `others` are a command's own, or stand in for a common one."""

    def started(_: RunState[Any], event: RunStarted) -> RunState[Any]:
        cells = spec_of(event.spec).cells()
        return state(started_s=event.at_s, cells=tuple((each.key, cell(each)) for each in cells))

    def resumed(before: RunState[Any], event: RunResumed) -> RunState[Any]:
        """What will be run again waits once more."""
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
    """The state after one more event; an event that changes nothing shown leaves it as it is."""
    handle = handlers.get(type(event))
    return handle(state, event) if handle else state
