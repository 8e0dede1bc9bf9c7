"""The tables of `sysbench attention`: the sweep, implementations beside each other, growth, memory.

`TABLES` has them all by name. Whatever was simulated is marked as such in every table that shows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from sysbench import cells as axes
from sysbench import formulas, units
from sysbench.commands.attention.findings import (
    NAMES,
    SYMBOLS,
    TIMES,
    Cells,
    Quantity,
    alike_but_for,
    dims,
    findings,
    frontier,
    growth,
    implementations,
    over_memory,
    passages,
    settings,
    smallest_beyond,
    usual_dim,
    value,
)
from sysbench.commands.attention.record import AttentionCellRecord, AttentionRecord
from sysbench.commands.attention.spec import AttentionCell
from sysbench.errors import UsageError, unknown
from sysbench.log.records import Samples
from sysbench.render import remarks
from sysbench.render.table import NOTHING, Cell, Column, Measure, Remark, Sheet, Table, Tone, Word
from sysbench.spec.run import Selection
from sysbench.statistics import NoPowerLaw

Tables = list[Table]

Shown = tuple[Column, Callable[[AttentionCellRecord], Cell]]
"""A column with what it shows of a cell."""

AXES = ("simulate", "device", "precision", "heads", "implementation", "dim", "seq", "batch")
"""The axes along which cells can differ, in the order of the columns."""

CLOSE = 1.05
"""Up to this many times the best is as good as the best."""

FAR = 2.0

MOST_ROWS = 32
"""A longer comparison is about one head dimension, unless somebody asks for it by name."""

_PREDICTED = re.compile(r"about \d[\d.]* \w+")


def sheet(record: AttentionRecord, names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    """Everything that is shown of a record; raises UsageError for an unknown table and for one with nothing to show."""
    said = [
        Remark("finding", f"{found.text[:-1]} ({found.hint})." if found.hint else found.text)
        for found in findings(record)
    ]
    return Sheet(
        subject=subject(record),
        tables=tuple(tables_for(record, names)),
        remarks=(*_outcomes(record), *remarks.cautions(record), *said, *_notes(record)),
    )


def tables_for(record: AttentionRecord, names: Iterable[str] = ()) -> Tables:
    """The tables called `names`, or without any those that answer what the run was made for."""
    chosen = tuple(names)
    if not chosen:
        if len(implementations(record.cells)) < 2:
            return sweep(record)
        if len(record.cells) <= MOST_ROWS or len(dims(record.cells)) < 2:
            return comparison(record)
        dim = usual_dim(record.cells)
        here = [cell for cell in record.cells if cell.axes["dim"] == dim]
        return _comparison(here, f" at d {dim}", " (--tables comparison has every d)")
    shown: Tables = []
    for name in chosen:
        if name not in TABLES:
            raise UsageError(unknown(name, "a table", TABLES))
        if not (found := TABLES[name](record)):
            raise UsageError(f"this run has nothing to show as the table {name}")
        shown += found
    return shown


def subject(record: AttentionRecord) -> tuple[str, ...]:
    """What all cells have in common: `attention`, `batch 8`, `causal`, `fp32`, the device, the repeats."""
    if not record.cells:
        return ("attention",)
    cell, differing = record.cells[0].axes, varying(record.cells)
    words = ["attention"]
    words += [
        axes.phrase(axis, cell[axis])
        for axis in ("implementation", "dim", "seq", "batch", "heads")
        if axis not in differing
    ]
    words += ["causal" if cell["causal"] else "not causal"]
    words += [str(cell["precision"])] if "precision" not in differing else []
    simulated = [each.gpu for each in record.cells if each.gpu]
    machines = [f"simulated for {gpu.title}{f' ({gpu.settings})' if gpu.settings else ''}" for gpu in simulated]
    measured = [each for each in record.cells if each.source == "measured"]
    words += dict.fromkeys([*machines, *(each.device.name for each in measured if each.device)])
    words += [f"torch {record.environment.torch.torch}"] if record.environment.torch else []
    words += [f"{axes.phrase('warmup', cell['warmup'])}, {cell['repeats']} repeats"] if measured else []
    words += ["cold caches"] if cell["cold"] else []
    return tuple(words)


def varying(cells: Cells) -> tuple[str, ...]:
    """The axes in which these cells differ."""
    return tuple(axis for axis in AXES if len({str(cell.axes.get(axis)) for cell in cells}) > 1)


def status(cell: AttentionCellRecord) -> Word:
    """How a cell ended, in a word; running out of memory is a result and is worded as one."""
    if cell.outcome == "ok":
        return Word("simulated" if cell.source == "simulated" else "ok", "quiet")
    if over_memory(cell):
        return Word("does not fit" if cell.source == "simulated" else cell.outcome, "bad")
    return Word(cell.outcome, "quiet" if cell.outcome in ("skipped", "interrupted") else "bad")


# --- cells of tables


def _values(cell: Mapping[str, Any], named: Sequence[str]) -> tuple[Cell, ...]:
    """What the columns of these axes hold."""
    absent = {"simulate": "measured", "heads": "none"}
    return tuple(cell[axis] if cell[axis] is not None else absent.get(axis, "") for axis in named)


def _measure(found: float | None) -> Measure | None:
    return Measure(found) if found is not None else None


def _time(found: Samples | None) -> Measure | None:
    return Measure(found.mean_s, found.std_s if len(found.samples_s) > 1 else None) if found else None


def _rate(cell: AttentionCellRecord, phase: str) -> Measure | None:
    return Measure(cell.rates[phase].flops_per_s) if phase in cell.rates else None


def _limit(cell: AttentionCellRecord, phase: str) -> Measure | None:
    return _measure(cell.rates[phase].limit_share) if phase in cell.rates else None


def _error(cell: AttentionCellRecord, *names: str) -> Measure | None:
    found = [cell.errors[name].relative for name in names if name in cell.errors]
    return Measure(max(found), text=f"{max(found):.1e}") if found else None


def _of_cells(name: str, title: str, cells: Cells, named: Sequence[str], shown: Sequence[Shown], *notes: str) -> Table:
    """A table with a row for each cell, led by the axes `named`."""
    columns = (*axes.columns(named), *(column for column, _ in shown))
    rows = tuple((*_values(cell.axes, named), *(show(cell) for _, show in shown)) for cell in cells)
    return Table(name, _marked(title, cells), columns, rows, len(named), notes)


def _marked(title: str, cells: Cells) -> str:
    sources = {cell.source for cell in cells}
    return f"{title}, simulated" if sources == {"simulated"} else title


def _clock(cells: Cells) -> tuple[str, ...]:
    timed = [cell for cell in cells if cell.forward or cell.backward]
    if not timed:
        return ()
    device = all(cell.device_events for cell in timed)
    return ("times by device events" if device else "times by the host's clock, between two synchronizations",)


# --- the tables


def sweep(record: AttentionRecord) -> Tables:
    """One row per cell, as reports have it: dimensions, forward, backward, memory before backward, status."""
    cells = record.cells
    differing = varying(cells)
    named = tuple(axis for axis in AXES if axis in ("dim", "seq", "batch") or axis in differing)
    times: list[Shown] = [
        (Column("forward", "forward", "s", wide_range=True), lambda cell: _time(cell.forward)),
        (Column("backward", "backward", "s", wide_range=True), lambda cell: _time(cell.backward)),
    ]
    timed = any(cell.forward or cell.backward for cell in cells)
    shown: list[Shown] = [
        *(times if timed else ()),
        (
            Column("memory_before_backward", "before backward", "bytes", "memory", wide_range=True),
            lambda cell: _measure(cell.before_backward_bytes),
        ),
        (Column("status", "status"), status),
    ]
    title = "mean ± standard deviation of one call" if timed else "memory"
    return [_of_cells("sweep", title, cells, named, shown, *_clock(cells))]


def comparison(record: AttentionRecord) -> Tables:
    """Implementations beside each other on the same input: times, rates, share of the limit, memory, error."""
    return _comparison(record.cells) if record.cells else []


def _comparison(cells: Cells, where: str = "", hint: str = "") -> Tables:
    order = {name: number for number, name in enumerate(implementations(cells))}
    named = tuple(axis for axis in varying(cells) if axis != "implementation")

    def place(cell: AttentionCellRecord) -> tuple[Any, ...]:
        found = (cell.axes[axis] for axis in named)
        keys = ((0, each) if isinstance(each, int) else (1, str(each)) for each in found)
        return (*keys, order[cell.axes["implementation"]])

    ordered = sorted(cells, key=place)
    shown = [
        (column, show)
        for column, show in _comparison_columns(cells)
        if any(isinstance(found := show(cell), Measure) or (isinstance(found, str) and found) for cell in cells)
    ]
    if shown:
        column, first = shown[0]
        shown[0] = column, lambda cell: first(cell) if cell.outcome == "ok" else status(cell)
    medians = ", medians" if any(cell.forward or cell.backward for cell in cells) else ""
    title = f"implementations beside each other{where}{medians}{hint}"
    return [_of_cells("comparison", title, ordered, (*named, "implementation"), shown, *_clock(cells))]


def _comparison_columns(cells: Cells) -> Iterator[Shown]:
    """Every column that a comparison can have."""
    yield from _phase_columns("forward", 0, cells)
    yield from _phase_columns("backward", 1, cells)
    yield (
        Column("saved", "kept for backward", "bytes", importance=3, wide_range=True),
        lambda cell: _measure(cell.saved_bytes),
    )
    yield (
        Column("memory_before_backward", "before backward", "bytes", importance=10, wide_range=True),
        lambda cell: _measure(cell.before_backward_bytes),
    )
    yield (
        Column("peak", "allocated", "bytes", "peak", importance=8, wide_range=True),
        lambda cell: _measure(cell.peak_allocated_bytes),
    )
    yield (
        Column("peak_reserved", "reserved", "bytes", "peak", importance=11, wide_range=True),
        lambda cell: _measure(cell.peak_reserved_bytes),
    )
    checked = "error: ‖x − x64‖ / ‖x64‖ against fp64, of the output; of the gradients the largest of q, k and v"
    yield (
        Column("error", "error", "number", importance=5, note=checked),
        lambda cell: _error(cell, "output") or NOTHING,
    )
    yield (
        Column("gradient_error", "of gradients", "number", importance=7),
        lambda cell: _error(cell, "q", "k", "v") or NOTHING,
    )
    yield Column("kernel", "ran as", importance=9), lambda cell: cell.kernel or ""


def _phase_columns(phase: Quantity, rank: int, cells: Cells) -> list[Shown]:
    """One phase: median, multiple of the best on the same input, achieved rates, share of the limit."""
    best = {
        cell.key: min(times)
        for row in alike_but_for(cells, "implementation")
        if (times := [found for cell in row if (found := value(cell, phase)) is not None])
        for cell in row
    }

    def to_best(cell: AttentionCellRecord) -> float | None:
        found = value(cell, phase)
        return found / best[cell.key] if found is not None else None

    def tone(cell: AttentionCellRecord) -> Tone:
        times_best = to_best(cell) or 0.0
        return "good" if times_best <= CLOSE else "bad" if times_best >= FAR else "plain"

    def toned(found: float | None, cell: AttentionCellRecord) -> Measure | None:
        return Measure(found, tone=tone(cell)) if found is not None else None

    counted = "2BN(N+1)d forward, the causal half alone" if any(c.axes["causal"] for c in cells) else "4BN²d forward"
    flops = f"FLOPs counted: {counted}, twice that backward"
    moved = "moved: q, k, v and output once each, the least that has to move; backward twice that"
    limit = "of limit: the least time by FLOPs at the data sheet's rate and by bytes at its bandwidth, over the median"
    return [
        (
            Column(phase, "median", "s", phase, rank, wide_range=True),
            lambda cell: toned(value(cell, phase), cell),
        ),
        (
            Column(f"{phase}_to_best", "to best", "ratio", phase, rank + 1),
            lambda cell: toned(to_best(cell), cell) or NOTHING,
        ),
        (
            Column(f"{phase}_rate", "rate", "flops_per_s", phase, rank + 3, note=flops),
            lambda cell: _rate(cell, phase) or NOTHING,
        ),
        (
            Column(f"{phase}_moved", "moved", "bytes_per_s", phase, rank + 6, note=moved),
            lambda cell: Measure(cell.rates[phase].bytes_per_s) if phase in cell.rates else NOTHING,
        ),
        (
            Column(f"{phase}_limit", "of limit", "share", phase, rank + 4, note=limit),
            lambda cell: _limit(cell, phase) or NOTHING,
        ),
    ]


def grid(record: AttentionRecord) -> Tables:
    """For every implementation and quantity a table with head dimensions down and sequence lengths across."""
    return [
        _grid([cell for cell in cells if cell.axes["implementation"] == name], name, quantity)
        for cells in settings(record.cells)
        for name in implementations(cells)
        for quantity in (*TIMES, "saved")
        if any(value(cell, quantity) is not None for cell in cells if cell.axes["implementation"] == name)
    ]


def _grid(cells: Cells, name: str, quantity: Quantity) -> Table:
    lengths = sorted({int(cell.axes["seq"]) for cell in cells})
    places = {(int(cell.axes["dim"]), int(cell.axes["seq"])): cell for cell in cells}
    unit: units.Unit = "bytes" if quantity == "saved" else "s"

    def shown(cell: AttentionCellRecord | None) -> Cell:
        return (_measure(value(cell, quantity)) or status(cell)) if cell is not None else NOTHING

    columns = (
        Column("dim", axes.TITLES["dim"]),
        *(Column(f"seq_{n}", str(n), unit, axes.TITLES["seq"], wide_range=True) for n in lengths),
    )
    rows = tuple((dim, *(shown(places.get((dim, n))) for n in lengths)) for dim in dims(cells))
    what = "median" if quantity != "saved" else "beside inputs and output"
    return Table(f"grid-{quantity}", _marked(f"{name}: {NAMES[quantity]}, {what}", cells), columns, rows, 1)


def exponents(record: AttentionRecord) -> Tables:
    """How every implementation grows in N and in d: the exponent, its 95 % interval, the sizes that carry it."""
    rows = []
    for axis, fixed in (("seq", "dim"), ("dim", "seq")):
        for each in growth(record.cells, axis):
            law, symbol = each.law, SYMBOLS[axis]
            if isinstance(law, NoPowerLaw):
                if law.too_few:
                    continue
                found: tuple[Cell, ...] = (
                    Word("no one power", "quiet"),
                    f"{law.slopes[-1].exponent:.2f} at the end",
                )
            else:
                found = (Measure(law.exponent, low=law.low, high=law.high), f"{law.scatter:.1%}")
            at = f"{SYMBOLS[fixed]} {each.cells[0].axes[fixed]}"
            across = f"{symbol} {law.sizes[0]:.0f}–{law.sizes[-1]:.0f}, {len(law.sizes)} sizes"
            rows.append((each.implementation, NAMES[each.quantity], f"in {symbol}", at, *found, across))
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
    named = tuple(axis for axis in varying(record.cells) if axis not in ("seq", "implementation", "dim"))
    named += ("implementation", "dim")
    columns = (
        *axes.columns(named),
        Column("fits", "largest N that fits"),
        Column("before_backward", "with, before backward", "bytes", importance=1, wide_range=True),
        Column("beyond", "does not fit"),
        Column("needs", "needs", "bytes", wide_range=True),
        Column("available", "available", "bytes", importance=2, wide_range=True),
        Column("how", "known by", importance=3),
    )
    rows: list[tuple[Cell, ...]] = []
    for each in frontier(record.cells):
        fits, beyond = each.fits, each.beyond
        largest: Cell = f"{fits.axes['seq']}{' or more' if each.untried else ''}" if fits else Word("none", "bad")
        before = _measure(fits.before_backward_bytes if fits else None)
        row = (*_values(each.cells[0].axes, named), largest, before)
        if beyond is None:
            rows.append((*row, Word("not tried", "quiet") if each.untried else Word("all fit", "good"), None, None, ""))
            continue
        ran_out = "it ran out" if beyond.outcome == "oom" else "prediction"
        how = "simulation" if beyond.source == "simulated" else ran_out
        bytes_ = _measure(beyond.needed_bytes), _measure(beyond.available_bytes)
        rows.append((*row, str(beyond.axes["seq"]), *bytes_, how))
    title = _marked("where memory ends", record.cells)
    return [Table("frontier", title, columns, tuple(rows), len(named))] if rows else []


def accounting(record: AttentionRecord) -> Tables:
    """The tensors of the smallest cell that does not fit, setting by setting."""
    columns = (
        Column("tensor", "tensor"),
        Column("shape", "shape"),
        Column("dtype", "type"),
        Column("phase", "made in", importance=1),
        Column("size", "size", "bytes", wide_range=True),
    )
    found = []
    for cell in map(smallest_beyond, settings(record.cells)):
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
        named = f"{cell.axes['implementation']}, d {cell.axes['dim']}, N {cell.axes['seq']}"
        where = f", simulated for {cell.gpu.title}" if cell.gpu else ""
        title = f"the smallest cell that does not fit: {named}{where}"
        found.append(Table("accounting", title, columns, tuple(rows), 1))
    return found


def memory(record: AttentionRecord) -> Tables:
    """What forward keeps for backward, against the formulas of the written-out kind and of a fused kernel."""
    known = [cell for cell in record.cells if cell.saved_bytes is not None or cell.before_backward_bytes is not None]
    if not known:
        return []

    def of_naive(cell: AttentionCellRecord) -> Cell:
        return Measure(cell.saved_bytes / cell.naive_saved_bytes) if cell.saved_bytes is not None else None

    shown: list[Shown] = [
        (
            Column("memory_before_backward", "before backward", "bytes", wide_range=True),
            lambda cell: _measure(cell.before_backward_bytes),
        ),
        (Column("saved", "kept for backward", "bytes", wide_range=True), lambda cell: _measure(cell.saved_bytes)),
        (
            Column("naive", "two N × N tensors", "bytes", importance=1, wide_range=True),
            lambda cell: Measure(cell.naive_saved_bytes),
        ),
        (Column("saved_of_naive", "of these", "ratio", importance=2), of_naive),
        (
            Column("fused", "one number a query", "bytes", importance=3, wide_range=True),
            lambda cell: Measure(cell.fused_saved_bytes),
        ),
        (
            Column("peak", "allocated", "bytes", "peak", importance=4, wide_range=True),
            lambda cell: _measure(cell.peak_allocated_bytes),
        ),
        (
            Column("peak_reserved", "reserved", "bytes", "peak", importance=5, wide_range=True),
            lambda cell: _measure(cell.peak_reserved_bytes),
        ),
    ]
    note = "kept beside q, k, v and the output. Two N × N tensors are 8BN² bytes in fp32: computed, as is the other"
    return [_of_cells("memory", "memory", known, varying(record.cells) or ("implementation",), shown, note)]


def cells(record: AttentionRecord) -> Tables:
    """Everything in one long table, a row per cell, for data frames."""
    times: list[Shown] = [
        (Column("forward", "forward", "s", wide_range=True), lambda cell: _time(cell.forward)),
        (Column("backward", "backward", "s", wide_range=True), lambda cell: _time(cell.backward)),
        (
            Column("forward_median", "forward median", "s", wide_range=True),
            lambda cell: _measure(cell.forward.median_s if cell.forward else None),
        ),
        (
            Column("backward_median", "backward median", "s", wide_range=True),
            lambda cell: _measure(cell.backward.median_s if cell.backward else None),
        ),
        (Column("forward_rate", "forward rate", "flops_per_s"), lambda cell: _rate(cell, "forward")),
        (Column("backward_rate", "backward rate", "flops_per_s"), lambda cell: _rate(cell, "backward")),
        (Column("forward_limit", "forward of limit", "share"), lambda cell: _limit(cell, "forward")),
        (Column("backward_limit", "backward of limit", "share"), lambda cell: _limit(cell, "backward")),
    ]
    shown: list[Shown] = [
        (Column("causal", "causal"), lambda cell: "yes" if cell.axes["causal"] else "no"),
        (Column("source", "source"), lambda cell: cell.source),
        (
            Column("device_name", "device name"),
            lambda cell: cell.gpu.title if cell.gpu else cell.device.name if cell.device else None,
        ),
        (Column("kernel", "kernel"), lambda cell: cell.kernel),
        *times,
        (
            Column("memory_before_backward", "memory before backward", "bytes", wide_range=True),
            lambda cell: _measure(cell.before_backward_bytes),
        ),
        (Column("saved", "kept for backward", "bytes", wide_range=True), lambda cell: _measure(cell.saved_bytes)),
        (Column("peak", "peak", "bytes", wide_range=True), lambda cell: _measure(cell.peak_allocated_bytes)),
        (Column("error", "error", "number"), lambda cell: _error(cell, "output")),
        (Column("status", "status"), lambda cell: cell.outcome),
    ]
    return [_of_cells("cells", "all cells", record.cells, AXES, shown)]


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
            *_values(spec, named),
            Measure(formulas.flops(cell, "forward")),
            Measure(formulas.naive_saved_bytes(cell)),
            Measure(formulas.bytes_moved(cell, "forward")),
        )
        for cell, spec in zip(planned, specs, strict=True)
    )
    count = f"{len(planned)} cell{'' if len(planned) == 1 else 's'}"
    note = "two N × N tensors are what a written-out attention keeps for backward; a fused kernel does not have them"
    return Sheet(("attention",), (Table("plan", count, columns, rows, len(named), (note,)),))


# --- what has to be said beside them


def _outcomes(record: AttentionRecord) -> Iterator[Remark]:
    """Why cells have no numbers, cells of one implementation and reason together; memory has sentences of its own."""
    grouped: dict[tuple[str, str], list[AttentionCellRecord]] = {}
    for cell in record.cells:
        if cell.outcome != "ok" and not over_memory(cell):
            reason = _PREDICTED.sub("", remarks.reason(cell))
            grouped.setdefault((cell.axes["implementation"], reason), []).append(cell)
    for (name, _), cells in grouped.items():
        reasons = [remarks.reason(cell) for cell in cells]
        times = list(dict.fromkeys(found[0] for reason in reasons if (found := _PREDICTED.search(reason))))
        why = reasons[0]
        if len(times) > 1:
            why = why.replace(times[0], f"{times[0]} to {times[-1].removeprefix('about ')}")
        where = ""
        if len(cells) < sum(cell.axes["implementation"] == name for cell in record.cells):
            places = [f"d {cell.axes['dim']} N {cell.axes['seq']}" for cell in cells]
            if len(places) > remarks.NAMED:
                places[remarks.NAMED - 1 :] = [f"{len(places) - remarks.NAMED + 1} more"]
            where = f" ({', '.join(places)})"
        yield Remark("outcome", f"{name}{where}: {why}")


def _notes(record: AttentionRecord) -> Iterator[Remark]:
    simulated = sum(cell.source == "simulated" for cell in record.cells)
    if simulated:
        which = "all of this is" if simulated == len(record.cells) else f"{simulated} of {len(record.cells)} cells are"
        yield Remark("note", f"{which} simulated: memory worked out without a GPU; nothing of it was timed")
