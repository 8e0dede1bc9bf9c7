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

_PHRASES = {"ctx": "ctx {}", "batch": "batch {}", "dim": "d {}", "seq": "N {}", "attention": "{} attention"}


def sets_apart(cells: Sequence[Axes]) -> tuple[str, ...]:
    """The axes in which these cells differ, in the order in which they are named; an axis that some lack is one."""
    return tuple(
        axis for axis in dict.fromkeys(ORDER) if len({text(cell[axis]) if axis in cell else "" for cell in cells}) > 1
    )


def label(kind: Kind, cell: Axes, axes: Sequence[str]) -> str:
    """`small ctx 512 bf16`; where nothing sets it apart, its size or what it implements, or the command."""
    phrases = [_PHRASES.get(axis, "{}").format(text(cell[axis])) for axis in axes if cell.get(axis) is not None]
    return " ".join(phrases) or text(cell.get("size") or cell.get("implementation") or kind)
