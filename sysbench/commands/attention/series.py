"""The cells of an attention sweep in rows along one axis, everything else being equal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from sysbench.commands.attention.record import AttentionCellRecord
from sysbench.log.records import Samples

Quantity = Literal["forward", "backward", "saved"]
"""forward and backward are times; saved is what forward keeps in memory for backward."""

QUANTITIES: Final[tuple[Quantity, ...]] = ("forward", "backward", "saved")

TIMES: Final[tuple[Quantity, ...]] = ("forward", "backward")

USUAL_DIM: Final = 64
"""What most models take; sentences are about this head dimension where the sweep has it."""

_MEMORY: Final = re.compile(r"ran out of memory|\b[KMGT]i?B are free|of memory")
"""How the engine words it when memory is the reason for not starting a cell."""

_SWEPT: Final = ("implementation", "dim", "seq")


@dataclass(frozen=True)
class Row:
    """Cells that are alike in everything but one axis, ascending along it."""

    axis: str
    shared: Mapping[str, Any]
    """Their axes, without that one."""
    cells: tuple[AttentionCellRecord, ...]

    @property
    def implementation(self) -> str:
        """Whose cells they are."""
        return str(self.shared["implementation"])


def row_along(cells: Iterable[AttentionCellRecord], axis: str) -> list[Row]:
    """Every row along an axis, in the order of the run."""
    found: dict[tuple[tuple[str, str], ...], list[AttentionCellRecord]] = {}
    for cell in cells:
        others = tuple(sorted((name, str(value)) for name, value in cell.axes.items() if name != axis))
        found.setdefault(others, []).append(cell)
    return [
        Row(
            axis,
            {name: value for name, value in row[0].axes.items() if name != axis},
            tuple(sorted(row, key=lambda cell: int(cell.axes[axis]))),
        )
        for row in found.values()
    ]


def settings(cells: Sequence[AttentionCellRecord]) -> list[list[AttentionCellRecord]]:
    """The cells by everything but implementation, head dimension and sequence length: batch, precision, device, …"""
    found: dict[tuple[tuple[str, str], ...], list[AttentionCellRecord]] = {}
    for cell in cells:
        others = tuple(sorted((name, str(value)) for name, value in cell.axes.items() if name not in _SWEPT))
        found.setdefault(others, []).append(cell)
    return list(found.values())


def dims(cells: Iterable[AttentionCellRecord]) -> list[int]:
    """The head dimensions of these cells, ascending."""
    return sorted({int(cell.axes["dim"]) for cell in cells})


def usual_dim(cells: Sequence[AttentionCellRecord]) -> int | None:
    """The head dimension that sentences are about: 64, or the middle one of those there are."""
    found = dims(cells)
    if not found:
        return None
    return USUAL_DIM if USUAL_DIM in found else found[(len(found) - 1) // 2]


def implementations(cells: Iterable[AttentionCellRecord]) -> list[str]:
    """In the order of the run."""
    return list(dict.fromkeys(str(cell.axes["implementation"]) for cell in cells))


def samples(cell: AttentionCellRecord, quantity: Quantity) -> Samples | None:
    """The times of a phase, of a cell that was measured to the end; None of a size."""
    if cell.outcome != "ok" or quantity == "saved":
        return None
    return cell.forward if quantity == "forward" else cell.backward


def value(cell: AttentionCellRecord, quantity: Quantity) -> float | None:
    """The median of a phase in seconds, or the bytes that forward keeps for backward."""
    if quantity == "saved":
        return cell.saved_bytes
    found = samples(cell, quantity)
    return found.median_s if found else None


def over_memory(cell: AttentionCellRecord) -> bool:
    """Whether memory ran out, was predicted to, or a smaller cell's had run out."""
    return cell.outcome == "oom" or (cell.outcome == "skipped" and _MEMORY.search(cell.detail or "") is not None)
