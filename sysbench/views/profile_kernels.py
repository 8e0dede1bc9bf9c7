"""Kernels, or on the CPU operators, one row each: how often, how long, launched by which range."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from sysbench.errors import UsageError
from sysbench.profile_summary import KernelStatistics
from sysbench.specs.run import Sort
from sysbench.views.profile_shown import NS, Profiles, Shown, Within, top, within
from sysbench.views.table import NOTHING, Cell, Column, Measure, Table, Word

STATISTICS = "of one call"

_SORTS: Mapping[Sort, Callable[[Shown, KernelStatistics], float | str]] = {
    "total": lambda _, row: -row.total_ns,
    "calls": lambda _, row: -row.calls,
    "avg": lambda _, row: -row.mean_ns,
    "med": lambda _, row: -row.median_ns,
    "min": lambda _, row: -row.min_ns,
    "max": lambda _, row: -row.max_ns,
    "std": lambda _, row: -row.std_ns,
    "name": lambda shown, row: shown.summary.names[row.kernel].short.casefold(),
}
"""Names from A to Z, everything else from the largest down."""


def kernels(profiles: Profiles) -> list[Table]:
    """The kernels of the range that was chosen, or of the whole step."""
    asked = profiles.selection.range
    title = f"{profiles.work}s launched in {asked}" if asked else f"{profiles.work}s of a step"
    return profiles.table("kernels", title, _columns(profiles), lambda shown: _rows(profiles, shown), axes=0)


def _columns(profiles: Profiles) -> tuple[Column, ...]:
    statistics = (("avg", 0), ("med", 1), ("min", 3), ("max", 3), ("std", 2))
    return (
        Column("time", "time", "share"),
        Column("total", "total", "s", "per step"),
        Column("calls", "calls", "count", "per step"),
        *(Column(key, key, "s", STATISTICS, importance=importance) for key, importance in statistics),
        Column(profiles.work, profiles.work, elastic=True),
        Column("class", "class", importance=4),
        *(
            (Column("grid", "grid", importance=5), Column("block", "block", importance=5))
            if profiles.launches_recorded
            else ()
        ),
    )


def _rows(profiles: Profiles, shown: Shown) -> Iterator[tuple[Cell, ...]]:
    here = within(shown, profiles.selection.range)
    found = [row for row in shown.summary.kernels if row.range == here.name]
    everything = [spent for spent in shown.spent if here.holds(spent)]
    if not found and everything:
        raise UsageError(
            f"--range {here.name} has no statistics in this record, which keeps those of folded modules: "
            "layers.*.attention instead of layers.3.attention; or give the trace to --from"
        )
    chosen = [row for row in found if profiles.wanted(shown.summary.names[row.kernel].name)]
    key = _SORTS[profiles.selection.sort]
    chosen.sort(key=lambda row: key(shown, row))
    whole_ns = sum(spent.total_ns for spent in everything)
    listed = chosen[: top(profiles.selection.top, len(chosen))]
    recorded = profiles.launches_recorded
    for row in listed:
        yield _row(shown, row, whole_ns, recorded)
    yield from _rest(profiles, shown, here, listed, whole_ns, 2 * recorded)


def _row(shown: Shown, row: KernelStatistics, whole_ns: int, recorded: bool) -> tuple[Cell, ...]:
    name = shown.summary.names[row.kernel]
    statistics = (row.mean_ns, row.median_ns, row.min_ns, row.max_ns, row.std_ns)
    return (
        Measure(row.total_ns / whole_ns if whole_ns else 0.0),
        shown.per_step(row.total_ns),
        shown.calls_per_step(row.calls),
        *(Measure(each * NS) for each in statistics),
        name.short,
        name.kernel_class if name.placed else Word("unplaced", "bad"),
        *((_shape(row.grid, row), _shape(row.block, row)) if recorded else ()),
    )


def _shape(shape: Sequence[int] | None, row: KernelStatistics) -> Cell:
    """`128×4×1`; how many there are, where calls differ."""
    if shape is not None:
        return "×".join(map(str, shape))
    return f"{row.launch_shapes} kinds" if row.launch_shapes > 1 else None


def _rest(
    profiles: Profiles, shown: Shown, here: Within, listed: Sequence[KernelStatistics], whole_ns: int, shapes: int
) -> Iterator[tuple[Cell, ...]]:
    """What is not listed, of what was asked for, in one row."""
    known = {row.kernel for row in listed}
    rest = [
        spent
        for spent in shown.spent
        if spent.kernel not in known and here.holds(spent) and profiles.wanted(shown.name(spent).name)
    ]
    total_ns, calls = sum(spent.total_ns for spent in rest), sum(spent.calls for spent in rest)
    if rest:
        count = len({spent.kernel for spent in rest})
        yield (
            Measure(total_ns / whole_ns if whole_ns else 0.0),
            shown.per_step(total_ns),
            shown.calls_per_step(calls),
            Measure(total_ns * NS / calls),
            *[NOTHING] * 4,
            f"{count} others" if count > 1 else "1 other",
            *[NOTHING] * (1 + shapes),
        )
