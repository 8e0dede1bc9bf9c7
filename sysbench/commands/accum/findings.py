"""Findings of rounding experiments: one or two sentences per experiment."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from sysbench.commands.accum.record import (
    AccumCellRecord,
    AccumRecord,
    DtypeRecord,
    NormRecord,
    SumRecord,
)
from sysbench.commands.accum.spec import Experiment
from sysbench.render.sentences.findings import Finding, reliable
from sysbench.render.sentences.phrases import join_words
from sysbench.rounding import FORMATS

SHORT_TYPES: Mapping[str, str] = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
"""Short names of torch's dtypes."""

_COURSE_ORDER = ("parameter", "output", "logits", "loss", "gradient")


def of_run(record: AccumRecord) -> Iterator[Finding]:
    for cell in reliable(record.cells):
        if cell.outcome == "ok" and (text := finding(cell)):
            yield Finding(text, (cell,))


def finding(cell: AccumCellRecord) -> str | None:
    finders: dict[Experiment, Callable[[AccumCellRecord], str | None]] = {
        "sums": _of_sums,
        "autocast": _of_autocast,
        "norm": _of_norm,
    }
    return finders[cell.experiment](cell)


def _of_sums(cell: AccumCellRecord) -> str | None:
    alone = [each for each in cell.sums if each.order == "sequential" and each.accumulator == each.addend]
    narrow = next((each for each in alone if each.addend == mixed_format(cell)), None)
    if narrow is None or narrow.addend == "fp32":
        return _of_one(alone[0]) if alone else None
    wide = next((each for each in cell.sums if each.accumulator == "fp32" and each.addend == narrow.addend), None)
    if wide is None or not all(math.isfinite(each.error) for each in (narrow, wide)):
        return _of_one(narrow)
    said = (
        f"Adding {narrow.addend} numbers in {narrow.addend} gives an error of {signed(narrow.error)}: "
        f"{signed(narrow.representation_error)} from rounding x and {signed(narrow.accumulation_error)} from adding."
    )
    if abs(wide.accumulation_error) < abs(narrow.accumulation_error):
        lost = f"gives an error of {signed(wide.accumulation_error)}" if wide.accumulation_error else "is exact"
        said += f" Adding the same numbers in fp32 {lost}."
    return said


def _of_one(measured: SumRecord) -> str:
    name = measured.accumulator
    if math.isfinite(measured.result):
        return f"In {name}, the sum is {decimal(measured.result)}, with an error of {signed(measured.error)}."
    largest = float(FORMATS[name].largest)
    return f"Adding {measured.addend} numbers in {name} overflows: the largest {name} number is {largest:.5g}."


def mixed_format(cell: AccumCellRecord) -> str:
    """Return the narrow format to compare with fp32: fp16 if measured, otherwise the first format other than fp32."""
    found = list(dict.fromkeys(each.addend for each in cell.sums))
    return "fp16" if "fp16" in found else next((name for name in found if name != "fp32"), "fp32")


def _of_autocast(cell: AccumCellRecord) -> str | None:
    precision = next((dtype.precision for dtype in cell.dtypes), None)
    if precision is None:
        return None
    chosen = [dtype for dtype in cell.dtypes if dtype.precision == precision]
    modules = ("fc1", "ln") if cell.cell.size == "toy" else ("layers.*.attention_norm", "layers.*.attention.q")
    main = [dtype for dtype in chosen if dtype.part not in ("input", "output") or dtype.name in modules]
    main.sort(key=lambda each: _COURSE_ORDER.index(each.part))
    said = ", ".join(f"{place(dtype)} {short(dtype.on_cuda)}" for dtype in main)
    differing = [place(dtype) for dtype in chosen if dtype.here and dtype.on_cuda and dtype.here != dtype.on_cuda]
    here = "CPU" if cell.device and cell.device.type == "cpu" else "device"
    rest = f"these dtypes differ: {join_words(differing)}" if differing else "all dtypes are the same"
    return f"Under {precision} autocast on CUDA, the dtypes are: {said}. On this {here}, {rest}."


def place(each: DtypeRecord) -> str:
    """Return the name of a part of the model: `parameters`, `layers.*.attention.q`, `gradients of fc1.weight`."""
    if each.part == "output":
        return each.name
    plural = {"parameter": "parameters", "gradient": "gradients"}.get(each.part, each.part)
    return f"{plural} of {each.name}" if each.name else plural


def short(dtype: str | None) -> str:
    return "unknown" if dtype is None else SHORT_TYPES.get(dtype, dtype)


def _of_norm(cell: AccumCellRecord) -> str | None:
    alone = {norm.dtype: norm for norm in cell.norms if norm.statistics == norm.dtype}
    said = [_breaks(norm) for norm in alone.values()]
    narrow, brain = alone.get("fp16"), alone.get("bf16")
    if narrow and brain and brain.error_at_one > narrow.error_at_one:
        said.append(
            f"Where both work, bf16 is less precise than fp16: at scale 1, its error is {brain.error_at_one:.1e} "
            f"instead of {narrow.error_at_one:.1e}."
        )
    return " ".join(said) or None


def _breaks(each: NormRecord) -> str:
    if each.wrong_from is None:
        said = f"Layer norm in {each.dtype} works up to the largest tested scale"
    else:
        said = f"Layer norm in {each.dtype} fails from scale {power(each.wrong_from)} on"
        if each.variance_overflows_from is not None and each.wrong_from >= each.variance_overflows_from:
            said += ", where the squares overflow"
    if each.variance_vanishes_to is not None:
        said += f"; at scales up to {power(each.variance_vanishes_to)}, the variance underflows to 0"
    return said + "."


# --- formatting of numbers


def power(scale: float) -> str:
    """Format a scale: `8`, or `2^58` for a large or small power of two; other numbers are formatted as decimals."""
    exponent = math.log2(scale)
    if 0 <= exponent <= 16 or not exponent.is_integer():
        return f"{scale:g}"
    return f"2^{exponent:g}"


def decimal(value: float) -> str:
    """Format a number with eight decimals, or with eight significant digits if it is very large or small."""
    return f"{value:.8f}" if 1e-2 <= abs(value) < 1e5 or value == 0 else f"{value:.8g}"


def signed(value: float) -> str:
    """Format an error with its sign: `+1.3e-04`."""
    return "0" if value == 0 else f"{value:+.1e}"
