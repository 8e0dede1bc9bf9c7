"""The state of a run and of its cells, computed from events; all live views use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean, stdev
from typing import Any, Generic, Self

from typing_extensions import TypeVar

from sysbench.cells import AXES, varying
from sysbench.command import Kind
from sysbench.log.cautions import BUSY_SHARE
from sysbench.log.events import (
    CellFinished,
    CellStarted,
    DeviceInfo,
    Event,
    HostInfo,
    Reading,
    RunResumed,
    RunStarted,
    Stage,
    StageEntered,
    ThreadsProbe,
    ThreadsProbed,
    TorchInfo,
    WorkerExited,
    WorkerReady,
)
from sysbench.log.outcomes import LASTING, Outcome
from sysbench.render.sentences.notes import fewer_threads, interference
from sysbench.spec.cell import cell_of, spec_of

TIMED_STAGES: frozenset[str] = frozenset({"warming-up", "measuring", "profiling"})
"""Stages in which steps are timed or profiled, so that other load on the machine would disturb them."""

INTERFERENCE_S = 2.0
"""Other processes count as interfering once they have been busy for this long."""


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
    """None while the cell is running or waiting."""
    detail: str | None = None
    took_s: float = 0.0
    """Duration of the finished cell."""
    peak_bytes: int | None = None
    """Highest memory reading during this cell: the device's memory, or the worker's without a GPU."""
    limit_s: float | None = None
    """Time limit of the cell in seconds; None if none is known."""

    @cached_property
    def choices(self) -> tuple[object, ...]:
        """The values of the axes on which the time for a unit of work depends."""
        return tuple(self.cell.axis_value(name) for name, axis in AXES.items() if axis.role in ("device", "choice"))

    @property
    def pace_s(self) -> float | None:
        """Seconds for each unit of the cell's work, such as a FLOP; None as long as they are unknown."""
        return None

    @property
    def outside_s(self) -> float:
        """Seconds of the finished cell outside its work."""
        return 0.0

    def expected_s(self, pace_s: float) -> float:
        """Return the seconds that the cell's work takes at this pace."""
        return 0.0

    def final_state(self) -> Self:
        """Return the state to keep once the cell has ended; by default the whole state."""
        return self


AnyCell = TypeVar("AnyCell", bound=CellState)
CellsOf = TypeVar("CellsOf", bound=CellState, covariant=True, default=CellState)
AnyState = TypeVar("AnyState", bound="RunState")


@dataclass(frozen=True)
class RunState(Generic[CellsOf]):
    """State of a run after some event."""

    started_s: float = 0.0
    host: HostInfo | None = None
    torch: TorchInfo | None = None
    devices: tuple[DeviceInfo, ...] = ()
    worker_ready: bool = False
    worker_since_s: float = 0.0
    """Time at which the worker became ready; before that, the time at which its start began."""
    planned: Mapping[str, CellsOf] = field(default_factory=dict)
    """State of every cell before its start, by key, in the order of the run."""
    differing_axes: tuple[str, ...] = ()
    """The axes in which the planned cells differ."""
    ended: Mapping[str, CellsOf] = field(default_factory=dict)
    """Finished cells by key, in the order in which they finished."""
    current_key: str | None = None
    """Key of the cell that is running, or ran last."""
    current_cell: CellsOf | None = None
    """The cell that is running, or ran last."""
    reading: Reading | None = None
    threads_probe: ThreadsProbe | None = None
    busy_since_s: float | None = None
    """Time since which every reading has shown that other processes are busy; None if the last one did not."""

    @property
    def kind(self) -> Kind:
        """Name of the run's command."""
        kind: Kind = next(iter(self.planned.values())).cell.kind
        return kind

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the user should know while the run goes on: fewer threads than usual, other busy processes."""
        threads = fewer_threads(self.threads_probe, self.kind) if not self.ended else None
        return (*([" → ".join(threads)] if threads else ()), *([self.interference] if self.interference else ()))

    @property
    def interference(self) -> str:
        """A warning if other processes disturb the cell that runs on the CPU, otherwise an empty text."""
        now, reading, since_s = self.current_cell, self.reading, self.busy_since_s
        if now is None or now.device is None or now.device.type != "cpu":
            return ""
        if now.cell.simulated or not now.cell.takes_times:
            return ""
        if since_s is None or reading is None or reading.at_s - since_s < INTERFERENCE_S:
            return ""
        return interference(reading.host_cpu_share or 0.0)

    @property
    def cells(self) -> tuple[tuple[str, CellsOf], ...]:
        """All cells by key, in the order of the run, in their current state."""
        present = {**self.planned, **self.ended}
        if self.current_key is not None and self.current_cell is not None:
            present[self.current_key] = self.current_cell
        return tuple(present.items())

    @property
    def running(self) -> str:
        """Key of the running cell; empty if none is running."""
        return self.current_key if self.current_key and self.current_cell and self.current_cell.outcome is None else ""

    @property
    def is_timing(self) -> bool:
        """Whether steps are currently being timed or profiled."""
        return bool(self.running and self.current_cell and self.current_cell.stage in TIMED_STAGES)

    @property
    def device(self) -> DeviceInfo | None:
        """Device of the current cell or, while it is unknown, the device that `auto` selects."""
        if self.current_cell is not None and self.current_cell.device is not None:
            return self.current_cell.device
        return self.devices[0] if self.devices else None

    @property
    def on_gpu(self) -> bool:
        """Whether the current cell runs on a device other than the CPU."""
        device = self.current_cell.device if self.current_cell else None
        return device is not None and device.type != "cpu"


def with_cell(state: AnyState, key: str, cell: CellState) -> AnyState:
    """Return a state with a new state of the cell `key`."""
    ended: Mapping[str, CellState] = state.ended
    if cell.outcome is not None:
        ended = {**{other: each for other, each in ended.items() if other != key}, key: cell.final_state()}
    return replace(state, ended=ended, current_cell=cell if key == state.current_key else state.current_cell)


def with_reading(state: AnyState, event: Reading) -> AnyState:
    """Return the state after a reading, which need not have a load; between cells, it only counts other processes."""
    since_s, now = state.busy_since_s, state.current_cell
    if event.host_cpu_share is not None:
        is_busy = event.host_cpu_share > BUSY_SHARE
        since_s = (event.at_s if since_s is None else since_s) if is_busy else None
    if event.host_rss_bytes is None and event.device_used_bytes is None:
        return replace(state, busy_since_s=since_s)
    if now is not None and now.outcome is None:
        used = event.device_used_bytes if state.on_gpu else event.host_rss_bytes
        now = replace(now, peak_bytes=max(used or 0, now.peak_bytes or 0) or None)
    return replace(state, reading=event, busy_since_s=since_s, current_cell=now)


def _with_threads(torch: TorchInfo | None, probe: ThreadsProbe | None) -> TorchInfo | None:
    if torch is None or probe is None:
        return torch
    return torch.model_copy(update={"threads": probe.threads})


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and the sample standard deviation, which is 0 for a single value."""
    return fmean(values), stdev(values) if len(values) > 1 else 0.0


def finished(cell: AnyCell, event: CellFinished) -> AnyCell:
    """Return the state of a cell after its end."""
    took_s = event.at_s - cell.started_s if cell.started_s is not None else 0.0
    return replace(cell, outcome=event.outcome, detail=event.detail, stage_since_s=event.at_s, took_s=took_s)


Handler = Callable[[Any, Any], Any]
"""A function from a state and an event to the next state."""


def cell_handler(change: Callable[[Any, Any], Any]) -> Handler:
    """Return a handler that applies `change` to the cell of an event; events of unknown cells change nothing."""

    def handle(state: RunState, event: Any) -> RunState:
        cell = state.current_cell if event.cell == state.current_key else state.planned.get(event.cell)
        return with_cell(state, event.cell, change(cell, event)) if cell is not None else state

    return handle


def handlers(state: type[RunState], cell: type[CellState], others: Mapping[type, Handler]) -> dict[type, Handler]:
    """Return a handler for each event class; `others` adds handlers, or replaces common ones.

    `state` and `cell` are the classes for states of runs and of cells.
    """

    def started(_: RunState, event: RunStarted) -> RunState:
        planned = {each.key: cell(each) for each in spec_of(event.spec).cells()}
        return state(
            started_s=event.at_s,
            host=event.host,
            worker_since_s=event.at_s,
            planned=planned,
            differing_axes=varying([each.cell for each in planned.values()]),
        )

    def resumed(before: RunState, event: RunResumed) -> RunState:
        kept = {key: state for key, state in before.ended.items() if state.outcome in LASTING}
        return state(
            started_s=event.at_s,
            host=before.host,
            worker_since_s=event.at_s,
            planned=before.planned,
            differing_axes=before.differing_axes,
            ended=kept,
        )

    def cell_started(before: RunState, event: CellStarted) -> RunState:
        planned = before.planned
        if event.cell not in planned:
            # The beginning of the run was not shown: its cells become known one by one.
            planned = {**planned, event.cell: cell(cell_of(event.axes))}
            before = replace(before, planned=planned, differing_axes=varying([each.cell for each in planned.values()]))
        now = cell(planned[event.cell].cell, event.device, started_s=event.at_s, stage_since_s=event.at_s)
        return replace(before, current_key=event.cell, current_cell=now, worker_ready=True)

    def worker_ready(before: RunState, event: WorkerReady) -> RunState:
        return replace(
            before,
            torch=_with_threads(event.torch, before.threads_probe),
            devices=tuple(event.devices),
            worker_ready=True,
            worker_since_s=event.at_s,
        )

    return {
        RunStarted: started,
        RunResumed: resumed,
        CellStarted: cell_started,
        WorkerReady: worker_ready,
        WorkerExited: lambda run, event: replace(run, worker_ready=False, worker_since_s=event.at_s),
        Reading: with_reading,
        ThreadsProbed: lambda run, event: replace(run, torch=_with_threads(run.torch, event), threads_probe=event),
        StageEntered: cell_handler(lambda each, event: replace(each, stage=event.stage, stage_since_s=event.at_s)),
        CellFinished: cell_handler(finished),
        **others,
    }


def advance(handlers: Mapping[type, Handler], state: Any, event: Event) -> Any:
    """Return the state after an event; the same state if there is no handler for the event."""
    handle = handlers.get(type(event))
    return handle(state, event) if handle else state
