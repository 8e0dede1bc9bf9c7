"""The cells of a timing run by what they have in common: which may be believed, in rows, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sysbench.commands.time.record import TimeCellRecord
from sysbench.log.outcomes import CautionCode
from sysbench.log.records import CellRecord, Samples

FORWARD_BACKWARD: Final = ("forward", "loss", "backward")
"""What is called forward and backward everywhere: the loss is in it, the optimizer and zeroing gradients are not."""

DOUBTFUL: Final[frozenset[CautionCode]] = frozenset(
    {
        "warmup-unfinished",
        "two-modes",
        "drift",
        "autocorrelated",
        "too-few-steps",
        "gradients-missing",
        "parameters-unchanged",
        "below-lower-bound",
        "not-measured",
    }
)
"""Cautions that take away what a sentence would rest on: the median is of nothing, or its interval too narrow."""

INCOMPARABLE: Final[frozenset[CautionCode]] = frozenset({"throttled", "gpu-shared", "compile-fell-back"})
"""Cautions under which a cell may be compared with itself only: others did not run under the same conditions."""

_EXTENT: Final = ("size", "model", "ctx", "batch", "warmup", "steps", "until", "max_steps", "sync", "seed")
"""Axes that say how large a cell is, and how it was measured; all others say how it is computed."""


def doubts(cell: CellRecord, *, alone: bool) -> frozenset[CautionCode]:
    """The cautions for which nothing is said of a cell: less where it is compared with nothing but itself."""
    against = DOUBTFUL if alone else DOUBTFUL | INCOMPARABLE
    return frozenset(caution.code for caution in cell.cautions) & against


def believable(cells: Iterable[TimeCellRecord], *, alone: bool = True) -> list[TimeCellRecord]:
    """The cells that were measured to the end without such doubts."""
    return [cell for cell in cells if cell.outcome == "ok" and cell.phases and not doubts(cell, alone=alone)]


def samples(cell: TimeCellRecord, phase: str) -> Samples | None:
    """What was measured of a phase: by the host's clock, or by the device's where the host did not wait."""
    record = cell.phases.get(phase)
    return (record.wall or record.device) if record else None


def summed(cell: TimeCellRecord, phases: Sequence[str]) -> list[float] | None:
    """Step by step, the sum of those of these phases that were measured, in seconds; None without the first one."""
    parts = [found.samples_s for phase in phases if (found := samples(cell, phase))]
    if not parts or phases[0] not in cell.phases or len({len(part) for part in parts}) > 1:
        return None
    return [sum(step) for step in zip(*parts, strict=True)]


def launch_bound(cell: CellRecord) -> bool:
    """Whether the host was seen to set the pace."""
    return any(caution.code == "launch-bound" for caution in cell.cautions)


def settings(cells: Iterable[TimeCellRecord]) -> list[list[TimeCellRecord]]:
    """The cells by how they are computed: device, mode, precision, attention, …, whatever their size."""
    return _grouped(cells, _EXTENT)


def places(cells: Iterable[TimeCellRecord], axis: str) -> list[list[TimeCellRecord]]:
    """Cells that are alike in everything but one axis."""
    return _grouped(cells, (axis, "model") if axis == "size" else (axis,))


def _grouped(cells: Iterable[TimeCellRecord], but: Sequence[str]) -> list[list[TimeCellRecord]]:
    found: dict[tuple[tuple[str, str], ...], list[TimeCellRecord]] = {}
    for cell in cells:
        others = tuple(sorted((name, str(value)) for name, value in cell.axes.items() if name not in but))
        found.setdefault(others, []).append(cell)
    return list(found.values())


@dataclass(frozen=True)
class Pair:
    """Two cells that differ in one axis only."""

    axis: str
    base: TimeCellRecord
    other: TimeCellRecord


def arms(cells: Iterable[CellRecord], axis: str) -> list[Any]:
    """The values of an axis, in the order of the run."""
    return list(dict.fromkeys(cell.axes.get(axis) for cell in cells))


def pairs(cells: Iterable[TimeCellRecord], axis: str, base: object, other: object) -> Iterator[Pair]:
    """Whatever was measured under both values of an axis, everything else being equal."""
    for place in places(cells, axis):
        by_value: Mapping[object, TimeCellRecord] = {cell.axes[axis]: cell for cell in place}
        if base in by_value and other in by_value:
            yield Pair(axis, by_value[base], by_value[other])
