"""Cells that differ in one choice only, beside each other: fp32 against bf16, eager against compiled, …"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sysbench.records import TimeCellRecord, TimeRecord
from sysbench.statistics import Ratio, ratio
from sysbench.views.table import NOTHING, Cell, Column, Measure, Table, Tone
from sysbench.views.tables import axes, times

CATEGORICAL = ("precision", "execution", "attention", "optimizer")
"""Axes whose values are choices between which one wants to decide, most asked for first."""

_NOTE = "medians, and the speed-up with its 95 % interval"

_COMPARED = ("forward", "backward", "optimizer", "step")


@dataclass(frozen=True)
class Pair:
    """One cell under each arm; None where the run has no such cell."""

    axis: str
    cells: tuple[TimeCellRecord | None, ...]

    @property
    def first(self) -> TimeCellRecord:
        """Any of the cells, for what all have in common."""
        return next(cell for cell in self.cells if cell is not None)


def arms_table(axis: str) -> Callable[[TimeRecord], list[Table]]:
    """The builder of the table that compares the values of one categorical axis."""

    def build(record: TimeRecord) -> list[Table]:
        """Times under each arm, their difference, change in percent and speed-up with its 95 % interval."""
        arms, pairs = pairs_along(record, axis)
        if len(arms) < 2:
            return []
        named = tuple(name for name in axes.varying(axes.axes_of(record.cells)) if name != axis)
        phases = [phase for phase in times.phases_in(record.cells) if phase in _COMPARED]
        shown = [phase for phase in phases if phase == times.whole(phases) or _differs_by(axis, phase)]
        columns = (*axes.columns(named), *(column for phase in shown for column in _columns(phase, arms, shown)))
        rows = tuple(
            (*axes.values(pair.first.axes, named), *(cell for phase in shown for cell in _row(pair, phase, shown)))
            for pair in pairs
        )
        title = f"{arms[0]} against {', '.join(str(arm) for arm in arms[1:])}"
        return [Table(axis, title, columns, rows, len(named))]

    return build


def pairs_along(record: TimeRecord, axis: str) -> tuple[list[Any], list[Pair]]:
    """The values of an axis, and for each combination of everything else the cells that differ in it alone."""
    arms = list(dict.fromkeys(cell.axes[axis] for cell in record.cells))
    found: dict[str, dict[Any, TimeCellRecord]] = {}
    for cell in record.cells:
        others = str(sorted((name, str(value)) for name, value in cell.axes.items() if name != axis))
        found.setdefault(others, {})[cell.axes[axis]] = cell
    return arms, [Pair(axis, tuple(cells.get(arm) for arm in arms)) for cells in found.values()]


def _differs_by(axis: str, phase: str) -> bool:
    """Whether a choice can matter to a phase: an optimizer's kind to the optimizer alone, the others to the rest."""
    return (phase == "optimizer") == (axis == "optimizer")


def _columns(phase: str, arms: Sequence[Any], shown: Sequence[str]) -> Iterator[Column]:
    whole = phase == times.whole(shown)
    rank = 0 if whole else 2 if phase == shown[0] else 5
    first = Column(f"{phase}_{arms[0]}", str(arms[0]), "s", phase, rank)
    yield first
    for arm in arms[1:]:
        key = f"{phase}_{arm}"
        yield Column(key, str(arm), "s", phase, rank)
        yield Column(f"{key}_difference", "difference", "s", phase, 8 if whole else 9, signed=True)
        yield Column(f"{key}_change", "change", "share", phase, 6 if whole else 7, signed=True)
        yield Column(f"{key}_speedup", "speed-up", "ratio", phase, rank, note=_NOTE)


def _row(pair: Pair, phase: str, shown: Sequence[str]) -> Iterator[Cell]:
    here = phase == times.whole(shown)
    base, *others = pair.cells
    yield _time(base, phase, here=here)
    for other in others:
        yield _time(other, phase, here=here)
        found = compared(base, other, phase)
        if found is None:
            yield from (NOTHING,) * 3
            continue
        before_s, after_s = _median(base, phase), _median(other, phase)
        yield Measure(after_s - before_s)
        yield Measure(after_s / before_s - 1, tone=_tone(found))
        yield Measure(found.value, low=found.low, high=found.high, tone=_tone(found))


def _time(cell: TimeCellRecord | None, phase: str, *, here: bool) -> Cell:
    """The median, since speed-ups are ratios of medians; an outcome where there is none."""
    if cell is None:
        return None
    return times.or_outcome(cell, Measure(_median(cell, phase)) if times.samples(cell, phase) else None, here=here)


def _median(cell: TimeCellRecord | None, phase: str) -> float:
    found = times.samples(cell, phase) if cell else None
    return found.median_s if found else math.nan


def compared(base: TimeCellRecord | None, other: TimeCellRecord | None, phase: str) -> Ratio | None:
    """How many times as fast a phase is in `other` as in `base`; None unless both were measured to the end."""
    if base is None or other is None or base.outcome != "ok" or other.outcome != "ok":
        return None
    before, after = times.samples(base, phase), times.samples(other, phase)
    return ratio(before.samples_s, after.samples_s) if before and after else None


def _tone(found: Ratio) -> Tone:
    """Good or bad only where the interval leaves no doubt about the direction."""
    verdict = _direction(found)
    return "good" if verdict > 0 else "bad" if verdict < 0 else "plain"


def _direction(found: Ratio) -> int:
    """1 for faster, -1 for slower, 0 where the interval holds both or is missing."""
    if found.low is None or found.high is None:
        return 0
    return 1 if found.low > 1 else -1 if found.high < 1 else 0
