"""What a run has come to, folded from its events; everything that is shown while it goes on is drawn from this.

`advance` is pure: the same events give the same state, whether they arrive from a worker or from a log. What is left of
a cell and of the run is estimated from what they have taken so far.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal

from sysbench import formulas
from sysbench.commands.time.record import PredictedTime, StepPredicted
from sysbench.commands.time.spec import TimeCell, TimeSpec
from sysbench.log.events import (
    CellFinished,
    CellStarted,
    Compiled,
    DeviceInfo,
    Event,
    HostInfo,
    ModelBuilt,
    Reading,
    RunFinished,
    RunResumed,
    RunStarted,
    Stage,
    StageEntered,
    StepMeasured,
    TorchInfo,
    WorkerExited,
    WorkerReady,
)
from sysbench.log.outcomes import LASTING, Outcome, RunStatus
from sysbench.render.dashboard.lines import remembered
from sysbench.render.dashboard.run_state import HOT, mean_and_deviation


@dataclass(frozen=True)
class Planned:
    """A cell of the run, whether it was measured yet or not."""

    key: str
    cell: TimeCell
    step_flops: int


@dataclass(frozen=True)
class Step:
    """One step: its phases and their sum in seconds."""

    index: int
    warmup: bool
    phases: tuple[tuple[str, float], ...]
    total_s: float


@dataclass(frozen=True)
class Current:
    """The cell that the worker is at, or while it is at none, was at last."""

    key: str
    index: int
    cell: TimeCell
    device: DeviceInfo
    started_s: float
    stage: Stage = "building"
    stage_since_s: float = 0.0
    parameters: int | None = None
    compile_s: float | None = None
    steps: tuple[Step, ...] = ()
    peak_bytes: int | None = None
    """The most memory that a reading of this cell has shown: of the device, or without one of the worker."""
    outcome: Outcome | None = None
    """How it ended; None while it goes on."""
    detail: str | None = None
    predicted: PredictedTime | None = None
    """Of a cell for a GPU that is not here."""

    @property
    def measured(self) -> tuple[Step, ...]:
        """The steps that count."""
        return tuple(step for step in self.steps if not step.warmup)


@dataclass(frozen=True)
class Done:
    """A cell that is over."""

    key: str
    outcome: Outcome
    detail: str | None
    took_s: float
    device: DeviceInfo | None = None
    phases: tuple[tuple[str, float, float], ...] = ()
    """Name, mean and standard deviation in seconds of every phase, then of `step`."""
    predicted: PredictedTime | None = None
    """A step that was worked out and not measured."""

    @property
    def step(self) -> tuple[float, float] | None:
        """Mean and standard deviation of the step; None where nothing was measured."""
        return next(((mean, deviation) for name, mean, deviation in self.phases if name == "step"), None)


@dataclass(frozen=True)
class LiveState:
    """A run at one moment."""

    started_s: float = 0.0
    planned: tuple[Planned, ...] = ()
    host: HostInfo | None = None
    torch: TorchInfo | None = None
    devices: tuple[DeviceInfo, ...] = ()
    worker: Literal["starting", "ready"] = "starting"
    worker_since_s: float = 0.0
    current: Current | None = None
    done: tuple[Done, ...] = ()
    reading: Reading | None = None
    status: RunStatus | None = None

    @property
    def hot(self) -> bool:
        """Whether steps are being timed right now."""
        current = self.current
        return current is not None and current.outcome is None and current.stage in HOT

    @property
    def running(self) -> str:
        """The key of the cell that runs now, or nothing."""
        return self.current.key if self.current and self.current.outcome is None else ""

    @property
    def on_gpu(self) -> bool:
        """Whether what is measured now runs on a device of its own."""
        return self.current is not None and self.current.device.type != "cpu"

    @property
    def device(self) -> DeviceInfo | None:
        """What is measured on: the current cell's device, or what `auto` stands for."""
        return self.current.device if self.current else self.devices[0] if self.devices else None

    @property
    def without_gpu(self) -> bool:
        """Whether a worker has looked for devices, and there is only the CPU."""
        return bool(self.devices) and all(device.type == "cpu" for device in self.devices)


def advance(state: LiveState, event: Event) -> LiveState:
    """The state after one more event; an event that changes nothing shown leaves it as it is."""
    handle = _HANDLERS.get(type(event))
    return handle(state, event) if handle else state


def folded(events: Iterable[Event]) -> LiveState:
    """The state after all of these events: of the log of an earlier run, say, which is then resumed."""
    return reduce(advance, events, LiveState())


def phase_means(steps: Iterable[Step]) -> tuple[tuple[str, float, float], ...]:
    """Name, mean and deviation of every phase of these steps, then of the whole step."""
    by_phase: dict[str, list[float]] = {}
    totals: list[float] = []
    for step in steps:
        totals.append(step.total_s)
        for name, seconds in step.phases:
            by_phase.setdefault(name, []).append(seconds)
    if not totals:
        return ()
    return tuple((name, *mean_and_deviation(values)) for name, values in (*by_phase.items(), ("step", totals)))


def _run_started(state: LiveState, event: RunStarted) -> LiveState:
    cells = TimeSpec.model_validate(event.spec).cells()
    planned = tuple(Planned(cell.key, cell, formulas.step_flops_of(cell)) for cell in cells)
    return LiveState(started_s=event.at_s, planned=planned, host=event.host, worker_since_s=event.at_s)


def _run_resumed(state: LiveState, event: RunResumed) -> LiveState:
    """What will be run again waits once more; a forecast counts from here on."""
    kept = tuple(done for done in state.done if done.outcome in LASTING)
    return LiveState(started_s=event.at_s, planned=state.planned, host=state.host, worker_since_s=event.at_s, done=kept)


def _worker_ready(state: LiveState, event: WorkerReady) -> LiveState:
    return replace(
        state,
        torch=event.torch,
        devices=tuple(event.devices),
        worker="ready",
        worker_since_s=event.at_s,
        status=None,
    )


def _worker_exited(state: LiveState, event: WorkerExited) -> LiveState:
    return replace(state, worker="starting", worker_since_s=event.at_s)


def _cell_started(state: LiveState, event: CellStarted) -> LiveState:
    cell = TimeCell.model_validate(event.axes)
    planned = state.planned
    if not any(each.key == event.cell for each in planned):
        # A run of which the beginning was not shown: what it consists of turns up cell by cell.
        planned = (*planned, Planned(event.cell, cell, formulas.step_flops_of(cell)))
    current = Current(event.cell, event.index, cell, event.device, event.at_s, stage_since_s=event.at_s)
    return replace(state, planned=planned, current=current, worker="ready", status=None)


def _in_current(change: Callable[[Current, Any], Current]) -> Callable[[LiveState, Any], LiveState]:
    """A change to the current cell; what is said of another one changes nothing."""

    def handle(state: LiveState, event: Any) -> LiveState:
        if state.current is None or state.current.key != event.cell:
            return state
        return replace(state, current=change(state.current, event))

    return handle


def _stage_entered(current: Current, event: StageEntered) -> Current:
    return replace(current, stage=event.stage, stage_since_s=event.at_s)


def _model_built(current: Current, event: ModelBuilt) -> Current:
    return replace(current, parameters=event.parameters)


def _compiled(current: Current, event: Compiled) -> Current:
    return replace(current, compile_s=event.compile_s)


def _step_measured(current: Current, event: StepMeasured) -> Current:
    step = _step(event)
    return replace(current, steps=(*current.steps, step)) if step else current


def _step(event: StepMeasured) -> Step | None:
    """By the host's clock; phases by the device's where the host did not wait for each."""
    if event.step.wall_s is None:
        return None
    phases = tuple(
        (name, seconds)
        for name, sample in event.phases.items()
        if (seconds := sample.wall_s if sample.wall_s is not None else sample.device_s) is not None
    )
    return Step(event.index, event.warmup, phases, event.step.wall_s)


def _step_predicted(current: Current, event: StepPredicted) -> Current:
    return replace(current, predicted=event.step)


def _reading(state: LiveState, event: Reading) -> LiveState:
    if event.host_rss_bytes is None and event.device_used_bytes is None:
        # Taken between cells, about other programs only.
        return state
    current = state.current
    if current is not None and current.outcome is None:
        used = event.device_used_bytes if current.device.type == "cuda" else event.host_rss_bytes
        if used is not None and used > (current.peak_bytes or 0):
            current = replace(current, peak_bytes=used)
    return replace(state, reading=event, current=current)


def _cell_finished(state: LiveState, event: CellFinished) -> LiveState:
    current = state.current if state.current is not None and state.current.key == event.cell else None
    done = Done(
        key=event.cell,
        outcome=event.outcome,
        detail=event.detail,
        took_s=event.at_s - current.started_s if current else 0.0,
        device=current.device if current else None,
        phases=phase_means(current.measured) if current else (),
        predicted=current.predicted if current else None,
    )
    others = tuple(each for each in state.done if each.key != event.cell)
    if current:
        current = replace(current, outcome=event.outcome, detail=event.detail, stage_since_s=event.at_s)
    return replace(state, done=(*others, done), current=current or state.current)


def _run_finished(state: LiveState, event: RunFinished) -> LiveState:
    return replace(state, status=event.status)


_HANDLERS: dict[type, Callable[[LiveState, Any], LiveState]] = {
    RunStarted: _run_started,
    RunResumed: _run_resumed,
    WorkerReady: _worker_ready,
    WorkerExited: _worker_exited,
    CellStarted: _cell_started,
    StageEntered: _in_current(_stage_entered),
    ModelBuilt: _in_current(_model_built),
    Compiled: _in_current(_compiled),
    StepMeasured: _in_current(_step_measured),
    StepPredicted: _in_current(_step_predicted),
    Reading: _reading,
    CellFinished: _cell_finished,
    RunFinished: _run_finished,
}


# --- how long it will still take

RECENT = 10
"""As many of the last steps say how long the next one takes."""

MODELS = 20
"""As many of the last finished cells are asked what a waiting cell may be like."""

_DECISIVE = ("device", "threads", "precision", "execution", "attention", "mode", "size")
"""What decides how fast FLOPs are done; how many there are is known."""

_MEDIAN_WIDTH = 2 * 1.96 * math.sqrt(math.pi / 2)
"""Width of the 95 % interval of a normal sample's median, in standard deviations over the root of its size."""


def expected_steps(current: Current) -> int:
    """How many measured steps the cell will have: with `--until`, as many as its interval seems to need."""
    cell, measured = current.cell, current.measured
    if cell.until is None or len(measured) < 3:
        return cell.steps
    mean_s, deviation_s = mean_and_deviation([step.total_s for step in measured])
    needed = math.ceil((_MEDIAN_WIDTH * deviation_s / (mean_s * cell.until)) ** 2)
    return min(cell.max_steps, max(cell.steps, needed, len(measured) + 1))


def cell_left_s(current: Current) -> float | None:
    """Seconds until the cell is measured; None before its first step."""
    if current.outcome is not None:
        return 0.0
    if not current.steps:
        return None
    warmed_up = len(current.steps) - len(current.measured)
    left = max(0, current.cell.warmup - warmed_up) * (not current.measured)
    left += expected_steps(current) - len(current.measured)
    return left * _step_s(current)


def run_left_s(state: LiveState) -> float | None:
    """Seconds until every cell is measured; None before there is anything to go by.

    The steps of waiting cells are forecast by their FLOPs at the speed of the finished cell most like each, and what a
    cell costs beside its steps by the average. While no cell is finished, the current one's speed stands for all.
    """
    current = state.current
    left_s = cell_left_s(current) if current else 0.0
    if left_s is None:
        return None
    key = state.running
    if any(done.step for done in state.done):
        return left_s + _waiting_s(state.planned, state.done, key)
    waiting_flops = _waiting_flops(state.planned, state.done, key)
    if not waiting_flops or current is None:
        return None if waiting_flops else left_s
    return left_s + waiting_flops * _step_s(current) / formulas.step_flops_of(current.cell)


def _step_s(current: Current) -> float:
    """A typical recent step; the very first one is much slower, and typical only while it is alone."""
    recent = current.steps[1:][-RECENT:] or current.steps
    return statistics.median(step.total_s for step in recent)


def _waiting(planned: Iterable[Planned], done: Iterable[Done], current_key: str) -> list[Planned]:
    started = {each.key for each in done} | {current_key}
    return [each for each in planned if each.key not in started]


def _flops(planned: Planned) -> int:
    return _steps_of(planned) * planned.step_flops


@remembered
def _waiting_flops(planned: tuple[Planned, ...], done: tuple[Done, ...], current_key: str) -> int:
    return sum(_flops(each) for each in _waiting(planned, done, current_key))


@remembered
def _waiting_s(planned: tuple[Planned, ...], done: tuple[Done, ...], current_key: str) -> float:
    by_key = {each.key: each for each in planned}
    measured = [(by_key[each.key], each) for each in done if each.step and each.key in by_key]
    seen = [(cell, each.step[0] / cell.step_flops) for cell, each in measured if each.step]
    beside_s = [max(0.0, each.took_s - _steps_of(cell) * each.step[0]) for cell, each in measured if each.step]
    waiting = _waiting(planned, done, current_key)
    steps_s = (_flops(each) * _seconds_per_flop(each, seen[-MODELS:]) for each in waiting)
    return math.fsum(steps_s) + len(waiting) * statistics.fmean(beside_s or [0.0])


def _steps_of(planned: Planned) -> int:
    return planned.cell.warmup + planned.cell.steps


def _seconds_per_flop(planned: Planned, seen: Sequence[tuple[Planned, float]]) -> float:
    """That of the cell most like it: alike in what decides the speed, and of those alike the latest."""
    likeness = [_likeness(planned, other) for other, _ in seen]
    return seen[max(range(len(seen)), key=lambda position: (likeness[position], position))][1]


def _likeness(one: Planned, other: Planned) -> int:
    return sum(getattr(one.cell, axis) == getattr(other.cell, axis) for axis in _DECISIVE)
