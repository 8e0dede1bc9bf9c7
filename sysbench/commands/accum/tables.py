"""Tables of `sysbench accum`. Each cell is one experiment, and each table describes one cell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from operator import attrgetter, itemgetter

from sysbench import units
from sysbench.commands.accum.findings import WRONG_SHARE, decimal, finding, mixed_format, place, power, short, signed
from sysbench.commands.accum.record import AccumCellRecord, AccumRecord, DtypeRecord, ProductRecord, SumRecord
from sysbench.commands.accum.spec import DTYPES, ORDERS, AccumCell, AccumSpec, Experiment
from sysbench.render.declared import DeclaredTable, Each, Field, Fill, build_tables, leading_fields
from sysbench.render.table import EMPTY_CELL, Cell, Column, Measure, Remark, Sheet, Table, Word
from sysbench.spec.hardware import Hardware
from sysbench.spec.run import Selection

LONGEST_DETAIL = 240


def sheet(record: AccumRecord, names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    devices = dict.fromkeys(cell.device.name for cell in record.cells if cell.device)
    remarks = []
    for cell in record.cells:
        if cell.outcome != "ok":
            detail = " ".join((cell.detail or "").split())[:LONGEST_DETAIL]
            remarks.append(Remark("outcome", f"{_title(cell)}: {cell.outcome}" + (f": {detail}" if detail else "")))
    remarks += [Remark("finding", said) for cell in record.cells if (said := finding(cell))]
    return Sheet(
        subject=(*dict.fromkeys(map(_title, record.cells)), *devices, *record.environment.software),
        tables=tuple(tables_for(record, names)),
        remarks=tuple(remarks),
    )


def tables_for(record: AccumRecord, names: Iterable[str] = ()) -> list[Table]:
    chosen = tuple(names)
    if not chosen:
        alone = [(cell, record.model_copy(update={"cells": [cell]})) for cell in record.cells]
        return [table for cell, part in alone for each in SHOWN[cell.experiment] for table in each(part)]
    return build_tables(TABLES, record, chosen)


def plan(cells: Sequence[AccumCell], _: Hardware | None = None) -> Sheet:
    columns = (Column("experiment", "experiment"), Column("model", "model"), Column("formats", "formats"))
    rows = tuple((cell.experiment, cell.size or EMPTY_CELL, ", ".join(cell.dtypes)) for cell in cells)
    title = f"{len(cells)} experiment{'' if len(cells) == 1 else 's'}"
    return Sheet((), (Table("plan", title, columns, rows, 1),))


def _title(cell: AccumCellRecord) -> str:
    if cell.experiment == "sums":
        return f"{_spaced(cell.cell.count or 0)} × {cell.cell.value:g}"
    return f"{cell.experiment} of {cell.cell.size}" if cell.cell.size else cell.experiment


# --- numbers


def _exactly(value: float | None, shown: Callable[[float], str]) -> Cell:
    if value is None:
        return None
    return Measure(value, text=shown(value), tone="plain" if math.isfinite(value) else "bad")


def _relative(value: float | None) -> Cell:
    return _exactly(value, lambda number: f"{number:.1e}")


def _spaced(value: float) -> str:
    return f"{value:,.0f}"


def _percent(share: float) -> Measure:
    return Measure(share, text="0" if share == 0 else f"{share * 100:.2g} %")


def _added(each: SumRecord) -> str:
    """Return the right-hand side of `s += x`."""
    return f"{each.accumulator}({each.addend})" if each.upcast else each.addend


# --- sums


def _four_sums(cell: AccumCellRecord) -> list[SumRecord]:
    """Return four sums: one in fp32, one in a narrow format, and two of narrow numbers accumulated in fp32."""
    narrow = mixed_format(cell)
    four = (("fp32", "fp32"), (narrow, narrow), ("fp32", narrow))
    return [each for each in cell.sums if each.order == "sequential" and (each.accumulator, each.addend) in four]


def _sums_title(cell: AccumCellRecord) -> str:
    count, value = cell.cell.count or 0, cell.cell.value or 0.0
    return f"s += {value:g}, {_spaced(count)} times; the exact sum is {count * value:.10g}"


SUMS = DeclaredTable(
    "sums",
    _sums_title,
    (
        Field("rounded_addend", "x is", "number", get=lambda each: _exactly(each.rounded_addend, "{:.8g}".format)),
        Field("result", "sum", "number", get=lambda each: _exactly(each.result, decimal)),
        Field("error", unit="number", get=lambda each: _exactly(each.error, signed)),
        Field("representation_error", "of x", "number", get=lambda each: _exactly(each.representation_error, signed)),
        Field("accumulation_error", "of adding", "number", get=lambda each: _exactly(each.accumulation_error, signed)),
    ),
    rows=_four_sums,
    leading=leading_fields(
        Field("accumulator", "s", get=attrgetter("accumulator")), Field("addend", "+= x", get=_added)
    ),
    parts=attrgetter("cells"),
    when=lambda cell: bool(cell.sums),
    notes=lambda cell: (
        f"error of x: {_spaced(cell.cell.count or 0)} times its rounding error; error of adding: the rest",
    ),
    needs="the experiment sums",
)
"""Four sums: in fp32, in a narrow format, and two of narrow numbers accumulated in fp32 (see `_four_sums`)."""

_METHODS: Mapping[str, str] = {
    "sequential": "one by one",
    "pairwise": "pairwise",
    "kahan": "Kahan",
    "blocked": "blocked",
}


@dataclass(frozen=True)
class _Format:
    name: str
    sums: Mapping[tuple[str, str], SumRecord]

    @classmethod
    def all_of(cls, cell: AccumCellRecord) -> list[_Format]:
        plain = [each for each in cell.sums if not each.upcast]
        names = dict.fromkeys(each.addend for each in cell.sums)
        return [
            cls(name, {(each.accumulator, each.order): each for each in plain if each.addend == name}) for name in names
        ]

    def result(self, accumulator: str, order: str) -> Cell:
        each = self.sums.get((accumulator, order))
        return _exactly(each.result if each else None, "{:.6g}".format)

    def stall(self) -> Cell:
        """Return the first step at which adding no longer changes the sum."""
        each = self.sums.get((self.name, "sequential"))
        if each is None:
            return None
        if each.stall_step is None:
            return Word("never" if each.rounded_addend else "0", "quiet")
        return Measure(each.stall_step, text=_spaced(each.stall_step))


def _orders(cell: AccumCellRecord) -> list[str]:
    return [order for order in ORDERS if any(each.order == order for each in cell.sums)]


def _formats_notes(cell: AccumCellRecord) -> Iterator[str]:
    orders = _orders(cell)
    methods = ["Kahan: compensated summation"] if "kahan" in orders else []
    methods += [f"blocked: sums of blocks of {cell.cell.block}, then their sum"] if "blocked" in orders else []
    if methods:
        yield "; ".join(methods)
    rounded = any(each.source == "rounded" for each in cell.sums)
    yield ("tf32, fp8: rounded from fp64; " * rounded + "stalls at: step from which s stays constant")


FORMATS = DeclaredTable(
    "formats",
    "sums in each format, in several orders, and with fp32 accumulation",
    (
        Each(
            "order",
            (Field("{order}", unit="number", get=lambda row, order: row.result(row.name, order)),),
            values=_orders,
            possible_values=ORDERS,
            format_value=lambda order: _METHODS[order],
        ),
        Field("in_fp32", "in fp32", "number", get=lambda row: row.result("fp32", "sequential")),
        Field("stall_step", "stalls at", "number", get=lambda row: row.stall()),
    ),
    rows=_Format.all_of,
    leading=leading_fields(Field("dtype", "format", get=lambda row: "tf32-like" if row.name == "tf32" else row.name)),
    parts=attrgetter("cells"),
    when=lambda cell: bool(cell.sums),
    notes=_formats_notes,
    needs="the experiment sums",
)
"""Every format in every order, and with an fp32 accumulator."""


# --- dtypes


def _by_place(cell: AccumCellRecord) -> list[dict[str, DtypeRecord]]:
    found: dict[tuple[str, str], dict[str, DtypeRecord]] = {}
    for each in cell.dtypes:
        found.setdefault((each.part, each.name), {})[each.precision] = each
    return list(found.values())


def _what(types: Mapping[str, DtypeRecord]) -> str:
    known = next(iter(types.values()))
    return place(known) if known.name or known.count == 1 else f"{place(known)}, all {known.count}"


def _type_on_cuda(types: Mapping[str, DtypeRecord], precision: str) -> Cell:
    each = types.get(precision)
    if each is None:
        return None
    differs = each.here is not None and each.on_cuda is not None and each.here != each.on_cuda
    return Word(f"{short(each.on_cuda)} ≠", "bad") if differs else Word(short(each.on_cuda))


AUTOCAST = DeclaredTable(
    "dtypes",
    lambda cell: f"dtypes in {cell.cell.size} under autocast",
    (
        Each(
            "precision",
            (
                Field(
                    "{precision}_here",
                    "{here}",
                    group="under {precision}",
                    get=lambda types, precision: Word(short(types[precision].here)) if precision in types else None,
                ),
                Field("{precision}_cuda", "CUDA, simulated", group="under {precision}", get=_type_on_cuda),
            ),
            values=lambda cell: list(dict.fromkeys(each.precision for each in cell.dtypes)),
            possible_values=DTYPES["autocast"],
        ),
    ),
    rows=_by_place,
    leading=leading_fields(Field("what", get=_what)),
    parts=attrgetter("cells"),
    when=lambda cell: bool(cell.dtypes),
    words={
        "here": Fill(
            ("cpu", "mps", "this cuda", "here"),
            lambda cell: cell.device.type.replace("cuda", "this cuda") if cell.device else "here",
        )
    },
    notes=("modules: dtype of their output; CUDA, simulated: from CUDA's autocast rules, without data; ≠: differs",),
    needs="the experiment autocast",
)
"""Dtypes of parameters, module outputs, logits, loss and gradients, on this device and on CUDA."""


# --- layer norm


def _scale(key: str, title: str, group: str, importance: int = 0) -> Field:

    def get(each: object) -> Cell:
        scale = getattr(each, key)
        return Word("never", "quiet") if scale is None else _exactly(scale, power)

    return Field(key, title, "number", group, importance, get=get)


NORM = DeclaredTable(
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
    parts=attrgetter("cells"),
    when=lambda cell: bool(cell.norms),
    notes=lambda cell: (
        f"scale: of {cell.cell.width} inputs with mean and std 1, in powers of two; eps {cell.cell.eps:g}",
        "inside: format of mean, variance and rsqrt, rounded after each operation; rsqrt: of the variance without eps",
        f"output wrong: ‖y − y64‖ / ‖y64‖ is at least {WRONG_SHARE}; error at 1: this error at scale 1",
    ),
    needs="the experiment norm",
)
"""Input scales at which steps of layer norm leave the range of each format."""


# --- gradients


def _scaling_notes(cell: AccumCellRecord) -> Iterator[str]:
    gradients = _spaced(cell.scaled[0].gradients)
    yield f"shares of the {gradients} gradients that are not 0 in fp32; loss × 1: no scaler"
    yield "lost: 0 after backward under autocast; overflowed: inf or NaN; error: ‖g − g32‖ / ‖g32‖ after unscaling"
    if cell.gradients is not None and cell.gradients.by_exponent:
        counts = cell.gradients.by_exponent
        small = sum(count for exponent, count in counts.items() if exponent < -14) / sum(counts.values())
        yield f"in fp32, {units.share(small)} of them are below 2^-14, where fp16 loses precision (subnormal)"


SCALING = DeclaredTable(
    "scaling",
    lambda cell: f"gradients of {cell.cell.size} in one backward pass",
    (
        Field("lost", unit="number", get=lambda each: Measure(each.lost, text=_spaced(each.lost))),
        Field("lost_share", "of all", "number", get=lambda each: _percent(each.lost_share)),
        Field("overflowed_share", "overflowed", "number", get=lambda each: _percent(each.overflowed_share)),
        Field("relative_error", "error", "number", get=lambda each: _relative(each.relative_error)),
        Field(
            "step",
            "scaler",
            get=lambda each: Word("runs the step", "good") if each.step_kept else Word("skips the step", "bad"),
        ),
    ),
    rows=attrgetter("scaled"),
    leading=leading_fields(
        Field("precision", "autocast", get=attrgetter("precision")),
        Field("scale", "loss ×", "number", get=lambda each: Measure(each.scale, text=_spaced(each.scale))),
    ),
    parts=attrgetter("cells"),
    when=lambda cell: bool(cell.scaled),
    notes=_scaling_notes,
    needs="the experiment scaling",
)
"""Shares of gradients that are lost or overflow at each loss scale."""


# --- products


@dataclass(frozen=True)
class _Way:
    dtype: str
    accumulation: str
    source: str

    @classmethod
    def all_of(cls, cell: AccumCellRecord) -> list[_Way]:
        return list(dict.fromkeys(cls(each.dtype, each.accumulation, each.source) for each in cell.products))

    @property
    def title(self) -> str:
        return f"in {self.dtype}" if self.accumulation == "narrow" else self.accumulation

    @property
    def group(self) -> str:
        return "tf32-like" if self.source == "rounded" else self.dtype


_POSSIBLE_WAYS = [
    _Way(dtype, accumulation, source)
    for dtype, accumulation in product(DTYPES["matmul"], ("as it is", "narrow", "reduced", "not reduced"))
    for source in (("device", "rounded") if dtype == "tf32" else ("device",))
]


def _ways_notes(cell: AccumCellRecord) -> Iterator[str]:
    ways = _Way.all_of(cell)
    accumulations = {way.accumulation for way in ways}
    m = cell.products[0].m
    error = "‖C − C64‖ / ‖C64‖, including the rounding of the inputs"
    yield f"({m} × k) · (k × {m}), entries uniform in [0, 1); error: {error}"
    if "as it is" in accumulations:
        narrow = "; in bf16, in fp16: every partial sum rounded to that format" if "narrow" in accumulations else ""
        yield f"as it is: summed as the device does by default{narrow}"
    if "reduced" in accumulations:
        yield "reduced, not reduced: allow_…_reduced_precision_reduction on and off; in …: partial sums rounded to it"
    if _Way("tf32", "as it is", "rounded") in ways:
        yield "tf32-like: inputs rounded to 10 bits of mantissa, sums in fp32; this device has no TF32"


def _by_length(cell: AccumCellRecord) -> list[tuple[int, dict[tuple[str, str], ProductRecord]]]:
    found: dict[int, dict[tuple[str, str], ProductRecord]] = {}
    for each in cell.products:
        found.setdefault(each.k, {})[each.dtype, each.accumulation] = each
    return list(found.items())


def _product_error(row: tuple[int, Mapping[tuple[str, str], ProductRecord]], way: _Way) -> Cell:
    each = row[1].get((way.dtype, way.accumulation))
    return _relative(each.total_error) if each else None


MATMUL = DeclaredTable(
    "matmul",
    "error of matrix products relative to fp64",
    (
        Each(
            "way",
            (Field("{way.dtype}_{way.accumulation}", "{way.title}", "number", "{way.group}", get=_product_error),),
            values=_Way.all_of,
            possible_values=_POSSIBLE_WAYS,
            format_value=lambda way: way,
        ),
    ),
    rows=_by_length,
    leading=leading_fields(Field("k", get=itemgetter(0))),
    parts=attrgetter("cells"),
    when=lambda cell: bool(cell.products),
    notes=_ways_notes,
    needs="the experiment matmul",
)
"""Errors relative to fp64 products of the inputs before rounding; the table `cells` also has those of summation alone.
"""

# --- everything, for programs


_IN_SUBJECT = ("scale", "m", "k")
"""Numbers that are parts of a row's subject."""


def results(cell: AccumCellRecord) -> Iterator[tuple[str, str, str, Cell, Cell]]:
    """Yield every number and dtype of the record: experiment, subject, quantity, number, word."""
    records = (
        *((f"{each.accumulator} += {_added(each)}, {each.order}", each) for each in cell.sums),
        *((f"{each.precision}, loss × {each.scale:g}", each) for each in cell.scaled),
        *((f"{each.dtype}, {each.accumulation}, k {each.k}", each) for each in cell.products),
    )
    numbers: list[tuple[str, str, float | None]] = [
        (subject, name, value)
        for subject, each in records
        for name, value in each
        if not isinstance(value, str | bool) and name not in _IN_SUBJECT
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


CELLS = DeclaredTable(
    "cells",
    "all results",
    (Field("number", unit="number", get=itemgetter(3)), Field("word", get=itemgetter(4))),
    rows=results,
    leading=leading_fields(
        Field("experiment", get=itemgetter(0)),
        Field("subject", get=itemgetter(1)),
        Field("quantity", get=itemgetter(2)),
    ),
    parts=attrgetter("cells"),
)
"""Every measured value in its own row."""

SHOWN: Mapping[Experiment, tuple[DeclaredTable, ...]] = {
    "sums": (SUMS, FORMATS),
    "autocast": (AUTOCAST,),
    "norm": (NORM,),
    "scaling": (SCALING,),
    "matmul": (MATMUL,),
}
"""Default tables by experiment."""

TABLES: dict[str, DeclaredTable] = {
    table.name: table for table in (SUMS, FORMATS, AUTOCAST, NORM, SCALING, MATMUL, CELLS)
}
"""All tables by name."""


def usual(spec: AccumSpec) -> tuple[str, ...]:
    return ("sums", "formats", "dtypes", "norm", "scaling", "matmul")
