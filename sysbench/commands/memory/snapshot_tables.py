"""Tables of a memory snapshot from any program: phases, categories, largest allocations, modules, fragmentation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sysbench import units
from sysbench.commands.memory.tables import MODULE, MODULE_COLUMNS, module_rows
from sysbench.errors import UsageError, unknown
from sysbench.render.declared import DeclaredTable, Field, Fill, leading_fields
from sysbench.render.table import Remark, Sheet
from sysbench.snapshot.timeline import Group, ModuleNode, Peak, Timeline
from sysbench.trace.stack_lines import frame_location

GROUPS_SHOWN = 15
"""Number of groups of allocations to show."""

MIN_LINE_SHARE = 0.01
"""Smallest share of the peak with which a call is a row of its own."""


def sheet(timeline: Timeline, name: str, names: Iterable[str] = ()) -> Sheet:
    """Return the complete output for the snapshot in the file `name`; raises UsageError for an unknown table."""
    # Inferred modules are the same calls.
    chosen = tuple(names) or tuple(each for each in TABLES if each != ("modules" if timeline.inferred else "lines"))
    for each in chosen:
        if each not in TABLES:
            raise UsageError(f"--tables {unknown(each, 'a table of a snapshot', TABLES)}")
    device = timeline.device_name or f"device {timeline.device}"
    simulated = (f"simulated for {device}",) if timeline.source == "simulated" else (device,)
    tables = tuple(table for each in chosen for table in TABLES[each](timeline))
    return Sheet((name, *simulated), tables, tuple(_remarks(timeline)))


def _title(what: str, timeline: Timeline, inferred_data: str = "") -> str:
    inferred = f", {inferred_data} inferred" if inferred_data and timeline.inferred else ""
    return f"{what}, simulated" if timeline.source == "simulated" else f"{what}{inferred}"


_SOURCES = {"source": Fill(("", "simulated"), lambda timeline: "simulated" * (timeline.source == "simulated"))}


class _PhaseRow(NamedTuple):
    timeline: Timeline
    name: str
    peak: Peak

    def reserved(self) -> int | None:
        reserved = self.timeline.reserved
        return int(reserved.bytes[self.peak.state]) if reserved else None

    def largest_category(self) -> tuple[str, int]:
        categories = self.timeline.categories_at(self.peak.state)
        return max(categories.items(), key=lambda item: item[1], default=("", 0))


PHASES = DeclaredTable(
    "phases",
    lambda timeline: _title("peak memory by phase", timeline, "phases"),
    (
        Field("allocated_peak", "allocated", "bytes", "{source}", get=lambda row: row.peak.allocated_bytes),
        Field("reserved", "reserved at that point", "bytes", "{source}", get=_PhaseRow.reserved, optional=True),
        Field("largest_category", "largest category", importance=1, get=lambda row: row.largest_category()[0]),
        Field("largest_category_bytes", "size", "bytes", importance=2, get=lambda row: row.largest_category()[1]),
    ),
    rows=lambda timeline: [_PhaseRow(timeline, *item) for item in timeline.peaks_by_phase().items()],
    leading=leading_fields(Field("phase", get=lambda row: row.name)),
    words=_SOURCES,
)
"""The peak of each phase, and its largest category."""


CATEGORIES = DeclaredTable(
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
)
"""The peak by category."""


class _GroupRow(NamedTuple):
    timeline: Timeline
    group: Group

    def line(self) -> str:
        return frame_location(self.timeline.stacks.of(self.group.stack)) or ""

    def modules(self) -> str:
        """Return the first and the last module of the group. An inferred module is a chain of function calls."""
        separator, modules = " › " if self.timeline.inferred else ".", self.group.modules
        return " … ".join(dict.fromkeys(separator.join(module) for module in (*modules[:1], *modules[-1:])))


def peak_bytes_by_line(timeline: Timeline) -> dict[tuple[str, ...], float]:
    """Return the bytes of all allocations at the peak, by category and line of code (empty without stacks)."""
    found: dict[tuple[str, ...], float] = {}
    for group in timeline.groups(timeline.peak.state):
        key = (group.category, _GroupRow(timeline, group).line())
        found[key] = found.get(key, 0) + group.total_bytes
    return found


LARGEST_ALLOCATIONS = DeclaredTable(
    "largest",
    lambda timeline: _title("largest allocations at the peak", timeline, "categories"),
    (
        Field("count", unit="count", get=lambda row: row.group.count),
        Field("size", "each", "bytes", "{source}", get=lambda row: row.group.size_bytes),
        Field("total", "together", "bytes", "{source}", 3, get=lambda row: row.group.total_bytes),
        Field("category", importance=1, get=lambda row: row.group.category),
        Field("line", get=_GroupRow.line),
        Field("module", importance=2, get=_GroupRow.modules),
    ),
    rows=lambda timeline: [_GroupRow(timeline, group) for group in timeline.groups(timeline.peak.state)[:GROUPS_SHOWN]],
    leading=(),
    words=_SOURCES,
)
"""The largest allocations at the peak, grouped by size, category and stack, with their source lines."""

MODULES = DeclaredTable(
    "modules",
    lambda timeline: _title("peak by module", timeline),
    MODULE_COLUMNS,
    rows=lambda timeline: module_rows(
        (path, node.total_bytes, node.own_bytes) for path, node in timeline.tree_at(timeline.peak.state).walk()
    ),
    when=lambda timeline: bool(timeline.tree_at(timeline.peak.state).children),
    leading=MODULE,
    words=_SOURCES,
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
            pending += [(depth + 1, each) for each in sorted(node.children.values(), key=lambda each: each.total_bytes)]
    return rows


LINES = DeclaredTable(
    "lines",
    lambda timeline: _title("peak by line of code", timeline),
    (
        Field("total", "with calls", "bytes", "{source}", get=lambda row: row.node.total_bytes),
        Field("share", "share", "share", get=lambda row: row.node.total_bytes / row.peak_bytes),
        Field("own", "itself", "bytes", "{source}", 1, get=lambda row: row.node.own_bytes),
        Field(
            "category", "largest category", importance=2,
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
)  # fmt: skip
"""The peak as a tree of the user's own calls, where stacks were recorded."""


FRAGMENTATION = DeclaredTable(
    "fragmentation",
    lambda timeline: _title("fragmentation", timeline),
    (
        Field("reserved", unit="bytes", group="{source}", get=lambda row: row[1].reserved_bytes),
        Field("allocated", unit="bytes", group="{source}", get=lambda row: row[1].allocated_bytes),
        Field("idle", unit="bytes", group="{source}", get=lambda row: row[1].free_bytes),
        Field("largest_gap", "largest free block", "bytes", "{source}", 1, get=lambda row: row[1].largest_free_bytes),
    ),
    rows=lambda timeline: [
        (when, found)
        for when, state in (("at the peak", timeline.peak.state), ("at the end", timeline.states - 1))
        if (found := timeline.fragmentation_at(state)) is not None
    ],
    leading=leading_fields(Field("when", get=lambda row: row[0])),
    words=_SOURCES,
)
"""Memory that the allocator reserves but does not use, at the peak and at the end."""

TABLES = {table.name: table for table in (PHASES, CATEGORIES, LARGEST_ALLOCATIONS, MODULES, LINES, FRAGMENTATION)}
"""All tables by name."""


def _remarks(timeline: Timeline) -> Iterator[Remark]:
    peak = timeline.peak
    phase = timeline.phase_at(peak.state)
    where = f" in {phase.name}" if phase else ""
    reserved = timeline.reserved_peak_bytes
    count = f"The snapshot has {len(timeline.allocations):,} allocations"
    reserved_text = f", and at most {units.size(reserved)} are reserved" if reserved is not None else ""
    yield Remark("finding", f"memory peaks at {units.size(peak.allocated_bytes)}{where}. {count}{reserved_text}.")
    for failure in timeline.failures[:3]:
        missing = f"{units.size(failure.requested_bytes)} requested, {units.size(failure.device_free_bytes)} free"
        yield Remark("outcome", f"memory ran out: {missing}")
    if timeline.inferred:
        yield Remark("note", "categories and phases are inferred from stacks and lifetimes: the snapshot contains none")
    if timeline.source == "simulated":
        yield Remark("note", "simulated: computed without a GPU, by a model of CUDA's caching allocator")
