"""What a compared cell is called: by what sets it apart from the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sysbench.analysis.compare_match import EFFORT, TREATMENTS, UNEQUAL, text
from sysbench.specs.kinds import Kind

Axes = Mapping[str, Any]

ORDER = (
    "device",
    "simulate",
    "size",
    "implementation",
    "dim",
    "seq",
    "ctx",
    "batch",
    "precision",
    "mode",
    *(axis for axis in (*TREATMENTS, *UNEQUAL) if axis not in ("size", "implementation", "dim", "seq", "ctx")),
    *EFFORT,
)
"""In this order axes are named."""

_PHRASES = {
    "ctx": "ctx {}",
    "batch": "batch {}",
    "dim": "d {}",
    "seq": "N {}",
    "attention": "{} attention",
    "simulate": "simulated for {}",
    "heads": "{} heads",
    "sync": "synchronized by {}",
    "warmup": "{} warm-ups",
    "steps": "{} steps",
    "repeats": "{} repeats",
    "active": "{} profiled steps",
}
"""Axes of which the value alone would not say what it is of; others are named where that is so."""

_SPEAK_FOR_THEMSELVES = ("device", "size", "implementation", "precision", "mode", "execution", "optimizer", "profiler")


def sets_apart(cells: Sequence[Axes]) -> tuple[str, ...]:
    """The axes in which these cells differ, in the order in which they are named; an axis that some lack is one."""
    return tuple(
        axis for axis in dict.fromkeys(ORDER) if len({text(cell[axis]) if axis in cell else "" for cell in cells}) > 1
    )


def labels(cells: Sequence[tuple[Kind, Axes]]) -> list[str]:
    """What each cell is called among the others of its kind: `ctx 512 bf16`; and of several kinds, of which it is."""
    kinds = dict.fromkeys(kind for kind, _ in cells)
    apart = {kind: sets_apart([axes for other, axes in cells if other == kind]) for kind in kinds}
    return [f"{kind} " * (len(kinds) > 1) + _label(kind, axes, apart[kind]) for kind, axes in cells]


def _label(kind: Kind, cell: Axes, axes: Sequence[str]) -> str:
    """Where nothing sets it apart, its size or what it implements, or the command."""
    phrases = [_phrase(axis, cell[axis]) for axis in axes if cell.get(axis) not in (None, False)]
    return " ".join(phrases) or text(cell.get("size") or cell.get("implementation") or kind)


def _phrase(axis: str, value: object) -> str:
    if value is True:
        return axis.replace("_", " ")
    if axis in _SPEAK_FOR_THEMSELVES:
        return text(value)
    return _PHRASES.get(axis, f"{axis.replace('_', ' ')} {{}}").format(text(value))
