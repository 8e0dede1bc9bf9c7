"""Cells that differ in one choice only, beside each other: fp32 against bf16, eager against compiled, …"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sysbench import units
from sysbench.records import TimeCellRecord, TimeRecord
from sysbench.statistics import Ratio, ratio
from sysbench.views.table import NOTHING, Cell, Column, Measure, Remark, Table, Tone
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


def findings(record: TimeRecord) -> Iterator[Remark]:
    """One sentence per arm that says how it compares with the first, over everything it was measured on."""
    for axis in CATEGORICAL:
        arms, pairs = pairs_along(record, axis)
        for position in range(1, len(arms)):
            if text := _finding(record, arms, pairs, position):
                yield Remark("finding", text)


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


def _finding(record: TimeRecord, arms: Sequence[Any], pairs: Sequence[Pair], position: int) -> str | None:
    """How one arm compares with the first over all pairs, in one sentence."""
    whole = times.whole(times.phases_in(record.cells))
    compared_pairs = [
        (found, pair) for pair in pairs if (found := compared(pair.cells[0], pair.cells[position], whole)) is not None
    ]
    base, arm = arms[0], arms[position]
    if not compared_pairs:
        return None
    if len(compared_pairs) == 1:
        return _one(base, arm, compared_pairs[0][0])
    return _many(base, arm, compared_pairs, axes.varying(axes.axes_of(record.cells)))


def _one(base: Any, arm: Any, found: Ratio) -> str:
    interval = f" ({_interval(found)})" if found.low is not None else ""
    if _direction(found) == 0 and interval:
        return f"{arm} and {base} cannot be told apart here: {units.ratio(found.value)}{interval}."
    return f"{arm} is {units.ratio(found.value)} as fast as {base} here{interval}."


def _interval(found: Ratio) -> str:
    decimals = units.ratio_decimals([found.value])
    return f"{found.low:.{decimals}f}–{found.high:.{decimals}f}"


def _many(base: Any, arm: Any, compared_pairs: Sequence[tuple[Ratio, Pair]], differing: Sequence[str]) -> str:
    def said(found: Ratio, pair: Pair) -> str:
        named = [axis for axis in differing if axis != pair.axis]
        return f"{units.ratio(found.value)} ({axes.label(pair.first.axes, named)})"

    ordered = sorted(compared_pairs, key=lambda each: each[0].value)
    typical = statistics.geometric_mean(found.value for found, _ in ordered)
    slower = sum(_direction(found) < 0 for found, _ in ordered)
    same = sum(_direction(found) == 0 for found, _ in ordered)
    doubts = [f"slower in {slower}"] * bool(slower) + [f"not to be told apart in {same}"] * bool(same)
    return (
        f"{arm} is {said(*ordered[0])} to {said(*ordered[-1])} as fast as {base}, "
        f"{units.ratio(typical)} in the geometric mean of {len(ordered)} cells"
        + (f"; {', '.join(doubts)}" if doubts else "")
        + "."
    )
