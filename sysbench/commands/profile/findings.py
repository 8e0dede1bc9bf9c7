"""Findings of `sysbench profile`: sentences, each with the cells that support it.

A profile covers one to three steps, so shares describe those steps and have no confidence interval. Cells with serious
cautions (`CellRecord.excluding_cautions`) are excluded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from sysbench import cells as axes
from sysbench.commands.profile.record import ProfileCellRecord, ProfileRecord
from sysbench.render.sentences.findings import Finding, exclusions, reliable, undecided
from sysbench.render.sentences.phrases import Named, Namer, join_words, namer, range_text
from sysbench.spec.steps import Phase
from sysbench.trace.summary import PARTS, KernelClass, KernelName, ProfileSummary, Rate

Phases = tuple[str, ...] | None
"""Phases of a range; None for all phases."""

RANGES: Final[Mapping[str, tuple[Phases, Phase]]] = {
    "forward": (("forward",), "forward"),
    "forward and backward": (("forward", "loss", "backward"), "backward"),
    "the step": (None, "optimizer"),
}
"""Phases of each range by name, and the last phase, which tells whether a profile covers the range."""

PRODUCTS: Final = ("scores", "output")
"""Parts of attention that are matrix products."""

NEEDED_PARTS: Final = (*PRODUCTS, "softmax")
"""Parts that must be known to compare softmax with the matrix products."""

_POOLED_ROLES: Final = ("extent", "work", "effort")
"""Roles of axes over which a finding states a range. Each value of any other axis has findings of its own."""


def findings(cells: Sequence[ProfileCellRecord]) -> Iterator[Finding]:
    known = complete_profiles(cells)
    if not known and (profiled := [cell for cell in cells if cell.summary and cell.summary.spent.total_ns]):
        yield undecided("where the time goes", profiled)
    for where, group, name in _by_settings(known, cells):
        for finding in (_leading_kernels, _matmul_shares, _softmax_shares):
            yield from finding(group, where, name)
    yield from exclusions(cells) if known else ()


def of_run(record: ProfileRecord) -> Iterator[Finding]:
    return findings(record.cells)


def complete_profiles(cells: Iterable[ProfileCellRecord]) -> list[ProfileCellRecord]:
    return [cell for cell in reliable(cells) if cell.summary is not None and cell.summary.spent.total_ns]


def _by_settings(
    cells: Sequence[ProfileCellRecord], everything: Sequence[ProfileCellRecord]
) -> Iterator[tuple[str, list[ProfileCellRecord], Namer]]:
    """Yield each group of cells with equal settings, a prefix that names the settings, and a namer for the cells."""
    pooled = [axis for axis, declared in axes.AXES.items() if declared.role in _POOLED_ROLES and axis != "mode"]
    for where, group in axes.named_groups(cells, *pooled):
        mark = "predicted: " if any(cell.prediction for cell in group) else ""
        yield f"{mark}{where}: " if where else mark, group, namer(group if len(group) > 1 else everything)


def covers(cell: ProfileCellRecord, what: str) -> bool:
    """Return whether a profile has work in the last phase of a range."""
    return cell.summary is not None and RANGES[what][1] in cell.summary.phases_with_work


def leading_kernel(summary: ProfileSummary, phases: Phases) -> tuple[KernelName, float, float]:
    """Return the kernel that takes the most time in these phases, its share of their time, and its calls per step."""
    total_ns, calls = Counter[int](), Counter[int]()
    for time in summary.times():
        if phases is None or time.phase in phases:
            total_ns[time.kernel] += time.total_ns
            calls[time.kernel] += time.calls
    ((kernel, top_ns),) = total_ns.most_common(1)
    return summary.names[kernel], top_ns / max(total_ns.total(), 1), calls[kernel] / summary.steps


def _leading_kernels(group: Sequence[ProfileCellRecord], where: str, name: Namer) -> Iterator[Finding]:
    """Yield the kernel that takes the most time in a range, if all cells agree, and if it is not that of the last."""
    last = ""
    for what, (phases, _) in RANGES.items():
        found = [(cell, leading_kernel(cell.summary, phases)) for cell in group if covers(cell, what) and cell.summary]
        leaders = {kernel.short for _, (kernel, *_) in found}
        if len(leaders) != 1 or leaders == {last}:
            continue
        (last,) = leaders
        share = range_text([(share, cell) for cell, (_, share, _) in found], name)
        calls = {f"{calls:g} call{'' if calls == 1 else 's'}" for _, (*_, calls) in found}
        counted = f" in {calls.pop()} per step" if len(calls) == 1 else ""
        yield Finding(
            f"{where}in {what}, {last} takes the most time: {share}{counted}.", tuple(cell for cell, _ in found)
        )


def class_shares(cell: ProfileCellRecord, phases: Phases) -> dict[KernelClass, float]:
    """Return the share of time of each kernel class in these phases, largest first; empty if nothing ran in them."""
    time_ns = cell.summary.by_class(phases) if cell.summary is not None else {}
    whole_ns = sum(time_ns.values())
    ordered = sorted(time_ns.items(), key=lambda item: -item[1])
    return {kind: total_ns / whole_ns for kind, total_ns in ordered} if whole_ns else {}


def _matmul_shares(group: Sequence[ProfileCellRecord], where: str, name: Namer) -> Iterator[Finding]:
    words: list[str] = []
    for what, (phases, _) in RANGES.items():
        if all(covers(cell, what) for cell in group):
            shares = [(class_shares(cell, phases).get("matmul", 0.0), cell) for cell in group]
            words.append(f"{range_text(shares, name)}{'' if words else ' of the time'} in {what}")
    if words:
        yield Finding(f"{where}matrix products take {join_words(words)}.", tuple(group))


def complete_attention_parts(summary: ProfileSummary, phase: str) -> dict[str, Rate]:
    """Return the rates of the parts of attention in a phase; empty if softmax or a matrix product is not known."""
    rates = {rate.part: rate for rate in summary.rates if rate.phase == phase}
    parts: dict[str, Rate] = {part: rates[part] for part in PARTS if part in rates}
    is_complete = all(part in parts for part in NEEDED_PARTS) and any(rate.total_ns for rate in parts.values())
    return parts if is_complete else {}


def _softmax_shares(group: Sequence[ProfileCellRecord], where: str, name: Namer) -> Iterator[Finding]:
    for phase in ("forward", "backward"):
        found = [
            (cell, parts)
            for cell in group
            if cell.summary is not None
            and (parts := complete_attention_parts(cell.summary, phase))
            and all(parts[part].flops for part in NEEDED_PARTS)
        ]
        if found:
            yield Finding(f"{where}{softmax_words(found, phase, name)}", tuple(cell for cell, _ in found))


def softmax_words(
    profiles: Sequence[tuple[Named, Mapping[str, Rate]]], phase: str, name: Callable[[Named], str]
) -> str:
    """Compare softmax with the two matrix products of attention, by share of FLOPs, if known, and by share of time.

    Each of `profiles` consists of something that `name` names, and its rates by part of attention.
    """

    def share(value: Callable[[Rate], int], *parts: str) -> str:
        shares = [
            (sum(value(rates[part]) for part in parts) / sum(map(value, rates.values())), profiled)
            for profiled, rates in profiles
        ]
        return range_text(shares, name)

    flops = ""
    if all(rates[part].flops for _, rates in profiles for part in NEEDED_PARTS):
        flops = f" with {share(lambda rate: rate.flops or 0, 'softmax')} of the FLOPs"
    softmax, products = (share(lambda rate: rate.total_ns, *parts) for parts in (("softmax",), PRODUCTS))
    where = f"in attention's {phase}, softmax{flops}"
    return f"{where} takes {softmax} of the time, and the two matrix products {products}."
