"""Time against FLOPs and bytes, and what follows from it in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from sysbench import units
from sysbench.analysis.attention_parts import part_of
from sysbench.profile_summary import Rate
from sysbench.views.profile_shown import NS, Profiles, Shown, Within, within
from sysbench.views.table import Cell, Column, Measure, Remark, Table

_LEAST: Final = "bytes: every operand and result moved once, which is the least there can be"


def attention(profiles: Profiles) -> list[Table]:
    """Scores, mask, softmax and output: time, work, rates."""
    return _table(profiles, "attention", "attention, part by part", "part")


def rates(profiles: Profiles) -> list[Table]:
    """Classes of kernels of which it is known what they compute."""
    return _table(profiles, "rates", "time against work, by class", "class")


def _table(profiles: Profiles, name: str, title: str, what: str) -> list[Table]:
    kind = "attention" if name == "attention" else "class"
    known = [rate for shown in profiles.each for rate in shown.summary.rates if rate.kind == kind]
    if kind == "class":
        known = [rate for rate in known if rate.flops is not None]
    has_work = any(rate.flops is not None for rate in known)
    has_bytes = any(rate.bytes is not None for rate in known)
    has_peak = any(bound(rate) is not None for rate in known)
    columns = (
        Column("part", what),
        Column("phase", "phase"),
        Column("time", "time", "s"),
        *((Column("work", "work", "flops"),) if has_work else ()),
        *((Column("bytes", "bytes", "bytes", importance=1, note=_LEAST),) if has_bytes else ()),
        *((Column("rate", "rate", "flops_per_s", importance=1),) if has_work else ()),
        *(
            (
                Column("peak", "of peak", "share", importance=2),
                Column("bandwidth", "of bandwidth", "share", importance=2),
                Column("bound", "bound by"),
            )
            if has_peak
            else ()
        ),
    )

    def rows(shown: Shown) -> Iterator[tuple[Cell, ...]]:
        for rate in shown.summary.rates:
            if rate.kind == kind and (kind == "attention" or rate.flops is not None):
                yield _row(shown, rate, has_work, has_bytes, has_peak)

    return profiles.table(name, f"{title}, per step", columns, rows, axes=2)


def _row(shown: Shown, rate: Rate, has_work: bool, has_bytes: bool, has_peak: bool) -> tuple[Cell, ...]:
    seconds = rate.total_ns * NS / shown.summary.steps
    achieved = _over(rate.flops, seconds)
    moved = _over(rate.bytes, seconds)
    peak, bandwidth = rate.peak_flops_per_s, rate.peak_bytes_per_s
    return (
        rate.part,
        rate.phase or "not known",
        Measure(seconds),
        *((_measure(rate.flops),) if has_work else ()),
        *((_measure(rate.bytes),) if has_bytes else ()),
        *((_measure(achieved),) if has_work else ()),
        *((_measure(_over(achieved, peak)), _measure(_over(moved, bandwidth)), bound(rate)) if has_peak else ()),
    )


def _measure(value: float | None) -> Cell:
    return Measure(value) if value is not None else None


def _over(value: float | None, by: float | None) -> float | None:
    return value / by if value is not None and by else None


def bound(rate: Rate) -> Literal["compute", "memory"] | None:
    """Which of the two would take longer at the hardware's best; None where that is not known."""
    arithmetic, traffic = _over(rate.flops, rate.peak_flops_per_s), _over(rate.bytes, rate.peak_bytes_per_s)
    if arithmetic is None or traffic is None:
        return None
    return "compute" if arithmetic > traffic else "memory"


def findings(shown: Shown, asked: str | None) -> Iterator[Remark]:
    """Softmax against the two matrix products around it, in each phase; of those that all of a range is shown of."""
    here = within(shown, asked)
    parts = {(rate.part, rate.phase): rate for rate in shown.summary.rates if rate.kind == "attention"}
    for phase in ("forward", "backward"):
        softmax = parts.get(("softmax", phase))
        products = [parts[part, phase] for part in ("scores", "output") if (part, phase) in parts]
        if softmax is not None and len(products) == 2 and _has_all(here, shown, phase):
            yield Remark("finding", _sentence(shown, phase, softmax, products))


def _has_all(here: Within, shown: Shown, phase: str) -> bool:
    """Whether a range has the softmax of every layer in a phase."""
    return all(here.holds(each) for each in shown.spent if each.phase == phase and part_of(each.module) == "softmax")


def _sentence(shown: Shown, phase: str, softmax: Rate, products: list[Rate]) -> str:
    steps = shown.summary.steps
    product_ns = sum(rate.total_ns for rate in products)
    text = f"{phase}: softmax takes {units.seconds(softmax.total_ns * NS / steps)}"
    if product_ns:
        text += f", {units.ratio(softmax.total_ns / product_ns)} as long as the two matmuls of attention together"
    text += f" ({units.seconds(product_ns * NS / steps)})"
    flops = [rate.flops for rate in products if rate.flops is not None]
    if not softmax.flops or len(flops) < 2:
        return text
    fewer = sum(flops) / softmax.flops
    text += f", for {fewer:.0f}× fewer FLOPs ({units.flops(softmax.flops)}, not {units.flops(sum(flops))})"
    return text + _why(softmax, products, steps)


def _why(softmax: Rate, products: list[Rate], steps: int) -> str:
    """Because there is little to compute for what must be moved; and what that means for hardware that is known."""
    moved = sum(rate.bytes or 0 for rate in products)
    if not softmax.flops or not softmax.bytes or not moved:
        return ""
    intensity, denser = softmax.flops / softmax.bytes, sum(rate.flops or 0 for rate in products) / moved
    why = f": {intensity:.2g} FLOP for each byte that must be moved, where the matmuls have {denser:.2g}"
    if softmax.peak_flops_per_s is None or softmax.peak_bytes_per_s is None:
        return why
    ridge = softmax.peak_flops_per_s / softmax.peak_bytes_per_s
    reached = softmax.bytes / (softmax.total_ns * NS / steps) / softmax.peak_bytes_per_s if softmax.total_ns else 0.0
    return (
        f"{why}. Below {ridge:.2g} this GPU is bound by memory; softmax moves them at {units.share(reached)} of its "
        "bandwidth"
    )
