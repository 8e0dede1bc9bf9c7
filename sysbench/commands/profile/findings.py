"""Findings of `sysbench profile`: sentences, each with the cells that support it.

A profile covers one to three steps, so shares describe those steps and have no confidence interval. Cells with serious
cautions (`CellRecord.excluding_cautions`) are excluded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.profile.record import ProfileCellRecord, ProfileRecord
from sysbench.render.findings import (
    Named,
    Namer,
    Statement,
    exclusions,
    join_words,
    name_cells,
    namer,
    range_text,
    reliable,
    undecided,
)
from sysbench.spec.model import Mode, Phase
from sysbench.trace.summary import PARTS, KernelClass, KernelName, ProfileSummary, Rate

RANGES: Final[Mapping[str, tuple[str, ...] | None]] = {
    "forward": ("forward",),
    "backward": ("backward",),
    "forward and backward": ("forward", "loss", "backward"),
    "the step": None,
}
"""Phases of each range by name; None stands for all phases."""

_RANGE_MODES: Final[Mapping[str, tuple[Mode, Phase]]] = {
    "forward": ("forward", "forward"),
    "forward and backward": ("forward-backward", "backward"),
    "the step": ("train", "optimizer"),
}
"""The mode that consists of each range, and the last phase of the range."""

PRODUCTS: Final = ("scores", "output")
"""Parts of attention that are matrix products."""

NEEDED_PARTS: Final = (*PRODUCTS, "softmax")
"""Parts that must be known to compare softmax with the matrix products."""

NOTABLE: Final = 0.02
"""Minimum share of time to mention, and minimum difference to report."""

MAX_CLASSES: Final = 3
MAX_LEADING_KERNELS: Final = 3
"""Maximum number of different leading kernels; with more, the finding is omitted."""

CLASS_NAMES: Final[Mapping[KernelClass, str]] = {
    "matmul": "matrix products",
    "attention": "fused attention",
    "softmax": "softmax",
    "normalisation": "normalisation",
    "elementwise": "elementwise kernels",
    "reduction": "reductions",
    "embedding": "embeddings",
    "permutation": "permutations",
    "quantisation": "quantisation",
    "optimizer": "the optimizer's kernels",
    "copy": "copies",
    "communication": "communication",
    "other": "other work",
}

_POOLED_ROLES: Final = ("extent", "work", "effort")
"""Roles of axes over which a finding states a range. Each value of any other axis has findings of its own."""


def findings(cells: Sequence[ProfileCellRecord]) -> Iterator[Statement]:
    known = complete_profiles(cells)
    yield from _unanswered(cells, known)
    for where, group, name in _by_settings(known, cells):
        for finding in (_leading_kernels, _other_classes, _matmul_shares, _softmax_shares, _matmul_precision):
            yield from finding(group, where, name)
    yield from _device_idle_time(known, namer(cells))
    covered = [(cell.coverage, cell) for cell in known if cell.coverage is not None]
    if covered:
        share = range_text(covered, namer(cells))
        text = f"profiled kernels cover {share} of the unprofiled step time."
        yield Statement(text, tuple(cell for _, cell in covered))
    yield from exclusions(cells)


def headlines(cells: Sequence[ProfileCellRecord]) -> Iterator[Statement]:
    """Yield the findings to show below the tables on a screen. The tables already show the other findings."""
    known = complete_profiles(cells)
    for where, group, name in _by_settings(known, cells):
        mark = "predicted: " if any(cell.prediction for cell in group) else ""
        yield from _leading_kernels(group, f"{mark}{where}", name)
        yield from _matmul_shares(group, f"{mark}{where}", name)
    yield from _unanswered(cells, known)
    if known:
        yield from exclusions(cells)


def _unanswered(cells: Sequence[ProfileCellRecord], known: Sequence[ProfileCellRecord]) -> Iterator[Statement]:
    profiled = [cell for cell in cells if cell.summary is not None and cell.summary.spent.total_ns]
    if profiled and not known:
        yield undecided("where the time goes", profiled)


def complete_profiles(cells: Iterable[ProfileCellRecord]) -> list[ProfileCellRecord]:
    """Return the cells with a profile that can be relied on."""
    return [cell for cell in reliable(cells) if cell.summary is not None and cell.summary.spent.total_ns]


def class_shares(cell: ProfileCellRecord, phases: Sequence[str] | None) -> dict[KernelClass, float]:
    """Return the share of time of each kernel class in the given phases (None: all), largest first.

    Empty if nothing ran in the phases.
    """
    time_ns = cell.summary.by_class(phases) if cell.summary is not None else {}
    whole_ns = sum(time_ns.values())
    ordered = sorted(time_ns.items(), key=lambda item: -item[1])
    return {kind: total_ns / whole_ns for kind, total_ns in ordered} if whole_ns else {}


def has_phase(cell: ProfileCellRecord, phase: str) -> bool:
    return cell.summary is not None and phase in cell.summary.phases_with_work


def attention_parts(summary: ProfileSummary, phase: str) -> dict[str, Rate]:
    found = {rate.part: rate for rate in summary.rates if rate.kind == "attention" and rate.phase == phase}
    return {part: found[part] for part in PARTS if part in found}


def complete_attention_parts(summary: ProfileSummary, phase: str) -> dict[str, Rate]:
    """Return the rates of the parts of attention in a phase; empty if softmax or a matrix product is not known."""
    parts = attention_parts(summary, phase)
    is_complete = all(part in parts for part in NEEDED_PARTS) and any(rate.total_ns for rate in parts.values())
    return parts if is_complete else {}


def _by_settings(
    cells: Sequence[ProfileCellRecord], everything: Sequence[ProfileCellRecord]
) -> Iterator[tuple[str, list[ProfileCellRecord], Namer]]:
    """Yield each group of cells with equal settings, a prefix that names the settings, and a namer for the cells."""
    pooled = [axis for axis, declared in axes.AXES.items() if declared.role in _POOLED_ROLES]
    for where, group in axes.named_groups(cells, *pooled):
        yield f"{where}: " if where else "", group, namer(group) if len(group) > 1 else namer(everything)


# --- the kernel that takes the most time


@dataclass(frozen=True)
class LeadingKernel:
    """The kernel (on a CPU, the operator) that takes the most time in the given phases."""

    cell: ProfileCellRecord
    name: KernelName
    share: float
    """Share of the time of all kernels in the given phases."""
    calls: str
    """Number of calls per step as text, including the noun."""


def leading_kernel(cell: ProfileCellRecord, phases: Sequence[str] | None) -> LeadingKernel | None:
    """Return the kernel that takes the most time in the given phases; None if nothing was launched in them."""
    summary = cell.summary
    total_ns, calls = Counter[int](), Counter[int]()
    for time in summary.times() if summary is not None else ():
        if phases is None or time.phase in phases:
            total_ns[time.kernel] += time.total_ns
            calls[time.kernel] += time.calls
    if summary is None or not total_ns.total():
        return None
    ((kernel, top_ns),) = total_ns.most_common(1)
    per_step = calls[kernel] / summary.steps
    return LeadingKernel(
        cell, summary.names[kernel], top_ns / total_ns.total(), f"{per_step:g} call{'' if per_step == 1 else 's'}"
    )


def _leading_kernels(group: Sequence[ProfileCellRecord], where: str, name: Namer) -> Iterator[Statement]:
    alike: dict[str, list[LeadingKernel]] = {}
    for cell in group:
        found = leading_kernel(cell, RANGES["forward"])
        if found is not None:
            alike.setdefault(found.name.short, []).append(found)
    if len(alike) > MAX_LEADING_KERNELS:
        return
    on_cpu = all(cell.summary is not None and cell.summary.source == "cpu" for cell in group)
    for short, each in alike.items():
        prefix = where if len(alike) == 1 else f"{where}{name_cells([found.cell for found in each], name)}: "
        share = range_text([(found.share, found.cell) for found in each], name)
        calls = {found.calls for found in each}
        calls_text = f" in {calls.pop()} per step" if len(calls) == 1 else ""
        work = "operator" if on_cpu else "kernel"
        text = f"{prefix}in the forward phase, {short} takes the largest share of {work} time: {share}{calls_text}."
        yield Statement(f"{text}{_leading_kernels_elsewhere(each)}", tuple(found.cell for found in each))


def _leading_kernels_elsewhere(each: Sequence[LeadingKernel]) -> str:
    same, others = [], []
    for what in ("backward", "the step"):
        found = [leading_kernel(one.cell, RANGES[what]) for one in each if has_phase(one.cell, "backward")]
        leaders = {one.name.short for one in found if one is not None}
        if len(leaders) != 1:
            continue
        (leader,) = leaders
        if leader == each[0].name.short:
            same.append(what)
        else:
            only = found[0] if len(found) == 1 else None
            share = f", with {units.share(only.share)} in {only.calls} per step" if only is not None else ""
            others.append(f"In {'the whole step' if what == 'the step' else what}, {leader} leads{share}.")
    also = [f"It also takes the largest share in {join_words(same)}."] if same else []
    return "".join(f" {words}" for words in [*also, *others])


# --- classes


def _other_classes(group: Sequence[ProfileCellRecord], where: str, name: Namer) -> Iterator[Statement]:
    shares = [(cell, found) for cell in group if (found := class_shares(cell, RANGES["forward"]))]
    means: dict[KernelClass, float] = {}
    for _, found in shares:
        for kind, share in found.items():
            means[kind] = means.get(kind, 0.0) + share / len(shares)
    others = sorted(((share, kind) for kind, share in means.items() if kind != "matmul" and share >= NOTABLE))[::-1]
    if "matmul" in means and others:
        words = [
            f"{range_text([(found.get(kind, 0.0), cell) for cell, found in shares], name)}"
            f"{' of its time' * (number == 0)} in {CLASS_NAMES[kind]}"
            for number, (_, kind) in enumerate(others[:MAX_CLASSES])
        ]
        text = f"{where}besides matrix products, forward spends {join_words(words)}."
        yield Statement(text, tuple(cell for cell, _ in shares))


def _matmul_shares(group: Sequence[ProfileCellRecord], where: str, name: Namer) -> Iterator[Statement]:
    """Yield a finding on the share of matrix products in forward, in forward and backward, and in the whole step."""
    settings = [covering for alike in axes.group_ignoring(group, "mode") if (covering := _cells_by_range(alike))]
    settings = [each for each in settings if "forward and backward" in each] or settings
    if not settings:
        return
    ranges = [what for what in _RANGE_MODES if all(what in each for each in settings)]
    cells = {what: [cell for each in settings for cell in each[what]] for what in ranges}
    shares = {what: [class_shares(cell, RANGES[what]) for cell in cells[what]] for what in ranges}
    words: list[str] = []
    for what, found in shares.items():
        products = [(share.get("matmul", 0.0), cell) for share, cell in zip(found, cells[what], strict=True)]
        of_time = "" if words else " of the time"
        words.append(f"{range_text(products, name)}{of_time} in {f'{what} together' if 'and' in what else what}")

    def mean(what: str, kind: KernelClass) -> float:
        return sum(each.get(kind, 0.0) for each in shares[what]) / len(shares[what])

    first, last = ranges[0], ranges[-1]
    kinds = {kind for each in (*shares[first], *shares[last]) for kind in each} - {"matmul"}
    rise, kind = max(((mean(last, kind) - mean(first, kind), kind) for kind in kinds), default=(0.0, "other"))
    growth = ""
    if rise >= NOTABLE:
        before, after = units.share(mean(first, kind)), units.share(mean(last, kind))
        many = " on average" if max(len(cells[first]), len(cells[last])) > 1 else ""
        growth = f" The share of {CLASS_NAMES[kind]} grows most, from {before} in {first} to {after} in {last}{many}."
    basis = {cell.key: cell for what in ranges for cell in cells[what]}
    yield Statement(f"{where}matrix products take {join_words(words)}.{growth}", tuple(basis.values()))


def _cells_by_range(alike: Sequence[ProfileCellRecord]) -> dict[str, list[ProfileCellRecord]]:
    """For each range, return the cell whose mode is that range, as in the table; without it, all cells that cover it.

    `alike` are cells of one setting, which differ in `mode` only. Inference, which runs other kernels than the forward
    phase of training, counts only if no cell has a backward phase.
    """
    forward = [cell for cell in alike if has_phase(cell, "forward")]
    if not any(has_phase(cell, "backward") for cell in forward):
        return {"forward": forward} if forward else {}
    found = {}
    for what, (mode, last_phase) in _RANGE_MODES.items():
        covering = [cell for cell in forward if has_phase(cell, last_phase) and cell.cell.mode != "inference"]
        if covering:
            found[what] = [cell for cell in covering if cell.cell.mode == mode] or covering
    return found


# --- attention


def _softmax_shares(group: Sequence[ProfileCellRecord], where: str, name: Namer) -> Iterator[Statement]:
    for phase in ("forward", "backward"):
        found = [
            (cell, cell.summary, parts)
            for cell in group
            if cell.summary is not None
            and (parts := complete_attention_parts(cell.summary, phase))
            and all(parts[part].flops is not None for part in NEEDED_PARTS)
        ]
        if found:
            text = f"{where}softmax {softmax_words(found, phase, name)}."
            yield Statement(text, tuple(cell for cell, *_ in found))


def softmax_words(
    profiles: Sequence[tuple[Named, ProfileSummary, Mapping[str, Rate]]], phase: str, name: Callable[[Named], str]
) -> str:
    """Compare softmax with the two matrix products of attention, by share of FLOPs, if known, and by share of time.

    Each of `profiles` consists of something that `name` names, a summary, and the summary's rates by part of attention.
    """

    def share(value: Callable[[Rate], int], *parts: str) -> str:
        shares = [
            (sum(value(rates[part]) for part in parts) / sum(map(value, rates.values())), profiled)
            for profiled, _, rates in profiles
        ]
        return range_text(shares, name)

    own = of_products = ""
    if len(profiles) == 1:
        ((_, summary, rates),) = profiles
        softmax_s, products_s = (
            units.seconds(sum(rates[part].total_ns for part in parts) / summary.steps * 1e-9)
            for parts in (("softmax",), PRODUCTS)
        )
        own = f" ({softmax_s} {'per step' if summary.steps_marked else 'in the trace'})"
        of_products = f" ({products_s})"
    flops = ""
    if all(rates[part].flops for _, _, rates in profiles for part in NEEDED_PARTS):
        flops = f"has {share(lambda rate: rate.flops or 0, 'softmax')} of attention's {phase} FLOPs and "
    time, products = (share(lambda rate: rate.total_ns, *parts) for parts in (("softmax",), PRODUCTS))
    of_time = "its time" if flops else f"attention's {phase} time"
    return f"{flops}takes {time} of {of_time}{own}; the two matrix products take {products}{of_products}"


# --- precision and the device


def _matmul_precision(group: Sequence[ProfileCellRecord], where: str, name: Namer) -> Iterator[Statement]:
    formats, shares, known_shares = set(), [], []
    for cell in group:
        precisions = cell.summary.precisions if cell.summary is not None else {}
        known = {name: total_ns for name, total_ns in precisions.items() if name != "unknown" and total_ns}
        if known:
            most = max(known, key=known.__getitem__)
            formats.add((most, cell.cell.compute_precision))
            shares.append((known[most] / sum(known.values()), cell))
            known_shares.append(sum(known.values()) / sum(precisions.values()))
    if len(formats) != 1:
        return
    ((format_, expected),) = formats
    known_share = min(known_shares)
    mismatch = "" if format_ == expected else f", although {expected} was requested"
    known_note = f" Kernel names state the format for {units.share(known_share)} of that time."
    text = f"{where}judging by kernel names, {range_text(shares, name)} of matrix product time is in {format_} kernels"
    known_partly = known_share <= 1 - NOTABLE / 2
    yield Statement(f"{text}{mismatch}.{known_note * known_partly}", tuple(cell for _, cell in shares))


def _device_idle_time(cells: Sequence[ProfileCellRecord], name: Namer) -> Iterator[Statement]:
    found = sorted(
        (
            (use.waiting_ns / use.window_ns, 1 - use.busy_ns / use.window_ns, cell)
            for cell in cells
            if cell.summary is not None and (use := cell.summary.device) is not None and use.window_ns
        ),
        key=lambda each: each[0],
    )
    if not found:
        return
    basis = tuple(cell for *_, cell in found)
    kind = "predicted" if any(cell.prediction for cell in basis) else "profiled"
    if found[-1][0] < NOTABLE and max(idle for _, idle, _ in found) < NOTABLE:
        many = "" if len(found) == 1 else " in both cells" if len(found) == 2 else f" in all {len(found)} cells"
        yield Statement(f"the device is busy throughout the {kind} step{many}.", basis)
        return
    idles = range_text([(idle, cell) for _, idle, cell in found], name)
    waits = range_text([(waiting, cell) for waiting, _, cell in found], name)
    bound = [cell for *_, cell in found if cell.summary and cell.summary.device and cell.summary.device.launch_bound]
    text = f"the device is idle for {idles} of the {kind} step; for {waits}, it waits for the host to launch work."
    if bound:
        text += " The step is launch-bound." if len(found) == 1 else f" Launch-bound cells: {name_cells(bound, name)}."
    yield Statement(text, basis)


def of_run(record: ProfileRecord) -> Iterator[Statement]:
    return findings(record.cells)
