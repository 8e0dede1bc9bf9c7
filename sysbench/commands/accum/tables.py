"""Tables of `sysbench accum`. Each cell is one experiment, and each table describes one cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter, itemgetter

from sysbench.commands.accum.findings import decimal, mixed_format, of_run, place, power, short, signed
from sysbench.commands.accum.fold import WRONG
from sysbench.commands.accum.record import (
    AccumCellRecord,
    AccumRecord,
    DtypeRecord,
    SumRecord,
)
from sysbench.commands.accum.spec import DTYPES, ORDERS, AccumCell, AccumSpec
from sysbench.log.measures import Amount, Measures
from sysbench.render.declared import DeclaredTable, Each, Field, Fill, build_tables, leading_fields
from sysbench.render.sentences import notes
from sysbench.render.table import EMPTY_CELL, Cell, Column, Measure, Remark, Sheet, Table, Word
from sysbench.spec.hardware import Hardware
from sysbench.spec.run import Selection


def sheet(record: AccumRecord, names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    devices = dict.fromkeys(cell.device.name for cell in record.cells if cell.device)
    failed = [cell for cell in record.cells if cell.outcome != "ok"]
    return Sheet(
        subject=(*dict.fromkeys(cell.cell.title for cell in record.cells), *devices, *record.environment.software),
        tables=tuple(tables_for(record, names)),
        remarks=(
            *(Remark("outcome", f"{cell.cell.title}: {notes.reason(cell)}") for cell in failed),
            *(Remark("finding", statement.text) for statement in of_run(record)),
        ),
    )


def tables_for(record: AccumRecord, names: Iterable[str] = ()) -> list[Table]:
    if chosen := tuple(names):
        return build_tables(TABLES, record, chosen)
    return [table for declared in SHOWN for table in declared(record)]


def plan(cells: Sequence[AccumCell], _: Hardware | None = None) -> Sheet:
    columns = (Column("experiment", "experiment"), Column("model", "model"), Column("formats", "formats"))
    rows = tuple((cell.experiment, cell.size or EMPTY_CELL, ", ".join(cell.dtypes)) for cell in cells)
    title = f"{len(cells)} experiment{'' if len(cells) == 1 else 's'}"
    return Sheet((), (Table("plan", title, columns, rows, 1),))


# --- numbers


def _exactly(value: float | None, shown: Callable[[float], str]) -> Cell:
    if value is None:
        return None
    finite = math.isfinite(value)
    return Measure(value, text=shown(value) if finite else str(value), tone="plain" if finite else "bad")


_relative = partial(_exactly, shown="{:.1e}".format)
_grouped = partial(_exactly, shown="{:,.0f}".format)


def _number(key: str, title: str, shown: Callable[[float], str]) -> Field:
    return Field(key, title, "number", get=lambda each: _exactly(getattr(each, key), shown))


def _added(each: SumRecord) -> str:
    """Return the right-hand side of `s += x`."""
    return f"{each.accumulator}({each.addend})" if each.upcast else each.addend


_Declared = partial(DeclaredTable, parts=attrgetter("cells"))

# --- sums


def _four_sums(cell: AccumCellRecord) -> list[SumRecord]:
    """Return four sums: one in fp32, one in a narrow format, and two of narrow numbers accumulated in fp32."""
    narrow = mixed_format(cell)
    four = (("fp32", "fp32"), (narrow, narrow), ("fp32", narrow))
    return [each for each in cell.sums if each.order == "sequential" and (each.accumulator, each.addend) in four]


def _sums_title(cell: AccumCellRecord) -> str:
    count, value = cell.cell.count or 0, cell.cell.value or 0.0
    return f"s += {value:g}, {count:,} times; the exact sum is {count * value:.10g}"


SUMS = _Declared(
    "sums",
    _sums_title,
    (
        _number("rounded_addend", "x is", "{:.8g}".format),
        _number("result", "sum", decimal),
        _number("error", "error", signed),
        _number("representation_error", "of x", signed),
        _number("accumulation_error", "of adding", signed),
    ),
    rows=_four_sums,
    leading=leading_fields(
        Field("accumulator", "s", get=attrgetter("accumulator")), Field("addend", "+= x", get=_added)
    ),
    notes=lambda cell: (f"error of x: {cell.cell.count or 0:,} times its rounding error; error of adding: the rest",),
    needs="the experiment sums",
)

_SumsOfFormat = tuple[str, Mapping[tuple[str, str], SumRecord]]
"""A format, and the sums of its numbers by accumulator and order."""


def _formats(cell: AccumCellRecord) -> list[_SumsOfFormat]:
    found: dict[str, dict[tuple[str, str], SumRecord]] = {}
    for each in cell.sums:
        if not each.upcast:
            found.setdefault(each.addend, {})[each.accumulator, each.order] = each
    return list(found.items())


def _result(row: _SumsOfFormat, accumulator: str, order: str) -> Cell:
    each = row[1].get((accumulator, order))
    return _exactly(each.result, "{:.6g}".format) if each else None


def _stall(row: _SumsOfFormat) -> Cell:
    """Return the first step at which adding no longer changes the sum."""
    each = row[1].get((row[0], "sequential"))
    if each is not None and each.stall_step is None:
        return Word("never" if each.rounded_addend else "0", "quiet")
    return _grouped(each.stall_step) if each else None


FORMATS = _Declared(
    "formats",
    "sums in each format, in several orders, and with fp32 accumulation",
    (
        Each(
            "order",
            (Field("{order}", unit="number", get=lambda row, order: _result(row, row[0], order), optional=True),),
            values=ORDERS,
        ),
        Field("in_fp32", "in fp32", "number", get=lambda row: _result(row, "fp32", "sequential")),
        Field("stall_step", "stalls at", "number", get=_stall),
    ),
    rows=_formats,
    leading=leading_fields(Field("dtype", "format", get=lambda row: "tf32-like" if row[0] == "tf32" else row[0])),
    notes=lambda cell: (
        f"kahan: compensated summation; blocked: sums of blocks of {cell.cell.block}, then their sum",
        "tf32, fp8: rounded from fp64; stalls at: step from which s stays constant",
    ),
    needs="the experiment sums",
)


# --- dtypes


def _by_place(cell: AccumCellRecord) -> list[dict[str, DtypeRecord]]:
    found: dict[tuple[str, str], dict[str, DtypeRecord]] = {}
    for dtype in cell.dtypes:
        found.setdefault((dtype.part, dtype.name), {})[dtype.precision] = dtype
    return list(found.values())


def _what(types: Mapping[str, DtypeRecord]) -> str:
    known = next(iter(types.values()))
    return place(known) if known.name or known.count == 1 else f"{place(known)}, all {known.count}"


def _type_here(types: Mapping[str, DtypeRecord], precision: str) -> Cell:
    return Word(short(types[precision].here)) if precision in types else None


def _type_on_cuda(types: Mapping[str, DtypeRecord], precision: str) -> Cell:
    each = types.get(precision)
    if each is None:
        return None
    differs = each.here is not None and each.on_cuda is not None and each.here != each.on_cuda
    return Word(f"{short(each.on_cuda)} ≠", "bad") if differs else Word(short(each.on_cuda))


AUTOCAST = _Declared(
    "dtypes",
    lambda cell: f"dtypes in {cell.cell.size} under autocast",
    (
        Each(
            "precision",
            (
                Field("{precision}_here", "{here}", group="under {precision}", get=_type_here),
                Field("{precision}_cuda", "CUDA, simulated", group="under {precision}", get=_type_on_cuda),
            ),
            values=lambda cell: list(dict.fromkeys(dtype.precision for dtype in cell.dtypes)),
            possible_values=DTYPES["autocast"],
        ),
    ),
    rows=_by_place,
    leading=leading_fields(Field("what", get=_what)),
    words={
        "here": Fill(
            ("cpu", "mps", "this cuda", "here"),
            lambda cell: cell.device.type.replace("cuda", "this cuda") if cell.device else "here",
        )
    },
    notes=("modules: dtype of their output; CUDA, simulated: from CUDA's autocast rules, without data; ≠: differs",),
    needs="the experiment autocast",
)


# --- layer norm


def _scale(key: str, title: str, group: str, importance: int = 0) -> Field:
    def get(each: object) -> Cell:
        return _exactly(getattr(each, key), power) or Word("never", "quiet")

    return Field(key, title, "number", group, importance, get=get)


NORM = _Declared(
    "norm",
    "layer norm: input scale at which each step breaks",
    (
        _scale("mean_overflows_from", "mean", "overflows from"),
        _scale("variance_overflows_from", "variance", "overflows from"),
        _scale("variance_vanishes_to", "is 0 to", "variance"),
        _scale("reciprocal_overflows_to", "rsqrt inf to", "variance", importance=1),
        _scale("wrong_to", "to", "output wrong"),
        _scale("wrong_from", "from", "output wrong"),
        Field("error_at_one", "error at 1", "number", get=lambda each: _relative(each.error_at_one)),
    ),
    rows=attrgetter("norms"),
    leading=leading_fields(
        Field("dtype", "inputs", get=attrgetter("dtype")), Field("statistics", "inside", get=attrgetter("statistics"))
    ),
    notes=lambda cell: (
        f"scale: of {cell.cell.width} inputs with mean and std 1, in powers of two; eps {cell.cell.eps:g}",
        "inside: format of mean, variance and rsqrt, rounded after each operation; rsqrt: of the variance without eps",
        f"output wrong: ‖y − y64‖ / ‖y64‖ is at least {WRONG:.0%}; error at 1: this error at scale 1",
    ),
    needs="the experiment norm",
)


# --- everything, for programs


def measures(cell: AccumCellRecord) -> Measures:
    """Return the errors, which `compare` and `report` put beside those of other runs."""
    errors = {
        f"{subject}: {quantity}": abs(number.value)
        for _, subject, quantity, number, _ in results(cell)
        if quantity in ("error", "relative_error") and isinstance(number, Measure)
    }
    return Measures(amounts={name: Amount(error, "number") for name, error in errors.items() if math.isfinite(error)})


def results(cell: AccumCellRecord) -> Iterator[tuple[str, str, str, Cell, Cell]]:
    """Yield every number and dtype of the record: experiment, subject, quantity, number, word."""
    numbers: list[tuple[str, str, float | None]] = [
        (f"{each.accumulator} += {_added(each)}, {each.order}", name, value)
        for each in cell.sums
        for name, value in each
        if not isinstance(value, str | bool)
    ]
    for norm in cell.norms:
        subject = f"{norm.dtype}, {norm.statistics} inside, scale"
        errors = zip(norm.scales, norm.relative_errors, strict=True)
        numbers += [(f"{subject} {scale:g}", "relative_error", error) for scale, error in errors]
    for subject, name, value in numbers:
        yield cell.experiment, subject, name, None if value is None else Measure(value, text=repr(value)), EMPTY_CELL
    for dtype in cell.dtypes:
        subject = " ".join(filter(None, (dtype.precision, dtype.part, dtype.name)))
        yield cell.experiment, subject, "here", EMPTY_CELL, dtype.here or EMPTY_CELL
        yield cell.experiment, subject, "on_cuda", EMPTY_CELL, dtype.on_cuda or EMPTY_CELL


CELLS = _Declared(
    "cells",
    "all results",
    (Field("number", unit="number", get=itemgetter(3)), Field("word", get=itemgetter(4))),
    rows=results,
    leading=leading_fields(
        Field("experiment", get=itemgetter(0)),
        Field("subject", get=itemgetter(1)),
        Field("quantity", get=itemgetter(2)),
    ),
)

SHOWN = (SUMS, FORMATS, AUTOCAST, NORM)
"""Default tables; each is empty for other experiments than its own."""

TABLES: dict[str, DeclaredTable] = {table.name: table for table in (*SHOWN, CELLS)}


def usual(spec: AccumSpec) -> tuple[str, ...]:
    return tuple(table.name for table in SHOWN)
