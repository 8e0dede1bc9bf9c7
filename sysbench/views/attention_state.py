"""What a run of `sysbench attention` has come to, folded from its events; the live view is drawn from this."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce

from sysbench import attention_costs
from sysbench.events import AttentionMemory, AttentionTimed, CellFinished, Event
from sysbench.specs.attention import AttentionCell
from sysbench.views import run_state
from sysbench.views.run_state import RunState, in_cell

HOT: frozenset[str] = frozenset({"warming-up", "measuring"})
"""Stages in which calls are timed."""


@dataclass(frozen=True)
class CellState(run_state.CellState):
    """A cell of the run, as far as it is known."""

    cell: AttentionCell
    forward_s: tuple[float, ...] = ()
    """Measured calls, in order."""
    backward_s: tuple[float, ...] = ()
    calls: int = 0
    """Warm-up calls included."""
    saved_bytes: int | None = None
    took_s: float | None = None

    @property
    def forward(self) -> float | None:
        """The median so far, in seconds."""
        return statistics.median(self.forward_s) if self.forward_s else None

    @property
    def backward(self) -> float | None:
        """The median so far, in seconds."""
        return statistics.median(self.backward_s) if self.backward_s else None

    @property
    def expected_calls(self) -> int:
        """Of both phases, warm-up included."""
        return 2 * (self.cell.warmup + self.cell.repeats)


@dataclass(frozen=True)
class AttentionState(RunState[CellState]):
    """A run at one moment."""

    @property
    def hot(self) -> bool:
        """Whether calls are being timed right now."""
        now = self.now
        return now is not None and now.outcome is None and now.stage in HOT

    @property
    def on_gpu(self) -> bool:
        """Whether what is measured now runs on a device of its own."""
        now = self.now
        return now is not None and now.device is not None and now.device.type != "cpu"


def advance(state: AttentionState, event: Event) -> AttentionState:
    """The state after one more event; an event that changes nothing shown leaves it as it is."""
    after: AttentionState = run_state.advance(_HANDLERS, state, event)
    return after


def folded(events: Iterable[Event]) -> AttentionState:
    """The state after all of these events."""
    return reduce(advance, events, AttentionState())


def left_s(state: AttentionState, now_s: float) -> float | None:
    """How long the run will still take, from what cells have taken so far; None before anything is known.

    A cell takes what its calls take, which grows with their FLOPs, and a time of its own, which does not.
    """
    over = [cell for _, cell in state.cells if cell.outcome == "ok" and cell.took_s]
    waiting = [cell for _, cell in state.cells if cell.outcome is None]
    if not over or not waiting:
        return None if waiting else 0.0
    total = 0.0
    for cell in waiting:
        expected_s = _expected_s(cell, over)
        if cell.started_s is not None:
            expected_s = max(0.0, expected_s - (now_s - cell.started_s))
        total += expected_s
    return total


def _expected_s(cell: CellState, over: list[CellState]) -> float:
    """The calls of the done cell of the nearest work, by FLOPs, and the median of what cells take besides."""
    alike = [each for each in over if each.cell.implementation == cell.cell.implementation] or over
    work = _work(cell)
    nearest = min(alike, key=lambda each: (abs(_work(each).bit_length() - work.bit_length()), -_work(each)))
    besides_s = statistics.median(max(0.0, (each.took_s or 0.0) - _calls_s(each)) for each in alike)
    return besides_s + _calls_s(nearest) * work / max(_work(nearest), 1)


def _calls_s(cell: CellState) -> float:
    """What its calls have taken: a backward needs a forward before it, and warm-up calls are like the others."""
    measured = 2 * sum(cell.forward_s) + sum(cell.backward_s)
    return measured * (1 + cell.cell.warmup / cell.cell.repeats)


def _work(cell: CellState) -> int:
    return attention_costs.flops(cell.cell, "forward") * (cell.cell.repeats + cell.cell.warmup)


def _timed(cell: CellState, event: AttentionTimed) -> CellState:
    sample = event.sample
    seconds = sample.device_s if sample.device_s is not None else sample.wall_s
    counted = replace(cell, calls=cell.calls + 1)
    if event.warmup or seconds is None:
        return counted
    if event.phase == "forward":
        return replace(counted, forward_s=(*cell.forward_s, seconds))
    return replace(counted, backward_s=(*cell.backward_s, seconds))


def _cell_finished(cell: CellState, event: CellFinished) -> CellState:
    took_s = event.at_s - cell.started_s if cell.started_s is not None else None
    return replace(cell, outcome=event.outcome, detail=event.detail, took_s=took_s)


_HANDLERS = run_state.handlers(
    AttentionState,
    CellState,
    {
        AttentionTimed: in_cell(_timed),
        AttentionMemory: in_cell(lambda cell, event: replace(cell, saved_bytes=event.saved_bytes)),
        CellFinished: in_cell(_cell_finished),
    },
)
