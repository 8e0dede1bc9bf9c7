"""Live state of a run of `sysbench attention`, and an estimate of its remaining time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from sysbench import cells as axes
from sysbench import formulas as attention_costs
from sysbench import units
from sysbench.commands.attention.record import AttentionMemory, AttentionPredicted, AttentionTimed, RepeatsReduced
from sysbench.log.predictions import PredictedPhase
from sysbench.render.dashboard import run_state
from sysbench.render.dashboard.remaining import experience, waiting_s
from sysbench.render.dashboard.run_state import RunState, cell_handler
from sysbench.render.dashboard.screen import CellScreen, Progress
from sysbench.spec.attention import AttentionCell


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

    @cached_property
    def choices(self) -> tuple[object, ...]:
        return (self.cell.implementation,)

    @property
    def pace_s(self) -> float | None:
        return self.pair_s / self._pair_flops if self.outcome == "ok" and self.pair_s else None

    @property
    def outside_s(self) -> float:
        return max(0.0, self.took_s - self.pair_s * self.expected_calls / 2)

    def expected_s(self, pace_s: float) -> float:
        pair_s, limit_s = pace_s * self._pair_flops, self.cell.limit_s or math.inf
        if pair_s > limit_s:
            return 0.0  # it will be skipped
        return min(pair_s * (self.cell.warmup + self.cell.repeats), limit_s)

    @property
    def _pair_flops(self) -> int:
        return max(attention_costs.flops(self.cell, "forward"), 1)


AttentionState = RunState[CellState]


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


def remaining_s(state: AttentionState, now_s: float) -> float | None:
    """Return the remaining seconds of the run; None before a cell has finished, and while one takes too long."""
    now, others_s = state.current_cell, waiting_s(state)
    if now is None or now.outcome is not None or others_s is None:
        return others_s
    known = experience(state)
    left_s = known.expected_s(now) - (now_s - (now.started_s or now_s)) if known is not None else -1.0
    return others_s + left_s if left_s >= 0 else None


class AttentionScreen(CellScreen[CellState]):
    """The display of a run: times, or kept memory if nothing is timed."""

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

    def remaining_s(self) -> float | None:
        return remaining_s(self.state, self.now_s)

    def subject(self, cell: CellState) -> Sequence[str]:
        return [*axes.subject([cell.cell]), *(["causal"] * cell.cell.causal)]

    def progress(self, cell: CellState) -> Progress:
        if not cell.calls:
            return Progress()
        calls = min(cell.calls, cell.expected_calls)
        medians = (("forward", cell.forward), ("backward", cell.backward))
        times = [(f"{name} {units.seconds(value)}", "bold") for name, value in medians if value]
        return Progress(calls, cell.expected_calls, ((f"{calls}/{cell.expected_calls}", ""), *times))
