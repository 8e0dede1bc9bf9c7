"""What profiles have shown, as numbers: leading kernels, shares by class, attention's parts, a device that waits.

Every finding holds the cell it rests on; `sysbench.commands.profile.words` has the words. A profile is of one to
three steps, so that shares are descriptions of these and have no interval; cells whose profile is known to lack
something (see `UNTOLD`) are in none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sysbench.commands.profile.rates import class_in
from sysbench.commands.profile.record import ProfileCellRecord
from sysbench.log.outcomes import CautionCode
from sysbench.trace.summary import KernelClass, KernelName, ProfileSummary, Rate

UNTOLD: Final[frozenset[CautionCode]] = frozenset(
    {"kernels-missing", "kernels-unlinked", "trace-damaged", "check-failed"}
)
"""Cautions by which kernels are missing, or are in no range: shares would be of something else."""

RANGES: Final[Mapping[str, tuple[str, ...] | None]] = {
    "forward": ("forward",),
    "backward": ("backward",),
    "forward and backward": ("forward", "loss", "backward"),
    "the step": None,
}
"""By name the phases that are meant; None is all of them."""

SHAPED: Final = ("scores", "mask", "softmax", "output")
"""The parts of attention that is written out."""


UNTOLD_ON_CPU: Final[frozenset[CautionCode]] = frozenset({"host-busy"})
"""Where operators are what is timed, another program's work falls into whichever of them was running."""


def doubts(cell: ProfileCellRecord) -> frozenset[CautionCode]:
    """The cautions for which nothing is said of a cell."""
    on_cpu = cell.summary is not None and cell.summary.source == "cpu"
    against = UNTOLD | UNTOLD_ON_CPU if on_cpu else UNTOLD
    return frozenset(caution.code for caution in cell.cautions) & against


def told(cells: Iterable[ProfileCellRecord]) -> list[ProfileCellRecord]:
    """The cells that were profiled, and whose profile has what it should."""
    return [cell for cell in cells if cell.summary is not None and cell.summary.spent.total_ns and not doubts(cell)]


def _by_kernel(summary: ProfileSummary, phases: Sequence[str] | None) -> dict[tuple[int, int], tuple[int, int]]:
    """Time and calls by phase and kernel, as positions: of tens of thousands of rows, one for each module."""
    wanted = {number for number, phase in enumerate(summary.phases) if phases is None or phase in phases}
    columns = summary.spent
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for place, total_ns, calls in zip(
        zip(columns.phase, columns.kernel, strict=True), columns.total_ns, columns.calls, strict=True
    ):
        if place[0] in wanted:
            before_ns, before = found.get(place, (0, 0))
            found[place] = before_ns + total_ns, before + calls
    return found


@dataclass(frozen=True)
class Leading:
    """The kernel, or on a CPU the operator, that takes the most time in a range."""

    cell: ProfileCellRecord
    name: KernelName
    share: float
    """Of the time of all kernels of the range."""
    calls: float
    """In a step."""


def leading(cell: ProfileCellRecord, phases: Sequence[str] | None) -> Leading | None:
    """None where nothing was launched there."""
    summary = cell.summary
    if summary is None:
        return None
    total: dict[int, tuple[int, int]] = {}
    for (_, kernel), (total_ns, calls) in _by_kernel(summary, phases).items():
        before_ns, before = total.get(kernel, (0, 0))
        total[kernel] = before_ns + total_ns, before + calls
    whole_ns = sum(total_ns for total_ns, _ in total.values())
    if not whole_ns:
        return None
    most, (most_ns, calls) = max(total.items(), key=lambda item: item[1][0])
    return Leading(cell, summary.names[most], most_ns / whole_ns, calls / summary.steps)


def class_shares(cell: ProfileCellRecord, phases: Sequence[str] | None) -> dict[KernelClass, float]:
    """By class of kernel its share of the time of a range, the largest first; nothing where nothing was launched."""
    summary = cell.summary
    if summary is None:
        return {}
    found: dict[KernelClass, int] = {}
    for (phase, kernel), (total_ns, _) in _by_kernel(summary, phases).items():
        kind = class_in(summary.names[kernel], summary.phases[phase])
        found[kind] = found.get(kind, 0) + total_ns
    whole_ns = sum(found.values())
    ordered = sorted(found.items(), key=lambda item: -item[1])
    return {kind: total_ns / whole_ns for kind, total_ns in ordered} if whole_ns else {}


def has_phase(cell: ProfileCellRecord, phase: str) -> bool:
    """Whether anything was launched in a phase."""
    if cell.summary is None or phase not in cell.summary.phases:
        return False
    return cell.summary.phases.index(phase) in set(cell.summary.spent.phase)


@dataclass(frozen=True)
class Softmax:
    """Softmax within attention that is written out: its share of the FLOPs, and of the time."""

    cell: ProfileCellRecord
    phase: str
    flops_share: float
    time_share: float
    products_share: float
    """Of the time, that of the two matrix products."""
    softmax_ns: float
    """In a step."""
    products_ns: float


def softmax(cell: ProfileCellRecord, phase: str) -> Softmax | None:
    """None where attention's parts, or their FLOPs, are not known."""
    if cell.summary is None:
        return None
    parts = attention_parts(cell.summary, phase)
    if not {"scores", "softmax", "output"} <= set(parts):
        return None
    flops = [parts[part].flops for part in ("scores", "softmax", "output")]
    whole_ns = sum(rate.total_ns for rate in parts.values())
    if not whole_ns or any(each is None for each in flops):
        return None
    all_flops = sum(rate.flops or 0 for rate in parts.values())
    products_ns = parts["scores"].total_ns + parts["output"].total_ns
    return Softmax(
        cell,
        phase,
        flops_share=(flops[1] or 0) / all_flops,
        time_share=parts["softmax"].total_ns / whole_ns,
        products_share=products_ns / whole_ns,
        softmax_ns=parts["softmax"].total_ns / cell.summary.steps,
        products_ns=products_ns / cell.summary.steps,
    )


def attention_parts(summary: ProfileSummary, phase: str) -> dict[str, Rate]:
    """The parts of attention in a phase, in order."""
    found = {rate.part: rate for rate in summary.rates if rate.kind == "attention" and rate.phase == phase}
    return {part: found[part] for part in SHAPED if part in found}


@dataclass(frozen=True)
class Idle:
    """The shares of a profiled step in which the device does nothing, and of that for want of launches."""

    cell: ProfileCellRecord
    idle: float
    waiting: float


def idle(cells: Iterable[ProfileCellRecord]) -> list[Idle]:
    """Of every cell with kernels, ascending in how long the device waits for the host."""
    found = [
        Idle(cell, 1 - use.busy_ns / use.window_ns, use.waiting_ns / use.window_ns)
        for cell in cells
        if cell.summary is not None and (use := cell.summary.device) is not None and use.window_ns
    ]
    return sorted(found, key=lambda each: each.waiting)


@dataclass(frozen=True)
class Multiplied:
    """The number format that most of the time of matrix products is spent in, by the names of their kernels."""

    cell: ProfileCellRecord
    format: str
    share: float
    """Of the products whose names say what they multiply."""
    known: float
    """The share of all products' time whose names say it."""


def multiplied(cell: ProfileCellRecord) -> Multiplied | None:
    """None where no name says anything."""
    precisions = cell.summary.precisions if cell.summary is not None else {}
    whole_ns = sum(precisions.values())
    known = {name: total_ns for name, total_ns in precisions.items() if name != "unknown" and total_ns}
    if not known:
        return None
    most = max(known, key=lambda name: known[name])
    return Multiplied(cell, most, known[most] / sum(known.values()), sum(known.values()) / whole_ns)
