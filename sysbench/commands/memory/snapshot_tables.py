"""What a memory snapshot tells, whoever wrote it: peak, phases, categories, largest allocations, fragmentation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from sysbench import units
from sysbench.commands.memory import tables as module_tree
from sysbench.commands.memory.record import CodeLine
from sysbench.errors import UsageError, unknown
from sysbench.render.stack_lines import place
from sysbench.render.table import Cell, Column, Measure, Remark, Sheet, Table
from sysbench.snapshot.timeline import Group, Timeline

LARGEST = 15


def sheet(timeline: Timeline, name: str, names: Iterable[str] = ()) -> Sheet:
    """Everything that is shown of the snapshot in the file `name`; raises UsageError for a table that is not there."""
    chosen = tuple(names) or tuple(each for each in TABLES if each != "modules" or not timeline.inferred)
    for each in chosen:
        if each not in TABLES:
            raise UsageError(f"--tables {unknown(each, 'a table of a snapshot', TABLES)}")
    device = timeline.device_name or f"device {timeline.device}"
    simulated = (f"simulated for {device}",) if timeline.source == "simulated" else (device,)
    tables = [table for each in chosen if (table := TABLES[each](timeline)) is not None]
    return Sheet((name, *simulated), tuple(tables), tuple(_remarks(timeline)))


def phases(timeline: Timeline) -> Table | None:
    """The most in each phase, and what it mostly is."""
    rows: list[tuple[Cell, ...]] = []
    for name, peak in timeline.peaks_by_phase().items():
        most, size = max(timeline.categories_at(peak.state).items(), key=lambda item: item[1], default=("", 0))
        reserved = (Measure(int(timeline.reserved.bytes[peak.state])),) if timeline.reserved else ()
        rows.append((name, Measure(peak.allocated_bytes), *reserved, most, Measure(size)))
    columns = (
        Column("phase", "phase"),
        Column("allocated_peak", "allocated", "bytes", _group(timeline)),
        *((Column("reserved", "reserved then", "bytes", _group(timeline)),) if timeline.reserved else ()),
        Column("mostly", "mostly", importance=1),
        Column("mostly_bytes", "of that", "bytes", importance=2),
    )
    return Table("phases", _title("peak memory by phase", timeline), columns, tuple(rows), 1) if rows else None


def categories(timeline: Timeline) -> Table | None:
    """What the peak consists of."""
    total = timeline.peak.allocated_bytes
    found = sorted(timeline.categories_at(timeline.peak.state).items(), key=lambda item: -item[1])
    rows = tuple((name, Measure(size), Measure(size / total)) for name, size in found)
    columns = (
        Column("category", "category"),
        Column("size", "at the peak", "bytes", _group(timeline)),
        Column("share", "of it", "share"),
    )
    return Table("categories", _title("what the peak is made of", timeline), columns, rows, 1) if rows else None


def largest(timeline: Timeline) -> Table | None:
    """The largest allocations at the peak, alike ones together, and the lines they come from."""
    groups = timeline.groups(timeline.peak.state)[:LARGEST]
    columns = (
        Column("count", "count"),
        Column("size", "each", "bytes", _group(timeline)),
        Column("total", "together", "bytes", _group(timeline), importance=3),
        Column("category", "category", importance=1),
        Column("line", "line"),
        Column("module", "module", importance=2),
    )
    rows = tuple(_largest_row(timeline, group) for group in groups)
    return Table("largest", _title("largest at the peak", timeline), columns, rows) if rows else None


def _largest_row(timeline: Timeline, group: Group) -> tuple[Cell, ...]:
    stack = [CodeLine(**frame._asdict()) for frame in timeline.stacks.of(group.stack)]
    separator = " › " if timeline.inferred else "."
    modules = list(dict.fromkeys(separator.join(module) for module in (*group.modules[:1], *group.modules[-1:])))
    return (
        f"{group.count} ×",
        Measure(group.size_bytes),
        Measure(group.total_bytes),
        group.category,
        place(stack) or "",
        " … ".join(modules),
    )


def modules(timeline: Timeline) -> Table | None:
    """The peak as a tree of modules."""
    rows = module_tree.rows(_walk(timeline))
    title = _title("the peak by module", timeline)
    return Table("modules", title, module_tree.columns(_group(timeline)), rows, 1) if len(rows) > 1 else None


def _walk(timeline: Timeline) -> Iterator[tuple[str, int, int]]:
    """Every module with its path and its bytes."""
    path: list[str] = []
    for depth, node in timeline.tree_at(timeline.peak.state).walk():
        path[max(0, depth - 1) :] = [node.name] if node.name else []
        yield ".".join(path), node.total_bytes, node.own_bytes


def fragmentation(timeline: Timeline) -> Table | None:
    """What the allocator holds and nobody uses, at the peak and at the end."""
    rows: list[tuple[Cell, ...]] = []
    for name, state in (("at the peak", timeline.peak.state), ("at the end", timeline.states - 1)):
        found = timeline.fragmentation_at(state)
        if found is None:
            return None
        gap = Measure(found.largest_free_bytes) if found.largest_free_bytes is not None else None
        sizes = (found.reserved_bytes, found.allocated_bytes, found.free_bytes)
        rows.append((name, *map(Measure, sizes), gap))
    columns = (
        Column("when", "when"),
        Column("reserved", "reserved", "bytes", _group(timeline)),
        Column("allocated", "allocated", "bytes", _group(timeline)),
        Column("idle", "idle", "bytes", _group(timeline)),
        Column("largest_gap", "largest piece of it", "bytes", _group(timeline), importance=1),
    )
    return Table("fragmentation", _title("fragmentation", timeline), columns, tuple(rows), 1)


TABLES: dict[str, Callable[[Timeline], Table | None]] = {
    "phases": phases,
    "categories": categories,
    "largest": largest,
    "modules": modules,
    "fragmentation": fragmentation,
}
"""Every table that a snapshot can be shown as."""


def _title(what: str, timeline: Timeline) -> str:
    return f"{what}, simulated" if timeline.source == "simulated" else what


def _group(timeline: Timeline) -> str:
    return timeline.source if timeline.source == "simulated" else ""


def _remarks(timeline: Timeline) -> Iterator[Remark]:
    peak = timeline.peak
    phase = timeline.phase_at(peak.state)
    where = f" in {phase.name}" if phase else ""
    reserved = timeline.reserved_peak_bytes
    held = f"; {units.size(reserved)} reserved at most" if reserved is not None else ""
    count = f"{len(timeline.allocations):,} allocations"
    yield Remark("finding", f"peak {units.size(peak.allocated_bytes)}{where}{held}; {count}")
    for failure in timeline.failures[:3]:
        missing = f"{units.size(failure.requested_bytes)} asked for, {units.size(failure.device_free_bytes)} free"
        yield Remark("outcome", f"memory ran out: {missing}")
    if timeline.inferred:
        yield Remark("note", "categories and phases are inferred from stacks and lifetimes: the snapshot names none")
    if timeline.source == "simulated":
        yield Remark("note", "simulated: worked out without a GPU, by a model of CUDA's caching allocator")
