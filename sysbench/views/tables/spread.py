"""How much steps vary, and what warming up has to do with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sysbench.records import Samples, TimeCellRecord, TimeRecord
from sysbench.views.table import NOTHING, Cell, Column, Measure, Table
from sysbench.views.tables import axes, times

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
