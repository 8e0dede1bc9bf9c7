"""Live state of a run of `sysbench attention`, and the boards that compare the implementations on each input."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from sysbench import cells as axes
from sysbench import formulas as attention_costs
from sysbench import units
from sysbench.commands.attention.record import AttentionMemory, AttentionPredicted, AttentionTimed, RepeatsReduced
from sysbench.log.predictions import PredictedPhase
from sysbench.render.dashboard import run_state
from sysbench.render.dashboard.board import Quantity
from sysbench.render.dashboard.run_state import RunState, cell_handler
from sysbench.render.dashboard.screen import CellScreen, Progress
from sysbench.render.table import Measure
from sysbench.spec.attention import AttentionCell
from sysbench.units import Unit


@dataclass(frozen=True)
class CellState(run_state.CellState):
    """State of one cell during the run."""

    cell: AttentionCell
    forward_s: tuple[float, ...] = ()
    backward_s: tuple[float, ...] = ()
    calls: int = 0
    """Number of calls so far, including warm-up calls."""
    saved_bytes: int | None = None
    predicted: tuple[PredictedPhase, ...] = ()
    planned: tuple[int, int] | None = None
    """Warm-up calls and measured calls of each phase, if fewer than asked for fit into the time limit."""

    @property
    def forward(self) -> float | None:
        return statistics.median(self.forward_s) if self.forward_s else None

    @property
    def backward(self) -> float | None:
        return statistics.median(self.backward_s) if self.backward_s else None

    @property
    def expected_calls(self) -> int:
        return 2 * sum(self.planned or (self.cell.warmup, self.cell.repeats))

    @property
    def pair_s(self) -> float:
        """Mean time of a forward and a backward call, with the untimed forward call before backward."""
        if not self.forward_s or not self.backward_s:
            return 0.0
        return 2 * statistics.fmean(self.forward_s) + statistics.fmean(self.backward_s)


AttentionState = RunState[CellState]


def left_s(state: AttentionState, now_s: float) -> float | None:
    """Return the remaining seconds of the run, estimated from finished cells.

    None if there are no finished cells yet, and while a cell takes longer than expected.
    """
    over = [cell for _, cell in state.cells if cell.outcome == "ok" and cell.took_s]
    waiting = [cell for _, cell in state.cells if cell.outcome is None]
    if not over or not waiting:
        return None if waiting else 0.0
    left = [
        _expected_s(cell, over) - (now_s - cell.started_s if cell.started_s is not None else 0.0) for cell in waiting
    ]
    return sum(left) if min(left) >= 0 else None


def _expected_s(cell: CellState, finished: list[CellState]) -> float:
    """Return the expected duration of a cell: a constant part, and one that grows with the FLOPs of its calls."""
    similar = [state for state in finished if state.cell.implementation == cell.cell.implementation] or finished
    work = _work(cell)
    nearest = min(similar, key=lambda each: (abs(_work(each).bit_length() - work.bit_length()), -_work(each)))
    constant_s = statistics.median(max(0.0, state.took_s - _calls_s(state)) for state in similar)
    pair_s, limit_s = nearest.pair_s * work / max(_work(nearest), 1), cell.cell.limit_s or math.inf
    if pair_s > limit_s:
        return 0.0  # it will be skipped
    return min(constant_s + pair_s * (cell.cell.warmup + cell.cell.repeats), max(limit_s, pair_s))


def _calls_s(cell: CellState) -> float:
    """Return the time of all calls, including warm-up calls and the untimed forward call before each backward call."""
    return cell.pair_s * cell.expected_calls / 2


def _work(cell: CellState) -> int:
    return attention_costs.flops(cell.cell, "forward")


def _timed(cell: CellState, event: AttentionTimed) -> CellState:
    sample = event.sample
    seconds = sample.device_s if sample.device_s is not None else sample.wall_s
    counted = replace(cell, calls=cell.calls + 1)
    if event.warmup or seconds is None:
        return counted
    if event.phase == "forward":
        return replace(counted, forward_s=(*cell.forward_s, seconds))
    return replace(counted, backward_s=(*cell.backward_s, seconds))


_HANDLERS = run_state.handlers(
    AttentionState,
    CellState,
    {
        AttentionTimed: cell_handler(_timed),
        RepeatsReduced: cell_handler(lambda cell, event: replace(cell, planned=(event.warmup, event.repeats))),
        AttentionMemory: cell_handler(lambda cell, event: replace(cell, saved_bytes=event.saved_bytes)),
        AttentionPredicted: cell_handler(lambda cell, event: replace(cell, predicted=tuple(event.phases))),
    },
)

advance = partial(run_state.advance, _HANDLERS)


def _quantity(title: str, unit: Unit, value: Callable[[CellState], float | None]) -> Quantity:
    def measure(cell: CellState) -> Measure | None:
        found = value(cell)
        return Measure(found, text=units.short(unit, found)) if found is not None else None

    return Quantity(title, unit, measure, wide_range=True)


class AttentionScreen(CellScreen[AttentionState]):
    """The display of a run: boards of forward and backward times, or of kept memory if nothing is timed."""

    initial = AttentionState()
    advance = staticmethod(advance)

    @staticmethod
    def result(cell: CellState) -> str:
        """Return the result of a cell: `forward 12.3 ms, backward 24.1 ms, keeps 64.0 MiB for backward`."""
        if cell.outcome != "ok":
            return CellScreen.result(cell)
        times = (("forward", cell.forward), ("backward", cell.backward))
        words = [f"{name} {units.seconds(median_s)}" for name, median_s in times if median_s is not None]
        words += [
            f"PREDICTED {phase.name} {units.seconds_with_interval(phase.point_s, phase.low_s, phase.high_s)}"
            for phase in cell.predicted
        ]
        if cell.saved_bytes is not None:
            mark = "simulated: " if cell.cell.simulated else ""
            words.append(f"{mark}keeps {units.size(cell.saved_bytes)} for backward")
        return ", ".join(words) or "ok"

    @classmethod
    def labelled(cls, cell: CellState) -> tuple[str, ...]:
        return ("implementation", "dim", "seq")

    def quantities(self) -> Sequence[Quantity]:
        now = self.state.current_cell
        if now is not None and now.cell.simulated:
            return (_quantity("kept for backward", "bytes", lambda cell: cell.saved_bytes),)
        return (
            _quantity("forward", "s", lambda cell: cell.forward),
            _quantity("backward", "s", lambda cell: cell.backward),
        )

    def remaining_s(self) -> float | None:
        return left_s(self.state, self.now_s)

    def subject(self, cell: CellState) -> Sequence[str]:
        return [*axes.subject([cell.cell]), *(["causal"] * cell.cell.causal)]

    def progress(self, cell: CellState) -> Progress:
        if not cell.calls:
            return Progress()
        calls = min(cell.calls, cell.expected_calls)
        medians = (("forward", cell.forward), ("backward", cell.backward))
        times = [(f"{name} {units.seconds(value)}", "bold") for name, value in medians if value]
        return Progress(calls, cell.expected_calls, ((f"{calls}/{cell.expected_calls}", ""), *times))
