"""From the record of `sysbench attention` to tables: the sweep, implementations beside each other, growth, memory.

`TABLES` has them all by name. What was simulated says so in every table that shows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from sysbench import cells as axes
from sysbench import formulas as attention_costs
from sysbench import units
from sysbench.commands.attention.findings import frontier, growth, passages
from sysbench.commands.attention.record import AttentionCellRecord, AttentionRecord
from sysbench.commands.attention.series import (
    TIMES,
    Quantity,
    dims,
    implementations,
    over_memory,
    settings,
    usual_dim,
    value,
)
from sysbench.commands.attention.spec import AttentionCell
from sysbench.commands.attention.words import NAMES, findings, smallest_beyond
from sysbench.errors import UsageError, unknown
from sysbench.log.records import Samples, SimulatedGpuRecord
from sysbench.render import remarks
from sysbench.render.table import NOTHING, Cell, Column, Measure, Remark, Sheet, Table, Tone, Word
from sysbench.spec.run import Selection
from sysbench.statistics import NoPowerLaw

Tables = list[Table]

AXES = ("simulate", "device", "precision", "heads", "implementation", "dim", "seq", "batch")
"""The axes along which cells can differ, in the order of the columns."""

CLOSE = 1.05
"""Up to this many times the best is as good as the best."""

FAR = 2.0

_ALL_FIT = Word("all fit", "good")

_PREDICTED = re.compile(r"about \d[\d.]* \w+")

MOST_ROWS = 32
"""A longer comparison is about one head dimension, where nobody has asked for it by name."""


def sheet(record: AttentionRecord, names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    """Everything that is shown of a record; raises UsageError for a table that is not there, or has nothing to show."""
    return Sheet(
        subject=subject(record),
        tables=tuple(tables_for(record, names)),
        remarks=(*_outcomes(record), *remarks.cautions(record), *findings(record), *_notes(record)),
    )


def tables_for(record: AttentionRecord, names: Iterable[str] = ()) -> Tables:
    """The tables called `names`, or without any those that answer what the run was made for."""
    chosen = tuple(names)
    if not chosen:
        several = len(implementations(record.cells)) > 1
        return _comparison(record) if several else sweep(record)
    return [table for name in chosen for table in _named(record, name)]


def _named(record: AttentionRecord, name: str) -> Tables:
    if name not in TABLES:
        raise UsageError(unknown(name, "a table", TABLES))
    found = TABLES[name](record)
    if not found:
        raise UsageError(f"this run has nothing to show as the table {name}")
    return found


def subject(record: AttentionRecord) -> tuple[str, ...]:
    """What all cells have in common: `attention`, `batch 8`, `causal`, `fp32`, the device, the repeats."""
    if not record.cells:
        return ("attention",)
    cell = record.cells[0].axes
    differing = varying(record.cells)
    words = [
        axes.phrase(axis, cell[axis])
        for axis in ("implementation", "dim", "seq", "batch", "heads")
        if axis not in differing
    ]
    words += ["causal" if cell["causal"] else "not causal"]
    words += [str(cell["precision"])] if "precision" not in differing else []
    return ("attention", *words, *_machines(record), *_effort(record))


def _machines(record: AttentionRecord) -> Iterator[str]:
    names = [f"simulated for {_allocating(cell.gpu)}" for cell in record.cells if cell.gpu]
    names += [cell.device.name for cell in record.cells if cell.device and cell.source == "measured"]
    yield from dict.fromkeys(names)
    if record.environment.torch:
        yield f"torch {record.environment.torch.torch}"


def _allocating(gpu: SimulatedGpuRecord) -> str:
    return f"{gpu.title} ({gpu.settings})" if gpu.settings else gpu.title


def _effort(record: AttentionRecord) -> Iterator[str]:
    cell = record.cells[0].axes
    if any(each.source == "measured" for each in record.cells):
        yield f"{axes.phrase('warmup', cell['warmup'])}, {cell['repeats']} repeats"
    if cell["cold"]:
        yield "cold caches"


def varying(cells: Sequence[AttentionCellRecord]) -> tuple[str, ...]:
    """The axes in which these cells differ."""
    return tuple(axis for axis in AXES if len({str(cell.axes.get(axis)) for cell in cells}) > 1)


def _values(cell: AttentionCellRecord, axes: Sequence[str]) -> tuple[Cell, ...]:
    """What those columns hold; what is not simulated is measured."""
    return tuple(cell.axes[axis] if cell.axes[axis] is not None else _absent(axis) for axis in axes)


def _absent(axis: str) -> str:
    return {"simulate": "measured", "heads": "none"}.get(axis, "")


def status(cell: AttentionCellRecord) -> Word:
    """How a cell ended, as a word: that memory ran out is a result, and said as one."""
    if cell.outcome == "ok":
        return Word("simulated" if cell.source == "simulated" else "ok", "quiet")
    if over_memory(cell):
        return Word("does not fit" if cell.source == "simulated" else cell.outcome, "bad")
    return Word(cell.outcome, "quiet" if cell.outcome in ("skipped", "interrupted") else "bad")


def _time(found: Samples | None) -> Cell:
    return Measure(found.mean_s, found.std_s if len(found.samples_s) > 1 else None) if found else None


def _bytes(found: int | None) -> Cell:
    return Measure(found) if found is not None else None


# --- the tables


def sweep(record: AttentionRecord) -> Tables:
    """One row per cell, as reports have it: dimensions, forward, backward, memory before backward, status."""
    cells = record.cells
    always = ("dim", "seq", "batch")
    named = tuple(axis for axis in AXES if axis in always or axis in varying(cells))
    timed = any(cell.forward or cell.backward for cell in cells)
    columns = (
        *axes.columns(named),
        *(Column(phase, phase, "s", wide_range=True) for phase in TIMES if timed),
        Column("memory_before_backward", "before backward", "bytes", "memory", wide_range=True),
        Column("status", "status"),
    )
    rows = tuple(
        (
            *_values(cell, named),
            *((_time(cell.forward), _time(cell.backward)) if timed else ()),
            _bytes(cell.before_backward_bytes),
            status(cell),
        )
        for cell in cells
    )
    title = "mean ± standard deviation of one call" if timed else "memory"
    return [Table("sweep", _marked(title, cells), columns, rows, len(named), _clock(cells))]


def _marked(title: str, cells: Sequence[AttentionCellRecord]) -> str:
    sources = {cell.source for cell in cells}
    return f"{title}, simulated" if sources == {"simulated"} else title


def _clock(cells: Sequence[AttentionCellRecord]) -> tuple[str, ...]:
    timed = [cell for cell in cells if cell.forward or cell.backward]
    if not timed:
        return ()
    device = all(cell.device_events for cell in timed)
    return ("times by device events" if device else "times by the host's clock, between two synchronizations",)


def comparison(record: AttentionRecord) -> Tables:
    """Implementations beside each other on the same input: times, rates, share of the limit, memory, error."""
    title = f"implementations beside each other{_medians(record.cells)}"
    return _compared_table(record, record.cells, title) if record.cells else []


def _comparison(record: AttentionRecord) -> Tables:
    """The comparison, of the usual head dimension alone where there are too many for a screen."""
    dim = usual_dim(record.cells)
    if len(record.cells) <= MOST_ROWS or len(dims(record.cells)) < 2:
        return comparison(record)
    here = [cell for cell in record.cells if cell.axes["dim"] == dim]
    title = f"implementations beside each other at d {dim}{_medians(here)} (--tables comparison has every d)"
    return _compared_table(record, here, title)


def _medians(cells: Sequence[AttentionCellRecord]) -> str:
    return ", medians" if any(cell.forward or cell.backward for cell in cells) else ""


def _compared_table(record: AttentionRecord, cells: Sequence[AttentionCellRecord], title: str) -> Tables:
    order = {name: number for number, name in enumerate(implementations(cells))}
    named = tuple(axis for axis in varying(cells) if axis != "implementation")
    ordered = sorted(
        cells, key=lambda cell: (*(_sortable(cell.axes[axis]) for axis in named), order[_implementation(cell)])
    )
    best = _best(cells)
    shown = [
        (column, show)
        for column, show in _comparison_columns(record, best)
        if any(_there(show(cell)) for cell in cells)
    ]
    columns = (*axes.columns(named), Column("implementation", "implementation"), *(column for column, _ in shown))
    rows = []
    for cell in ordered:
        numbers = [show(cell) for _, show in shown]
        if cell.outcome != "ok" and numbers:
            numbers[0] = status(cell)
        rows.append((*_values(cell, named), _implementation(cell), *numbers))
    return [Table("comparison", _marked(title, cells), columns, tuple(rows), len(named) + 1, _clock(cells))]


def _sortable(found: object) -> tuple[int, Any]:
    return (0, found) if isinstance(found, int) else (1, str(found))


def _implementation(cell: AttentionCellRecord) -> str:
    return str(cell.axes["implementation"])


def _there(cell: Cell) -> bool:
    return isinstance(cell, Measure) or (isinstance(cell, str) and bool(cell))


Best = dict[tuple[str, Quantity], float]


def _input(cell: AttentionCellRecord) -> str:
    return str(sorted((axis, str(found)) for axis, found in cell.axes.items() if axis != "implementation"))


def _best(cells: Iterable[AttentionCellRecord]) -> Best:
    """The shortest median of each phase on each input."""
    best: Best = {}
    for cell in cells:
        for quantity in TIMES:
            if (found := value(cell, quantity)) is not None:
                place = (_input(cell), quantity)
                best[place] = min(found, best.get(place, found))
    return best


def _tone(times_best: float) -> Tone:
    return "good" if times_best <= CLOSE else "bad" if times_best >= FAR else "plain"


def _comparison_columns(
    record: AttentionRecord, best: Best
) -> list[tuple[Column, Callable[[AttentionCellRecord], Cell]]]:
    """Each column with what it shows of a cell."""
    causal = any(cell.axes["causal"] for cell in record.cells)
    counted = "2BN(N+1)d forward, the causal half alone" if causal else "4BN²d forward"
    flops = f"FLOPs counted: {counted}, twice that backward"
    moved = "moved: q, k, v and output once each, the least that has to move; backward twice that"
    limit = "of limit: the least time by FLOPs at the data sheet's rate and by bytes at its bandwidth, over the median"
    columns: list[tuple[Column, Callable[[AttentionCellRecord], Cell]]] = []
    for phase in TIMES:
        rank = 0 if phase == "forward" else 1
        columns += [
            (Column(phase, "median", "s", phase, rank, wide_range=True), _median_of(phase, best)),
            (Column(f"{phase}_to_best", "to best", "ratio", phase, rank + 1), _to_best(phase, best)),
            (Column(f"{phase}_rate", "rate", "flops_per_s", phase, rank + 3, note=flops), _rate(phase)),
            (Column(f"{phase}_moved", "moved", "bytes_per_s", phase, rank + 6, note=moved), _moved(phase)),
            (Column(f"{phase}_limit", "of limit", "share", phase, rank + 4, note=limit), _limit(phase)),
        ]
    return [
        *columns,
        *_memory_columns(),
        (Column("error", "error", "number", importance=5, note=_checked(record)), _error("output")),
        (Column("gradient_error", "of gradients", "number", importance=7), _gradient_error),
        (Column("kernel", "ran as", importance=9), lambda cell: cell.kernel or ""),
    ]


def _memory_columns() -> list[tuple[Column, Callable[[AttentionCellRecord], Cell]]]:
    held: list[tuple[str, str, str, int, Callable[[AttentionCellRecord], int | None]]] = [
        ("saved", "kept for backward", "", 3, lambda cell: cell.saved_bytes),
        ("memory_before_backward", "before backward", "", 10, lambda cell: cell.before_backward_bytes),
        ("peak", "allocated", "peak", 8, lambda cell: cell.peak_allocated_bytes),
        ("peak_reserved", "reserved", "peak", 11, lambda cell: cell.peak_reserved_bytes),
    ]
    return [
        (Column(key, title, "bytes", group, importance, wide_range=True), _held(find))
        for key, title, group, importance, find in held
    ]


def _held(find: Callable[[AttentionCellRecord], int | None]) -> Callable[[AttentionCellRecord], Cell]:
    return lambda cell: _bytes(find(cell))


def _median_of(phase: Quantity, best: Best) -> Callable[[AttentionCellRecord], Cell]:
    def show(cell: AttentionCellRecord) -> Cell:
        found = value(cell, phase)
        return Measure(found, tone=_tone(found / best[_input(cell), phase])) if found is not None else None

    return show


def _to_best(phase: Quantity, best: Best) -> Callable[[AttentionCellRecord], Cell]:
    def show(cell: AttentionCellRecord) -> Cell:
        found = value(cell, phase)
        if found is None:
            return NOTHING
        times_best = found / best[_input(cell), phase]
        return Measure(times_best, tone=_tone(times_best))

    return show


def _rate(phase: str) -> Callable[[AttentionCellRecord], Cell]:
    return lambda cell: Measure(cell.rates[phase].flops_per_s) if phase in cell.rates else NOTHING


def _moved(phase: str) -> Callable[[AttentionCellRecord], Cell]:
    return lambda cell: Measure(cell.rates[phase].bytes_per_s) if phase in cell.rates else NOTHING


def _limit(phase: str) -> Callable[[AttentionCellRecord], Cell]:
    def show(cell: AttentionCellRecord) -> Cell:
        rates = cell.rates.get(phase)
        return Measure(rates.limit_share) if rates and rates.limit_share is not None else NOTHING

    return show


def _error(name: str) -> Callable[[AttentionCellRecord], Cell]:
    return lambda cell: _scientific(cell.errors[name].relative) if name in cell.errors else NOTHING


def _scientific(found: float) -> Measure:
    return Measure(found, text=f"{found:.1e}")


def _gradient_error(cell: AttentionCellRecord) -> Cell:
    found = [cell.errors[name].relative for name in ("q", "k", "v") if name in cell.errors]
    return _scientific(max(found)) if found else NOTHING


def _checked(record: AttentionRecord) -> str:
    return "error: ‖x − x64‖ / ‖x64‖ against fp64, of the output; of the gradients the largest of q, k and v"


def grid(record: AttentionRecord) -> Tables:
    """For every implementation and phase a table with head dimensions down and sequence lengths across."""
    found = []
    for cells in settings(record.cells):
        for name in implementations(cells):
            here = [cell for cell in cells if _implementation(cell) == name]
            found += [table for quantity in (*TIMES, "saved") if (table := _grid(here, name, quantity))]
    return found


def _grid(cells: Sequence[AttentionCellRecord], name: str, quantity: Quantity) -> Table | None:
    if not any(value(cell, quantity) is not None for cell in cells):
        return None
    lengths = sorted({int(cell.axes["seq"]) for cell in cells})
    places = {(int(cell.axes["dim"]), int(cell.axes["seq"])): cell for cell in cells}
    unit: units.Unit = "bytes" if quantity == "saved" else "s"
    columns = (
        Column("dim", axes.TITLES["dim"]),
        *(Column(f"seq_{n}", str(n), unit, axes.TITLES["seq"], wide_range=True) for n in lengths),
    )
    rows = tuple((dim, *(_grid_cell(places.get((dim, n)), quantity) for n in lengths)) for dim in dims(cells))
    what = "median" if quantity != "saved" else "beside inputs and output"
    return Table(f"grid-{quantity}", _marked(f"{name}: {NAMES[quantity]}, {what}", cells), columns, rows, 1)


def _grid_cell(cell: AttentionCellRecord | None, quantity: Quantity) -> Cell:
    if cell is None:
        return NOTHING
    found = value(cell, quantity)
    return Measure(found) if found is not None else status(cell)


def exponents(record: AttentionRecord) -> Tables:
    """How every implementation grows in N and in d: the exponent, its 95 % interval, the sizes that carry it."""
    rows = []
    for axis, symbol, fixed in (("seq", "N", "dim"), ("dim", "d", "seq")):
        for each in growth(record.cells, axis):
            row, law = each.row, each.law
            at = f"{'d' if fixed == 'dim' else 'N'} {row.shared[fixed]}"
            if isinstance(law, NoPowerLaw):
                if law.too_few:
                    continue
                last = law.slopes[-1]
                said: tuple[Cell, ...] = (Word("no one power", "quiet"), f"{last.exponent:.2f} at the end")
                sizes = law.sizes
            else:
                said = (Measure(law.exponent, low=law.low, high=law.high), f"{law.scatter:.1%}")
                sizes = law.sizes
            across = f"{symbol} {sizes[0]:.0f}–{sizes[-1]:.0f}, {len(sizes)} sizes"
            rows.append((row.implementation, NAMES[each.quantity], f"in {symbol}", at, *said, across))
    if not rows:
        return []
    columns = (
        Column("implementation", "implementation"),
        Column("quantity", "what"),
        Column("axis", "grows"),
        Column("at", "at"),
        Column("exponent", "exponent", "number"),
        Column("scatter", "scatter", importance=2),
        Column("sizes", "over", importance=1),
    )
    note = "least squares between logarithms, 95 % interval from the scatter about the line; three sizes at least"
    return [Table("exponents", _marked("growth", record.cells), columns, tuple(rows), 4, (note,))]


def crossovers(record: AttentionRecord) -> Tables:
    """Where one implementation overtakes another, with the measured sizes on both sides."""
    rows = [
        (each.quantity, each.dim, each.slower_first, each.other, f"{each.crossover.at:.0f}",
         f"{each.crossover.below:.0f}–{each.crossover.above:.0f}")
        for cells in settings(record.cells)
        for each in passages(cells)
    ]  # fmt: skip
    if not rows:
        return []
    columns = (
        Column("phase", "phase"),
        Column("dim", axes.TITLES["dim"]),
        Column("overtakes", "from there on faster"),
        Column("overtaken", "than"),
        Column("at", "near N"),
        Column("bracket", "measured between"),
    )
    note = "interpolated between logarithms; on both sides the 95 % interval of the ratio leaves no doubt"
    return [Table("crossovers", "crossovers", columns, tuple(rows), 2, (note,))]


def frontiers(record: AttentionRecord) -> Tables:
    """The longest sequence that fits, and what the next one would need."""
    found = frontier(record.cells)
    if not found:
        return []
    named = tuple(axis for axis in varying(record.cells) if axis not in ("seq", "implementation", "dim"))
    columns = (
        *axes.columns(named),
        Column("implementation", "implementation"),
        Column("dim", axes.TITLES["dim"]),
        Column("fits", "largest N that fits"),
        Column("before_backward", "with, before backward", "bytes", importance=1, wide_range=True),
        Column("beyond", "does not fit"),
        Column("needs", "needs", "bytes", wide_range=True),
        Column("available", "available", "bytes", importance=2, wide_range=True),
        Column("how", "known by", importance=3),
    )
    rows = []
    for each in found:
        fits, beyond = each.fits, each.beyond
        some = fits or beyond
        assert some is not None
        rows.append(
            (
                *_values(some, named),
                each.row.implementation,
                int(each.row.shared["dim"]),
                f"{fits.axes['seq']}{' or more' if each.untried else ''}" if fits else Word("none", "bad"),
                _bytes(fits.before_backward_bytes if fits else None),
                str(beyond.axes["seq"]) if beyond else (Word("not tried", "quiet") if each.untried else _ALL_FIT),
                _bytes(beyond.needed_bytes if beyond else None),
                _bytes(beyond.available_bytes if beyond else None),
                _how(beyond),
            )
        )
    return [Table("frontier", _marked("where memory ends", record.cells), columns, tuple(rows), len(named) + 2)]


def _how(cell: AttentionCellRecord | None) -> str:
    if cell is None:
        return ""
    if cell.source == "simulated":
        return "simulation"
    return "it ran out" if cell.outcome == "oom" else "prediction"


def accounting(record: AttentionRecord) -> Tables:
    """The tensors of the smallest cell that does not fit, setting by setting."""
    found = []
    for cells in settings(record.cells):
        cell = smallest_beyond(cells)
        if cell is None:
            continue
        rows: list[tuple[Cell, ...]] = [
            (each.name, " × ".join(map(str, each.shape)) or NOTHING, each.dtype, each.phase, Measure(each.size_bytes))
            for each in sorted(cell.tensors, key=lambda each: -each.size_bytes)
        ]
        total = sum(each.size_bytes for each in cell.tensors)
        rows.append(("together", "", "", "", Measure(total, tone="strong")))
        if cell.needed_bytes is not None and cell.needed_bytes > total:
            rows.append(("reserved by the allocator", "", "", "", Measure(cell.needed_bytes)))
        if cell.available_bytes is not None:
            rows.append(("available", "", "", "", Measure(cell.available_bytes)))
        columns = (
            Column("tensor", "tensor"),
            Column("shape", "shape"),
            Column("dtype", "type"),
            Column("phase", "made in", importance=1),
            Column("size", "size", "bytes", wide_range=True),
        )
        named = f"{_implementation(cell)}, d {cell.axes['dim']}, N {cell.axes['seq']}"
        where = f", simulated for {cell.gpu.title}" if cell.gpu else ""
        title = f"the smallest cell that does not fit: {named}{where}"
        found.append(Table("accounting", title, columns, tuple(rows), 1))
    return found


def memory(record: AttentionRecord) -> Tables:
    """What forward keeps for backward, against the formulas of the written-out kind and of a fused kernel."""
    known = [cell for cell in record.cells if cell.saved_bytes is not None or cell.before_backward_bytes is not None]
    if not known:
        return []
    named = varying(record.cells) or ("implementation",)
    columns = (
        *axes.columns(named),
        Column("memory_before_backward", "before backward", "bytes", wide_range=True),
        Column("saved", "kept for backward", "bytes", wide_range=True),
        Column("naive", "two N × N tensors", "bytes", importance=1, wide_range=True),
        Column("saved_of_naive", "of these", "ratio", importance=2),
        Column("fused", "one number a query", "bytes", importance=3, wide_range=True),
        Column("peak", "allocated", "bytes", "peak", importance=4, wide_range=True),
        Column("peak_reserved", "reserved", "bytes", "peak", importance=5, wide_range=True),
    )
    rows = tuple(
        (
            *_values(cell, named),
            _bytes(cell.before_backward_bytes),
            _bytes(cell.saved_bytes),
            Measure(cell.naive_saved_bytes),
            Measure(cell.saved_bytes / cell.naive_saved_bytes) if cell.saved_bytes is not None else None,
            Measure(cell.fused_saved_bytes),
            _bytes(cell.peak_allocated_bytes),
            _bytes(cell.peak_reserved_bytes),
        )
        for cell in known
    )
    note = "kept beside q, k, v and the output. Two N × N tensors are 8BN² bytes in fp32: computed, as is the other"
    return [Table("memory", _marked("memory", known), columns, rows, len(named), (note,))]


def cells(record: AttentionRecord) -> Tables:
    """Everything in one long table, a row per cell, for data frames."""
    named = AXES
    columns = (
        *axes.columns(named),
        Column("causal", "causal"),
        Column("source", "source"),
        Column("device_name", "device name"),
        Column("kernel", "kernel"),
        *(Column(phase, phase, "s", wide_range=True) for phase in TIMES),
        *(Column(f"{phase}_median", f"{phase} median", "s", wide_range=True) for phase in TIMES),
        *(Column(f"{phase}_rate", f"{phase} rate", "flops_per_s") for phase in TIMES),
        *(Column(f"{phase}_limit", f"{phase} of limit", "share") for phase in TIMES),
        Column("memory_before_backward", "memory before backward", "bytes", wide_range=True),
        Column("saved", "kept for backward", "bytes", wide_range=True),
        Column("peak", "peak", "bytes", wide_range=True),
        Column("error", "error", "number"),
        Column("status", "status"),
    )
    rows = tuple(_long(cell, named) for cell in record.cells)
    return [Table("cells", _marked("all cells", record.cells), columns, rows, len(named))]


def _long(cell: AttentionCellRecord, named: Sequence[str]) -> tuple[Cell, ...]:
    return (
        *_values(cell, named),
        "yes" if cell.axes["causal"] else "no",
        cell.source,
        cell.gpu.title if cell.gpu else cell.device.name if cell.device else None,
        cell.kernel,
        *(_time(found) for found in (cell.forward, cell.backward)),
        *(Measure(found.median_s) if found else None for found in (cell.forward, cell.backward)),
        *(_number(_rate(phase)(cell)) for phase in TIMES),
        *(_number(_limit(phase)(cell)) for phase in TIMES),
        _bytes(cell.before_backward_bytes),
        _bytes(cell.saved_bytes),
        _bytes(cell.peak_allocated_bytes),
        _number(_error("output")(cell)),
        cell.outcome,
    )


def _number(cell: Cell) -> Cell:
    return cell if isinstance(cell, Measure) else None


TABLES: dict[str, Callable[[AttentionRecord], Tables]] = {
    "sweep": sweep,
    "comparison": comparison,
    "grid": grid,
    "exponents": exponents,
    "crossovers": crossovers,
    "frontier": frontiers,
    "accounting": accounting,
    "memory": memory,
    "cells": cells,
}
"""Every table that a record can be shown as."""


def plan(planned: Sequence[AttentionCell]) -> Sheet:
    """What a run would do: its cells, their FLOPs, and what the written-out kind keeps; nothing is measured for it."""
    specs = [cell.model_dump() for cell in planned]
    named = tuple(axis for axis in AXES if len({str(spec[axis]) for spec in specs}) > 1) or ("implementation",)
    columns = (
        *axes.columns(named),
        Column("forward", "forward", "flops", wide_range=True),
        Column("naive", "two N × N tensors", "bytes", wide_range=True),
        Column("inputs", "q, k, v and output", "bytes", wide_range=True),
    )
    rows = tuple(
        (
            *(spec[axis] if spec[axis] is not None else _absent(axis) for axis in named),
            Measure(attention_costs.flops(cell, "forward")),
            Measure(attention_costs.naive_saved_bytes(cell)),
            Measure(attention_costs.bytes_moved(cell, "forward")),
        )
        for cell, spec in zip(planned, specs, strict=True)
    )
    count = f"{len(planned)} cell{'' if len(planned) == 1 else 's'}"
    note = "two N × N tensors are what a written-out attention keeps for backward; a fused kernel does not have them"
    return Sheet(("attention",), (Table("plan", count, columns, rows, len(named), (note,)),))


# --- what has to be said beside them


def _outcomes(record: AttentionRecord) -> list[Remark]:
    """Why cells have no numbers, cells of one implementation and reason together; memory has sentences of its own."""
    grouped: dict[tuple[str, str], list[AttentionCellRecord]] = {}
    for cell in record.cells:
        if cell.outcome != "ok" and not over_memory(cell):
            grouped.setdefault((_implementation(cell), _PREDICTED.sub("", remarks.reason(cell))), []).append(cell)
    return [Remark("outcome", f"{name}{_which(cells, record)}: {_why(cells)}") for (name, _), cells in grouped.items()]


def _why(cells: Sequence[AttentionCellRecord]) -> str:
    """The reason of all of these; where a time was predicted, that of the first and of the last."""
    reason = remarks.reason(cells[0])
    times = list(dict.fromkeys(found[0] for cell in cells if (found := _PREDICTED.search(remarks.reason(cell)))))
    return reason.replace(times[0], f"{times[0]} to {times[-1].removeprefix('about ')}") if len(times) > 1 else reason


def _which(cells: Sequence[AttentionCellRecord], record: AttentionRecord) -> str:
    """Nothing where all cells of an implementation share the fate; else the places, or their number."""
    name = _implementation(cells[0])
    if len(cells) == sum(_implementation(cell) == name for cell in record.cells):
        return ""
    places = [f"d {cell.axes['dim']} N {cell.axes['seq']}" for cell in cells]
    shown = places if len(places) <= remarks.NAMED else [*places[: remarks.NAMED - 1], f"{len(places) - 3} more"]
    return f" ({', '.join(shown)})"


def _notes(record: AttentionRecord) -> Iterator[Remark]:
    simulated = sum(cell.source == "simulated" for cell in record.cells)
    if simulated:
        which = "all of this is" if simulated == len(record.cells) else f"{simulated} of {len(record.cells)} cells are"
        yield Remark("note", f"{which} simulated: memory worked out without a GPU; nothing of it was timed")
