"""Tables of `sysbench memory`: peaks by cell, phase, category, source line and module.

Table titles and column headings mark simulated results.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple, get_args

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.memory.findings import does_not_fit
from sysbench.commands.memory.fitting import fit_command, shortage
from sysbench.commands.memory.record import (
    LargestRecord,
    MemoryCellRecord,
    MemoryRecord,
    PhasePeakRecord,
    RankRecord,
    VerdictRecord,
)
from sysbench.commands.memory.spec import MemoryCell, MemorySpec
from sysbench.log.outcomes import stage_phrase
from sysbench.render import phase_rows, remarks
from sysbench.render.axis_columns import axis_values
from sysbench.render.declared import (
    DeclaredTable,
    Each,
    Field,
    Fill,
    build_tables,
    leading_axes,
    leading_fields,
)
from sysbench.render.findings import join_words
from sysbench.render.phase_rows import flattened
from sysbench.render.table import EMPTY_CELL, Cell, Measure, Remark, Sheet, Table, Word, multiplicity
from sysbench.snapshot import CATEGORIES
from sysbench.spec.model import AdamW
from sysbench.spec.run import Selection
from sysbench.trace.stack_lines import frame_location

MAX_DEPTH = 4
"""Depth of the module tree; deeper modules count towards their ancestors."""

GROUPS_SHOWN = 10
"""Number of groups of allocations to show per cell."""

MODES_WITH_GRADIENTS = ("forward-backward", "train", "train-first")


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
    unexplained = remarks.outcomes(record, [cell for cell in record.cells if cell.verdict is None])
    return Sheet(
        subject=(
            *axes.subject([_reported_axes(cell) for cell in record.cells]),
            *dict.fromkeys(devices),
            *record.environment.software,
        ),
        tables=tuple(tables_for(record, names)),
        remarks=(
            *verdicts,
            *unexplained,
            *remarks.cautions(record),
            *_notes(record),
            *remarks.own_models(record),
            *_what_next(record),
        ),
    )


def _what_next(record: MemoryRecord) -> Iterator[Remark]:
    """Yield the last line for a step that does not fit, if it is the only one."""
    if len(record.cells) == 1 and does_not_fit(*record.cells):
        command = fit_command(record)
        yield Remark("note", f"{shortage(*record.cells)}{f'. What makes it fit: {command}' if command else ''}")


def tables_for(record: MemoryRecord, names: Iterable[str] = ()) -> list[Table]:
    if chosen := tuple(names):
        return build_tables(TABLES, record, chosen)
    return [
        table for name in _default_table_names([cell.cell for cell in record.cells]) for table in TABLES[name](record)
    ]


def default_tables(spec: MemorySpec) -> tuple[str, ...]:
    return _default_table_names(list(spec.cells()))


def _default_table_names(cells: Sequence[MemoryCell]) -> tuple[str, ...]:
    ranks = ("ranks",) if any(cell.workers > 1 for cell in cells) else ()
    if len(cells) == 1:
        return ("phases", *ranks, "largest")
    # A grid of one row would only repeat the summary.
    rows = {cell.model_dump_json(exclude=set(_COLUMN_AXES)) for cell in cells}
    return ("summary", *ranks, *(("grid",) if len(rows) > 1 else ()))


# --- parts of tables


class _SingleCell(NamedTuple):
    record: MemoryRecord
    cell: MemoryCellRecord

    @property
    def cells(self) -> list[MemoryCellRecord]:
        return [self.cell]

    @property
    def title_suffix(self) -> str:
        cell_words = remarks.name_cells(self.cells, self.record.cells)
        return f" of {cell_words}" if len(self.record.cells) > 1 else ""


def _source(part: MemoryRecord | _SingleCell | _Grid) -> str:
    return "simulated" if {cell.source for cell in part.cells} == {"simulated"} else "measured"


def _title(what: str, part: MemoryRecord | _SingleCell | _Grid) -> str:
    return f"{what}, simulated" if _source(part) == "simulated" else what


_SOURCES = {"source": Fill(("measured", "simulated"), _source)}


class _ReportedAxes(NamedTuple):
    axes: dict[str, object]


def _reported_axes(cell: MemoryCellRecord) -> _ReportedAxes:
    """Replace the value from which the cell's search starts by the value that the results are for."""
    found = cell.found
    return _ReportedAxes({**cell.axes, found.axis: found.shown} if found is not None and found.shown else cell.axes)


def _outcome_word(cell: MemoryCellRecord) -> Word:
    if cell.verdict is not None and not cell.verdict.fits:
        return Word("does not fit", "bad")
    return remarks.outcome_word(cell.outcome)


# --- a row per cell


def _fits(cell: MemoryCellRecord) -> Cell:
    if cell.outcome == "ok" and cell.verdict is None:
        return None  # the size of the memory is unknown
    if cell.outcome != "ok" or cell.verdict is None or not cell.verdict.fits:
        failed = cell.verdict.failed_phase if cell.verdict else None
        return Word(f"no: {failed}", "bad") if failed else _outcome_word(cell)
    return Word("fits", "good")


def _search_result(cell: MemoryCellRecord) -> str:
    found = cell.found
    return "" if found is None else f"{found.axis} {found.answer}" if found.value else "none"


def _margin(cell: MemoryCellRecord) -> int | None:
    return cell.verdict.margin_bytes if cell.verdict else None


def _rank_spread(cell: MemoryCellRecord) -> float | None:
    """Return the difference between the ranks' highest and lowest peak, as a share of the highest."""
    peaks = [rank.peak_allocated_bytes for rank in cell.ranks if rank.peak_allocated_bytes is not None]
    return 1 - min(peaks) / max(peaks) if len(peaks) > 1 else None


def _outside_memory_notes(record: MemoryRecord) -> list[str]:
    contexts = dict.fromkeys(cell.gpu.context_bytes for cell in record.cells if cell.gpu)
    context_sizes = ", ".join(map(units.size, contexts))
    ranks = ", NCCL's buffers" if any(cell.gpu and cell.gpu.nccl_bytes for cell in record.cells) else ""
    missing = "; negative: what the whole step lacks" if any((_margin(cell) or 0) < 0 for cell in record.cells) else ""
    spare = f"to spare: GPU memory minus reserved memory{ranks} and {context_sizes} for the CUDA context{missing}"
    return [spare] if contexts else []


def _out_of_memory_notes(record: MemoryRecord) -> list[str]:
    failed = [cell for cell in record.cells if cell.verdict is not None and not cell.verdict.fits]
    if not failed:
        return []
    phases = [cell.verdict.failed_phase for cell in failed if cell.verdict is not None]
    if len(record.cells) == 1:
        return [f"memory runs out {stage_phrase(phases[0])}: the values are the highest until then"]
    return [f"memory runs out for {remarks.name_cells(failed, record.cells)}: their values are the highest until then"]


_bytes_field = partial(Field, unit="bytes", optional=True)
_source_bytes_field = partial(_bytes_field, group="{source}")

SUMMARY = DeclaredTable(
    "summary",
    lambda record: _title("peak memory", record),
    (
        _source_bytes_field("allocated_peak", "allocated", get=lambda cell: cell.peak_allocated_bytes),
        _source_bytes_field("reserved_peak", "reserved", importance=1, get=lambda cell: cell.peak_reserved_bytes),
        Field("peak_phase", "peak in", importance=4, get=lambda cell: cell.peak_phase, optional=True),
        Field(
            "fullest_rank",
            "fullest rank",
            importance=2,
            get=lambda cell: (
                f"rank {fullest.rank}"
                if (fullest := cell.fullest_rank) is not None and fullest.peak_allocated_bytes is not None
                else None
            ),
            optional=True,
            note="several ranks: bytes of the rank with the highest peak; spread: difference to the lowest peak",
        ),
        Field("rank_spread", "rank spread", "share", importance=1, get=_rank_spread, optional=True),
        _source_bytes_field(
            "host_rss_peak", "worker, host memory", importance=3, get=lambda cell: cell.host_rss_peak_bytes
        ),
        Field("fits", get=_fits, optional=True),
        _bytes_field("margin", "to spare", importance=2, get=_margin),
        Field(
            "largest",
            "largest that fits",
            get=lambda cell: _search_result(cell) if cell.found and cell.found.axis != "ranks" else None,
            optional=True,
        ),
        Field(
            "fewest",
            "fewest that fit",
            get=lambda cell: _search_result(cell) if cell.found and cell.found.axis == "ranks" else None,
            optional=True,
        ),
        _bytes_field(
            "nccl",
            "NCCL's buffers",
            group="assumed",
            importance=5,
            get=lambda cell: (cell.gpu.nccl_bytes or None) if cell.gpu else None,
        ),
    ),
    leading=leading_axes(cells_of=lambda cell: (_reported_axes(cell),)),
    notes=lambda record: [*_outside_memory_notes(record), *_out_of_memory_notes(record)],
    words=_SOURCES,
)
"""One row per cell: peaks, phase of the peak, whether it fits, and how much memory is left."""


def _present_categories(record: MemoryRecord) -> list[str]:
    return [name for name in CATEGORIES if any(cell.by_category.get(name) for cell in record.cells)]


def _category_columns(**declared: Any) -> Each:
    """Declare a column for each category that occurs."""
    column = Field("{category}", unit="bytes", **declared)
    return Each("category", (column,), values=_present_categories, possible_values=CATEGORIES)


CATEGORY_TABLE = DeclaredTable(
    "categories",
    lambda record: _title("peak breakdown", record),
    (
        _category_columns(
            group="{source}",
            importance=lambda record, name: _present_categories(record).index(name) // 4,
            get=lambda cell, name: cell.by_category.get(name, 0),
        ),
        Field("allocated_peak", "together", "bytes", "{source}", get=lambda cell: cell.peak_allocated_bytes),
    ),
    rows=lambda record: [cell for cell in record.cells if cell.by_category],
    leading=leading_axes(cells_of=lambda cell: (_reported_axes(cell),)),
    notes=_out_of_memory_notes,
    words=_SOURCES,
)
"""One row per cell: its peak by category."""


# --- a row per rank

_RankRow = tuple[MemoryCellRecord, RankRecord]


def _rank_fits(row: _RankRow) -> Word | None:
    verdict = row[1].verdict
    if verdict is None:
        return None
    return Word("fits", "good") if verdict.fits else Word(f"no: {verdict.failed_phase}", "bad")


RANKS = DeclaredTable(
    "ranks",
    "peak memory of each rank",
    (
        _bytes_field("allocated_peak", "allocated", get=lambda row: row[1].peak_allocated_bytes),
        _bytes_field("reserved_peak", "reserved", importance=1, get=lambda row: row[1].peak_reserved_bytes),
        Field("peak_phase", "peak in", importance=3, get=lambda row: row[1].peak_phase, optional=True),
        Field("fits", importance=1, get=_rank_fits, optional=True),
        _category_columns(
            importance=4, get=lambda row, name: row[1].by_category.get(name, 0) if row[1].by_category else None
        ),
        _bytes_field("context", importance=6, get=lambda row: row[1].context_bytes),
        _bytes_field("host_rss_peak", "host memory", importance=2, get=lambda row: row[1].host_rss_peak_bytes),
    ),
    rows=lambda record: [
        (cell, rank) for cell in record.cells for rank in cell.ranks if rank.peak_allocated_bytes is not None
    ],
    leading=(
        leading_axes(cells_of=lambda row: row[:1]),
        leading_fields(Field("rank", get=lambda row: str(row[1].rank))),
    ),
    notes=("the results of a cell are those of the rank with the highest peak, or on which memory ran out",),
    needs="the memory of several ranks (--ranks 2)",
)
"""One row per measured rank of each cell: its peak and the breakdown of the peak."""


# --- a grid of contexts by modes and precisions


_COLUMN_AXES: Final = ("mode", "precision")
"""Axes that form the columns of a grid."""


class _Grid(NamedTuple):
    cells: list[MemoryCellRecord]
    column_axes: tuple[str, ...]
    row_axes: tuple[str, ...]

    def values(self, axis: str) -> list[str]:
        return [str(value) for value in axes.values_along(self.cells, axis)]

    @property
    def rows(self) -> list[dict[tuple[Cell, ...], MemoryCellRecord]]:
        found: dict[tuple[Cell, ...], dict[tuple[Cell, ...], MemoryCellRecord]] = {}
        for cell in self.cells:
            found.setdefault(axis_values(cell, self.row_axes), {})[axis_values(cell, self.column_axes)] = cell
        return list(found.values())


def _grids(record: MemoryRecord) -> list[_Grid]:
    differing = axes.varying(record.cells)
    column_axes = tuple(axis for axis in _COLUMN_AXES if axis in differing)
    searched = {cell.found.axis for cell in record.cells if cell.found}
    row_axes = tuple(axis for axis in differing if axis not in column_axes) or (
        ("size",) if "ctx" in searched else ("ctx",)
    )
    return [_Grid(record.cells, column_axes, row_axes)] if column_axes else []


def _grid_peak(row: dict[tuple[Cell, ...], MemoryCellRecord], *values: str) -> int | Word | None:
    cell = row.get(values)
    if cell is None:
        return EMPTY_CELL
    return _outcome_word(cell) if cell.outcome != "ok" else cell.peak_allocated_bytes or _outcome_word(cell)


def _value_columns(*axis_names: str) -> Each:
    def values(axis: str) -> Each:
        columns: tuple[Field | Each, ...]
        if axis == axis_names[-1]:
            key = "_".join(f"{{{name}}}" for name in axis_names)
            group = " · ".join(["{source}", *(f"{{{name}}}" for name in axis_names[:-1])])
            columns = (Field(key, f"{{{axis}}}", "bytes", group, get=_grid_peak),)
        else:
            columns = (values(axis_names[axis_names.index(axis) + 1]),)
        titles = {"train": "full step", "train-first": "first step"} if axis == "mode" else {}
        return Each(
            axis,
            columns,
            values=lambda grid: grid.values(axis) if grid.column_axes == axis_names else (),
            format_value=lambda value: titles.get(value, value),
        )

    return values(axis_names[0])


GRID = DeclaredTable(
    "grid",
    lambda grid: _title("peak allocated memory", grid),
    (_value_columns("mode"), _value_columns("precision"), _value_columns("mode", "precision")),
    parts=_grids,
    rows=lambda grid: grid.rows,
    leading=leading_axes(lambda grid: grid.row_axes, lambda row: map(_reported_axes, row.values())),
    notes=("forward keeps its graph and the loss alive",),
    words=_SOURCES,
    needs="several values of --mode or --precision",
)
"""A compact table for reports: contexts in rows; modes, with their precisions, in columns."""


# --- a row per phase


class _PhaseRow(NamedTuple):
    cell: MemoryCellRecord
    name: str | None
    peak: PhasePeakRecord | None

    def allocated(self) -> Measure | None:
        if self.peak is None:
            return None
        highest = self.name == self.cell.peak_phase
        return Measure(self.peak.allocated_peak_bytes, tone="strong" if highest else "plain")

    def largest_category(self) -> tuple[str, int | None]:
        by_category = self.peak.by_category if self.peak else {}
        return max(by_category.items(), key=lambda item: item[1], default=("", None))


PHASES = DeclaredTable(
    "phases",
    lambda record: _title("peak memory by phase", record),
    (
        Field("allocated_peak", "allocated", "bytes", "{source}", get=_PhaseRow.allocated),
        Field("reserved_peak", "reserved", "bytes", "{source}", get=lambda row: row.peak.reserved_peak_bytes),
        Field("largest_category", "largest category", importance=1, get=lambda row: row.largest_category()[0]),
        Field("largest_category_bytes", "size", "bytes", importance=2, get=lambda row: row.largest_category()[1]),
    ),
    rows=lambda record: [_PhaseRow(cell, *item) for cell in record.cells for item in cell.peaks_by_phase.items()],
    leading=(
        leading_axes(
            lambda record: axes.varying(record.cells) or ("size",) if len(record.cells) > 1 else (),
            lambda row: (_reported_axes(row.cell),),
        ),
        leading_fields(Field("phase", get=lambda row: row.name)),
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
        _PhaseRow(cell, *item) for cell in record.cells for item in cell.peaks_by_phase.items() or ((None, None),)
    ],
    leading=leading_axes(lambda record: axes.present_axes(record.cells), lambda row: (_reported_axes(row.cell),)),
    notes=_out_of_memory_notes,
)
"""All values in one long table with a row per cell and phase, for data frames."""


# --- a table per cell

LARGEST_ALLOCATIONS = DeclaredTable(
    "largest",
    lambda single: _title(f"largest allocations at the peak{single.title_suffix}", single),
    (
        Field("count", unit="count", get=lambda group: group.count),
        Field("size", "each", "bytes", "{source}", get=lambda group: group.size_bytes),
        Field("total", "together", "bytes", "{source}", 3, get=lambda group: group.total_bytes),
        Field("category", importance=1, get=lambda group: group.category),
        Field("phase", "made in", importance=4, get=lambda group: group.phase or ""),
        Field("line", get=lambda group: frame_location(group.stack) or ""),
        Field("module", importance=2, get=lambda group: " … ".join(group.modules)),
    ),
    parts=lambda record: [_SingleCell(record, cell) for cell in record.cells],
    rows=lambda single: single.cell.largest[:GROUPS_SHOWN],
    leading=(),
    words=_SOURCES,
)
"""For each cell, the largest allocations at its peak, grouped by size, category and stack, with their source lines."""


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
    Field("total", "with submodules", "bytes", "{source}", get=lambda row: row.total_bytes),
    Field("own", "itself", "bytes", "{source}", 1, get=lambda row: row.own_bytes),
)

_NUMBER = re.compile(r"(^|\.)\d+(?=\.|$)")


def module_rows(modules: Iterable[tuple[str, int, int]]) -> list[ModuleRow]:
    """Return one row per module path, down to MAX_DEPTH, from (path, total bytes, own bytes).

    Layers are combined in one row: `layers.*`.
    """
    by_path: dict[str, ModuleRow] = {}
    for numbered, total_bytes, own_bytes in modules:
        path = _NUMBER.sub(r"\1*", numbered)
        row = by_path.get(path, ModuleRow(path, 0, 0, 0))
        by_path[path] = ModuleRow(path, row.number + 1, row.total_bytes + total_bytes, row.own_bytes + own_bytes)
    in_order = sorted(by_path.values(), key=lambda row: row.path.split("."))
    return [row for row in in_order if row.path.count(".") < MAX_DEPTH]


MODULES = DeclaredTable(
    "modules",
    lambda single: _title(f"peak by module{single.title_suffix}", single),
    MODULE_COLUMNS,
    parts=lambda record: [_SingleCell(record, cell) for cell in record.cells],
    rows=lambda single: module_rows((each.path, each.total_bytes, each.own_bytes) for each in single.cell.modules),
    leading=MODULE,
    words=_SOURCES,
)
"""For each cell, the tree of modules at its peak."""


TABLES = {
    table.name: table
    for table in (
        SUMMARY, RANKS, GRID, PHASES, CATEGORY_TABLE, LARGEST_ALLOCATIONS, MODULES, CELLS,
    )
}  # fmt: skip
"""All tables by name."""


# --- remarks


def verdict_text(cell: MemoryCellRecord) -> str:
    """Return the verdict as text: `fits, with 13.9 GiB to spare`, or the reason why the cell does not fit."""
    search_text = f" {_search_text(cell, cell.found)}" if cell.found is not None else ""
    verdict = cell.verdict
    if verdict is None:
        return cell.outcome
    if not verdict.fits:
        return f"{cell.detail or 'does not fit'}.{search_text}"
    included = ""
    if cell.gpu is not None:
        parts = [f"{units.size(cell.gpu.context_bytes)} for the CUDA context"]
        for size_bytes, name in (
            (cell.gpu.nccl_bytes, "NCCL buffers"),
            (cell.by_category.get("workspace"), "workspaces"),
        ):
            parts += [f"{units.size(size_bytes)} of {name}"] if size_bytes else []
        included = f" This counts {join_words(parts)}."
    spare = f", with {units.size(verdict.margin_bytes)} to spare" if verdict.margin_bytes is not None else ""
    return f"fits{spare}.{included}{search_text}"


def _search_text(cell: MemoryCellRecord, search: LargestRecord) -> str:
    """Return what a search found; the safe value too, if the one found fits only within the uncertainty."""
    safe = "" if search.safe in (None, search.value) else f"; {search.safe or 'none'} is safe"
    if search.axis == "ranks":
        tried = f"{len(search.tried)} numbers of ranks were tried"
        if search.value:
            return f"The fewest ranks that fit are {search.value}{safe}; {tried}."
        if search.more_is_useless:
            return f"More than {search.beyond} ranks do not help: what is missing is not divided among the ranks."
        return f"Fewer than {2 * (search.beyond or 1)} ranks do not fit; more were not tried."
    if not search.value:
        return _nothing_fits_text(cell, search)
    if search.beyond is None:
        return f"Even {search.axis} {search.value} fits; nothing larger was tried."
    return f"The largest {search.axis} that fits is {search.value}{safe}."


def _nothing_fits_text(cell: MemoryCellRecord, found: LargestRecord) -> str:
    state, gpu = _persistent_state(cell), cell.gpu
    usable_bytes = gpu.memory_bytes - gpu.context_bytes - gpu.other_bytes - gpu.nccl_bytes if gpu else 0
    is_sharded = cell.cell.strategy not in (None, "ddp")
    if gpu is None or is_sharded or sum(state.values()) <= usable_bytes:
        return f"Not even {found.axis} {found.shown} fits."
    return f"No {found.axis} fits: {join_words(list(state))} alone need {units.size(sum(state.values()))}."


def _has_fp32_adamw(cell: MemoryCellRecord) -> bool:
    """Whether weights, gradients and the two moments of AdamW are all in fp32."""
    return cell.cell.own is None and cell.cell.precision != "bf16-true" and cell.cell.optimizer in get_args(AdamW)


def _persistent_state(cell: MemoryCellRecord) -> dict[str, int]:
    """Return the bytes that a step needs for any input: weights and, for training, gradients and AdamW's state."""
    if not _has_fp32_adamw(cell):
        return {}
    weights, adapters = 4 * (cell.model.parameters or 0), cell.model.trainable_parameters
    trained = weights if adapters is None else 4 * adapters
    gradients = {"gradients": trained} if cell.cell.mode in MODES_WITH_GRADIENTS else {}
    optimizer = {"AdamW's state": 2 * trained} if cell.cell.mode in ("train", "train-first") else {}
    return {"weights": weights, **gradients, **optimizer}


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
    if len(record.cells) == 1 and (shape := record.cells[0].cell.shape) is not None and _has_fp32_adamw(*record.cells):
        (cell,) = record.cells
        d_model, batch, ctx = shape.d_model, cell.shown_cell.batch, cell.shown_cell.ctx
        product = f"batch {batch} × ctx {ctx} × d_model {d_model} × 4 bytes"
        yield Remark("note", f"the residual stream takes {units.size(cell.residual_bytes or 0)}: {product}")
        if cell.cell.mode in MODES_WITH_GRADIENTS and (state := _persistent_state(cell)):
            each = ", ".join(f"{part} {units.size(size_bytes)}" for part, size_bytes in state.items())
            yield Remark("note", f"persistent training state{_held_by_ranks(cell.shown_cell)}: {each}")


def _held_by_ranks(cell: MemoryCell) -> str:
    if cell.ranks == 1:
        return ""
    part = "which every rank holds" if cell.strategy == "ddp" else "of which every rank holds a part"
    return f" of the whole model, {part}"
