"""What an experiment on rounding comes down to: one sentence with its numbers, or none that they do not bear out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from sysbench.commands.accum.fold import WRONG
from sysbench.commands.accum.record import (
    AccumCellRecord,
    AccumRecord,
    DtypeRecord,
    NormRecord,
    ProductRecord,
    ScaledRecord,
    SumRecord,
)
from sysbench.commands.accum.spec import Experiment
from sysbench.render.findings import Said
from sysbench.rounding import FORMATS

SHORT_TYPES: Mapping[str, str] = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
"""What torch calls types, as everything else here calls them."""

_COURSE_ORDER = ("parameter", "output", "logits", "loss", "gradient")


def finding(cell: AccumCellRecord) -> str | None:
    """One plain sentence or two; None where nothing was measured, or nothing follows."""
    finders: dict[Experiment, Callable[[AccumCellRecord], str | None]] = {
        "sums": of_sums,
        "autocast": of_autocast,
        "norm": of_norm,
        "scaling": of_scaling,
        "matmul": of_products,
    }
    return finders[cell.experiment](cell)


# --- sums


def of_sums(cell: AccumCellRecord) -> str | None:
    """What a narrow accumulator loses, and that a wide one does not."""
    alone = [each for each in cell.sums if each.order == "sequential" and each.accumulator == each.addend]
    narrow = next((each for each in alone if each.addend == mixed_format(cell)), None)
    if narrow is None or narrow.addend == "fp32":
        return _of_one(alone[0]) if alone else None
    wide = next((each for each in cell.sums if each.accumulator == "fp32" and each.addend == narrow.addend), None)
    if wide is None or not all(math.isfinite(each.error) for each in (narrow, wide)):
        return _of_one(narrow)
    said = (
        f"{narrow.addend} += {narrow.addend} is off by {signed(narrow.error)}: {signed(narrow.representation_error)} "
        f"from rounding x, {signed(narrow.accumulation_error)} from adding."
    )
    if abs(wide.accumulation_error) < abs(narrow.accumulation_error):
        lost = f"errs by {signed(wide.accumulation_error)}" if wide.accumulation_error else "loses nothing"
        said += f" Adding the same numbers in fp32 {lost}."
    return said


def _of_one(measured: SumRecord) -> str:
    if math.isfinite(measured.result):
        return f"{measured.accumulator} ends at {decimal(measured.result)}, off by {signed(measured.error)}."
    return (
        f"{measured.accumulator} += {measured.addend} overflows: its largest number is "
        f"{float(FORMATS[measured.accumulator].largest):.5g}."
    )


def mixed_format(cell: AccumCellRecord) -> str:
    """The narrow format of the four sums: fp16 if it is among them, else the first that is not fp32."""
    found = list(dict.fromkeys(each.addend for each in cell.sums))
    return "fp16" if "fp16" in found else next((name for name in found if name != "fp32"), "fp32")


# --- types


def of_autocast(cell: AccumCellRecord) -> str | None:
    """The types that the course asks for, and where this device is not like CUDA."""
    precision = next((each.precision for each in cell.dtypes), None)
    if precision is None:
        return None
    chosen = [each for each in cell.dtypes if each.precision == precision]
    said = [f"{place(each)} {short(each.on_cuda)}" for each in sorted(_asked_for(cell, chosen), key=_course_order)]
    differing = [place(each) for each in chosen if each.here and each.on_cuda and each.here != each.on_cuda]
    here = cell.device.type if cell.device else "here"
    if not differing:
        rest = f"On this {here}, all {len(chosen)} have the same types."
    else:
        rest = f"Types that differ from CUDA on this {here}: {', '.join(differing[:4])}"
        rest += f" and {len(differing) - 4} more." if len(differing) > 4 else "."
    return f"On CUDA under {precision}: {', '.join(said)}. {rest}"


def _asked_for(cell: AccumCellRecord, chosen: Iterable[DtypeRecord]) -> list[DtypeRecord]:
    """Of the toy all that the question names; of a Transformer what a reader looks for first."""
    modules = ("fc1", "ln") if cell.cell.size == "toy" else ("layers.*.attention_norm", "layers.*.attention.q")
    return [each for each in chosen if each.part not in ("input", "output") or each.name in modules]


def _course_order(each: DtypeRecord) -> int:
    return _COURSE_ORDER.index(each.part)


def place(each: DtypeRecord) -> str:
    """What a type is said of: `parameters`, `layers.*.attention.q`, `gradients of embedding.weight`, `loss`."""
    if each.part == "output":
        return each.name
    plural = {"parameter": "parameters", "gradient": "gradients"}.get(each.part, each.part)
    return f"{plural} of {each.name}" if each.name else plural


def short(dtype: str | None) -> str:
    """`fp16` for torch's `float16`; an integer type keeps its name."""
    return "unknown" if dtype is None else SHORT_TYPES.get(dtype, dtype)


# --- layer norm


def of_norm(cell: AccumCellRecord) -> str | None:
    """At which scale fp16 breaks, and what bf16 has in its place."""
    alone = {each.dtype: each for each in cell.norms if each.statistics == each.dtype}
    said = [_breaks(each) for each in alone.values()]
    narrow, brain = alone.get("fp16"), alone.get("bf16")
    if narrow and brain and brain.error_at_one > narrow.error_at_one:
        said.append(
            f"Where both work, bf16 is coarser: off by {brain.error_at_one:.1e} at scale 1, fp16 by "
            f"{narrow.error_at_one:.1e}."
        )
    return " ".join(said) or None


def _breaks(each: NormRecord) -> str:
    above = each.wrong_from
    squares = above is not None and each.variance_overflows_from is not None and above >= each.variance_overflows_from
    if above is None:
        said = f"{each.dtype} holds up to the largest scale tried"
    else:
        said = f"{each.dtype} breaks from scale {power(above)} on" + (", where the squares overflow" if squares else "")
    if each.variance_vanishes_to is not None:
        said += f"; its variance is 0 up to {power(each.variance_vanishes_to)}"
    return said + "."


def power(scale: float) -> str:
    """`8`, or `2^58` where digits would not be read; what is no power of two as it is."""
    exponent = math.log2(scale)
    if 0 <= exponent <= 16 or not exponent.is_integer():
        return f"{scale:g}"
    return f"2^{exponent:g}"


# --- gradients


def of_scaling(cell: AccumCellRecord) -> str | None:
    """How many are lost without a scaler, what scale saves them, and which is too much."""
    rows = [each for each in cell.scaled if each.precision == "fp16"] or cell.scaled
    bare = next((each for each in rows if each.scale == 1), None)
    if bare is None:
        return None
    said = f"Without a scaler {bare.precision} loses {percent(bare.lost_share)} of the gradients to zero"
    kept = [each for each in rows if each.step_kept and each.scale > 1]
    best = min(kept, key=lambda each: (each.lost, each.scale), default=None)
    if best is not None and best.lost < bare.lost:
        said += f", with a scale of {power(best.scale)} {percent(best.lost_share)}"
    too_much = _smallest_refused(rows)
    if too_much is not None:
        said += f"; from {power(too_much)} on gradients overflow, and the scaler leaves the step out"
    return said + "."


def _smallest_refused(rows: Iterable[ScaledRecord]) -> float | None:
    return min((each.scale for each in rows if not each.step_kept), default=None)


def percent(share: float) -> str:
    """Two significant digits of however small a share."""
    return "none" if share == 0 else f"{share * 100:.2g} %"


# --- products


def of_products(cell: AccumCellRecord) -> str | None:
    """What the longest sums do where they are rounded as they go, against where they are not."""
    said = []
    for name in ("fp16", "bf16"):
        longest = max((each.k for each in cell.products if each.dtype == name), default=0)
        at_longest = {each.accumulation: each for each in cell.products if (each.dtype, each.k) == (name, longest)}
        device = at_longest.get("as it is") or at_longest.get("not reduced")
        narrow = at_longest.get("narrow")
        if device and narrow and device.total_error < narrow.total_error:
            said.append(
                f"{name} products of length {longest} are off by {relative(device)}; "
                f"with sums in {name}, too, by {relative(narrow)}"
            )
    reduced = _reduction_matters(cell.products)
    return ". ".join([*said, *reduced]) + "." if said or reduced else None


def _reduction_matters(products: list[ProductRecord]) -> list[str]:
    pairs: dict[Any, dict[str, ProductRecord]] = {}
    for each in products:
        pairs.setdefault((each.dtype, each.k), {})[each.accumulation] = each
    ratios = {
        key: pair["reduced"].relative_error / pair["not reduced"].relative_error
        for key, pair in pairs.items()
        if {"reduced", "not reduced"} <= pair.keys() and pair["not reduced"].relative_error
    }
    if not ratios:
        return []
    (name, k), most = max(ratios.items(), key=lambda item: item[1])
    if most < 1.05:
        return ["allowing reduced-precision reduction changes no error by more than 5 %"]
    return [f"allowing reduced-precision reduction makes the error of {name} at length {k} {most:.3g} times as large"]


def relative(each: ProductRecord) -> str:
    """A relative error as a share."""
    return percent(each.total_error) if math.isfinite(each.total_error) else "infinitely much"


# --- numbers whose digits are the point


def decimal(value: float) -> str:
    """Eight decimals, as the course prints sums; as many significant digits where that would be too many or too few."""
    if not math.isfinite(value):
        return f"{value}"
    return f"{value:.8f}" if 1e-2 <= abs(value) < 1e5 or value == 0 else f"{value:.8g}"


def signed(value: float) -> str:
    """`+1.3e-04`."""
    return "0" if value == 0 else f"{value:+.1e}"


WRONG_SHARE = f"{WRONG:.0%}".replace("%", " %")


def of_run(record: AccumRecord) -> Iterator[Said]:
    """One sentence or two for each experiment that shows something."""
    for cell in record.cells:
        text = finding(cell) if cell.outcome == "ok" else None
        if text:
            yield Said(text, (cell,))
