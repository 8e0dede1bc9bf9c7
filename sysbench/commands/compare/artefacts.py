"""Comparison of two traces or two memory snapshots: differences without verdicts, as each side is one sample."""

from __future__ import annotations

from collections.abc import Iterable

from sysbench import units
from sysbench.commands.artefacts import Artefact, Breakdown, FileComparison, Key
from sysbench.commands.compare.tables import mark_simulated, memory_label, source_of, with_source_marks
from sysbench.errors import LogError, UsageError, unknown
from sysbench.render.table import Cell, Column, Measure, Remark, Sheet, Table, sentence

MAX_ROWS = 20
"""Number of kernels or allocations to show, those with the largest differences."""


def summary_line(a: Artefact, b: Artefact) -> str:
    """Summarize the comparison on one line: the total time per step, or the peak. Raises LogError like `sheet`."""
    compared = _compare(a, b)
    totals = compared.breakdowns[0]
    total_a, total_b = sum(totals.a.values()), sum(totals.b.values())
    values = f"{units.quantity(totals.unit, total_a)} in A, {units.quantity(totals.unit, total_b)} in B"
    what = memory_label(*(source_of([side.is_simulated]) for side in (a, b)))
    if not total_a:
        return sentence(f"{'time per step' if compared.work else what}: {values}")
    ratio = units.ratio(total_b / total_a)
    if compared.work:
        return sentence(f"{compared.work} take {ratio} as long per step in B as in A ({values}); one sample per side")
    return sentence(f"{what}: the peak is {ratio} as large in B as in A ({values})")


def _compare(a: Artefact, b: Artefact) -> FileComparison:
    compared = a.compared_with(b) if a.kind == b.kind else None
    if compared is None:
        raise LogError(f"{a.name} is a {a.kind} and {b.name} is a {b.kind}: compare two traces or two memory snapshots")
    return compared


def sheet(a: Artefact, b: Artefact, names: Iterable[str] = ()) -> Sheet:
    """Return tables of the differences between A and B; raises LogError if the two are not of the same kind."""
    compared = _compare(a, b)
    breakdowns = {breakdown.table: breakdown for breakdown in compared.breakdowns}
    source_a, source_b = (source_of([side.is_simulated]) for side in (a, b))
    for name in (table_names := tuple(names) or tuple(breakdowns)):
        if name not in breakdowns:
            raise UsageError(f"--tables {unknown(name, f'a table of two {a.kind}s', breakdowns)}")
    remarks = (Remark("note", "one sample per side, so there are no intervals: a difference may be noise"),)
    titles = mark_simulated(f"A {a.name}", source_a), mark_simulated(f"B {b.name}", source_b)
    shown = tuple(with_source_marks(_table(breakdowns[name]), source_a, source_b) for name in table_names)
    return Sheet(("compare", *titles, compared.basis), shown, remarks if compared.work else ())


def _table(breakdown: Breakdown) -> Table:
    a, b = breakdown.a, breakdown.b

    def importance(key: Key) -> tuple[float, float]:
        sides = a.get(key, 0.0), b.get(key, 0.0)
        return abs(sides[1] - sides[0]), max(sides)

    keys = sorted({**a, **b}, key=importance, reverse=True)
    rows: list[tuple[Cell, ...]] = []
    for key in keys[:MAX_ROWS]:
        calls = (Measure(side.get(key, 0.0)) for side in breakdown.calls or ())
        rows.append((*_row(key, a.get(key, 0.0), b.get(key, 0.0)), *calls))
    total_key = ("all", *[""] * (len(breakdown.columns) - 1))
    calls = (Measure(sum(side.values())) for side in breakdown.calls or ())
    rows.append((*_row(total_key, sum(a.values()), sum(b.values())), *calls))
    columns = (
        *(Column(name, title, elastic=True) for name, title in breakdown.columns.items()),
        Column("a", "A", breakdown.unit),
        Column("b", "B", breakdown.unit),
        Column("difference", "B - A", breakdown.unit, signed=True),
        Column("ratio", "B / A", "ratio", note="B / A: above 1, B is larger"),
        *(Column(f"{side.lower()}_calls", side, "count", "calls per step") for side in "AB" if breakdown.calls),
    )
    notes = (f"{len(keys) - MAX_ROWS} more with smaller differences",) if len(keys) > MAX_ROWS else ()
    return Table(breakdown.table, breakdown.title, columns, tuple(rows), len(breakdown.columns), notes)


def _row(key: Key, a: float, b: float) -> tuple[str | Measure | None, ...]:
    return (*key, Measure(a), Measure(b), Measure(b - a), Measure(b / a) if a else None)
