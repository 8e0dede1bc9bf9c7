"""Tables of `sysbench attention`; titles say whether results are simulated or predicted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, Literal

from sysbench import cells as axes
from sysbench import formulas, units
from sysbench.commands.attention.findings import (
    SWEPT,
    TIMES,
    Cells,
    Quantity,
    dims,
    findings,
    frontier,
    growth,
    implementations,
    passages,
    predicted,
    smallest_beyond,
    usual_dim,
    value,
)
from sysbench.commands.attention.record import AttentionCellRecord, AttentionRecord, over_budget_text
from sysbench.commands.attention.spec import AttentionSpec
from sysbench.log.predictions import INTERVAL, MARK
from sysbench.log.records import Samples
from sysbench.render import remarks
from sysbench.render.axis_columns import axis_columns, axis_values
from sysbench.render.declared import (
    DeclaredTable,
    Each,
    Field,
    Fill,
    build_tables,
    leading_axes,
    leading_fields,
)
from sysbench.render.finding_kinds import Growth, Limit
from sysbench.render.phase_rows import flattened
from sysbench.render.table import EMPTY_CELL, Cell, Column, Measure, Remark, Sheet, Table, Tone, Word, mean_of
from sysbench.spec.attention import AttentionCell
from sysbench.spec.hardware import Hardware
from sysbench.spec.run import Selection
from sysbench.statistics import NoPowerLaw

Tables = list[Table]

CLOSE = 1.05
"""Times up to this multiple of the best time are coloured like the best."""

FAR = 2.0
"""Times of at least this multiple of the best time are coloured as bad."""

MOST_ROWS = 32
"""Largest number of rows in the default comparison; if there are more, it shows a single head dimension."""


def sheet(record: AttentionRecord, names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    said = [
        Remark("finding", f"{found.text} {found.hint}." if found.hint else found.text) for found in findings(record)
    ]
    return Sheet(
        subject=subject(record),
        tables=tuple(tables_for(record, names)),
        remarks=(*_outcomes(record), *remarks.cautions(record), *said, *_notes(record)),
    )


def tables_for(record: AttentionRecord, names: Iterable[str] = ()) -> Tables:
    chosen = tuple(names)
    if not chosen:
        if len(implementations(record.cells)) < 2:
            return SWEEP(record)
        if len(record.cells) <= MOST_ROWS or len(dims(record.cells)) < 2:
            return COMPARISON(record)
        dim = usual_dim(record.cells)
        here = [cell for cell in record.cells if cell.cell.dim == dim]
        part = _Comparison(here, f" at d {dim}", " (--tables comparison shows every d)")
        return replace(COMPARISON, parts=lambda record: (part,))(record)
    return build_tables(TABLES, record, chosen)


def subject(record: AttentionRecord) -> tuple[str, ...]:
    if not record.cells:
        return ("attention",)
    cell = record.cells[0].axes
    words = ["attention", *axes.subject(record.cells), "causal" if cell["causal"] else "not causal"]
    words += [MARK] if _is_predicted(record.cells) else []
    simulated = [each.gpu for each in record.cells if each.gpu]
    machines = [f"simulated for {gpu.title}{f' ({gpu.settings})' if gpu.settings else ''}" for gpu in simulated]
    measured = [each for each in record.cells if each.source == "measured"]
    words += dict.fromkeys([*machines, *(each.device.name for each in measured if each.device)])
    words += record.environment.software
    words += [f"{axes.phrase('warmup', cell['warmup'])}, {cell['repeats']} repeats"] if measured else []
    words += ["cold caches"] if cell["cold"] else []
    return tuple(words)


def status(cell: AttentionCellRecord) -> Word:
    """Return the outcome to show for a cell; `simulated` or `predicted` for a finished cell that was not measured."""
    if cell.outcome == "ok":
        return Word("ok" if cell.source == "measured" else cell.source, "quiet")
    if cell.lacks_memory:
        return Word("does not fit" if cell.cell.simulated else cell.outcome, "bad")
    return remarks.outcome_word(cell.outcome)


# --- values of columns


_INPUT = ("dim", "seq", "batch")
"""Axes that the sweep shows in this order, as reports do."""


def _varying(record: AttentionRecord) -> tuple[str, ...]:
    return axes.varying(record.cells)


def _varying_settings(record: AttentionRecord) -> tuple[str, ...]:
    return tuple(axis for axis in _varying(record) if axis not in SWEPT)


def _time(cell: AttentionCellRecord, phase: Quantity) -> Measure | None:
    return mean_of(getattr(cell, phase)) or _predicted(cell, phase)


def _predicted(cell: AttentionCellRecord, phase: Quantity) -> Measure | None:
    found = predicted(cell, phase)
    return Measure(found.point_s, low=found.low_s, high=found.high_s) if found else None


def _median(cell: AttentionCellRecord, phase: str) -> float | None:
    found: Samples | None = getattr(cell, phase)
    return found.median_s if found else None


def _per_second(
    cell: AttentionCellRecord,
    phase: Quantity,
    of: Literal["flops", "bytes_moved", "limit_s"],
    time: Literal["mean", "median"] = "mean",
) -> float | None:
    found, instead = getattr(cell, phase), predicted(cell, phase)
    taken_s = getattr(found, f"{time}_s") if found else instead.point_s if instead else None
    amount = getattr(cell.rates[phase], of) if phase in cell.rates else None
    return amount / taken_s if taken_s and amount is not None else None


def _error(cell: AttentionCellRecord, *names: str) -> Measure | None:
    found = [cell.errors[name].relative for name in names if name in cell.errors]
    return Measure(max(found), text=f"{max(found):.1e}") if found else None


def _marked(title: str, cells: Cells, *, times: bool = False) -> str:
    if times and _is_predicted(cells):
        return f"{MARK}: {title}"
    return f"{title}, simulated" if cells and all(cell.cell.simulated for cell in cells) else title


def _is_predicted(cells: Cells) -> bool:
    return any(cell.source == "predicted" for cell in cells)


def _is_timed(cells: Cells) -> bool:
    return any(cell.forward or cell.backward or cell.source == "predicted" for cell in cells)


def _clock(cells: Cells) -> tuple[str, ...]:
    if _is_predicted(cells):
        return INTERVAL, "device time only, launch overhead excluded, as when measured on CUDA"
    timed = [cell for cell in cells if cell.forward or cell.backward]
    if not timed:
        return ()
    device = all(cell.device_events for cell in timed)
    return ("measured with device events" if device else "measured with the host's clock between two synchronizations",)


_MEDIAN = Field("{phase}_median", "median {phase}", "s", wide_range=True, on_request=True, get=_median)
_bytes = partial(Field, unit="bytes", wide_range=True)

_BEFORE_BACKWARD = _bytes("memory_before_backward", "before backward", get=lambda cell: cell.before_backward_bytes)
_SAVED = _bytes("saved", "kept for backward", get=lambda cell: cell.saved_bytes)
_PEAK = _bytes("peak", "allocated", group="peak", importance=4, get=lambda cell: cell.peak_allocated_bytes)
_PEAK_RESERVED = _bytes(
    "peak_reserved", "reserved", group="peak", importance=5, get=lambda cell: cell.peak_reserved_bytes
)


# --- the tables


SWEEP = DeclaredTable(
    "sweep",
    lambda record: _marked(
        "one call"
        if _is_predicted(record.cells)
        else "mean ± standard deviation of one call"
        if _is_timed(record.cells)
        else "memory",
        record.cells,
        times=True,
    ),
    (
        Each(
            "phase",
            (Field("{phase}", unit="s", wide_range=True, get=_time),),
            values=lambda record: TIMES if _is_timed(record.cells) else (),
            possible_values=TIMES,
        ),
        replace(_BEFORE_BACKWARD, group="memory"),
        Field("status", get=status),
        Each("phase", (_MEDIAN,), values=TIMES),
    ),
    leading=leading_axes(
        lambda record: (*(axis for axis in _varying(record) if axis not in _INPUT), *_INPUT),
    ),
    notes=lambda record: _clock(record.cells),
    keep_empty=True,
)
"""One row per cell: dimensions, forward, backward, memory before backward, status."""


@dataclass(frozen=True)
class _Comparison:
    cells: Cells
    where: str = ""
    hint: str = ""

    @property
    def title(self) -> str:
        medians = ", medians" if _is_timed(self.cells) and not _is_predicted(self.cells) else ""
        return _marked(f"implementation comparison{self.where}{medians}{self.hint}", self.cells, times=True)

    @property
    def named(self) -> tuple[str, ...]:
        return (
            *(axis for axis in axes.varying(self.cells) if axis != "implementation"),
            "implementation",
        )

    def rows(self) -> list[_Row]:
        order, named = implementations(self.cells), self.named[:-1]

        def place(cell: AttentionCellRecord) -> tuple[object, ...]:
            found = (cell.axes.get(axis) for axis in named)
            keys = ((0, each) if isinstance(each, int) else (1, str(each)) for each in found)
            return (*keys, order.index(cell.cell.implementation))

        best = {
            (cell.key, phase): min(times)
            for row in axes.group_ignoring(self.cells, "implementation")
            for phase in TIMES
            if (times := [found for cell in row if (found := value(cell, phase)) is not None])
            for cell in row
        }
        return [
            _Row(cell, {phase: best.get((cell.key, phase)) for phase in TIMES})
            for cell in sorted(self.cells, key=place)
        ]


@dataclass(frozen=True)
class _Row:
    """A cell, and the best time of each phase: the shortest of all implementations on the same input."""

    cell: AttentionCellRecord
    best_s: Mapping[Quantity, float | None]

    def median(self, phase: Quantity) -> Cell:
        found = value(self.cell, phase)
        if found is None:
            return EMPTY_CELL if self.cell.cell.simulated else None
        return replace(_predicted(self.cell, phase) or Measure(found), tone=self._tone(phase))

    def over_best(self, phase: Quantity) -> Cell:
        found, best_s = value(self.cell, phase), self.best_s[phase]
        return Measure(found / best_s, tone=self._tone(phase)) if found is not None and best_s else EMPTY_CELL

    def _tone(self, phase: Quantity) -> Tone:
        times_best = (value(self.cell, phase) or 0.0) / (self.best_s[phase] or 1.0)
        return "good" if times_best <= CLOSE else "bad" if times_best >= FAR else "plain"


def _flops_note(part: _Comparison, phase: str) -> str:
    causal = any(cell.cell.causal for cell in part.cells)
    counted = "2BN(N+1)d in forward (only the causal half)" if causal else "4BN²d in forward"
    return f"FLOPs counted: {counted}, twice that in backward"


def _of_phase(importance: int, key: str, title: str, unit: units.Unit, **declared: Any) -> Field:
    return Field(
        key, title, unit, "{phase}", lambda part, phase: importance + (phase == "backward"), optional=True, **declared
    )


def _of_cell(declared: Field, importance: int) -> Field:
    return replace(declared, importance=importance, optional=True, get=lambda row: declared.get(row.cell))


COMPARISON = DeclaredTable(
    "comparison",
    lambda part: part.title,
    (
        Each(
            "phase",
            (
                _of_phase(0, "{phase}", "{statistic}", "s", wide_range=True, get=lambda row, phase: row.median(phase)),
                _of_phase(1, "{phase}_to_best", "time / best", "ratio", get=lambda row, phase: row.over_best(phase)),
                _of_phase(
                    3,
                    "{phase}_rate",
                    "rate",
                    "flops_per_s",
                    note=_flops_note,
                    get=lambda row, phase: _per_second(row.cell, phase, "flops", "median") or EMPTY_CELL,
                ),
                _of_phase(
                    6,
                    "{phase}_moved",
                    "moved",
                    "bytes_per_s",
                    note="moved: minimum traffic, counting q, k, v and the output once each; twice that in backward",
                    get=lambda row, phase: _per_second(row.cell, phase, "bytes_moved", "median") or EMPTY_CELL,
                ),
                _of_phase(
                    4,
                    "{phase}_limit",
                    "of limit",
                    "share",
                    note="of limit: lower bound on the time, from FLOPs and bytes at data-sheet rates, divided by the "
                    "median",
                    get=lambda row, phase: _per_second(row.cell, phase, "limit_s", "median") or EMPTY_CELL,
                ),
            ),
            values=TIMES,
        ),
        _of_cell(_SAVED, 3),
        _of_cell(_BEFORE_BACKWARD, 10),
        _of_cell(_PEAK, 8),
        _of_cell(_PEAK_RESERVED, 11),
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
    rows=lambda part: part.rows(),
    leading=leading_axes(lambda part: part.named, lambda row: (row.cell,)),
    parts=lambda record: (_Comparison(record.cells),),
    outcome_of=lambda row: status(row.cell) if row.cell.outcome != "ok" else None,
    notes=lambda part: _clock(part.cells),
    words={
        "statistic": Fill(("median", "predicted"), lambda part: "predicted" if _is_predicted(part.cells) else "median")
    },
)
"""Implementations on the same input: times, rates, share of the limit, memory, error."""


def _growth(each: Growth[AttentionCellRecord]) -> tuple[Cell, str]:
    """Return the exponent and scatter of the fit; if no single power law fits, the exponent at the largest sizes."""
    law = each.law
    if isinstance(law, NoPowerLaw):
        return Word("no single power law", "quiet"), f"{law.slopes[-1].exponent:.2f} at the end"
    return Measure(law.exponent, low=law.low, high=law.high), f"{law.scatter:.1%}"


EXPONENTS = DeclaredTable(
    "exponents",
    lambda record: _marked("growth", record.cells, times=True),
    (
        Field("exponent", unit="number", get=lambda each: _growth(each)[0]),
        Field("scatter", importance=2, get=lambda each: _growth(each)[1]),
        Field(
            "sizes",
            "over",
            importance=1,
            get=lambda each: (
                f"{each.symbol} {each.law.sizes[0]:.0f}–{each.law.sizes[-1]:.0f}, {len(each.law.sizes)} sizes"
            ),
        ),
    ),
    rows=lambda record: [each for axis in ("seq", "dim") for each in growth(record.cells, axis) if each.has_law],
    leading=(
        leading_axes(_varying_settings, lambda each: each.cells),
        leading_fields(
            Field("implementation", get=lambda each: each.cells[0].cell.implementation),
            Field("quantity", "what", get=lambda each: each.quantity),
            Field("axis", "grows", get=lambda each: f"in {each.symbol}"),
            Field(
                "at",
                get=lambda each: f"d {each.cells[0].cell.dim}" if each.symbol == "N" else f"N {each.cells[0].cell.seq}",
            ),
        ),
    ),
    notes=("fitted by least squares on logarithms to at least three sizes; 95% CI from the residuals",),
    needs="values of a quantity for at least three values of --seq or --dim",
)
"""Growth of every implementation in N and in d: the exponent, its 95% interval, and the fitted sizes."""

CROSSOVERS = DeclaredTable(
    "crossovers",
    lambda record: _marked("crossovers", record.cells, times=True),
    (
        Field("overtakes", "faster beyond", get=lambda each: each.slower_first),
        Field("overtaken", "than", get=lambda each: each.other),
        Field("at", "near N", get=lambda each: f"{each.crossover.at:.0f}"),
        Field("bracket", "{source} between", get=lambda each: f"{each.crossover.below:.0f}–{each.crossover.above:.0f}"),
    ),
    rows=lambda record: [each for cells in axes.group_ignoring(record.cells, *SWEPT) for each in passages(cells)],
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
    words={
        "source": Fill(
            ("measured", "predicted"), lambda record: "predicted" if _is_predicted(record.cells) else "measured"
        )
    },
    needs="two implementations, one of which overtakes the other with growing --seq",
)
"""Sequence lengths at which one implementation overtakes another, with the nearest measured sizes."""


def _beyond(row: Limit[AttentionCellRecord]) -> tuple[Cell, str]:
    """Return the shortest sequence that does not fit, and how this is known."""
    if row.beyond is None:
        return Word("not tried", "quiet") if row.untried else Word("all fit", "good"), ""
    ran = "ran out" if row.beyond.outcome == "oom" else "prediction"
    return str(row.beyond.cell.seq), "simulation" if row.beyond.cell.simulated else ran


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
        _bytes(
            "before_backward",
            "memory before backward",
            importance=1,
            get=lambda row: row.fits.before_backward_bytes if row.fits else None,
        ),
        Field("beyond", "does not fit", get=lambda row: _beyond(row)[0]),
        _bytes("needs", get=lambda row: row.beyond.needed_bytes if row.beyond else None),
        _bytes("available", importance=2, get=lambda row: row.beyond.available_bytes if row.beyond else None),
        Field("how", "known by", importance=3, get=lambda row: _beyond(row)[1]),
    ),
    rows=lambda record: frontier(record.cells),
    leading=leading_axes(lambda record: (*_varying_settings(record), "implementation", "dim"), lambda row: row.row),
    needs="a cell that is known to fit or not to fit",
    about="memory",
)
"""The longest sequence that fits, and the memory that the next one would need."""


def _accounting_title(cell: AttentionCellRecord) -> str:
    named = f"{cell.cell.implementation}, d {cell.cell.dim}, N {cell.cell.seq}"
    where = f", simulated for {cell.gpu.title}" if cell.gpu else ""
    return f"the smallest cell that does not fit: {named}{where}"


def _accounted(cell: AttentionCellRecord) -> Iterator[tuple[str, Cell, str, str, Measure]]:
    """Yield the tensors, largest first, then the total, reserved and available memory."""
    for each in sorted(cell.tensors, key=lambda each: -each.size_bytes):
        shape = " × ".join(map(str, each.shape)) or EMPTY_CELL
        yield each.name, shape, each.dtype, each.phase, Measure(each.size_bytes)
    total = sum(each.size_bytes for each in cell.tensors)
    yield "total", "", "", "", Measure(total, tone="strong")
    if cell.needed_bytes is not None and cell.needed_bytes > total:
        yield "reserved by the allocator", "", "", "", Measure(cell.needed_bytes)
    if cell.available_bytes is not None:
        yield "available", "", "", "", Measure(cell.available_bytes)


ACCOUNTING = DeclaredTable(
    "accounting",
    _accounting_title,
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
"""Tensors of the smallest cell that does not fit, for each setting."""


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
                Field("{phase}_rate", "{phase} rate", "flops_per_s", get=partial(_per_second, of="flops")),
                Field("{phase}_limit", "{phase} of limit", "share", get=partial(_per_second, of="limit_s")),
            )
        ),
        replace(_BEFORE_BACKWARD, title="memory before backward"),
        _SAVED,
        *flattened(AttentionCellRecord, lambda cell: cell, "naive_saved_bytes", "fused_saved_bytes"),
        replace(_PEAK, title="peak", group="", importance=0),
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
"""All values in one long table with a row per cell, for data frames."""

TABLES: dict[str, DeclaredTable] = {
    table.name: table for table in (SWEEP, COMPARISON, EXPONENTS, CROSSOVERS, FRONTIER, ACCOUNTING, CELLS)
}
"""All tables by name."""


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


# --- remarks


def _outcomes(record: AttentionRecord) -> Iterator[Remark]:
    failed = [cell for cell in record.cells if cell.outcome != "ok" and not cell.lacks_memory]
    if late := [cell for cell in failed if cell.expected_s is not None]:
        why = over_budget_text(late[0].cell, *(cell.expected_s or 0.0 for cell in late))
        yield Remark("outcome", f"{remarks.name_cells(late, record.cells)}: skipped: {why}")
    yield from remarks.outcomes(record, [cell for cell in failed if cell.expected_s is None])


def _notes(record: AttentionRecord) -> Iterator[Remark]:
    untimed = [cell for cell in record.cells if cell.source == "simulated" and cell.outcome == "ok"]
    if _is_predicted(record.cells):
        yield Remark("note", f"{MARK}: memory and times were computed without a GPU, and nothing was timed")
        if untimed:
            names = ", ".join(dict.fromkeys(str(cell.cell.simulate) for cell in untimed))
            yield Remark("note", f"no times for {names}: its rates are unknown, or its times are withheld")
        if any(cell.cell.implementation == "compiled" and cell.source == "predicted" for cell in record.cells):
            yield Remark(
                "note", "compiled is less certain: fusion is a guess, and its memory is known only after it has run"
            )
    elif any(cell.source == "simulated" for cell in record.cells):
        yield Remark("note", "all cells are simulated: their memory was computed without a GPU, and nothing was timed")


def usual(spec: AttentionSpec) -> tuple[str, ...]:
    return ("comparison",) if len({cell.implementation for cell in spec.cells()}) > 1 else ("sweep",)
