"""Tables of `sysbench memory`: peaks by cell, phase, category, source line and module.

Table titles and column headings mark simulated results.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter, itemgetter
from types import SimpleNamespace
from typing import NamedTuple

from sysbench import cells as axes
from sysbench import units
from sysbench.cells import HasAxes
from sysbench.commands.memory.record import (
    MemoryCellRecord,
    MemoryRecord,
    ModuleMemory,
    PhasePeakRecord,
    RankRecord,
    VerdictRecord,
)
from sysbench.commands.memory.spec import MemoryCell, MemorySpec
from sysbench.commands.memory.verdicts import fit_command, largest_batch_command, shortage, verdict_text
from sysbench.log.outcomes import stage_phrase
from sysbench.render import phase_rows
from sysbench.render.declared import DeclaredTable, Each, Field, Fill, build_tables, leading_axes, leading_fields
from sysbench.render.phase_rows import flattened
from sysbench.render.sentences import notes
from sysbench.render.sentences.cautions import cautions_of
from sysbench.render.sentences.phrases import name_among
from sysbench.render.table import Cell, Measure, Remark, Sheet, Table, Word, multiplicity
from sysbench.snapshot import CATEGORIES
from sysbench.spec.run import Selection
from sysbench.trace.stack_lines import frame_location

MAX_DEPTH = 4
"""Depth of the module tree; deeper modules count towards their ancestors."""

GROUPS_SHOWN = 10
"""Number of groups of allocations to show per cell."""

GROUPS_OF_SEVERAL = 5
"""Number of groups of allocations to show unasked below the table of several cells."""


def sheet(record: MemoryRecord, names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    devices = [f"simulated for {cell.gpu.title}" for cell in record.cells if cell.gpu]
    devices += [cell.device.name for cell in record.cells if cell.device and cell.source == "measured"]
    # A single cell has its verdict in a sentence; several cells have theirs in the summary.
    verdicts = [
        Remark("finding" if cell.verdict.fits else "outcome", verdict_text(cell))
        for cell in record.cells
        if cell.verdict is not None and len(record.cells) == 1
    ]
    # Cells that do not fit are already in the tables.
    unexplained = notes.outcomes(record, [cell for cell in record.cells if cell.verdict is None])
    return Sheet(
        subject=(
            *axes.subject(list(map(_reported, record.cells))),
            *dict.fromkeys(devices),
            *record.environment.software,
        ),
        tables=tuple(tables_for(record, names)),
        remarks=(
            *verdicts,
            *unexplained,
            *cautions_of(record),
            *_notes(record),
            *notes.own_models(record),
            *_what_next(record),
        ),
    )


def _notes(record: MemoryRecord) -> Iterator[Remark]:
    if any(cell.outcome == "skipped" and cell.source == "measured" for cell in record.cells):
        yield Remark("note", "use --simulate GPU (a100-80gb, or 24GiB) to compute what does not fit here")
    if any(cell.source == "simulated" for cell in record.cells):
        yield Remark("note", "simulated: computed without a GPU, by a model of CUDA's caching allocator")
    if any(cell.gpu and cell.gpu.nccl_bytes for cell in record.cells):
        yield Remark(
            "note",
            "several ranks: bytes of rank 0, whose shards are at least as large as all others; NCCL's buffers "
            "are outside the allocator, and their size is an assumption",
        )


def _what_next(record: MemoryRecord) -> Iterator[Remark]:
    """Yield the last line: what lacks how much memory, and the command that says what to do about it."""
    largest, failing = record.largest_fitting, record.smallest_failing
    if failing is not None:
        boundary = _boundary(largest, failing) if largest is not None and largest.peak_bytes else shortage(failing)
        yield Remark("note", boundary, fit_command(record, failing))
    elif largest is not None and (command := largest_batch_command(record, largest)):
        yield Remark("note", "the largest batch that fits:", command)


def _boundary(largest: MemoryCellRecord, failing: MemoryCellRecord) -> str:
    """Return where the memory ends: `ctx 512 fits, ctx 1024 lacks 31.7 GiB`."""
    differing = axes.varying([largest, failing])
    lacking = failing.verdict.margin_bytes if failing.verdict else None
    lacks = f"lacks {units.size(-lacking)}" if lacking else "does not fit"
    return f"{axes.label(largest, differing)} fits, {axes.label(failing, differing)} {lacks}"


def tables_for(record: MemoryRecord, names: Iterable[str] = ()) -> list[Table]:
    chosen = tuple(names)
    if chosen:
        return build_tables(TABLES, record, chosen)
    shown = DEFAULTS if len(record.cells) > 1 else TABLES
    return [table for name in _default_names([cell.cell for cell in record.cells]) for table in shown[name](record)]


def default_tables(spec: MemorySpec) -> tuple[str, ...]:
    return _default_names(list(spec.cells()))


def _default_names(cells: Sequence[MemoryCell]) -> tuple[str, ...]:
    ranks = ("ranks",) if any(cell.workers > 1 for cell in cells) else ()
    return ("phases" if len(cells) == 1 else "summary", *ranks, "causes", "largest")


# --- parts of tables


class _SingleCell(NamedTuple):
    record: MemoryRecord
    cell: MemoryCellRecord

    @property
    def cells(self) -> list[MemoryCellRecord]:
        return [self.cell]

    def title(self, what: str) -> str:
        several = len(self.record.cells) > 1
        return _title(f"{what} of {name_among(self.cells, self.record.cells)}" if several else what, self)


def _source(part: MemoryRecord | _SingleCell) -> str:
    return "simulated" if {cell.source for cell in part.cells} == {"simulated"} else "measured"


def _title(what: str, part: MemoryRecord | _SingleCell) -> str:
    return f"{what}, simulated" if _source(part) == "simulated" else what


_SOURCES = {"source": Fill(("measured", "simulated"), _source)}


def _reported(cell: MemoryCellRecord) -> HasAxes:
    """Replace the value from which the cell's search starts by the value that the results are for."""
    found = cell.found
    return SimpleNamespace(axes={**cell.axes, found.axis: found.shown} if found and found.shown else cell.axes)


_AXES = leading_axes(cells_of=lambda cell: (_reported(cell),))


# --- a row per cell


def _fits(cell: MemoryCellRecord | RankRecord) -> Cell:
    if cell.verdict is None:
        return None  # the size of the memory is unknown
    if cell.verdict.fits:
        return Word("fits", "good")
    return Word(f"no: {cell.verdict.failed_phase}" if cell.verdict.failed_phase else "does not fit", "bad")


def _cell_fits(cell: MemoryCellRecord) -> Cell:
    has_result = cell.outcome == "ok" or (cell.verdict is not None and cell.verdict.failed_phase)
    return _fits(cell) if has_result else notes.outcome_word(cell.outcome)


def _search_result(cell: MemoryCellRecord) -> str | None:
    found = cell.found
    return None if found is None else f"{found.axis} {found.answer}" if found.value else "none"


def _margin(cell: MemoryCellRecord) -> int | None:
    return cell.verdict.margin_bytes if cell.verdict else None


def _outside_memory_notes(record: MemoryRecord) -> Iterator[str]:
    if contexts := dict.fromkeys(cell.gpu.context_bytes for cell in record.cells if cell.gpu):
        context_sizes = ", ".join(map(units.size, contexts))
        ranks = ", NCCL's buffers" if any(cell.gpu and cell.gpu.nccl_bytes for cell in record.cells) else ""
        spare = f"to spare: GPU memory minus reserved memory{ranks} and {context_sizes} for the CUDA context"
        lacking = any(cell.does_not_fit for cell in record.cells)
        yield f"{spare}; negative: what the whole step lacks" if lacking else spare


def _out_of_memory_notes(record: MemoryRecord) -> Iterator[str]:
    failed = [cell for cell in record.cells if cell.verdict is not None and not cell.verdict.fits]
    if failed and len(record.cells) == 1:
        (cell,) = failed
        phase = cell.verdict.failed_phase if cell.verdict else None
        yield f"memory runs out {stage_phrase(phase)}: the values are the highest until then"
    elif failed:
        names = name_among(failed, record.cells)
        yield f"memory runs out for {names}: their values are the highest until then"


_bytes_field = partial(Field, unit="bytes", optional=True)
_PEAK_COLUMNS = (
    _bytes_field("allocated_peak", "allocated", group="{source}", get=attrgetter("peak_allocated_bytes")),
    _bytes_field("reserved_peak", "reserved", group="{source}", importance=1, get=attrgetter("peak_reserved_bytes")),
    Field("peak_phase", "peak in", importance=4, get=attrgetter("peak_phase"), optional=True),
)
_host_memory_field = partial(_bytes_field, "host_rss_peak", importance=3, get=attrgetter("host_rss_peak_bytes"))

SUMMARY = DeclaredTable(
    "summary",
    lambda record: _title("peak memory", record),
    (
        *_PEAK_COLUMNS,
        _host_memory_field("worker, host memory", group="{source}"),
        Field("fits", get=_cell_fits, optional=True),
        _bytes_field("margin", "to spare", importance=2, get=_margin),
        Field("search_result", "search result", get=_search_result, optional=True),
    ),
    leading=_AXES,
    notes=lambda record: [*_outside_memory_notes(record), *_out_of_memory_notes(record)],
    words=_SOURCES,
)
"""One row per cell: peaks, phase of the peak, whether it fits, and how much memory is left."""


def _present_categories(record: MemoryRecord) -> list[str]:
    return [name for name in CATEGORIES if any(cell.by_category.get(name) for cell in record.cells)]


_CATEGORY = Field(
    "{category}",
    unit="bytes",
    group="{source}",
    importance=lambda record, name: _present_categories(record).index(name) // 4,
    get=lambda cell, name: cell.by_category.get(name, 0),
)

CATEGORY_TABLE = DeclaredTable(
    "categories",
    lambda record: _title("peak breakdown", record),
    (
        Each("category", (_CATEGORY,), values=_present_categories, possible_values=CATEGORIES),
        Field("allocated_peak", "together", "bytes", "{source}", get=attrgetter("peak_allocated_bytes")),
    ),
    rows=lambda record: [cell for cell in record.cells if cell.by_category],
    leading=_AXES,
    notes=_out_of_memory_notes,
    words=_SOURCES,
)
"""One row per cell: its peak by category."""


# --- a row per rank


class _RankRow(NamedTuple):
    cell: MemoryCellRecord
    rank: RankRecord


def _of_rank(column: Field) -> Field:
    return replace(column, group="", get=lambda row: column.get(row.rank))


RANKS = DeclaredTable(
    "ranks",
    "peak memory of each rank",
    tuple(map(_of_rank, (*_PEAK_COLUMNS, Field("fits", get=_fits, optional=True), _host_memory_field("host memory")))),
    rows=lambda record: [
        _RankRow(cell, rank) for cell in record.cells for rank in cell.ranks if rank.peak_allocated_bytes is not None
    ],
    leading=(
        leading_axes(cells_of=lambda row: row[:1]),
        leading_fields(Field("rank", get=lambda row: str(row.rank.rank))),
    ),
    notes=("the results of a cell are those of the rank with the highest peak, or on which memory ran out",),
    needs="the memory of several ranks (--ranks 2)",
)
"""One row per measured rank of each cell."""


# --- a row per phase


class PhaseRow(NamedTuple):
    """A phase of a cell, or of a snapshot; a cell without phases has one row."""

    cell: MemoryCellRecord | None
    name: str | None
    peak: PhasePeakRecord | None

    def allocated(self) -> Measure | None:
        if self.peak is None:
            return None
        is_highest = self.cell is not None and self.name == self.cell.peak_phase
        return Measure(self.peak.allocated_peak_bytes, tone="strong" if is_highest else "plain")

    def reserved(self) -> int | None:
        return self.peak.reserved_peak_bytes if self.peak else None

    def largest_category(self) -> tuple[str, int | None]:
        by_category = self.peak.by_category if self.peak else {}
        return max(by_category.items(), key=lambda item: item[1], default=("", None))


PHASE_COLUMNS = (
    Field("allocated_peak", "allocated", "bytes", "{source}", get=PhaseRow.allocated),
    Field("reserved_peak", "reserved", "bytes", "{source}", get=PhaseRow.reserved, optional=True),
    Field("largest_category", "largest category", importance=1, get=lambda row: row.largest_category()[0]),
    Field("largest_category_bytes", "size", "bytes", importance=2, get=lambda row: row.largest_category()[1]),
)
PHASE = leading_fields(Field("phase", get=lambda row: row.name))

PHASES = DeclaredTable(
    "phases",
    lambda record: _title("peak memory by phase", record),
    PHASE_COLUMNS,
    rows=lambda record: [PhaseRow(cell, *item) for cell in record.cells for item in cell.peaks_by_phase.items()],
    leading=(
        leading_axes(
            lambda record: axes.varying(record.cells) or ("size",) if len(record.cells) > 1 else (),
            lambda row: (_reported(row.cell),),
        ),
        PHASE,
    ),
    notes=_out_of_memory_notes,
    words=_SOURCES,
)
"""Peaks of allocated and reserved memory by phase, with the largest category at that point."""


CELLS = DeclaredTable(
    "cells",
    lambda record: _title("all cells and phases", record),
    (
        Field("source", get=attrgetter("cell.source")),
        *phase_rows.cell_columns(),
        *flattened(VerdictRecord, attrgetter("cell.verdict"), "fits", "margin_bytes"),
        phase_rows.PHASE,
        *flattened(PhasePeakRecord, itemgetter(2), keys=CATEGORIES),
        *flattened(MemoryCellRecord, itemgetter(0), "host_rss_peak_bytes", "device_used_peak_bytes", "residual_bytes"),
    ),
    rows=lambda record: [
        PhaseRow(cell, *item) for cell in record.cells for item in cell.peaks_by_phase.items() or ((None, None),)
    ],
    leading=leading_axes(lambda record: axes.present_axes(record.cells), lambda row: (_reported(row.cell),)),
    notes=_out_of_memory_notes,
)
"""All values in one long table with a row per cell and phase, for data frames."""


# --- a table per cell


GROUP_COLUMNS = (
    Field("count", unit="count", get=attrgetter("count")),
    Field("size", "each", "bytes", "{source}", get=attrgetter("size_bytes")),
    Field("total", "together", "bytes", "{source}", 3, get=attrgetter("total_bytes")),
    Field("category", importance=1, get=attrgetter("category")),
    Field("phase", "made in", importance=4, get=attrgetter("phase"), optional=True),
    Field("line", elastic=True, get=lambda group: frame_location(group.stack) or ""),
    Field("module", importance=2, get=lambda group: " … ".join(group.modules), optional=True),
)

LARGEST_ALLOCATIONS = DeclaredTable(
    "largest",
    lambda single: single.title("largest allocations at the peak"),
    GROUP_COLUMNS,
    parts=lambda record: [_SingleCell(record, cell) for cell in record.cells],
    rows=lambda single: single.cell.largest[:GROUPS_SHOWN],
    leading=(),
    words=_SOURCES,
)
"""For each cell, the largest allocations at its peak, grouped by size, category and stack, with their source lines."""


def _largest_fitting(record: MemoryRecord) -> list[_SingleCell]:
    cell = record.largest_fitting
    return [] if cell is None else [_SingleCell(record, cell)]


LARGEST_OF_LARGEST = replace(
    LARGEST_ALLOCATIONS, parts=_largest_fitting, rows=lambda single: single.cell.largest[:GROUPS_OF_SEVERAL]
)
"""The largest allocations of the largest cell that fits."""


class _Cause(NamedTuple):
    category: str
    size_bytes: int
    peak_bytes: int


CAUSES = DeclaredTable(
    "causes",
    lambda single: single.title("peak breakdown"),
    (
        Field("size", "at the peak", "bytes", "{source}", get=attrgetter("size_bytes")),
        Field("share", "share", "share", get=lambda cause: cause.size_bytes / cause.peak_bytes),
    ),
    parts=_largest_fitting,
    rows=lambda single: [
        _Cause(name, size_bytes, sum(single.cell.by_category.values()))
        for name, size_bytes in sorted(single.cell.by_category.items(), key=itemgetter(1), reverse=True)
        if size_bytes
    ],
    leading=leading_fields(Field("category", get=attrgetter("category"))),
    words=_SOURCES,
    needs="a peak by category",
)
"""The peak by category of the largest cell that fits; if none fits, of the one that lacks the least."""


class ModuleRow(NamedTuple):
    """Row of a module tree. Modules whose paths differ only in a number are combined in one row."""

    path: str
    number: int
    total_bytes: int
    own_bytes: int

    def name(self) -> str:
        """Return the last part of the path, indented by its depth."""
        parts = self.path.split(".") if self.path else []
        return f"{'  ' * (len(parts) - 1)}{parts[-1]}" if parts else "everything"


MODULE = leading_fields(Field("module", get=ModuleRow.name))
MODULE_COLUMNS = (
    Field("count", unit="count", get=lambda row: multiplicity(row.number)),
    Field("total", "with submodules", "bytes", "{source}", get=attrgetter("total_bytes")),
    Field("own", "itself", "bytes", "{source}", 1, get=attrgetter("own_bytes")),
)

_NUMBER = re.compile(r"(^|\.)\d+(?=\.|$)")


def module_rows(modules: Iterable[ModuleMemory]) -> list[ModuleRow]:
    """Return one row per module path, down to MAX_DEPTH. Layers are combined in one row: `layers.*`."""
    by_path: dict[str, ModuleRow] = {}
    for module in modules:
        path = _NUMBER.sub(r"\1*", module.path)
        row = by_path.get(path, ModuleRow(path, 0, 0, 0))
        by_path[path] = ModuleRow(
            path, row.number + 1, row.total_bytes + module.total_bytes, row.own_bytes + module.own_bytes
        )
    in_order = sorted(by_path.values(), key=lambda row: row.path.split("."))
    return [row for row in in_order if row.path.count(".") < MAX_DEPTH]


MODULES = DeclaredTable(
    "modules",
    lambda single: single.title("peak by module"),
    MODULE_COLUMNS,
    parts=lambda record: [_SingleCell(record, cell) for cell in record.cells],
    rows=lambda single: module_rows(single.cell.modules),
    leading=MODULE,
    words=_SOURCES,
)
"""For each cell, the tree of modules at its peak."""


TABLES = {
    table.name: table for table in (SUMMARY, RANKS, PHASES, CAUSES, CATEGORY_TABLE, LARGEST_ALLOCATIONS, MODULES, CELLS)
}
"""All tables by name."""

DEFAULTS = {**TABLES, "largest": LARGEST_OF_LARGEST}
"""The tables that several cells show unasked: causes only for the largest cell that fits."""
