"""Axes along which cells differ, and cells that are alike in all but some of them.

An axis has its title, its phrase and its role here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from sysbench.log.records import CellRecord
from sysbench.render.table import Cell, Column


@dataclass(frozen=True)
class Axis:
    """One axis: what it is called at the head of a column, and how one of its values reads in a sentence.

    Its role says what it means when two cells differ in it: they ran on another `machine`, are of another `extent`, did
    other `work`, made another `choice` of how to compute it, or were measured with more or less `effort`.
    """

    title: str
    role: Literal["machine", "extent", "work", "choice", "effort"]
    phrase: str = "{}"
    counted: bool = False
    """The phrase is of something countable: `1 step`, `2 steps`."""

    def said(self, value: object) -> str:
        """`ctx 512`, `bf16`, `5 warm-ups`."""
        return self.phrase.format(value) + ("s" if self.counted and value != 1 else "")


AXES: Mapping[str, Axis] = {
    "device": Axis("device", "machine"),
    "size": Axis("size", "extent"),
    "batch": Axis("batch", "extent", "batch {}"),
    "ctx": Axis("ctx", "extent", "ctx {}"),
    "mode": Axis("mode", "work"),
    "attention": Axis("attention", "choice", "{} attention"),
    "execution": Axis("execution", "choice"),
    "optimizer": Axis("optimizer", "choice", "{} AdamW"),
    "precision": Axis("precision", "choice"),
    "warmup": Axis("warm-up", "effort", "{} warm-up", counted=True),
    "steps": Axis("steps", "effort", "{} step", counted=True),
    "simulate": Axis("simulated GPU", "machine"),
    "heads": Axis("heads", "extent", "{} heads"),
    "implementation": Axis("implementation", "choice"),
    "dim": Axis("d_model", "extent", "d {}"),
    "seq": Axis("seq_len", "extent", "N {}"),
    "profiler": Axis("profiler", "choice", "with {}"),
    "active": Axis("active", "effort", "{} profiled step", counted=True),
}
"""Every axis along which cells can differ, in the order in which columns and names have them."""

TITLES: Mapping[str, str] = {name: axis.title for name, axis in AXES.items()}

CHOICES = ("precision", "execution", "attention", "optimizer")
"""How a training step is computed: the choices between which one wants to decide, most asked for first."""

_SUBJECT = ("size", "ctx", "batch", "precision", "mode", "attention", "execution", "optimizer")

Axes = Mapping[str, Any]
"""A cell's spec, complete, as `TimeCell.model_dump()` has it."""

AnyCell = TypeVar("AnyCell", bound=CellRecord)

# --- what cells differ in, and what they have in common


def axes_of(cells: Sequence[CellRecord]) -> list[Axes]:
    """The specs of recorded cells."""
    return [cell.axes for cell in cells]


def varying(cells: Sequence[Axes]) -> tuple[str, ...]:
    """The axes in which these cells differ."""
    first = cells[0] if cells else {}
    return tuple(axis for axis in AXES if any(cell.get(axis) != first.get(axis) for cell in cells))


def known(cells: Sequence[Axes]) -> tuple[str, ...]:
    """The axes that any of these cells has at all."""
    return tuple(axis for axis in AXES if any(axis in cell for cell in cells))


def alike(cells: Iterable[AnyCell], *but: str) -> list[list[AnyCell]]:
    """Cells that agree on every axis but these, together and in the order of the run; `size` stands for its model."""
    free = {*but, "model"} if "size" in but else set(but)
    found: dict[tuple[tuple[str, str], ...], list[AnyCell]] = {}
    for cell in cells:
        shared = tuple(sorted((axis, str(value)) for axis, value in cell.axes.items() if axis not in free))
        found.setdefault(shared, []).append(cell)
    return list(found.values())


def values_along(cells: Iterable[CellRecord], axis: str) -> list[Any]:
    """The values of an axis, in the order of the run."""
    return list(dict.fromkeys(cell.axes.get(axis) for cell in cells))


def pairs(cells: Iterable[AnyCell], axis: str, base: object, other: object) -> Iterator[tuple[AnyCell, AnyCell]]:
    """The cells that differ in one axis alone, one with each of its two values."""
    for row in alike(cells, axis):
        by_value = {cell.axes[axis]: cell for cell in row}
        if base in by_value and other in by_value:
            yield by_value[base], by_value[other]


# --- how they are named


def phrase(axis: str, value: object) -> str:
    """One axis and its value as people say it: `ctx 512`, `bf16`, `5 warm-ups`, `no heads`."""
    return "no heads" if axis == "heads" and not value else AXES[axis].said(value) if axis in AXES else str(value)


def label(cell: Axes, axes: Sequence[str]) -> str:
    """A cell by what sets it apart: `small ctx 128 bf16`; the size, implementation or kind where nothing does."""
    named = " ".join(phrase(axis, cell[axis]) for axis in axes)
    return named or str(cell.get("size") or cell.get("implementation") or cell["kind"])


def subject(cells: Sequence[Axes]) -> tuple[str, ...]:
    """What the cells have in common, in phrases; an axis along which they differ is left out.

    An optimizer has a bearing on `train` only, and eager goes without saying.
    """
    if not cells:
        return ()
    cell, differing = cells[0], varying(cells)
    phrases = [
        phrase(axis, cell[axis])
        for axis in _SUBJECT
        if axis not in differing
        and (axis != "optimizer" or str(cell["mode"]).startswith("train"))
        and (axis != "execution" or cell["execution"] != "eager")
    ]
    if cell["size"] == "custom" and "size" not in differing:
        model = cell["model"]
        phrases[0] = (
            f"d_model {model['d_model']}, d_ff {model['d_ff']}, {model['layers']} layers, {model['heads']} heads"
        )
    return tuple(phrases)


def effort(cells: Sequence[Axes]) -> tuple[str, ...]:
    """How the cells were measured, as far as they have it in common: `5 warm-ups`, `10 steps`."""
    differing = varying(cells)
    return tuple(
        phrase(axis, cells[0][axis])
        for axis in ("warmup", "steps")
        if cells and axis in cells[0] and axis not in differing
    )


# --- in tables


def columns(axes: Sequence[str]) -> tuple[Column, ...]:
    """The leading columns of a table whose rows differ along these axes."""
    return tuple(Column(axis, AXES[axis].title) for axis in axes)


def values(cell: Axes, axes: Sequence[str]) -> tuple[Cell, ...]:
    """What those columns hold for one cell."""
    return tuple(cell[axis] for axis in axes)
