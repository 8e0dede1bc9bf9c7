"""Sorts the events of a log by the cell they are about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from sysbench.errors import LogError
from sysbench.events import (
    CeilingMeasured,
    CellFinished,
    CellStarted,
    Compiled,
    Event,
    MemoryMeasured,
    ModelBuilt,
    Reading,
    ReadingsLost,
    RunFinished,
    RunStarted,
    StepChecked,
    StepMeasured,
    WorkerReady,
)


@dataclass
class CellEvents:
    """What the log says of one cell, from its latest start on."""

    started: CellStarted | None = None
    built: ModelBuilt | None = None
    compiled: Compiled | None = None
    warmup: list[StepMeasured] = field(default_factory=list)
    steps: list[StepMeasured] = field(default_factory=list)
    memory: MemoryMeasured | None = None
    checked: StepChecked | None = None
    readings: list[Reading] = field(default_factory=list)
    measured_readings: list[Reading] = field(default_factory=list)
    """The readings taken between the first and the last measured step."""
    finished: CellFinished | None = None

    def add(self, event: Event) -> None:
        """Take in one event of this cell; a cell that is started again begins anew."""
        match event:
            case ModelBuilt():
                self.built = event
            case Compiled():
                self.compiled = event
            case StepMeasured():
                (self.warmup if event.warmup else self.steps).append(event)
            case MemoryMeasured():
                self.memory = event
            case StepChecked():
                self.checked = event
            case CellFinished():
                self.finished = event
            case Reading():
                self.readings.append(event)
                if self.steps and self.memory is None:
                    self.measured_readings.append(event)
            case _:
                pass


@dataclass
class Run:
    """Everything the log says, sorted by what it is about."""

    started: RunStarted
    worker: WorkerReady | None = None
    finished: RunFinished | None = None
    cells: dict[str, CellEvents] = field(default_factory=dict)
    ceilings: dict[tuple[str, str], CeilingMeasured] = field(default_factory=dict)
    lost: list[ReadingsLost] = field(default_factory=list)


def collect(events: Iterable[Event]) -> Run:
    """Sort a log by what its events are about; raises LogError when they hold no run."""
    run: Run | None = None
    current: str | None = None
    between: Reading | None = None
    for event in events:
        if isinstance(event, RunStarted):
            run = Run(started=event)
        if run is None:
            raise LogError("the log does not begin with the start of a run")
        match event:
            case WorkerReady():
                run.worker = event
            case RunFinished():
                run.finished = event
            case CeilingMeasured():
                run.ceilings[event.device, event.precision] = event
            case ReadingsLost():
                run.lost.append(event)
            case CellStarted():
                current = event.cell
                run.cells[current] = CellEvents(started=event, readings=[between] if between else [])
            case Reading() if current is not None:
                run.cells[current].add(event)
            case Reading():
                between = event
            case _ if (key := getattr(event, "cell", None)) is not None:
                run.cells.setdefault(key, CellEvents()).add(event)
                if isinstance(event, CellFinished):
                    current = None
    if run is None:
        raise LogError("the log is empty")
    return run
