"""Comparison of two traces or two memory snapshots: differences without verdicts, as each side is one sample."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from sysbench import units
from sysbench.commands.artefacts import Artefact, TablesArtefact, TraceArtefact, is_simulated
from sysbench.commands.compare.sources import memory_label, memory_source, title_with_source, with_source_marks
from sysbench.errors import LogError, UsageError, unknown
from sysbench.render.csv import tidy
from sysbench.render.table import Cell, Column, Measure, Remark, Sheet, Table, sentence
from sysbench.units import Unit

Key = tuple[str, ...]

MAX_ROWS = 20
"""Number of kernels or allocations to show, those with the largest differences."""


@dataclass(frozen=True)
class _Amounts:
    """Times or sizes on both sides, keyed by name."""

    table: str
    title: str
    columns: Mapping[str, str]
    """Headings of the columns that name an amount, by their keys."""
    unit: Unit
    a: dict[Key, float]
    b: dict[Key, float]
    total_label: str = ""
    """Label of the row with the total; empty if the amounts are incomplete and have no total."""
    calls: tuple[Mapping[Key, float], Mapping[Key, float]] | None = None
    """Calls per step on both sides, by name; None for memory, which has none."""

    def to_table(self) -> Table:
        """Return a table with a row per name, the largest difference first, and a row for the total."""
        sides = {key: (self.a.get(key, 0.0), self.b.get(key, 0.0)) for key in {**self.a, **self.b}}
        keys = sorted(sides, key=lambda key: (abs(sides[key][1] - sides[key][0]), max(sides[key])), reverse=True)
        rows: list[tuple[Cell, ...]] = [
            (*self._row(key, self.a.get(key), self.b.get(key)), *self._calls_of(key)) for key in keys[:MAX_ROWS]
        ]
        if self.total_label:
            total_key = (self.total_label, *[""] * (len(self.columns) - 1))
            totals = tuple(sum(side.values()) for side in self.calls) if self.calls else ()
            rows.append((*self._row(total_key, sum(self.a.values()), sum(self.b.values())), *map(Measure, totals)))
        columns = (
            *(Column(name, title, elastic=True) for name, title in self.columns.items()),
            Column("a", "A", self.unit),
            Column("b", "B", self.unit),
            Column("difference", "B - A", self.unit, signed=True),
            Column("ratio", "B / A", "ratio", note="B / A: above 1, B is larger"),
            *(Column(f"{side.lower()}_calls", side, "count", "calls per step") for side in "AB" if self.calls),
        )
        notes = []
        if not self.total_label and any(key not in self.a or key not in self.b for key in keys[:MAX_ROWS]):
            notes.append("—: not among the largest of that side")
        if len(keys) > MAX_ROWS:
            notes.append(f"{len(keys) - MAX_ROWS} more with smaller differences")
        return Table(self.table, self.title, columns, tuple(rows), len(self.columns), tuple(notes))

    def _calls_of(self, key: Key) -> tuple[Measure, ...]:
        return tuple(Measure(side.get(key, 0.0)) for side in self.calls or ())

    def _row(self, key: Key, a: float | None, b: float | None) -> tuple[str | Measure | None, ...]:
        """Return the row for `key`. An amount missing on one side is 0 if the amounts are complete, else unknown."""
        if self.total_label:
            a, b = a or 0.0, b or 0.0
        both_known = a is not None and b is not None
        difference = Measure(b - a) if both_known else None  # type: ignore[operator]
        ratio = Measure(b / a) if a and b is not None else None
        return (*key, *(None if side is None else Measure(side) for side in (a, b)), difference, ratio)


def summary_line(a: Artefact, b: Artefact) -> str:
    """Summarize the comparison on one line: the total time per step, or the peak. Raises LogError like `sheet`."""
    totals = next(amounts for amounts in _all_amounts(a, b) if amounts.total_label)
    total_a, total_b = sum(totals.a.values()), sum(totals.b.values())
    values = f"{units.quantity(totals.unit, total_a)} in A, {units.quantity(totals.unit, total_b)} in B"
    what = memory_label(*(memory_source([is_simulated(side)]) for side in (a, b)))
    if not total_a:
        return sentence(f"{what if totals.unit == 'bytes' else 'time per step'}: {values}")
    ratio = units.ratio(total_b / total_a)
    if isinstance(a, TraceArtefact) and isinstance(b, TraceArtefact):
        work = _work_noun(a, b).replace(" or ", "s and ")
        return sentence(f"{work}s take {ratio} as long per step in B as in A ({values}); one sample per side")
    return sentence(f"{what}: the peak is {ratio} as large in B as in A ({values})")


def _all_amounts(a: Artefact, b: Artefact) -> tuple[_Amounts, ...]:
    """Return everything that is compared; raises LogError if the two are not of the same kind."""
    if isinstance(a, TraceArtefact) and isinstance(b, TraceArtefact):
        return tuple(_trace_amounts(a, b))
    if a.kind == b.kind == "snapshot":
        return tuple(_snapshot_amounts(a, b))
    raise LogError(f"{a.name} is a {a.kind} and {b.name} is a {b.kind}: compare two traces or two memory snapshots")


def sheet(a: Artefact, b: Artefact, names: Iterable[str] = ()) -> Sheet:
    """Return tables of the differences between A and B; raises LogError if the two are not of the same kind."""
    tables = {amounts.table: amounts for amounts in _all_amounts(a, b)}
    if isinstance(a, TraceArtefact) and isinstance(b, TraceArtefact):
        basis = "per step: A {}, B {}".format(*(_describe_steps(side) for side in (a, b)))
    else:
        basis = "at the peak of each side"
    source_a, source_b = (memory_source([is_simulated(side)]) for side in (a, b))
    for name in (table_names := tuple(names) or tuple(tables)):
        if name not in tables:
            raise UsageError(f"--tables {unknown(name, f'a table of two {a.kind}s', tables)}")
    remarks = (Remark("note", "one sample per side, so there are no intervals: a difference may be noise"),)
    titles = title_with_source(f"A {a.name}", source_a), title_with_source(f"B {b.name}", source_b)
    shown = tuple(with_source_marks(tables[name].to_table(), source_a, source_b) for name in table_names)
    return Sheet(("compare", *titles, basis), shown, remarks if a.kind == "trace" else ())


def _describe_steps(trace: TraceArtefact) -> str:
    steps = sum(summary.steps for summary in trace.summaries)
    return f"{steps} step{'' if steps == 1 else 's'}"


def _work_noun(a: TraceArtefact, b: TraceArtefact) -> str:
    """Return the noun for what the traces recorded, as `profile` says it: `operator` if all are of a CPU."""
    sources = {summary.source for side in (a, b) for summary in side.summaries}
    return "operator" if sources == {"cpu"} else "kernel" if "cpu" not in sources else "kernel or operator"


def _trace_amounts(a: TraceArtefact, b: TraceArtefact) -> Iterator[_Amounts]:
    work = _work_noun(a, b)
    (a_seconds, a_calls), (b_seconds, b_calls) = _kernels_per_step(a), _kernels_per_step(b)
    yield _Amounts(
        "classes",
        f"time by class of {work}",
        {"class": "class"},
        "s",
        _by_class(a_seconds),
        _by_class(b_seconds),
        "all",
        (_by_class(a_calls), _by_class(b_calls)),
    )
    yield _Amounts(
        "kernels",
        f"time by {work}",
        {"class": "class", "kernel": work},
        "s",
        a_seconds,
        b_seconds,
        "all",
        (a_calls, b_calls),
    )


def _kernels_per_step(trace: TraceArtefact) -> tuple[dict[Key, float], dict[Key, float]]:
    """Return seconds and calls per step, by class and name of kernel; for several traces, their mean."""
    seconds: dict[Key, float] = defaultdict(float)
    calls: dict[Key, float] = defaultdict(float)
    for summary in trace.summaries:
        step_count = max(summary.steps, 1) * len(trace.summaries)
        for time in summary.times():
            key = (time.kernel_class, time.name.short)
            seconds[key] += time.total_ns * 1e-9 / step_count
            calls[key] += time.calls / step_count
    return seconds, calls


def _by_class(amounts: Mapping[Key, float]) -> dict[Key, float]:
    """Return the sum of the amounts by class of kernel."""
    by_class: dict[Key, float] = defaultdict(float)
    for (kernel_class, _), amount in amounts.items():
        by_class[(kernel_class,)] += amount
    return by_class


def _snapshot_amounts(a: TablesArtefact, b: TablesArtefact) -> Iterator[_Amounts]:
    from sysbench.commands.memory.snapshot_tables import peak_bytes_by_line

    def bytes_of(table: str, column_name: str, *columns: str) -> tuple[dict[Key, float], dict[Key, float]]:
        sides: list[dict[Key, float]] = []
        for side in (a, b):
            amounts: dict[Key, float] = defaultdict(float)
            for row in (row for each in side.sheet.tables if each.name == table for row in tidy(each)[1]):
                amounts[tuple(str(row.get(column) or "") for column in columns)] += float(row.get(column_name) or 0)
            sides.append(amounts)
        return sides[0], sides[1]

    categories = bytes_of("categories", "size_bytes", "category")
    yield _Amounts(
        "categories", "memory at the peak by category", {"category": "category"}, "bytes", *categories, "all"
    )
    columns = {"category": "category", "line": "line"}
    if a.timeline is not None and b.timeline is not None:
        lines_a, lines_b = (peak_bytes_by_line(timeline) for timeline in (a.timeline, b.timeline))
        yield _Amounts("largest", "allocations at the peak by line", columns, "bytes", lines_a, lines_b, "all")
    else:
        largest = bytes_of("largest", "total_bytes", *columns)
        yield _Amounts("largest", "the largest allocations at the peak", columns, "bytes", *largest)
