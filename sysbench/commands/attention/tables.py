"""Tables of `sysbench attention`; titles say whether results are simulated or predicted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, Literal, NamedTuple

from sysbench import cells as axes
from sysbench import formulas, units
from sysbench.commands.attention.findings import (
    SWEPT,
    TIMES,
    Cells,
    Quantity,
    frontier,
    implementations,
    of_run,
    passages,
    predicted,
    smallest_beyond,
    value,
)
from sysbench.commands.attention.record import AttentionCellRecord, AttentionRecord
from sysbench.commands.attention.spec import AttentionSpec
from sysbench.log.predictions import INTERVAL, MARK
from sysbench.log.records import Samples
from sysbench.render.axis_columns import axis_columns, axis_values
from sysbench.render.declared import DeclaredTable, Each, Field, build_tables, leading_axes, leading_fields
from sysbench.render.phase_rows import flattened
from sysbench.render.sentences import notes
from sysbench.render.sentences.cautions import cautions_of
from sysbench.render.sentences.finding_kinds import Limit
from sysbench.render.sentences.phrases import name_among
from sysbench.render.table import EMPTY_CELL, Cell, Column, Measure, Remark, Sheet, Table, Tone, Word, mean_of
from sysbench.spec.attention import AttentionCell
from sysbench.spec.hardware import Hardware
from sysbench.spec.quantities import time_limit_word
from sysbench.spec.run import Selection

CLOSE = 1.05
"""Times up to this multiple of the best time are coloured like the best."""

FAR = 2.0
"""Times of at least this multiple of the best time are coloured as bad."""


def sheet(record: AttentionRecord, names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    return Sheet(
        subject=subject(record),
        tables=tuple(tables_for(record, names)),
        remarks=(
            *notes.outcomes(record, [cell for cell in record.cells if not cell.lacks_memory]),
            *cautions_of(record),
            *(Remark("finding", statement.text) for statement in of_run(record)),
            *_reduced(record),
            *_notes(record),
        ),
    )


def tables_for(record: AttentionRecord, names: Iterable[str] = ()) -> list[Table]:
    if chosen := tuple(names):
        return build_tables(TABLES, record, chosen)
    return COMPARISON(record)


def usual(spec: AttentionSpec) -> tuple[str, ...]:
    return ("comparison",)


def subject(record: AttentionRecord) -> tuple[str, ...]:
    if not record.cells:
        return ("attention",)
    cell = record.cells[0].cell
    measured = any(each.source == "measured" for each in record.cells)
    up_to = "up to " if any(each.reduced for each in record.cells) else ""
    machines = [f"simulated for {each.gpu.title}" for each in record.cells if each.gpu]
    machines += [each.device.name for each in record.cells if each.source == "measured" and each.device]
    return (
        "attention",
        *axes.subject(record.cells),
        "causal" if cell.causal else "not causal",
        *([MARK] if _is_predicted(record.cells) else ()),
        *dict.fromkeys(machines),
        *record.environment.software,
        *((f"{up_to}{axes.phrase('warmup', cell.warmup)}, {cell.repeats} repeats",) if measured else ()),
        *(("cold caches",) if cell.cold else ()),
    )


# --- values of columns


def _varying_settings(record: AttentionRecord) -> tuple[str, ...]:
    return tuple(axis for axis in axes.varying(record.cells) if axis not in SWEPT)


def _status(cell: AttentionCellRecord) -> Word:
    """Return the outcome; `simulated` or `predicted` for a finished cell that was not measured."""
    if cell.outcome == "ok":
        return Word("ok" if cell.source == "measured" else cell.source, "quiet")
    if cell.lacks_memory:
        return Word("does not fit" if cell.cell.simulated else cell.outcome, "bad")
    return notes.outcome_word(cell.outcome)


def _time(cell: AttentionCellRecord, phase: Quantity) -> Measure | None:
    return mean_of(getattr(cell, phase)) or _predicted(cell, phase)


def _predicted(cell: AttentionCellRecord, phase: Quantity) -> Measure | None:
    time = predicted(cell, phase)
    return Measure(time.point_s, low=time.low_s, high=time.high_s) if time else None


def _error(cell: AttentionCellRecord, *names: str) -> Measure | None:
    found = [cell.errors[name].relative for name in names if name in cell.errors]
    return Measure(max(found), text=f"{max(found):.1e}") if found else None


def _marked(title: str, cells: Cells, *, times: bool = False) -> str:
    if times and _is_predicted(cells):
        return f"{MARK}: {title}"
    return f"{title}, simulated" if cells and all(cell.cell.simulated for cell in cells) else title


def _is_predicted(cells: Cells) -> bool:
    return any(cell.source == "predicted" for cell in cells)


def _clock(cells: Cells) -> tuple[str, ...]:
    if _is_predicted(cells):
        return INTERVAL, "device time only, launch overhead excluded, as when measured on CUDA"
    timed = [cell for cell in cells if cell.forward or cell.backward]
    if not timed:
        return ()
    device = all(cell.device_events for cell in timed)
    return ("measured with device events" if device else "measured with the host's clock between two synchronizations",)


_bytes = partial(Field, unit="bytes", wide_range=True)

_BEFORE_BACKWARD = _bytes("memory_before_backward", "before backward", get=lambda cell: cell.before_backward_bytes)
_SAVED = _bytes(
    "saved",
    "kept for backward",
    note="kept for backward: besides inputs and output; before backward: everything",
    get=lambda cell: cell.saved_bytes,
)
_PEAK = _bytes("peak", "peak", get=lambda cell: cell.peak_allocated_bytes)


# --- the tables


def _named(record: AttentionRecord) -> tuple[str, ...]:
    varying = axes.varying(record.cells)
    last = ("implementation",) if "implementation" in varying or not varying else ()
    return (*(axis for axis in varying if axis != "implementation"), *last)


class _Compared(NamedTuple):
    """A cell, and the shortest time of each phase of all implementations on the same input."""

    cell: AttentionCellRecord
    best_s: Mapping[Quantity, float]

    @classmethod
    def rows(cls, record: AttentionRecord) -> Iterator[_Compared]:
        for cells in axes.group_ignoring(record.cells, "implementation"):
            times = {phase: [found for cell in cells if (found := value(cell, phase)) is not None] for phase in TIMES}
            best = {phase: min(found) for phase, found in times.items() if found}
            yield from (cls(cell, best) for cell in cells)

    def time(self, phase: Quantity) -> Cell:
        found = value(self.cell, phase)
        if found is None:
            return EMPTY_CELL if self.cell.cell.simulated else None
        return replace(_predicted(self.cell, phase) or Measure(found), tone=self._tone(found / self.best_s[phase]))

    def over_best(self, phase: Quantity) -> Cell:
        found = value(self.cell, phase)
        ratio = found / self.best_s[phase] if found is not None else None
        return EMPTY_CELL if ratio is None else Measure(ratio, tone=self._tone(ratio))

    def per_second(self, phase: Quantity, of: Literal["flops", "limit_s"]) -> Measure | Word:
        taken_s, amount = value(self.cell, phase), getattr(self.cell.rates.get(phase), of, None)
        return Measure(amount / taken_s) if taken_s and amount is not None else EMPTY_CELL

    @staticmethod
    def _tone(times_best: float) -> Tone:
        return "good" if times_best <= CLOSE else "bad" if times_best >= FAR else "plain"


def _comparison_title(record: AttentionRecord) -> str:
    is_timed = any(cell.forward or cell.backward for cell in record.cells)
    return _marked("medians of one call" if is_timed else "one call", record.cells, times=True)


def _of_phase(importance: int, key: str, title: str, unit: units.Unit, **declared: Any) -> Field:
    return Field(
        key, title, unit, "{phase}", lambda _, phase: importance + (phase == "backward"), optional=True, **declared
    )


def _of_cell(declared: Field, importance: int) -> Field:
    return replace(declared, importance=importance, optional=True, get=lambda row: declared.get(row.cell))


COMPARISON = DeclaredTable(
    "comparison",
    _comparison_title,
    (
        Each(
            "phase",
            (
                _of_phase(0, "{phase}", "time", "s", wide_range=True, get=_Compared.time),
                _of_phase(
                    1,
                    "{phase}_to_best",
                    "time / best",
                    "ratio",
                    get=_Compared.over_best,
                    when=lambda record, _: len(implementations(record.cells)) > 1,
                ),
                _of_phase(
                    4,
                    "{phase}_rate",
                    "rate",
                    "flops_per_s",
                    note="FLOPs counted: 4BN²d in forward, 2BN(N+1)d with a causal mask; twice that in backward",
                    get=partial(_Compared.per_second, of="flops"),
                ),
                _of_phase(
                    5,
                    "{phase}_limit",
                    "of limit",
                    "share",
                    note="of limit: lower bound on the time, from FLOPs and bytes at data-sheet rates, divided by the "
                    "median",
                    get=partial(_Compared.per_second, of="limit_s"),
                ),
            ),
            values=TIMES,
        ),
        _of_cell(_SAVED, 2),
        _of_cell(_PEAK, 8),
        _of_cell(_BEFORE_BACKWARD, 3),
        Field(
            "error",
            unit="number",
            importance=5,
            optional=True,
            note="error: ‖x − x64‖ / ‖x64‖ of the output x relative to fp64; gradient error: the largest of q, k and v",
            get=lambda row: _error(row.cell, "output") or EMPTY_CELL,
        ),
        Field(
            "gradient_error",
            "gradient error",
            "number",
            importance=7,
            optional=True,
            get=lambda row: _error(row.cell, "q", "k", "v") or EMPTY_CELL,
        ),
        Field("kernel", "kernel used", importance=9, optional=True, get=lambda row: row.cell.kernel or ""),
    ),
    rows=_Compared.rows,
    leading=leading_axes(_named, lambda row: (row.cell,)),
    outcome_of=lambda row: _status(row.cell) if row.cell.outcome != "ok" else None,
    notes=lambda record: _clock(record.cells),
)

CROSSOVERS = DeclaredTable(
    "crossovers",
    lambda record: _marked("crossovers", record.cells, times=True),
    (
        Field("overtakes", "faster beyond", get=lambda each: each.slower_first),
        Field("overtaken", "than", get=lambda each: each.other),
        Field("at", "near N", get=lambda each: f"{each.crossover.at:.0f}"),
        Field("bracket", "between", get=lambda each: f"{each.crossover.below:.0f}–{each.crossover.above:.0f}"),
    ),
    rows=lambda record: [passage for cells in axes.group_ignoring(record.cells, *SWEPT) for passage in passages(cells)],
    leading=(
        leading_axes(_varying_settings, lambda each: each.cells),
        leading_fields(
            Field("phase", get=lambda each: each.quantity),
            Field("dim", axes.AXES["dim"].title, get=lambda each: each.dim),
        ),
    ),
    notes=lambda record: (
        "interpolated on logarithmic scales; the 90% intervals of the two times do not overlap on either side"
        if _is_predicted(record.cells)
        else "interpolated on logarithmic scales; the 95% CI of the ratio excludes 1 on both sides",
    ),
    needs="two implementations, one of which overtakes the other with growing --seq",
)


def _beyond(row: Limit[AttentionCellRecord]) -> Cell:
    if row.beyond is not None:
        return str(row.beyond.cell.seq)
    return Word("not tried", "quiet") if row.untried else Word("all fit", "good")


FRONTIER = DeclaredTable(
    "frontier",
    lambda record: _marked("where memory runs out", record.cells),
    (
        Field(
            "fits",
            "largest N that fits",
            get=lambda row: (
                f"{row.fits.cell.seq}{' or more' if row.untried else ''}" if row.fits else Word("none", "bad")
            ),
        ),
        Field("beyond", "does not fit", get=_beyond),
        _bytes("needs", get=lambda row: row.beyond.needed_bytes if row.beyond else None),
        _bytes("available", importance=2, get=lambda row: row.beyond.available_bytes if row.beyond else None),
    ),
    rows=lambda record: frontier(record.cells),
    leading=leading_axes(lambda record: (*_varying_settings(record), "implementation", "dim"), lambda row: row.row),
    needs="a cell that is known to fit or not to fit",
    about="memory",
)


def _accounted(cell: AttentionCellRecord) -> Iterator[tuple[str, Cell, str, str, Measure]]:
    """Yield the tensors, largest first, then the total, reserved and available memory."""
    for tensor in sorted(cell.tensors, key=lambda each: -each.size_bytes):
        shape = " × ".join(map(str, tensor.shape)) or EMPTY_CELL
        yield tensor.name, shape, tensor.dtype, tensor.phase, Measure(tensor.size_bytes)
    total = sum(tensor.size_bytes for tensor in cell.tensors)
    yield "total", "", "", "", Measure(total, tone="strong")
    if cell.needed_bytes is not None and cell.needed_bytes > total:
        yield "reserved by the allocator", "", "", "", Measure(cell.needed_bytes)
    if cell.available_bytes is not None:
        yield "available", "", "", "", Measure(cell.available_bytes)


ACCOUNTING = DeclaredTable(
    "accounting",
    lambda cell: _marked(f"the smallest cell that does not fit: {axes.label(cell, SWEPT)}", [cell]),
    (
        Field("shape", get=itemgetter(1)),
        Field("dtype", "type", get=itemgetter(2)),
        Field("phase", "made in", importance=1, get=itemgetter(3)),
        _bytes("size", get=itemgetter(4)),
    ),
    rows=_accounted,
    leading=leading_fields(Field("tensor", get=itemgetter(0))),
    parts=lambda record: filter(None, map(smallest_beyond, axes.group_ignoring(record.cells, *SWEPT))),
    needs="a cell that does not fit, and whose tensors are known",
)


def _rate(cell: AttentionCellRecord, phase: Quantity, of: str) -> float | None:
    found: float | None = getattr(cell.rates.get(phase), of, None)
    return found


_OTHER_STATISTICS = [name for name in Samples.model_fields if name not in ("mean_s", "std_s")]
"""Statistics of a phase besides those that one column shows together."""

CELLS = DeclaredTable(
    "cells",
    lambda record: _marked("all cells", record.cells),
    (
        *flattened(AttentionCell, attrgetter("cell"), "causal"),
        Field("source", get=attrgetter("source")),
        Field("device_name", "device name", get=attrgetter("device_name")),
        Field("kernel", get=attrgetter("kernel")),
        Each("phase", (Field("{phase}", unit="s", wide_range=True, get=_time),), values=TIMES),
        *(
            column
            for phase in TIMES
            for column in flattened(Samples, attrgetter(phase), *_OTHER_STATISTICS, prefix=f"{phase}_")
        ),
        *(
            Each("phase", (column,), values=TIMES)
            for column in (
                Field("{phase}_rate", "{phase} rate", "flops_per_s", get=partial(_rate, of="flops_per_s")),
                Field("{phase}_limit", "{phase} of limit", "share", get=partial(_rate, of="limit_share")),
            )
        ),
        replace(_BEFORE_BACKWARD, title="memory before backward"),
        _SAVED,
        *flattened(AttentionCellRecord, lambda cell: cell, "naive_saved_bytes", "fused_saved_bytes"),
        _PEAK,
        Field("error", unit="number", get=lambda cell: _error(cell, "output")),
        Field("status", get=lambda cell: cell.outcome),
    ),
    leading=leading_axes(
        lambda record: [
            axis
            for axis, declared in axes.AXES.items()
            if axis in AttentionCell.model_fields and declared.role != "effort"
            if not record.cells or any(axis in cell.axes for cell in record.cells)
        ]
    ),
    keep_empty=True,
)

TABLES: dict[str, DeclaredTable] = {
    table.name: table for table in (COMPARISON, CROSSOVERS, FRONTIER, ACCOUNTING, CELLS)
}


def plan(planned: Sequence[AttentionCell], _: Hardware | None = None) -> Sheet:
    """Return the plan of a run: its cells, with FLOPs and memory computed by formula. Nothing is measured."""
    named = axes.varying(planned) or ("implementation",)
    columns = (
        *axis_columns(named),
        Column("forward", "forward", "flops", wide_range=True),
        Column("naive", "two N × N tensors", "bytes", wide_range=True),
        Column("inputs", "q, k, v and output", "bytes", wide_range=True),
    )
    rows = tuple(
        (
            *axis_values(cell, named),
            Measure(formulas.flops(cell, "forward")),
            Measure(formulas.naive_saved_bytes(cell)),
            Measure(formulas.bytes_moved(cell, "forward")),
        )
        for cell in planned
    )
    count = f"{len(planned)} cell{'' if len(planned) == 1 else 's'}"
    note = "naive attention keeps two N × N tensors for backward; a fused kernel does not"
    return Sheet(("attention",), (Table("plan", count, columns, rows, len(named), (note,)),))


def _reduced(record: AttentionRecord) -> Iterator[Remark]:
    """Yield a note for cells with fewer repeats than asked for: how many they have, and which limit is the reason."""
    cells = [cell for cell in record.cells if cell.reduced and cell.forward]
    if not cells:
        return
    counts = [cell.reduced.repeats for cell in cells if cell.reduced]
    limits = {cell.reduced.max_time_s for cell in cells if cell.reduced}
    repeats = f"{min(counts)} to {max(counts)}" if min(counts) < max(counts) else str(counts[0])
    within = ", ".join(time_limit_word(limit_s) for limit_s in sorted(limits))
    yield Remark(
        "note",
        f"{name_among(cells, record.cells)}: {repeats} of {cells[0].cell.repeats} repeats, within {within} a cell",
        "--max-time none measures all of them",
    )


def _notes(record: AttentionRecord) -> Iterator[Remark]:
    if not _is_predicted(record.cells):
        return
    if untimed := [cell for cell in record.cells if cell.source == "simulated" and cell.outcome == "ok"]:
        names = ", ".join(dict.fromkeys(str(cell.cell.simulate) for cell in untimed))
        yield Remark("note", f"no times for {names}: its rates are unknown, or its times are withheld")
