"""What cells differ in, what they share, and how either is said.

What axes are called at the head of a column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sysbench.log.records import CellRecord
from sysbench.render.table import Cell, Column

TITLES = {
    "device": "device",
    "size": "size",
    "batch": "batch",
    "ctx": "ctx",
    "mode": "mode",
    "attention": "attention",
    "execution": "execution",
    "optimizer": "optimizer",
    "precision": "precision",
    "warmup": "warm-up",
    "steps": "steps",
    "simulate": "simulated GPU",
    "heads": "heads",
    "implementation": "implementation",
    "dim": "d_model",
    "seq": "seq_len",
    "profiler": "profiler",
    "active": "active",
}
"""Every axis along which cells can differ, in the order in which they are named, with its heading."""


Axes = Mapping[str, Any]
"""A cell's spec, complete, as `TimeCell.model_dump()` has it."""

_PHRASES = {
    "ctx": "ctx {}",
    "batch": "batch {}",
    "dim": "d {}",
    "seq": "N {}",
    "profiler": "with {}",
    "attention": "{} attention",
    "optimizer": "{} AdamW",
}
_COUNTED = {"warmup": "{} warm-up", "steps": "{} step", "active": "{} profiled step"}


def varying(cells: Sequence[Axes]) -> tuple[str, ...]:
    """The axes in which these cells differ."""
    return tuple(axis for axis in TITLES if len({cell.get(axis) for cell in cells}) > 1)


def known(cells: Sequence[Axes]) -> tuple[str, ...]:
    """The axes that any of these cells has at all."""
    return tuple(axis for axis in TITLES if any(axis in cell for cell in cells))


def axes_of(cells: Sequence[CellRecord]) -> list[Axes]:
    """The specs of recorded cells."""
    return [cell.axes for cell in cells]


def phrase(axis: str, value: object) -> str:
    """One axis and its value as people say it: `ctx 512`, `bf16`, `5 warm-ups`."""
    match axis:
        case "heads":
            return f"{value} heads" if value else "no heads"
        case "warmup" | "steps" | "active":
            return _COUNTED[axis].format(value) + ("" if value == 1 else "s")
        case _:
            return _PHRASES.get(axis, "{}").format(value)


def label(cell: Axes, axes: Sequence[str]) -> str:
    """A cell by what sets it apart: `small ctx 128 bf16`; the size, or the implementation, where nothing does."""
    return " ".join(phrase(axis, cell[axis]) for axis in axes) or str(cell.get("size") or cell["implementation"])


def subject(cells: Sequence[Axes]) -> tuple[str, ...]:
    """What the cells have in common, in phrases; an axis along which they differ is left out."""
    if not cells:
        return ()
    cell, differing = cells[0], varying(cells)
    phrases = [
        phrase(axis, cell[axis])
        for axis in ("size", "ctx", "batch", "precision", "mode", "attention", "execution", "optimizer")
        if axis not in differing and _worth_saying(axis, cell)
    ]
    if cell["size"] == "custom" and "size" not in differing:
        phrases[0] = _dimensions(cell["model"])
    return tuple(phrases)


def effort(cells: Sequence[Axes]) -> tuple[str, ...]:
    """How the cells were measured, as far as they have it in common: `5 warm-ups`, `10 steps`."""
    differing = varying(cells)
    return tuple(
        phrase(axis, cells[0][axis])
        for axis in ("warmup", "steps")
        if cells and axis in cells[0] and axis not in differing
    )


def columns(axes: Sequence[str]) -> tuple[Column, ...]:
    """The leading columns of a table whose rows differ along these axes."""
    return tuple(Column(axis, TITLES[axis]) for axis in axes)


def values(cell: Axes, axes: Sequence[str]) -> tuple[Cell, ...]:
    """What those columns hold for one cell."""
    return tuple(cell[axis] for axis in axes)


def _worth_saying(axis: str, cell: Axes) -> bool:
    """Whether an axis has a bearing on this cell: an optimizer on `train` only, and eager goes without saying."""
    if axis == "optimizer":
        return str(cell["mode"]).startswith("train")
    return axis != "execution" or bool(cell["execution"] != "eager")


def _dimensions(model: Axes) -> str:
    return f"d_model {model['d_model']}, d_ff {model['d_ff']}, {model['layers']} layers, {model['heads']} heads"
