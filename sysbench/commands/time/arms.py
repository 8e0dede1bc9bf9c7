"""Cells that differ in one choice only, beside each other: fp32 against bf16, eager against compiled, …

One phase over two axes: models down, contexts across; and one model over several devices.

How much steps vary, and what warming up has to do with it.

Forward, forward and backward, and the full step, as multiples of forward.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sysbench import cells as axes
from sysbench.commands.time import times
from sysbench.commands.time.record import TimeCellRecord, TimeRecord
from sysbench.commands.time.times import offers
from sysbench.log.records import Samples
from sysbench.render.table import NOTHING, Cell, Column, Measure, Table, Tone, Word
from sysbench.statistics import Ratio, ratio

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


FORWARD_BACKWARD = ("forward", "loss", "backward")
"""What is called forward+backward everywhere: the loss is in it, the optimizer and zeroing gradients are not."""


def phases(record: TimeRecord) -> list[Table]:
    """Forward, forward + loss + backward, the full step where there is an optimizer, and their ratio to forward."""
    cells = [cell for cell in record.cells if "forward" in cell.phases or not cell.phases]
    if not any("backward" in cell.phases for cell in cells):
        return []
    named = axes.varying(axes.axes_of(record.cells)) or ("size",)
    full = any("optimizer" in cell.phases for cell in cells)
    columns = (
        *axes.columns(named),
        Column("parameters", "parameters", "count", importance=3),
        Column("forward", "forward", "s"),
        Column("forward_backward", "fwd + bwd", "s"),
        Column("forward_backward", "to forward", "ratio"),
        *((Column("step", "full step", "s", importance=1), Column("step", "to forward", "ratio", importance=1)) * full),
    )
    rows = tuple((*axes.values(cell.axes, named), *_phases_row(cell)[: len(columns) - len(named)]) for cell in cells)
    note = "fwd + bwd is forward, loss and backward; zeroing gradients and the optimizer are not in it"
    more = offers(cells, columns)
    return [Table("phases", "phases, and their ratio to forward", columns, rows, len(named), (note,), more)]


def _phases_row(cell: TimeCellRecord) -> list[Cell]:
    forward = times.summed(cell, ("forward",))
    both = times.summed(cell, FORWARD_BACKWARD) if "backward" in cell.phases else None
    full = times.summed(cell, ("step",)) if "optimizer" in cell.phases else None
    return [
        Measure(cell.model.parameters),
        times.or_outcome(cell, times.mean_of(forward)),
        times.or_outcome(cell, times.mean_of(both), here=False),
        times.or_outcome(cell, _multiple(both, forward), here=False),
        times.or_outcome(cell, times.mean_of(full), here=False),
        times.or_outcome(cell, _multiple(full, forward), here=False),
    ]


def _multiple(values_s: list[float] | None, of_s: list[float] | None) -> Cell:
    if not values_s or not of_s:
        return None
    return Measure(statistics.fmean(values_s) / statistics.fmean(of_s))


_NAMES = {"cpu": "CPU", "mps": "MPS", "cuda": "CUDA"}


def grid(record: TimeRecord) -> list[Table]:
    """One table per phase, mean ± std: contexts (or batches) across, everything else that differs down."""
    differing = axes.varying(axes.axes_of(record.cells))
    across = next((axis for axis in ("ctx", "batch") if axis in differing), None)
    if across is None or len(differing) < 2:
        return []
    shown = [phase for phase in times.phases_in(record.cells) if phase in ("forward", "backward", "step")]
    return [_grid(record.cells, phase, across, [axis for axis in differing if axis != across]) for phase in shown]


def _grid(cells: Sequence[TimeCellRecord], phase: str, across: str, down: Sequence[str]) -> Table:
    heads = list(dict.fromkeys(cell.axes[across] for cell in cells))
    columns = (
        *axes.columns(down),
        *(Column(f"{phase}_{across}_{head}", str(head), "s", across) for head in heads),
    )
    rows: dict[tuple[Cell, ...], dict[Any, Cell]] = {}
    for cell in cells:
        value = times.or_outcome(cell, times.mean(times.samples(cell, phase)))
        rows.setdefault(axes.values(cell.axes, down), {})[cell.axes[across]] = value
    return Table(
        f"grid-{phase}",
        f"{phase}, mean ± standard deviation",
        columns,
        tuple((*row, *(found.get(head) for head in heads)) for row, found in rows.items()),
        len(down),
    )


def devices(record: TimeRecord) -> list[Table]:
    """Models with their dimensions and parameters down, devices across, each with its forward and forward+backward."""
    heads = list(dict.fromkeys(device_name(cell) for cell in record.cells if cell.device))
    if len(heads) < 2:
        return []
    named = [axis for axis in axes.varying(axes.axes_of(record.cells)) if axis not in ("device", "size")]
    rows: dict[tuple[Cell, ...], dict[str, TimeCellRecord]] = {}
    for cell in record.cells:
        rows.setdefault((*_model(cell), *axes.values(cell.axes, named)), {})[device_name(cell)] = cell
    columns = (
        Column("size", "size"),
        *(Column(name, name, importance=3) for name in ("d_model", "d_ff", "layers", "heads")),
        Column("parameters", "parameters", "count", importance=2),
        *axes.columns(named),
        *(column for head in heads for column in _device_columns(head)),
    )
    return [
        Table(
            "devices",
            "devices beside each other, mean ± standard deviation",
            columns,
            tuple((*row, *(cell for head in heads for cell in _pair(found.get(head)))) for row, found in rows.items()),
            6 + len(named),
            (*_hardware(record.cells), "fwd + bwd is forward, loss and backward; the optimizer is not in it"),
        )
    ]


def device_name(cell: TimeCellRecord) -> str:
    """What people call the kind of device a cell ran on: CPU, MPS, CUDA, CUDA:1."""
    if cell.device is None:
        return str(cell.axes["device"])
    return _NAMES[cell.device.type] + (f":{cell.device.index}" if cell.device.index else "")


def _model(cell: TimeCellRecord) -> tuple[Cell, ...]:
    model = cell.axes["model"]
    dimensions = (model["d_model"], model["d_ff"], model["layers"], model["heads"])
    return (cell.axes["size"], *dimensions, Measure(cell.model.parameters))


def _device_columns(head: str) -> tuple[Column, Column]:
    key = head.lower().replace(":", "_")
    return (
        Column(f"{key}_forward", "forward", "s", head),
        Column(f"{key}_forward_backward", "fwd + bwd", "s", head),
    )


def _pair(cell: TimeCellRecord | None) -> tuple[Cell, Cell]:
    if cell is None:
        return NOTHING, NOTHING
    if not cell.phases or cell.outcome not in times.MEASURED:
        return times.outcome(cell), Word("")
    both = times.summed(cell, FORWARD_BACKWARD) if "backward" in cell.phases else None
    return times.mean(times.samples(cell, "forward")), times.mean_of(both)


def _hardware(cells: Sequence[TimeCellRecord]) -> tuple[str, ...]:
    named = {device_name(cell): cell.device.name for cell in cells if cell.device}
    return tuple(f"{head}: {name}" for head, name in named.items())


FIRST_STEPS = 10
"""How many steps from the very first one on are shown."""

STUDIED = ("forward", "backward", "step")
"""The phases that warming up matters to."""

_EXTREMES = (
    Column("minimum", "min", "s"),
    Column("maximum", "max", "s"),
    Column("mean", "avg", "s"),
    Column("deviation", "std", "s"),
)
_MIDDLE = (
    Column("median", "median", "s", importance=1),
    Column("interval_low", "95 % from", "s", importance=2),
    Column("interval_high", "to", "s", importance=2),
)


def spread(record: TimeRecord) -> list[Table]:
    """Minimum, maximum, average, standard deviation, median and its 95 % interval, per cell and phase."""
    named = axes.varying(axes.axes_of(record.cells)) or ("size",)
    return [
        _table(
            "spread", "spread of the steps", record.cells, times.phases_in(record.cells), named, (*_EXTREMES, *_MIDDLE)
        )
    ]


def warmup(record: TimeRecord) -> list[Table]:
    """Min, max, avg and std per number of warm-up steps, and the first steps one by one."""
    differing = axes.varying(axes.axes_of(record.cells))
    named = (*(axis for axis in differing if axis != "warmup"), "warmup")
    ordered = sorted(record.cells, key=lambda cell: [str(cell.axes[axis]) for axis in named[:-1]])
    phases = [phase for phase in times.phases_in(record.cells) if phase in STUDIED]
    study = _table("warmup", "what warming up does", ordered, phases, named, _EXTREMES)
    return [study, *first_steps(record)]


def first_steps(record: TimeRecord) -> list[Table]:
    """The first steps of every cell in the order in which they ran, warm-up steps included."""
    runs = [(cell, _from_the_first(cell)) for cell in record.cells]
    longest = max((len(steps) for _, steps in runs), default=0)
    if not longest:
        return []
    named = axes.varying(axes.axes_of(record.cells)) or ("size",)
    columns = (
        *axes.columns(named),
        *(Column(f"step_{number}", str(number), "s", "step", max(0, number - 3)) for number in range(1, longest + 1)),
    )
    rows = tuple(
        (*axes.values(cell.axes, named), *steps, *([None] * (longest - len(steps)))) for cell, steps in runs if steps
    )
    return [Table("first-steps", "the first steps", columns, rows, len(named), ("warm-up steps in brackets",))]


def _from_the_first(cell: TimeCellRecord) -> list[Cell]:
    found = times.samples(cell, "step")
    measured = found.samples_s if found else []
    steps: list[Cell] = [Measure(value, tone="quiet", aside=True) for value in cell.warmup_samples_s]
    return [*steps, *(Measure(value) for value in measured)][:FIRST_STEPS]


def _table(
    name: str,
    title: str,
    cells: Sequence[TimeCellRecord],
    phases: Sequence[str],
    named: Sequence[str],
    statistics: Sequence[Column],
) -> Table:
    columns = (*axes.columns(named), Column("phase", "phase"), *statistics)
    rows = tuple(
        (*axes.values(cell.axes, named), *row) for cell in cells for row in _rows(cell, phases, len(statistics))
    )
    return Table(name, title, columns, rows, len(named) + 1)


def _rows(cell: TimeCellRecord, phases: Sequence[str], count: int) -> Iterator[tuple[Cell, ...]]:
    if not any(times.samples(cell, phase) for phase in phases):
        yield (times.whole(phases), times.outcome(cell), *([NOTHING] * (count - 1)))
    for phase in phases:
        if found := times.samples(cell, phase):
            yield (phase, *_statistics(found)[:count])


def _statistics(found: Samples) -> tuple[Cell, ...]:
    low, high = found.ci95_s or (None, None)
    values = (found.min_s, found.max_s, found.mean_s, found.std_s, found.median_s, low, high)
    return tuple(Measure(value) if value is not None else None for value in values)
