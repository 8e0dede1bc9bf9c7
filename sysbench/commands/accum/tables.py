"""From the record of `sysbench accum` to tables: for each experiment what fits a screen, and a sentence below it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

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
        return [table for cell in record.cells for name in _SHOWN[cell.experiment] for table in _OF_A_CELL[name](cell)]
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
        return f"{_spaced(cell.cell.count or 0)} × {cell.cell.value:g}"
    return f"{cell.experiment} of {cell.cell.size}" if cell.cell.size else cell.experiment


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


# --- sums


def sums(cell: AccumCellRecord) -> list[Table]:
    """The four sums: fp32, a narrow format, and the narrow one added to fp32 in both ways."""
    narrow = mixed_format(cell)
    rows = [each for each in cell.sums if each.order == "sequential" and _is_one_of_four(each, narrow)]
    if not rows:
        return []
    count, value = cell.cell.count or 0, cell.cell.value or 0.0
    columns = (
        Column("accumulator", "s"),
        Column("addend", "+= x"),
        Column("rounded_addend", "x is", "number"),
        Column("result", "sum", "number"),
        Column("error", "error", "number"),
        Column("representation_error", "of x", "number"),
        Column("accumulation_error", "of adding", "number"),
    )
    notes = (f"x: {value:g} in its format; error of x: {_spaced(count)} times its rounding; adding: the rest",)
    title = f"s += x, {_spaced(count)} times {value:g}: exactly {count * value:.10g}"
    return [Table("sums", title, columns, tuple(_sum_row(each) for each in rows), 2, notes)]


def _is_one_of_four(each: SumRecord, narrow: str) -> bool:
    return (each.accumulator, each.addend) in (("fp32", "fp32"), (narrow, narrow), ("fp32", narrow))


def _sum_row(each: SumRecord) -> tuple[Cell, ...]:
    return (
        each.accumulator,
        f"{each.accumulator}({each.addend})" if each.upcast else each.addend,
        _exactly(each.rounded_addend, lambda number: f"{number:.8g}"),
        _exactly(each.result, decimal),
        _exactly(each.error, signed),
        _exactly(each.representation_error, signed),
        _exactly(each.accumulation_error, signed),
    )


def _stall(each: SumRecord) -> Cell:
    if each.stall_step is None:
        return Word("never", "quiet") if each.rounded_addend else Word("0", "quiet")
    return Measure(each.stall_step, text=f"{each.stall_step:,}".replace(",", " "))


def formats(cell: AccumCellRecord) -> list[Table]:
    """Every format in every order, and added to fp32."""
    names = list(dict.fromkeys(each.addend for each in cell.sums))
    by_way = {(each.accumulator, each.addend, each.order): each for each in cell.sums if not each.upcast}
    orders = [order for order in ORDERS if any(each.order == order for each in cell.sums)]
    if not names:
        return []
    titles = {"sequential": "one by one", "pairwise": "pairwise", "kahan": "Kahan", "blocked": "blocked"}
    columns = (
        Column("dtype", "format"),
        *(Column(order, titles[order], "number") for order in orders),
        Column("in_fp32", "in fp32", "number"),
        Column("stall_step", "stalls at", "number"),
    )
    rows = []
    for name in names:
        found = [by_way.get((name, name, order)) for order in orders]
        wide = by_way.get(("fp32", name, "sequential"))
        alone = by_way.get((name, name, "sequential"))
        own = [_exactly(each.result if each else None, _six) for each in found]
        rows.append(
            (_format_name(name), *own, _exactly(wide.result if wide else None, _six), _stall(alone) if alone else None)
        )
    methods = {
        "kahan": "Kahan: what a step loses goes into the next",
        "blocked": f"blocked: {cell.cell.block} each, then their sums",
    }
    rounded = any(each.source == "rounded" for each in cell.sums)
    notes = (
        "; ".join(said for order, said in methods.items() if order in orders),
        "tf32, fp8: fp64, every result rounded; " * rounded + "stalls at: s no longer changes then",
    )
    return [
        Table(
            "formats",
            "sums in each format, in several orders; and one by one in fp32",
            columns,
            tuple(rows),
            1,
            tuple(filter(None, notes)),
        )
    ]


def _six(value: float) -> str:
    return f"{value:.6g}"


def _format_name(name: str) -> str:
    return "tf32-like" if name == "tf32" else name


# --- types


def dtypes(cell: AccumCellRecord) -> list[Table]:
    """Parameters, every module's output, logits, loss and gradients: here, and as CUDA has them."""
    precisions = list(dict.fromkeys(each.precision for each in cell.dtypes))
    if not precisions:
        return []
    here = cell.device.type if cell.device else "here"
    places = list(dict.fromkeys((each.part, each.name) for each in cell.dtypes))
    by_place = {(each.precision, each.part, each.name): each for each in cell.dtypes}
    columns = (
        Column("what", "what"),
        *(
            column
            for precision in precisions
            for column in (
                Column(f"{precision}_here", here if here != "cuda" else "this cuda", group=f"under {precision}"),
                Column(f"{precision}_cuda", "CUDA, simulated", group=f"under {precision}"),
            )
        ),
    )
    rows = tuple(_dtype_row([by_place.get((precision, *place)) for precision in precisions]) for place in places)
    notes = ("modules: what they put out; CUDA, simulated: by its rules, without data; ≠: differs",)
    title = f"types in {cell.cell.size} under autocast"
    return [Table("dtypes", title, columns, rows, 1, notes)]


def _dtype_row(found: Sequence[DtypeRecord | None]) -> tuple[Cell, ...]:
    known = next(each for each in found if each is not None)
    row: list[Cell] = [place(known) if known.name or known.count == 1 else f"{place(known)}, all {known.count}"]
    for each in found:
        if each is None:
            row += [None, None]
            continue
        differs = each.here is not None and each.on_cuda is not None and each.here != each.on_cuda
        on_cuda = Word(f"{short(each.on_cuda)} ≠", "bad") if differs else Word(short(each.on_cuda))
        row += [Word(short(each.here)), on_cuda]
    return tuple(row)


# --- layer norm


def norm(cell: AccumCellRecord) -> list[Table]:
    """For each format the scales of the inputs at which a step of layer norm leaves its range."""
    if not cell.norms:
        return []
    columns = (
        Column("dtype", "inputs"),
        Column("statistics", "inside"),
        Column("mean_overflows_from", "mean", "number", "overflows from"),
        Column("variance_overflows_from", "variance", "number", "overflows from"),
        Column("variance_vanishes_to", "is 0 to", "number", "variance"),
        Column("reciprocal_overflows_to", "rsqrt inf to", "number", "variance", importance=1),
        Column("wrong_to", "to", "number", "output wrong"),
        Column("wrong_from", "from", "number", "output wrong"),
        Column("error_at_one", "error at 1", "number"),
    )
    notes = (
        f"scales of {cell.cell.width} inputs of mean 1 and deviation 1, in powers of two; eps {cell.cell.eps:g}",
        "inside: the format of mean, variance and rsqrt, each operation rounded; rsqrt: of the variance without eps",
        f"output wrong: ‖y − y64‖ / ‖y64‖ is {WRONG_SHARE} or more; error at 1: the same at scale 1",
    )
    title = "layer norm: the scale of the inputs at which each step breaks"
    return [Table("norm", title, columns, tuple(_norm_row(each) for each in cell.norms), 2, notes)]


def _norm_row(each: NormRecord) -> tuple[Cell, ...]:
    scales = (
        each.mean_overflows_from,
        each.variance_overflows_from,
        each.variance_vanishes_to,
        each.reciprocal_overflows_to,
        each.wrong_to,
        each.wrong_from,
    )
    shown = (Word("never", "quiet") if scale is None else _exactly(scale, power) for scale in scales)
    return (each.dtype, each.statistics, *shown, _relative(each.error_at_one))


# --- gradients


def scaling(cell: AccumCellRecord) -> list[Table]:
    """For each scale of the loss what becomes of the gradients."""
    if not cell.scaled:
        return []
    columns = (
        Column("precision", "autocast"),
        Column("scale", "loss ×", "number"),
        Column("lost", "lost", "number"),
        Column("lost_share", "of all", "number"),
        Column("overflowed_share", "overflowed", "number"),
        Column("relative_error", "error", "number"),
        Column("step", "scaler"),
    )
    rows = tuple(
        (
            each.precision,
            Measure(each.scale, text=_spaced(each.scale)),
            Measure(each.lost, text=_spaced(each.lost)),
            Measure(each.lost_share, text=_percent(each.lost_share)),
            Measure(each.overflowed_share, text=_percent(each.overflowed_share)),
            _relative(each.relative_error),
            Word("takes the step", "good") if each.step_kept else Word("leaves it out", "bad"),
        )
        for each in cell.scaled
    )
    notes = [
        f"of {_spaced(cell.scaled[0].gradients)} gradients of parameters that are not 0 in fp32; loss × 1 is no scaler",
        "lost: 0 after backward under autocast; overflowed: inf or NaN; error: ‖g − g32‖ / ‖g32‖ after unscaling",
        *_magnitudes(cell),
    ]
    return [
        Table("scaling", f"gradients of {cell.cell.size} through one backward pass", columns, rows, 2, tuple(notes))
    ]


def _magnitudes(cell: AccumCellRecord) -> Iterator[str]:
    found = cell.gradients
    if found is None or not found.by_exponent:
        return
    present = sum(found.by_exponent.values())
    small = sum(count for exponent, count in found.by_exponent.items() if exponent < -14)
    yield f"in fp32 {units.share(small / present)} of them are below 2^-14, where fp16 has ever fewer bits"


def _spaced(value: float) -> str:
    return f"{value:,.0f}".replace(",", " ")


def _percent(share: float) -> str:
    return "0" if share == 0 else f"{share * 100:.2g} %"


# --- products


def matmul(cell: AccumCellRecord) -> list[Table]:
    """Errors against fp64 of the inputs as they were: over the length of the sums, for each format and way."""
    title = "relative error of matrix products against fp64"
    note = "error: ‖C − C64‖ / ‖C64‖, with what rounding the inputs does (--tables matmul-sums leaves that out)"
    return _products(cell, "matmul", title, note, lambda each: each.total_error)


def matmul_sums(cell: AccumCellRecord) -> list[Table]:
    """Errors against fp64 of the inputs as they were rounded: of forming the sums alone."""
    title = "relative error of the sums alone"
    note = "error: ‖C − C64‖ / ‖C64‖, C64 being of the same rounded inputs"
    return _products(cell, "matmul-sums", title, note, lambda each: each.relative_error)


def _products(
    cell: AccumCellRecord, name: str, title: str, note: str, error: Callable[[ProductRecord], float]
) -> list[Table]:
    ways = list(dict.fromkeys((each.dtype, each.accumulation, each.source) for each in cell.products))
    if not ways:
        return []
    by_place = {(each.k, each.dtype, each.accumulation): each for each in cell.products}
    m = cell.products[0].m
    columns = (
        Column("k", "k"),
        *(
            Column(
                f"{dtype}_{way}".replace(" ", "_"),
                f"in {dtype}" if way == "narrow" else way,
                "number",
                "tf32-like" if source == "rounded" else dtype,
            )
            for dtype, way, source in ways
        ),
    )
    rows = tuple(
        (k, *(_relative(error(each)) if (each := by_place.get((k, *way[:2]))) else None for way in ways))
        for k in dict.fromkeys(each.k for each in cell.products)
    )
    notes = [f"({m} × k) · (k × {m}), entries uniform from 0 to 1; {note}", *_ways(ways)]
    return [Table(name, title, columns, rows, 1, tuple(notes))]


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


# --- everything, for programs


def everything(cell: AccumCellRecord) -> list[Table]:
    """Every number that was measured, one a row."""
    columns = (
        Column("experiment", "experiment"),
        Column("subject", "subject"),
        Column("quantity", "quantity"),
        Column("number", "number", "number"),
        Column("word", "word"),
    )
    rows = tuple((cell.experiment, *row) for row in _long(cell))
    return [Table("cells", "everything", columns, rows, 3)] if rows else []


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


CellTables = Callable[[AccumCellRecord], list[Table]]

_OF_A_CELL: dict[str, CellTables] = {
    "sums": sums,
    "formats": formats,
    "dtypes": dtypes,
    "norm": norm,
    "scaling": scaling,
    "matmul": matmul,
    "matmul-sums": matmul_sums,
    "cells": everything,
}

_SHOWN: dict[str, tuple[str, ...]] = {
    "sums": ("sums", "formats"),
    "autocast": ("dtypes",),
    "norm": ("norm",),
    "scaling": ("scaling",),
    "matmul": ("matmul",),
}


def _of_all_cells(build: CellTables) -> Callable[[AccumRecord], list[Table]]:
    def tables(record: AccumRecord) -> list[Table]:
        return [table for cell in record.cells for table in build(cell)]

    return tables


TABLES: dict[str, Callable[[AccumRecord], list[Table]]] = {
    name: _of_all_cells(build) for name, build in _OF_A_CELL.items()
}
"""Every table that a record can be shown as."""
