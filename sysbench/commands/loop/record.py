"""Events and record of a loop that a program measured itself."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sysbench.commands.loop.spec import STEP, LoopCell
from sysbench.log.events import Event
from sysbench.log.records import CellRecord, PeakRecord, PhaseRecord, RunRecord, Samples
from sysbench.spec.frozen import Frozen
from sysbench.spec.quantities import Amount, Seconds, Size


class LoopTraceRecord(Frozen):
    """A trace of some steps. These steps are not measured, because the profiler slows them down."""

    path: str
    steps: Size


class LoopTraced(LoopTraceRecord, Event):
    """A trace was written."""

    event: Literal["loop_traced"] = "loop_traced"
    cell: str


class LoopCellRecord(CellRecord):
    """Results of one loop."""

    cell: LoopCell = Field(alias="axes")

    self_measured: Literal[True] = True
    """Marks the record of a process that measured itself, without an observing process."""
    phases: dict[str, PhaseRecord]
    """Phases in the order of their first occurrence, then `step`; empty when nothing was measured."""
    outside: Samples | None
    """Wall time of each step outside its phases; None if a step is the sum of its phases or has no phases."""
    warmup_samples_s: list[Seconds]
    """Wall time of the warm-up steps, in order."""
    memory: PeakRecord
    tokens_per_s: Amount | None
    """Throughput over the mean step; None if the tokens per step are unknown."""
    trace: LoopTraceRecord | None

    @model_validator(mode="after")
    def _require_step(self) -> Self:
        if self.phases and STEP not in self.phases:
            raise ValueError(f"it has phases but no {STEP}")
        return self

    @property
    def steps(self) -> int:
        """Number of measured steps, including a last step whose end is unknown."""
        return max((len(clock.samples_s) for phase in self.phases.values() if (clock := phase.times)), default=0)


class LoopRecord(RunRecord[LoopCellRecord]):
    """The record that `sysbench.measure` and `sysbench.record` write."""

    kind: Literal["loop"] = "loop"
    cells: Annotated[list[LoopCellRecord], Field(min_length=1, max_length=1)]
