"""From the record of `sysbench accum` to tables: for each experiment what fits a screen, and a sentence below it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from sysbench import units
from sysbench.commands.accum.findings import WRONG_SHARE, decimal, finding, mixed_format, place, power, short, signed
from sysbench.commands.accum.record import (
    AccumCellRecord,
    AccumRecord,
    DtypeRecord,
    NormRecord,
    ProductRecord,
    SumRecord,
)
from sysbench.commands.accum.spec import ORDERS, AccumCell
from sysbench.errors import UsageError, unknown
from sysbench.render.declared import DeclaredTable, Each, Field, leading
from sysbench.render.table import NOTHING, Cell, Column, Measure, Remark, Sheet, Table, Word
from sysbench.spec.run import Selection

LONGEST_DETAIL = 240


def sheet(record: AccumRecord, names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    """Everything that is shown of a record; raises UsageError for a table that is not there, or has nothing to show."""
    torch = (f"torch {record.environment.torch.torch}",) if record.environment.torch else ()
    devices = tuple(dict.fromkeys(cell.device.name for cell in record.cells if cell.device))
    return Sheet(
        subject=(*_subject(record.cells), *devices, *torch),
        tables=tuple(tables_for(record, names)),
        remarks=tuple(_remarks(record)),
    )


def tables_for(record: AccumRecord, names: Iterable[str] = ()) -> list[Table]:
    """The tables called `names`, or without any those of the experiments that were made."""
    chosen = tuple(names)
    if not chosen:
        alone = (record.model_copy(update={"cells": [cell]}) for cell in record.cells)
        return [table for one in alone for name in SHOWN[one.cells[0].experiment] for table in TABLES[name](one)]
    return [table for name in chosen for table in _named(record, name)]


def plan(cells: Sequence[AccumCell]) -> Sheet:
    """What a run would do."""
    columns = (Column("experiment", "experiment"), Column("model", "model"), Column("formats", "formats"))
    rows = tuple((cell.experiment, cell.size or NOTHING, ", ".join(cell.dtypes)) for cell in cells)
    title = f"{len(cells)} experiment{'' if len(cells) == 1 else 's'}"
    return Sheet((), (Table("plan", title, columns, rows, 1),))


def _named(record: AccumRecord, name: str) -> list[Table]:
    if name not in TABLES:
        raise UsageError(unknown(name, "a table", TABLES))
    found = TABLES[name](record)
    if not found:
        raise UsageError(f"this run has nothing to show as the table {name}")
    return found


def _subject(cells: Sequence[AccumCellRecord]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_title(cell) for cell in cells))


def _title(cell: AccumCellRecord) -> str:
    if cell.experiment == "sums":
        return f"{_spaced(cell.axes['count'])} × {cell.axes['value']:g}"
    return f"{cell.experiment} of {cell.axes['size']}" if cell.axes.get("size") else cell.experiment


def _remarks(record: AccumRecord) -> Iterator[Remark]:
    for cell in record.cells:
        if cell.outcome != "ok":
            detail = " ".join((cell.detail or "").split())[:LONGEST_DETAIL]
            yield Remark("outcome", f"{_title(cell)}: {cell.outcome}" + (f": {detail}" if detail else ""))
    for cell in record.cells:
        said = finding(cell)
        if said:
            yield Remark("finding", said)


# --- numbers


def _exactly(value: float | None, shown: Callable[[float], str], tone: str = "plain") -> Cell:
    if value is None:
        return None
    return Measure(value, text=shown(value), tone="bad" if not math.isfinite(value) or tone == "bad" else "plain")


def _relative(value: float | None, *, bad: bool = False) -> Cell:
    return _exactly(value, lambda number: f"{number:.1e}", "bad" if bad else "plain")


def _cells(record: AccumRecord) -> list[AccumCellRecord]:
    return record.cells


# --- sums


def _four_sums(cell: AccumCellRecord) -> list[SumRecord]:
    """fp32, a narrow format, and the narrow one added to fp32 in both ways."""
    narrow = mixed_format(cell)
    four = (("fp32", "fp32"), (narrow, narrow), ("fp32", narrow))
    return [each for each in cell.sums if each.order == "sequential" and (each.accumulator, each.addend) in four]


def _addend(each: SumRecord) -> str:
    return f"{each.accumulator}({each.addend})" if each.upcast else each.addend


SUMS = DeclaredTable(
    "sums",
    lambda cell: (
        f"s += x, {_spaced(cell.axes['count'])} times {cell.axes['value']:g}: "
        f"exactly {cell.axes['count'] * cell.axes['value']:.10g}"
    ),
    (
        Field("rounded_addend", "x is", "number", get=lambda each: _exactly(each.rounded_addend, lambda x: f"{x:.8g}")),
        Field("result", "sum", "number", get=lambda each: _exactly(each.result, decimal)),
        Field("error", unit="number", get=lambda each: _exactly(each.error, signed)),
        Field("representation_error", "of x", "number", get=lambda each: _exactly(each.representation_error, signed)),
        Field("accumulation_error", "of adding", "number", get=lambda each: _exactly(each.accumulation_error, signed)),
    ),
    rows=_four_sums,
    leading=leading(Field("accumulator", "s", get=lambda each: each.accumulator), Field("addend", "+= x", get=_addend)),
    parts=_cells,
    notes=lambda cell: (
        f"x: {cell.axes['value']:g} in its format; error of x: {_spaced(cell.axes['count'])} times its rounding; "
        "adding: the rest",
    ),
)
"""The four sums: fp32, a narrow format, and the narrow one added to fp32 in both ways."""

Sums = Mapping[tuple[str, str], SumRecord]
"""The sums of one format, by accumulator and order."""


def _sums_by_format(cell: AccumCellRecord) -> Iterator[tuple[str, Sums]]:
    for name in dict.fromkeys(each.addend for each in cell.sums):
        yield (
            name,
            {(each.accumulator, each.order): each for each in cell.sums if each.addend == name and not each.upcast},
        )


def _sum(row: tuple[str, Sums], accumulator: str, order: str) -> Cell:
    found = row[1].get((accumulator, order))
    return _exactly(found.result if found else None, lambda value: f"{value:.6g}")


def _orders(cell: AccumCellRecord) -> list[str]:
    return [order for order in ORDERS if any(each.order == order for each in cell.sums)]


def _stall(row: tuple[str, Sums]) -> Cell:
    each = row[1].get((row[0], "sequential"))
    if each is None:
        return None
    if each.stall_step is None:
        return Word("never", "quiet") if each.rounded_addend else Word("0", "quiet")
    return Measure(each.stall_step, text=_spaced(each.stall_step))


def _sum_notes(cell: AccumCellRecord) -> list[str]:
    methods = {
        "kahan": "Kahan: what a step loses goes into the next",
        "blocked": f"blocked: {cell.axes['block']} each, then their sums",
    }
    rounded = any(each.source == "rounded" for each in cell.sums)
    notes = (
        "; ".join(said for order, said in methods.items() if order in _orders(cell)),
        "tf32, fp8: fp64, every result rounded; " * rounded + "stalls at: s no longer changes then",
    )
    return [note for note in notes if note]


FORMATS = DeclaredTable(
    "formats",
    "sums in each format, in several orders; and one by one in fp32",
    (
        Each(
            "order",
            (Field("{order}", unit="number", get=lambda row, order: _sum(row, row[0], order)),),
            values=_orders,
            ahead=ORDERS,
            said=lambda order: {"sequential": "one by one", "kahan": "Kahan"}.get(order, order),
        ),
        Field("in_fp32", "in fp32", "number", get=lambda row: _sum(row, "fp32", "sequential")),
        Field("stall_step", "stalls at", "number", get=_stall),
    ),
    rows=_sums_by_format,
    leading=leading(Field("dtype", "format", get=lambda row: "tf32-like" if row[0] == "tf32" else row[0])),
    parts=_cells,
    notes=_sum_notes,
)
"""Every format in every order, and added to fp32."""

# --- types

Dtypes = Mapping[str, DtypeRecord]
"""One part of a model by precision."""


def _dtypes_by_part(cell: AccumCellRecord) -> list[Dtypes]:
    found: dict[tuple[str, str], dict[str, DtypeRecord]] = {}
    for each in cell.dtypes:
        found.setdefault((each.part, each.name), {})[each.precision] = each
    return list(found.values())


def _part(row: Dtypes) -> str:
    known = next(iter(row.values()))
    return place(known) if known.name or known.count == 1 else f"{place(known)}, all {known.count}"


def _on_cuda(row: Dtypes, precision: str, here: str) -> Cell:
    each = row.get(precision)
    if each is None:
        return None
    differs = each.here is not None and each.on_cuda is not None and each.here != each.on_cuda
    return Word(f"{short(each.on_cuda)} ≠", "bad") if differs else Word(short(each.on_cuda))


def _device(cell: AccumCellRecord) -> list[str]:
    name = cell.device.type if cell.device else "here"
    return ["this cuda" if name == "cuda" else name]


DTYPES = DeclaredTable(
    "dtypes",
    lambda cell: f"types in {cell.axes['size']} under autocast",
    (
        Each(
            "precision",
            (
                Each(
                    "here",
                    (
                        Field(
                            "{precision}_here",
                            "{here}",
                            group="under {precision}",
                            get=lambda row, precision, here: (
                                Word(short(row[precision].here)) if precision in row else None
                            ),
                        ),
                        Field("{precision}_cuda", "CUDA, simulated", group="under {precision}", get=_on_cuda),
                    ),
                    values=_device,
                    ahead=("cpu", "mps", "this cuda", "here"),
                ),
            ),
            values=lambda cell: list(dict.fromkeys(each.precision for each in cell.dtypes)),
            ahead=("fp16", "bf16"),
        ),
    ),
    rows=_dtypes_by_part,
    leading=leading(Field("what", get=_part)),
    parts=_cells,
    notes=("modules: what they put out; CUDA, simulated: by its rules, without data; ≠: differs",),
)
"""Parameters, every module's output, logits, loss and gradients: here, and as CUDA has them."""

# --- layer norm


def _scale(key: str, title: str, group: str, importance: int = 0) -> Field:
    """The scale of the inputs at which something happens."""

    def shown(each: NormRecord) -> Cell:
        scale = getattr(each, key)
        return Word("never", "quiet") if scale is None else _exactly(scale, power)

    return Field(key, title, "number", group, importance, get=shown)


NORM = DeclaredTable(
    "norm",
    "layer norm: the scale of the inputs at which each step breaks",
    (
        _scale("mean_overflows_from", "mean", "overflows from"),
        _scale("variance_overflows_from", "variance", "overflows from"),
        _scale("variance_vanishes_to", "is 0 to", "variance"),
        _scale("reciprocal_overflows_to", "rsqrt inf to", "variance", 1),
        _scale("wrong_to", "to", "output wrong"),
        _scale("wrong_from", "from", "output wrong"),
        Field("error_at_one", "error at 1", "number", get=lambda each: _relative(each.error_at_one)),
    ),
    rows=lambda cell: cell.norms,
    leading=leading(
        Field("dtype", "inputs", get=lambda each: each.dtype),
        Field("statistics", "inside", get=lambda each: each.statistics),
    ),
    parts=_cells,
    notes=lambda cell: (
        f"scales of {cell.axes['width']} inputs of mean 1 and deviation 1, in powers of two; eps {cell.axes['eps']:g}",
        "inside: the format of mean, variance and rsqrt, each operation rounded; rsqrt: of the variance without eps",
        f"output wrong: ‖y − y64‖ / ‖y64‖ is {WRONG_SHARE} or more; error at 1: the same at scale 1",
    ),
)
"""For each format the scales of the inputs at which a step of layer norm leaves its range."""

# --- gradients


def _spaced(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ")


def _percent(share: float) -> Measure:
    return Measure(share, text="0" if share == 0 else f"{share * 100:.2g} %")


def _magnitudes(cell: AccumCellRecord) -> Iterator[str]:
    found = cell.gradients
    if found is None or not found.by_exponent:
        return
    present = sum(found.by_exponent.values())
    small = sum(count for exponent, count in found.by_exponent.items() if exponent < -14)
    yield f"in fp32 {units.share(small / present)} of them are below 2^-14, where fp16 has ever fewer bits"


SCALING = DeclaredTable(
    "scaling",
    lambda cell: f"gradients of {cell.axes['size']} through one backward pass",
    (
        Field("lost", unit="number", get=lambda each: Measure(each.lost, text=_spaced(each.lost))),
        Field("lost_share", "of all", "number", get=lambda each: _percent(each.lost_share)),
        Field("overflowed_share", "overflowed", "number", get=lambda each: _percent(each.overflowed_share)),
        Field("relative_error", "error", "number", get=lambda each: _relative(each.relative_error)),
        Field(
            "step",
            "scaler",
            get=lambda each: Word("takes the step", "good") if each.step_kept else Word("leaves it out", "bad"),
        ),
    ),
    rows=lambda cell: cell.scaled,
    leading=leading(
        Field("precision", "autocast", get=lambda each: each.precision),
        Field("scale", "loss ×", "number", get=lambda each: Measure(each.scale, text=_spaced(each.scale))),
    ),
    parts=_cells,
    when=lambda cell: bool(cell.scaled),
    notes=lambda cell: (
        f"of {_spaced(cell.scaled[0].gradients)} gradients of parameters that are not 0 in fp32; loss × 1 is no scaler",
        "lost: 0 after backward under autocast; overflowed: inf or NaN; error: ‖g − g32‖ / ‖g32‖ after unscaling",
        *_magnitudes(cell),
    ),
)
"""For each scale of the loss what becomes of the gradients."""

# --- products

Way = tuple[str, str, str]
"""A format, how its sums are formed, and where the numbers are from."""


def _products(name: str, title: str, note: str, error: Callable[[ProductRecord], float]) -> DeclaredTable:
    """Errors over the length of the sums, for each format and way of forming them."""

    def by_length(cell: AccumCellRecord) -> Iterator[tuple[int, Mapping[tuple[str, str], ProductRecord]]]:
        for k in dict.fromkeys(each.k for each in cell.products):
            yield k, {(each.dtype, each.accumulation): each for each in cell.products if each.k == k}

    def shown(row: tuple[int, Mapping[tuple[str, str], ProductRecord]], way: Way) -> Cell:
        found = row[1].get(way[:2])
        return _relative(error(found)) if found else None

    def ways(cell: AccumCellRecord) -> list[Way]:
        return list(dict.fromkeys((each.dtype, each.accumulation, each.source) for each in cell.products))

    way_column = Field("{way[0]}_{way[1]}", "{way[1]}", "number", "{way[0]}", get=shown)
    return DeclaredTable(
        name,
        title,
        (
            Each(
                "way",
                (way_column,),
                values=ways,
                ahead=tuple(
                    (dtype, way, source)
                    for dtype, source in (
                        ("fp32", "device"),
                        ("tf32", "device"),
                        ("tf32", "rounded"),
                        ("bf16", "device"),
                        ("fp16", "device"),
                    )
                    for way in ("as it is", "narrow", "reduced", "not reduced")
                ),
                said=lambda way: (
                    "tf32-like" if way[2] == "rounded" else way[0],
                    f"in {way[0]}" if way[1] == "narrow" else way[1],
                ),
            ),
        ),
        rows=by_length,
        leading=leading(Field("k", get=lambda row: row[0])),
        parts=_cells,
        when=lambda cell: bool(cell.products),
        notes=lambda cell: (
            f"({cell.products[0].m} × k) · (k × {cell.products[0].m}), entries uniform from 0 to 1; {note}",
            *_ways(ways(cell)),
        ),
    )


def _ways(ways: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    said = {way for _, way, _ in ways}
    if "as it is" in said:
        yield "as it is: the device's own sums" + (
            "; in bf16, in fp16: every sum rounded to that" if "narrow" in said else ""
        )
    if "reduced" in said:
        yield "reduced, not reduced: allow_…_reduced_precision_reduction on and off; in …: every sum rounded to that"
    if ("tf32", "as it is", "rounded") in ways:
        yield "tf32-like: inputs rounded to 10 bits of mantissa, sums in fp32; this device has no TF32"


MATMUL = _products(
    "matmul",
    "relative error of matrix products against fp64",
    "error: ‖C − C64‖ / ‖C64‖, with what rounding the inputs does (--tables matmul-sums leaves that out)",
    lambda each: each.total_error,
)
"""Errors against fp64 of the inputs as they were: over the length of the sums, for each format and way."""

MATMUL_SUMS = _products(
    "matmul-sums",
    "relative error of the sums alone",
    "error: ‖C − C64‖ / ‖C64‖, C64 being of the same rounded inputs",
    lambda each: each.relative_error,
)
"""Errors against fp64 of the inputs as they were rounded: of forming the sums alone."""

# --- everything, for programs


def _long(cell: AccumCellRecord) -> Iterator[tuple[Cell, ...]]:
    for each in cell.sums:
        upcast = f"{each.accumulator}({each.addend})" if each.upcast else each.addend
        subject = f"{each.accumulator} += {upcast}, {each.order}"
        for name in ("rounded_addend", "result", "error", "representation_error", "accumulation_error", "stall_step"):
            yield subject, name, _number(getattr(each, name)), NOTHING
    for dtype in cell.dtypes:
        subject = " ".join(filter(None, (dtype.precision, dtype.part, dtype.name)))
        yield subject, "here", NOTHING, dtype.here or NOTHING
        yield subject, "on_cuda", NOTHING, dtype.on_cuda or NOTHING
    for norm_ in cell.norms:
        for scale, error in zip(norm_.scales, norm_.relative_errors, strict=True):
            yield (
                f"{norm_.dtype}, {norm_.statistics} inside, scale {scale:g}",
                "relative_error",
                _number(error),
                NOTHING,
            )
    for scaled in cell.scaled:
        for name in ("gradients", "lost", "overflowed", "relative_error"):
            yield f"{scaled.precision}, loss × {scaled.scale:g}", name, _number(getattr(scaled, name)), NOTHING
    for product in cell.products:
        for name in ("relative_error", "total_error"):
            subject = f"{product.dtype}, {product.accumulation}, k {product.k}"
            yield subject, name, _number(getattr(product, name)), NOTHING


def _number(value: float | None) -> Cell:
    return None if value is None else Measure(value, text=repr(value))


CELLS = DeclaredTable(
    "cells",
    "everything",
    (Field("number", unit="number", get=lambda row: row[3]), Field("word", get=lambda row: row[4])),
    rows=lambda cell: ((cell.experiment, *row) for row in _long(cell)),
    leading=leading(
        Field("experiment", get=lambda row: row[0]),
        Field("subject", get=lambda row: row[1]),
        Field("quantity", get=lambda row: row[2]),
    ),
    parts=_cells,
)
"""Every number that was measured, one a row."""

TABLES: dict[str, DeclaredTable] = {
    table.name: table for table in (SUMS, FORMATS, DTYPES, NORM, SCALING, MATMUL, MATMUL_SUMS, CELLS)
}
"""Every table that a record can be shown as."""

SHOWN: dict[str, tuple[str, ...]] = {
    "sums": ("sums", "formats"),
    "autocast": ("dtypes",),
    "norm": ("norm",),
    "scaling": ("scaling",),
    "matmul": ("matmul",),
}
"""The tables of each experiment that are shown without being asked for."""
