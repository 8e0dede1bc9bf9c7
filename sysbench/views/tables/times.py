"""The times of a recorded cell, ready to stand in a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from sysbench.records import Samples, TimeCellRecord
from sysbench.views.table import NOTHING, Cell, Measure, Word

PHASES = ("zero_grad", "forward", "loss", "backward", "optimizer", "step")
"""In the order in which a step runs them; `step` is their sum."""

MEASURED = ("ok", "interrupted")
"""Outcomes whose samples are worth showing; those of a cell that crashed half-way are not."""


def samples(cell: TimeCellRecord, phase: str) -> Samples | None:
    """What was measured of a phase: by the host's clock, or by the device's where the host did not wait."""
    record = cell.phases.get(phase) if cell.outcome in MEASURED else None
    return (record.wall or record.device) if record else None


def phases_in(cells: Sequence[TimeCellRecord]) -> tuple[str, ...]:
    """The phases that any of these cells has a time for; `step` only beside more than one other."""
    found = tuple(phase for phase in PHASES if any(samples(cell, phase) for cell in cells))
    return found[:-1] if len(found) == 2 and found[-1] == "step" else found


def whole(phases: Sequence[str]) -> str:
    """The phase that stands for the whole step: `step`, or the only one there is."""
    return phases[-1] if phases else "step"


def mean(found: Samples | None) -> Cell:
    """Mean and standard deviation, or None."""
    return Measure(found.mean_s, found.std_s if len(found.samples_s) > 1 else None) if found else None


def summed(cell: TimeCellRecord, phases: Sequence[str]) -> list[float] | None:
    """Step by step, the sum of these phases in seconds; None when one that the cell's mode has was not measured."""
    parts = [found.samples_s for phase in phases if (found := samples(cell, phase))]
    if not parts or phases[0] not in cell.phases or len({len(part) for part in parts}) > 1:
        return None
    return [sum(step) for step in zip(*parts, strict=True)]


def mean_of(values_s: Sequence[float] | None) -> Cell:
    """Mean and sample standard deviation of raw samples, or None."""
    if not values_s:
        return None
    return Measure(statistics.fmean(values_s), statistics.stdev(values_s) if len(values_s) > 1 else None)


def outcome(cell: TimeCellRecord) -> Word:
    """A word for a cell without numbers."""
    return Word(cell.outcome, "quiet" if cell.outcome in ("skipped", "interrupted") else "bad")


def or_outcome(cell: TimeCellRecord, value: Cell, *, here: bool = True) -> Cell:
    """The value, or for a cell that has no numbers its outcome (`here`) and otherwise nothing."""
    if cell.outcome in MEASURED and cell.phases:
        return value
    return outcome(cell) if here else NOTHING
