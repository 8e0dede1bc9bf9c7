"""Tables of a memory snapshot from any program: phases, categories, largest allocations, modules, lines of code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sysbench import units
from sysbench.commands.memory.breakdown import allocation_groups, module_memory
from sysbench.commands.memory.record import PhasePeakRecord
from sysbench.commands.memory.tables import (
    GROUP_COLUMNS,
    MODULE,
    MODULE_COLUMNS,
    PHASE,
    PHASE_COLUMNS,
    PhaseRow,
    module_rows,
)
from sysbench.render.declared import DeclaredTable, Field, Fill, build_tables, leading_fields
from sysbench.render.table import Remark, Sheet
from sysbench.snapshot.timeline import ModuleNode, Timeline
from sysbench.trace.stack_lines import frame_location

GROUPS_SHOWN = 15
"""Number of groups of allocations to show."""

MIN_LINE_SHARE = 0.01
"""Smallest share of the peak with which a call is a row of its own."""


def sheet(timeline: Timeline, name: str, names: Iterable[str] = ()) -> Sheet:
    """Return the complete output for the snapshot in the file `name`; raises UsageError for an unknown table."""
    device = timeline.device_name or f"device {timeline.device}"
    subject = f"simulated for {device}" if timeline.source == "simulated" else device
    if chosen := tuple(names):
        tables = build_tables(TABLES, timeline, chosen, name)
    else:
        # Where modules are known, lines would only repeat them.
        defaults = [table for key, table in TABLES.items() if key != "lines" or timeline.inferred]
        tables = [table for declared in defaults for table in declared(timeline)]
    return Sheet((name, subject), tuple(tables), tuple(_remarks(timeline)))


def _title(what: str, timeline: Timeline, inferred_data: str = "") -> str:
    inferred = f", {inferred_data} inferred" if inferred_data and timeline.inferred else ""
    return f"{what}, simulated" if timeline.source == "simulated" else f"{what}{inferred}"


_SOURCES = {"source": Fill(("", "simulated"), lambda timeline: "simulated" * (timeline.source == "simulated"))}


def _phase_rows(timeline: Timeline) -> Iterator[PhaseRow]:
    reserved_bytes = timeline.reserved_bytes
    for name, peak in timeline.peaks_by_phase().items():
        spans = [slice(phase.first, phase.end) for phase in timeline.phases if phase.name == name]
        reserved = max(int(reserved_bytes[span].max()) for span in spans) if reserved_bytes is not None else None
        by_category = timeline.categories_at(peak.state)
        record = PhasePeakRecord(
            allocated_peak_bytes=peak.allocated_bytes, reserved_peak_bytes=reserved, by_category=by_category
        )
        yield PhaseRow(None, name, record)


PHASES = DeclaredTable(
    "phases",
    lambda timeline: _title("peak memory by phase", timeline, "phases"),
    PHASE_COLUMNS,
    rows=_phase_rows,
    leading=PHASE,
    words=_SOURCES,
    needs="phases",
)
"""The peak of each phase, and its largest category."""


CATEGORY_TABLE = DeclaredTable(
    "categories",
    lambda timeline: _title("peak breakdown", timeline, "categories"),
    (
        Field("size", "at the peak", "bytes", "{source}", get=lambda row: row[1]),
        Field("share", "share", "share", get=lambda row: row[1] / row[2]),
    ),
    rows=lambda timeline: [
        (name, size_bytes, timeline.peak.allocated_bytes)
        for name, size_bytes in sorted(
            timeline.categories_at(timeline.peak.state).items(), key=lambda item: item[1], reverse=True
        )
    ],
    leading=leading_fields(Field("category", get=lambda row: row[0])),
    words=_SOURCES,
    needs="allocations",
)
"""The peak by category."""


def peak_bytes_by_line(timeline: Timeline) -> dict[tuple[str, ...], float]:
    """Return the bytes of all allocations at the peak, by category and line of code (empty without stacks)."""
    found: dict[tuple[str, ...], float] = {}
    for group in timeline.groups(timeline.peak.state):
        key = (group.category, frame_location(timeline.stacks.of(group.stack)) or "")
        found[key] = found.get(key, 0) + group.total_bytes
    return found


LARGEST_ALLOCATIONS = DeclaredTable(
    "largest",
    lambda timeline: _title("largest allocations at the peak", timeline, "categories"),
    GROUP_COLUMNS,
    rows=lambda timeline: allocation_groups(timeline, timeline.peak.state, GROUPS_SHOWN, None),
    leading=(),
    words=_SOURCES,
    needs="allocations",
)
"""The largest allocations at the peak, grouped by size, category and stack, with their source lines."""

MODULES = DeclaredTable(
    "modules",
    lambda timeline: _title("peak by module", timeline),
    MODULE_COLUMNS,
    rows=lambda timeline: module_rows(module_memory(timeline.tree_at(timeline.peak.state))),
    when=lambda timeline: bool(timeline.tree_at(timeline.peak.state).children),
    leading=MODULE,
    words=_SOURCES,
    needs="modules, which only snapshots that sysbench wrote have",
)
"""The peak as a tree of modules."""


class _LineRow(NamedTuple):
    depth: int
    node: ModuleNode
    peak_bytes: int


def _line_rows(timeline: Timeline) -> list[_LineRow]:
    """Return the calls that hold at least `MIN_LINE_SHARE` of the peak, each below its caller, largest first."""
    root, rows = timeline.lines_at(timeline.peak.state), list[_LineRow]()
    pending = [(0, root)]
    while pending:
        depth, node = pending.pop()
        if node.total_bytes >= MIN_LINE_SHARE * root.total_bytes:
            rows.append(_LineRow(depth, node, root.total_bytes))
            pending += [(depth + 1, node) for node in sorted(node.children.values(), key=lambda each: each.total_bytes)]
    return rows


LINES = DeclaredTable(
    "lines",
    lambda timeline: _title("peak by line of code", timeline),
    (
        Field("total", "with calls", "bytes", "{source}", get=lambda row: row.node.total_bytes),
        Field("share", "share", "share", get=lambda row: row.node.total_bytes / row.peak_bytes),
        Field("own", "itself", "bytes", "{source}", 1, get=lambda row: row.node.own_bytes),
        Field(
            "category",
            "largest category",
            importance=2,
            get=lambda row: max(row.node.by_category, key=row.node.by_category.__getitem__),
        ),
    ),
    rows=_line_rows,
    when=lambda timeline: bool(timeline.lines_at(timeline.peak.state).children),
    leading=leading_fields(
        Field("line", elastic=True, get=lambda row: f"{'  ' * row.depth}{row.node.name or 'everything'}")
    ),
    words=_SOURCES,
    notes=(f"calls with less than {units.share(MIN_LINE_SHARE)} of the peak are left out, as are libraries",),
    needs="recorded stacks",
)
"""The peak as a tree of the user's own calls, where stacks were recorded."""


TABLES = {table.name: table for table in (PHASES, CATEGORY_TABLE, LARGEST_ALLOCATIONS, MODULES, LINES)}
"""All tables by name."""


def _remarks(timeline: Timeline) -> Iterator[Remark]:
    peak, reserved = timeline.peak, timeline.reserved_bytes
    phase = timeline.phase_at(peak.state)
    where = f" in {phase.name}" if phase else ""
    count = f"The snapshot has {len(timeline.allocations):,} allocations"
    most = f", and at most {units.size(timeline.reserved_peak_bytes)} are reserved" if reserved is not None else ""
    yield Remark("finding", f"memory peaks at {units.size(peak.allocated_bytes)}{where}. {count}{most}.")
    for failure in timeline.failures[:3]:
        missing = f"{units.size(failure.requested_bytes)} requested, {units.size(failure.device_free_bytes)} free"
        yield Remark("outcome", f"memory ran out: {missing}")
    if reserved is not None and (idle := int(reserved[-1] - timeline.allocated_bytes[-1])):
        largest = f"the largest free block has {units.size(timeline.largest_free_bytes)}"
        yield Remark("finding", f"at the end, {units.size(idle)} are reserved but not allocated; {largest}.")
    if timeline.inferred:
        yield Remark("note", "categories and phases are inferred from stacks and lifetimes: the snapshot contains none")
    if timeline.source == "simulated":
        yield Remark("note", "simulated: computed without a GPU, by a model of CUDA's caching allocator")
