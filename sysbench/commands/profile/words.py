"""What profiles have shown, in sentences: each with its numbers and the cells that it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.profile.findings import (
    RANGES,
    Leading,
    Softmax,
    class_shares,
    doubts,
    has_phase,
    idle,
    leading,
    multiplied,
    softmax,
    told,
)
from sysbench.commands.profile.record import ProfileCellRecord
from sysbench.render.findings import Namer, Said, left_out, listed, named, namer, share_range
from sysbench.trace.summary import KernelClass

NOTABLE: Final = 0.02
"""Of the time: a class of kernels that takes less is not named beside matrix products."""

MOST_CLASSES: Final = 3

MOVED: Final = 0.02
"""Shares that differ by less are the same."""

PACE: Final = 0.2
"""Of the step: a device that waits longer for the host is paced by it; see `profile_cautions.WAITING_SHARE`."""

NAMES: Final[Mapping[KernelClass, str]] = {
    "matmul": "matrix products",
    "attention": "fused attention",
    "softmax": "softmax",
    "normalisation": "normalisation",
    "elementwise": "elementwise kernels",
    "reduction": "reductions",
    "embedding": "embeddings",
    "optimizer": "the optimizer's kernels",
    "copy": "copies",
    "communication": "communication",
    "other": "others",
}

_SIZES: Final = ("size", "ctx", "batch", "mode", "active", "profiler")
"""Axes over which a sentence speaks of a range; the others make sentences of their own."""


def said(cells: Sequence[ProfileCellRecord]) -> Iterator[Said]:
    """Every sentence that these profiles carry."""
    known = told(cells)
    for where, group, name in _settings(known, cells):
        yield from _leaders(group, where, name)
        yield from _besides(group, where, name)
        yield from _products(group, where, name)
        yield from _softmax(group, where, name)
        yield from _precision(group, where, name)
    yield from _idle(known, namer(cells))
    yield from _coverage(known, namer(cells))
    yield from left_out(cells, doubts, "what is said of this run")


def headlines(cells: Sequence[ProfileCellRecord]) -> Iterator[Said]:
    """Those that are worth a line below the tables on a screen, which say the rest by themselves."""
    known = told(cells)
    for where, group, name in _settings(known, cells):
        yield from _leaders(group, where, name)
        yield from _products(group, where, name)
    if known:
        yield from left_out(cells, doubts, "what is said of this run")


def _settings(
    cells: Sequence[ProfileCellRecord], everything: Sequence[ProfileCellRecord]
) -> Iterator[tuple[str, list[ProfileCellRecord], Namer]]:
    """Cells that are computed alike, with words for what sets them apart from the others, and names within them."""
    differing = [axis for axis in axes.varying(axes.axes_of(cells)) if axis not in _SIZES]
    found: dict[str, list[ProfileCellRecord]] = {}
    for cell in cells:
        words = ", ".join(axes.phrase(axis, cell.axes[axis]) for axis in differing)
        found.setdefault(f"{words}: " if words else "", []).append(cell)
    for where, group in found.items():
        yield where, group, namer(group) if len(group) > 1 else namer(everything)


def _work(cells: Iterable[ProfileCellRecord]) -> str:
    return "operator" if all(cell.summary is not None and cell.summary.source == "cpu" for cell in cells) else "kernel"


# --- the kernel that takes most


def _leaders(group: Sequence[ProfileCellRecord], where: str, name: Namer) -> Iterator[Said]:
    alike: dict[str, list[Leading]] = {}
    for cell in group:
        found = leading(cell, RANGES["forward"])
        if found is not None:
            alike.setdefault(found.name.short, []).append(found)
    if len(alike) > MOST_LEADERS:
        return
    for short, each in alike.items():
        of = "" if len(alike) == 1 else f" at {named([found.cell for found in each], name)}"
        much = share_range([(found.share, found.cell) for found in each], name)
        calls = {found.calls for found in each}
        often = f" in {_calls(calls.pop())} a step" if len(calls) == 1 else ""
        text = f"{where}in forward{of} the most time goes to the {_work(group)} {short}, {much}{often}"
        yield Said(f"{text}{_elsewhere(each)}.", tuple(found.cell for found in each))


MOST_LEADERS: Final = 3
"""Different leading kernels; of more, no sentence says more than the table does."""


def _calls(count: float) -> str:
    return f"{count:g} call{'' if count == 1 else 's'}"


def _elsewhere(each: Sequence[Leading]) -> str:
    """Whether backward, and the whole step, are led by the same kernel; only where one word fits all cells."""
    same, others = [], []
    for what in ("backward", "the step"):
        found = [leading(one.cell, RANGES[what]) for one in each if has_phase(one.cell, "backward")]
        leaders = {one.name.short for one in found if one is not None}
        if len(leaders) != 1:
            continue
        (leader,) = leaders
        if leader == each[0].name.short:
            same.append(what)
        else:
            only = found[0] if len(found) == 1 else None
            much = f" ({units.share(only.share)} in {_calls(only.calls)})" if only is not None else ""
            others.append(f"in {what} it goes to {leader}{much}")
    also = [f"it is the same in {listed(same)}"] if same else []
    return "".join(f"; {words}" for words in [*also, *others])


# --- classes


def _besides(group: Sequence[ProfileCellRecord], where: str, name: Namer) -> Iterator[Said]:
    """What else takes time in forward."""
    shares = [(cell, found) for cell in group if (found := class_shares(cell, RANGES["forward"]))]
    totals: dict[KernelClass, float] = {}
    for _, found in shares:
        for kind, share in found.items():
            totals[kind] = totals.get(kind, 0.0) + share / len(shares)
    others = sorted(((share, kind) for kind, share in totals.items() if kind != "matmul" and share >= NOTABLE))[::-1]
    if "matmul" in totals and others:
        words = [
            f"{NAMES[kind]} {share_range([(found.get(kind, 0.0), cell) for cell, found in shares], name)}"
            for _, kind in others[:MOST_CLASSES]
        ]
        text = f"{where}besides matrix products, forward's time goes to {listed(words)}."
        yield Said(text, tuple(cell for cell, _ in shares))


def _products(group: Sequence[ProfileCellRecord], where: str, name: Namer) -> Iterator[Said]:
    """The share of matrix products in forward, with backward, and in the whole step; of profiles that have all."""
    cells = [cell for cell in group if has_phase(cell, "forward") and has_phase(cell, "backward")]
    ranges = ["forward", "forward and backward"]
    if cells and all(has_phase(cell, "optimizer") for cell in cells):
        ranges.append("the step")
    shares = {what: [(class_shares(cell, RANGES[what]).get("matmul", 0.0), cell) for cell in cells] for what in ranges}
    if not cells:
        cells = [cell for cell in group if has_phase(cell, "forward")]
        found = [(class_shares(cell, RANGES["forward"]).get("matmul", 0.0), cell) for cell in cells]
        if cells:
            yield Said(f"{where}matrix products take {share_range(found, name)} of forward.", tuple(cells))
        return
    words = [f"{share_range(found, name)} of {what}" for what, found in shares.items()]
    yield Said(f"{where}matrix products take {listed(words)}{_gains(cells, ranges)}.", tuple(cells))


def _gains(cells: Sequence[ProfileCellRecord], ranges: Sequence[str]) -> str:
    """`; elementwise kernels rise from 7.1 % to 20 %`: the class that grows most from forward to the last range."""
    first = [class_shares(cell, RANGES[ranges[0]]) for cell in cells]
    last = [class_shares(cell, RANGES[ranges[-1]]) for cell in cells]
    kinds = {kind for each in (*first, *last) for kind in each} - {"matmul"}

    def mean(shares: Sequence[Mapping[KernelClass, float]], kind: KernelClass) -> float:
        return sum(each.get(kind, 0.0) for each in shares) / len(shares)

    rises = sorted(((mean(last, kind) - mean(first, kind), kind) for kind in kinds), reverse=True)
    if not rises or rises[0][0] < MOVED:
        return ""
    _, kind = rises[0]
    before, after = units.share(mean(first, kind)), units.share(mean(last, kind))
    many = " on average" if len(cells) > 1 else ""
    return f"; what grows most from {ranges[0]} to {ranges[-1]} are {NAMES[kind]}, from {before} to {after}{many}"


# --- attention


def _softmax(group: Sequence[ProfileCellRecord], where: str, name: Namer) -> Iterator[Said]:
    for phase in ("forward", "backward"):
        found = [each for cell in group if (each := softmax(cell, phase)) is not None]
        if found:
            text = f"{where}softmax: {_attention(found, name)}."
            yield Said(text, tuple(each.cell for each in found))


def _attention(found: Sequence[Softmax], name: Namer) -> str:
    flops = share_range([(each.flops_share, each.cell) for each in found], name)
    times = share_range([(each.time_share, each.cell) for each in found], name)
    products = share_range([(each.products_share, each.cell) for each in found], name)
    text = (
        f"{flops} of attention's FLOPs in {found[0].phase}, {times} of its time; "
        f"its two matrix products take {products}"
    )
    if len(found) > 1:
        return text
    (only,) = found
    return f"{text} ({units.seconds(only.softmax_ns * 1e-9)} against {units.seconds(only.products_ns * 1e-9)})"


# --- precision, the device, coverage


def _precision(group: Sequence[ProfileCellRecord], where: str, name: Namer) -> Iterator[Said]:
    found = [each for cell in group if (each := multiplied(cell)) is not None]
    formats = {(each.format, str(each.cell.axes["precision"])) for each in found}
    if len(formats) != 1:
        return
    ((format_, asked),) = formats
    much = share_range([(each.share, each.cell) for each in found], name)
    known = min(each.known for each in found)
    said_of = "" if known > 1 - MOVED / 2 else f" (which say it for {units.share(known)} of that time)"
    but = "" if format_ == asked else f", though {asked} was asked for"
    text = (
        f"{where}matrix products spend {much} of their time in {format_}, by the names of their kernels{said_of}{but}."
    )
    yield Said(text, tuple(each.cell for each in found))


def _idle(cells: Sequence[ProfileCellRecord], name: Namer) -> Iterator[Said]:
    found = idle(cells)
    if not found:
        return
    if found[-1].waiting < NOTABLE and max(each.idle for each in found) < NOTABLE:
        many = "" if len(found) == 1 else f" in all {len(found)} cells"
        yield Said(f"the device is busy all through the profiled step{many}.", tuple(each.cell for each in found))
        return
    idles = share_range([(each.idle, each.cell) for each in found], name)
    waits = share_range([(each.waiting, each.cell) for each in found], name)
    bound = [each.cell for each in found if each.waiting > PACE]
    text = f"the device idles {idles} of the profiled step, {waits} because the host had not launched anything yet"
    if bound:
        text += ": launch-bound" if len(found) == 1 else f": launch-bound at {named(bound, name)}"
    yield Said(f"{text}.", tuple(each.cell for each in found))


def _coverage(cells: Sequence[ProfileCellRecord], name: Namer) -> Iterator[Said]:
    found = [(cell.coverage, cell) for cell in cells if cell.coverage is not None]
    if found:
        text = f"kernels, as profiled, cover {share_range(found, name)} of the same step timed without a profiler."
        yield Said(text, tuple(cell for _, cell in found))
