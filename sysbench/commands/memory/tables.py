"""From the record of `sysbench memory` to tables: what is needed, in which phase, what for, and by which line.

`TABLES` has them all by name. What was simulated says so in the title of its table and above its columns.

Bytes by module as the rows of a tree: modules that differ in their number only are taken together.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.memory.record import AllocationGroup, MemoryCellRecord, MemoryRecord
from sysbench.errors import UsageError, unknown
from sysbench.render import remarks
from sysbench.render.stack_lines import place
from sysbench.render.table import NOTHING, Cell, Column, Measure, Remark, Sheet, Table, Word
from sysbench.spec.run import Selection

DEPTH = 4
"""Modules further down are not shown; they are counted in those above them."""

_NUMBER = re.compile(r"(^|\.)\d+(?=\.|$)")


def columns(group: str) -> tuple[Column, ...]:
    """Of the rows that `rows` makes."""
    return (
        Column("module", "module"),
        Column("count", "count"),
        Column("total", "with those below", "bytes", group),
        Column("own", "itself", "bytes", group, importance=1),
    )


def rows(modules: Iterable[tuple[str, int, int]]) -> tuple[tuple[Cell, ...], ...]:
    """From paths with the bytes of all and of their own; `layers.*` stands for every layer."""
    together: dict[str, list[int]] = {}
    for path, total_bytes, own_bytes in modules:
        entry = together.setdefault(_NUMBER.sub(r"\1*", path), [0, 0, 0])
        for position, value in enumerate((1, total_bytes, own_bytes)):
            entry[position] += value
    in_order = sorted(together.items(), key=lambda item: item[0].split("."))
    return tuple(_row(path, *entry) for path, entry in in_order if path.count(".") < DEPTH)


def _row(path: str, count: int, total_bytes: int, own_bytes: int) -> tuple[Cell, ...]:
    parts = path.split(".") if path else []
    name = f"{'  ' * (len(parts) - 1)}{parts[-1]}" if parts else "everything"
    return name, f"{count} ×" if count > 1 else "", Measure(total_bytes), Measure(own_bytes)


LARGEST = 10
"""As many of the largest groups of allocations are shown of each cell."""

NEW_GRADIENTS = ("forward-backward", "train", "train-first")

CATEGORIES = (
    "parameters",
    "gradients",
    "optimizer state",
    "activations",
    "inputs",
    "temporaries",
    "workspace",
    "unknown",
)
"""In the order in which they are shown; see `sysbench.simulate.recording.Category`."""


def sheet(record: MemoryRecord, names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    """Everything that is shown of a record; raises UsageError for a table that is not there, or has nothing to show."""
    torch = (f"torch {record.environment.torch.torch}",) if record.environment.torch else ()
    return Sheet(
        subject=(*axes.subject([_as_found(cell) for cell in record.cells]), *_devices(record.cells), *torch),
        tables=tuple(tables_for(record, names)),
        remarks=(*_verdicts(record), *_unexplained(record), *remarks.cautions(record), *_notes(record)),
    )


def tables_for(record: MemoryRecord, names: Iterable[str] = ()) -> list[Table]:
    """The tables called `names`, or without any those that answer what the run was made for."""
    chosen = tuple(names)
    if not chosen:
        return [*phases(record), *largest(record)] if len(record.cells) == 1 else [*summary(record), *grid(record)]
    return [table for name in chosen for table in _named(record, name)]


def _named(record: MemoryRecord, name: str) -> list[Table]:
    if name not in TABLES:
        raise UsageError(unknown(name, "a table", TABLES))
    found = TABLES[name](record)
    if not found:
        raise UsageError(f"this run has nothing to show as the table {name}")
    return found


# --- what every table says


def _devices(cells: Sequence[MemoryCellRecord]) -> tuple[str, ...]:
    names = [f"simulated for {cell.gpu.title}" for cell in cells if cell.gpu]
    names += [cell.device.name for cell in cells if cell.device and cell.source == "measured"]
    return tuple(dict.fromkeys(names))


def _title(what: str, cells: Sequence[MemoryCellRecord]) -> str:
    """`peak memory, simulated`."""
    sources = {cell.source for cell in cells}
    return f"{what}, simulated" if sources == {"simulated"} else what


def _group(cells: Sequence[MemoryCellRecord]) -> str:
    """The heading of columns of bytes."""
    return "simulated" if {cell.source for cell in cells} == {"simulated"} else "measured"


def _axes(cells: Sequence[MemoryCellRecord]) -> tuple[str, ...]:
    return axes.varying(axes.axes_of(cells)) or ("size",)


def _bytes(value: int | None) -> Cell:
    return Measure(value) if value is not None else None


def _known(cell: MemoryCellRecord) -> bool:
    return cell.peak_allocated_bytes is not None


def _outcome(cell: MemoryCellRecord) -> Word:
    if cell.verdict is not None and not cell.verdict.fits:
        return Word("does not fit", "bad")
    return Word(cell.outcome, "quiet" if cell.outcome in ("skipped", "interrupted") else "bad")


# --- the tables


def summary(record: MemoryRecord) -> list[Table]:
    """One row per cell: its peaks, the phase that makes them, whether it fits, and how much is left."""
    cells, named = record.cells, _axes(record.cells)
    shown = [(column, value) for column, value in _summary_columns(_group(cells)) if any(value(cell) for cell in cells)]
    columns = (*axes.columns(named), *(column for column, _ in shown))
    rows = tuple((*axes.values(cell.axes, named), *(value(cell) for _, value in shown)) for cell in cells)
    return [Table("summary", _title("peak memory", cells), columns, rows, len(named), tuple(_counted(cells)))]


def _counted(cells: Sequence[MemoryCellRecord]) -> Iterator[str]:
    """What a verdict counts beside the allocator's memory."""
    contexts = dict.fromkeys(cell.gpu.context_bytes for cell in cells if cell.gpu)
    if contexts:
        yield f"to spare: with {', '.join(map(units.size, contexts))} for the CUDA context counted"


def _summary_columns(group: str) -> list[tuple[Column, Callable[[MemoryCellRecord], Cell]]]:
    """Each column with what it shows of a cell."""
    return [
        (Column("allocated_peak", "allocated", "bytes", group), lambda cell: _bytes(cell.peak_allocated_bytes)),
        (
            Column("reserved_peak", "reserved", "bytes", group, importance=1),
            lambda cell: _bytes(cell.peak_reserved_bytes),
        ),
        (Column("peak_phase", "peak in", importance=4), lambda cell: cell.peak_phase),
        (
            Column("host_rss_peak", "worker, host memory", "bytes", group, importance=3),
            lambda cell: _bytes(cell.host_rss_peak_bytes),
        ),
        (Column("fits", "fits"), _fits),
        (
            Column("margin", "to spare", "bytes", importance=2),
            lambda cell: _bytes(cell.verdict.margin_bytes if cell.verdict else None),
        ),
        (Column("largest", "largest that fits"), _largest_value),
    ]


def _fits(cell: MemoryCellRecord) -> Cell:
    if cell.outcome == "ok" and cell.verdict is None:
        return None  # nothing says how much there is
    if cell.outcome != "ok" or cell.verdict is None or not cell.verdict.fits:
        failed = cell.verdict.failed_phase if cell.verdict else None
        return Word(f"no: {failed}", "bad") if failed else _outcome(cell)
    return Word("fits", "good")


def _largest_value(cell: MemoryCellRecord) -> str | None:
    return f"{cell.found.axis} {cell.found.value}" if cell.found else None


def grid(record: MemoryRecord) -> list[Table]:
    """What people put into reports: contexts below each other, modes beside each other, and for each its precisions."""
    cells = record.cells
    differing = axes.varying(axes.axes_of(cells))
    across = [axis for axis in ("mode", "precision") if axis in differing]
    if not across:
        return []
    down = tuple(axis for axis in differing if axis not in across) or ("ctx",)
    heads = [dict(zip(across, values, strict=True)) for values in product(*(_values(cells, axis) for axis in across))]
    columns = (*axes.columns(down), *(_head(head, _group(cells)) for head in heads))
    by_place = {(axes.values(cell.axes, down), axes.values(cell.axes, across)): cell for cell in cells}
    rows = tuple(
        (*place_, *(_peak(by_place.get((place_, tuple(head.values())))) for head in heads))
        for place_ in dict.fromkeys(axes.values(cell.axes, down) for cell in cells)
    )
    title = _title("peak allocated memory", cells)
    return [Table("grid", title, columns, rows, len(down), ("forward keeps its graph and the loss alive",))]


def _values(cells: Sequence[MemoryCellRecord], axis: str) -> list[str]:
    return list(dict.fromkeys(str(cell.axes[axis]) for cell in cells))


def _head(head: Mapping[Any, str], source: str) -> Column:
    words = [{"train": "full step", "train-first": "first step"}.get(value, value) for value in head.values()]
    return Column("_".join(head.values()), words[-1], "bytes", " · ".join([source, *words[:-1]]))


def _peak(cell: MemoryCellRecord | None) -> Cell:
    if cell is None:
        return NOTHING
    if cell.outcome != "ok" or not _known(cell):
        return _outcome(cell)
    return _bytes(cell.peak_allocated_bytes)


def phases(record: MemoryRecord) -> list[Table]:
    """Phase by phase: what is allocated and reserved at most, and which category is largest then."""
    cells, named = [cell for cell in record.cells if cell.peaks_by_phase], _axes(record.cells)
    if not cells:
        return []
    shown = named if len(record.cells) > 1 else ()
    group = _group(cells)
    columns = (
        *axes.columns(shown),
        Column("phase", "phase"),
        Column("allocated_peak", "allocated", "bytes", group),
        Column("reserved_peak", "reserved", "bytes", group),
        Column("mostly", "mostly", importance=1),
        Column("mostly_bytes", "of that", "bytes", importance=2),
    )
    rows: list[tuple[Cell, ...]] = []
    for cell in cells:
        for name, phase in cell.peaks_by_phase.items():
            most = max(phase.by_category.items(), key=lambda item: item[1], default=("", None))
            peak = Measure(phase.allocated_peak_bytes, tone="strong" if name == cell.peak_phase else "plain")
            reserved = _bytes(phase.reserved_peak_bytes)
            rows.append((*axes.values(cell.axes, shown), name, peak, reserved, most[0], _bytes(most[1])))
    return [Table("phases", _title("peak memory by phase", cells), columns, tuple(rows), len(shown) + 1)]


def categories(record: MemoryRecord) -> list[Table]:
    """One row per cell: what the peak is made of; parameters, gradients and state in GiB."""
    cells, named = [cell for cell in record.cells if cell.by_category], _axes(record.cells)
    if not cells:
        return []
    present = [name for name in CATEGORIES if any(cell.by_category.get(name) for cell in cells)]
    columns = (
        *axes.columns(named),
        *(
            Column(name.replace(" ", "_"), name, "bytes", _group(cells), importance=index // 4)
            for index, name in enumerate(present)
        ),
        Column("allocated_peak", "together", "bytes", _group(cells)),
    )
    rows = tuple(
        (
            *axes.values(cell.axes, named),
            *(Measure(cell.by_category.get(name, 0)) for name in present),
            _bytes(cell.peak_allocated_bytes),
        )
        for cell in cells
    )
    return [Table("categories", _title("what the peak is made of", cells), columns, rows, len(named))]


def largest(record: MemoryRecord) -> list[Table]:
    """For each cell the largest allocations at its peak, alike ones together, with the line they come from."""
    found = []
    for cell in record.cells:
        if not cell.largest:
            continue
        columns = (
            Column("count", "count"),
            Column("size", "each", "bytes", _group([cell])),
            Column("total", "together", "bytes", _group([cell]), importance=3),
            Column("category", "category", importance=1),
            Column("phase", "made in", importance=4),
            Column("line", "line"),
            Column("module", "module", importance=2),
        )
        rows = tuple(_group_row(group) for group in cell.largest[:LARGEST])
        which = f" of {remarks.which([cell], record.cells)}" if len(record.cells) > 1 else ""
        found.append(Table("largest", _title(f"largest at the peak{which}", [cell]), columns, rows, 0))
    return found


def _group_row(group: AllocationGroup) -> tuple[Cell, ...]:
    modules = " … ".join(group.modules)
    return (
        f"{group.count} ×",
        Measure(group.size_bytes),
        Measure(group.total_bytes),
        group.category,
        group.phase or "",
        place(group.stack) or "",
        modules,
    )


def modules(record: MemoryRecord) -> list[Table]:
    """For each cell its peak by module, as a tree; modules that differ in their number only are taken together."""
    found = []
    for cell in record.cells:
        if not cell.modules:
            continue
        tree = rows((module.path, module.total_bytes, module.own_bytes) for module in cell.modules)
        which = f" of {remarks.which([cell], record.cells)}" if len(record.cells) > 1 else ""
        title = _title(f"the peak by module{which}", [cell])
        found.append(Table("modules", title, columns(_group([cell])), tree, 1))
    return found


def residual(record: MemoryRecord) -> list[Table]:
    """The size of one residual stream, with what it is the product of."""
    columns = (
        Column("size", "size"),
        Column("batch", "batch"),
        Column("ctx", "ctx"),
        Column("d_model", "d_model"),
        Column("bytes_each", "bytes each"),
        Column("residual", "residual stream", "bytes"),
    )
    rows: dict[tuple[Cell, ...], None] = {}
    for cell in record.cells:
        wide = cell.axes["model"]["d_model"]
        batch, ctx = (_value(cell, axis) for axis in ("batch", "ctx"))
        rows[cell.axes["size"], batch, ctx, wide, 4, Measure(cell.residual_bytes)] = None
    notes = ("batch × ctx × d_model × 4: the stream stays in fp32 under autocast. Computed, not measured",)
    return [Table("residual", "the residual stream", columns, tuple(rows), 4, notes)]


def _as_found(cell: MemoryCellRecord) -> axes.Axes:
    """A cell's axes, with what a search has found in the place of where it began."""
    return {**cell.axes, cell.found.axis: _value(cell, cell.found.axis)} if cell.found else cell.axes


def _value(cell: MemoryCellRecord, axis: str) -> int:
    """Of the axis, what the cell's numbers are of: what a search has found, or what was asked for."""
    found = cell.found
    return found.value if found and found.axis == axis and found.value else int(cell.axes[axis])


def state(record: MemoryRecord) -> list[Table]:
    """Weights, gradients and AdamW's state, by the number of parameters: 4, 4 and 8 bytes each."""
    columns = (
        Column("size", "size"),
        Column("parameters", "parameters", "count"),
        Column("weights", "weights", "bytes"),
        Column("gradients", "gradients", "bytes"),
        Column("optimizer_state", "AdamW's state", "bytes"),
        Column("together", "together", "bytes"),
    )
    rows: dict[str, tuple[Cell, ...]] = {}
    for cell in record.cells:
        weights = 4 * cell.model.parameters
        sizes = (weights, weights, 2 * weights, 4 * weights)
        rows[cell.axes["size"]] = (cell.axes["size"], Measure(cell.model.parameters), *map(Measure, sizes))
    notes = ("in fp32 whatever the precision: autocast keeps its copies among the activations. Computed, not measured",)
    return [Table("state", "what training holds for good", columns, tuple(rows.values()), 1, notes)]


def cells(record: MemoryRecord) -> list[Table]:
    """Everything in one long table, a row per cell and phase, for data frames."""
    named = axes.known(axes.axes_of(record.cells))
    columns = (
        *axes.columns(named),
        Column("source", "source"),
        Column("device_name", "device name"),
        Column("parameters", "parameters", "count"),
        Column("outcome", "outcome"),
        Column("fits", "fits"),
        Column("margin", "to spare", "bytes"),
        Column("phase", "phase"),
        Column("allocated_peak", "allocated", "bytes"),
        Column("reserved_peak", "reserved", "bytes"),
        *(Column(name.replace(" ", "_"), name, "bytes") for name in CATEGORIES),
        Column("host_rss_peak", "worker, host memory", "bytes"),
        Column("device_used_peak", "device, all programs", "bytes"),
    )
    rows = tuple(row for cell in record.cells for row in _long(cell, named))
    return [Table("cells", _title("all cells and phases", record.cells), columns, rows, len(named))]


def _long(cell: MemoryCellRecord, named: Sequence[str]) -> Iterator[tuple[Cell, ...]]:
    verdict = cell.verdict
    leading: tuple[Cell, ...] = (
        *axes.values(cell.axes, named),
        cell.source,
        cell.gpu.title if cell.gpu else cell.device.name if cell.device else None,
        Measure(cell.model.parameters),
        cell.outcome,
        ("yes" if verdict.fits else "no") if verdict else None,
        _bytes(verdict.margin_bytes if verdict else None),
    )
    last: tuple[Cell, ...] = (_bytes(cell.host_rss_peak_bytes), _bytes(cell.device_used_peak_bytes))
    for name, phase in cell.peaks_by_phase.items():
        parts = (Measure(phase.by_category.get(category, 0)) for category in CATEGORIES)
        yield (*leading, name, _bytes(phase.allocated_peak_bytes), _bytes(phase.reserved_peak_bytes), *parts, *last)
    if not cell.peaks_by_phase:
        yield (*leading, None, None, None, *([None] * len(CATEGORIES)), *last)


TABLES: dict[str, Callable[[MemoryRecord], list[Table]]] = {
    "summary": summary,
    "grid": grid,
    "phases": phases,
    "categories": categories,
    "largest": largest,
    "modules": modules,
    "residual": residual,
    "state": state,
    "cells": cells,
}
"""Every table that a record can be shown as."""


# --- what has to be said beside them


def _verdicts(record: MemoryRecord) -> Iterator[Remark]:
    """Of one cell, the answer in a sentence; of several, the summary has it."""
    if len(record.cells) != 1:
        return
    (cell,) = record.cells
    if cell.verdict is None:
        return
    sentence = verdict(cell)
    yield Remark("finding" if cell.verdict.fits else "outcome", sentence)


def verdict(cell: MemoryCellRecord) -> str:
    """`fits, with 13.9 GiB to spare`, or what stands in the way."""
    found = cell.found
    largest_ = ""
    if found is not None:
        largest_ = f" The largest {found.axis} that fits is {found.value}." if found.value else " Nothing smaller does."
        if found.value and found.beyond is None:
            largest_ = f" Even {found.axis} {found.value} fits; nothing larger was tried."
    reached = cell.verdict
    if reached is None:
        return cell.outcome
    if not reached.fits:
        return f"{cell.detail or 'does not fit'}.{largest_}"
    counted = ""
    if cell.gpu is not None:
        workspaces = cell.by_category.get("workspace", 0)
        counted = f" (context {units.size(cell.gpu.context_bytes)} and workspaces {units.size(workspaces)} counted)"
    spare = f", with {units.size(reached.margin_bytes)} to spare" if reached.margin_bytes is not None else ""
    return f"fits{spare}{counted}.{largest_}"


def _unexplained(record: MemoryRecord) -> list[Remark]:
    """Why cells have no numbers; that they do not fit is an answer, which the tables give."""
    answered = [cell for cell in record.cells if cell.verdict is None]
    return remarks.outcomes(record.model_copy(update={"cells": answered}))


def _notes(record: MemoryRecord) -> Iterator[Remark]:
    if any(cell.outcome == "skipped" and cell.source == "measured" for cell in record.cells):
        yield Remark("note", "--simulate GPU (a100-80gb, or 24GiB) works out what does not fit here, and runs nothing")
    if any(cell.source == "simulated" for cell in record.cells):
        yield Remark("note", "simulated: worked out without a GPU, by a model of CUDA's caching allocator")
    if len(record.cells) == 1:
        (cell,) = record.cells
        wide, batch, ctx = cell.axes["model"]["d_model"], _value(cell, "batch"), _value(cell, "ctx")
        product_ = f"batch {batch} × ctx {ctx} × d_model {wide} × 4 bytes"
        yield Remark("note", f"one residual stream is {units.size(cell.residual_bytes)}: {product_}")
        if cell.axes["mode"] in NEW_GRADIENTS:
            weights = 4 * cell.model.parameters
            state = f", AdamW's state {units.size(2 * weights)}" if cell.axes["mode"] != "forward-backward" else ""
            each = f"weights {units.size(weights)}, gradients {units.size(weights)}{state}"
            yield Remark("note", f"of that for good: {each}")
