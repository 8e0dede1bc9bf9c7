"""What an axis is to grids, names, tables and comparisons: declared once, on the field of a cell, beside its option."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from sysbench.command import command_of, kinds

Comparison = Literal["controlled", "treatment", "effort"]
"""controlled  cells must agree for their times and peaks to be comparable
treatment   a comparison can show its effect
effort      how often or how long something was measured
"""


@dataclass(frozen=True)
class Remedy:
    """Marks an axis as one whose value can make a step fit into memory, or make it faster.

    values         values to try in place of the default, the mildest first
    relearns       values that also change what the model learns: its arithmetic, or the rule of its updates
    costs_time     whether none of the values ever makes a step faster
    frees_state    whether a value can shrink weights, gradients or optimizer state, not only activations
    replays        whether the step requests the same memory with every value, so that it need not be traced again
    built_in_only  whether the axis applies only to the built-in Transformer
    """

    values: tuple[object, ...] = ()
    relearns: tuple[object, ...] = ()
    costs_time: bool = False
    frees_state: bool = False
    replays: bool = False
    built_in_only: bool = False


@dataclass(frozen=True)
class Axis:
    """Marks a field of a cell as an axis.

    `role` says what the axis describes: the `device`, the `scale` (number of processes), the `extent` of the problem,
    the kind of `work`, a `choice` of how a step is computed, or the `effort` of the measurement. A `setting` has one
    value in a whole run: it is only compared between runs. Grids and tables have the axes as they are declared, the
    outermost and leftmost first.

    phrase         the phrase for a value in sentences
    title          heading of the axis's column; default: the field's name with spaces
    parse          turns what an option or a program gives into values of the axis; raises ValueError
    default        values in a spec that gives none, for a field that every cell stores
    is_count       the phrase is a count with a plural: `1 step`, `2 steps`
    unset          phrase for a cell without a value, or with the default value
    applies_to     other axes on which it depends, with the values for which it has a meaning; none: all but the default
    comparison     what comparing two values means; default: `effort` for that role, otherwise `treatment`
    phrases        phrases of single values to which `phrase` does not apply
    stored_default the value of cells that are stored without the field; follows from the field
    remedy         how another value can make a step fit or faster; None if the axis is no such knob
    """

    role: Literal["device", "scale", "extent", "work", "choice", "effort", "setting"]
    phrase: str = "{}"
    title: str = ""
    parse: Callable[..., tuple[object, ...]] | None = None
    default: object = None
    is_count: bool = False
    unset: str = ""
    applies_to: tuple[tuple[str, tuple[object, ...]], ...] = ()
    comparison: Comparison | None = None
    stored_default: object = None
    phrases: tuple[tuple[object, str], ...] = ()
    remedy: Remedy | None = None

    def format_value(self, value: object) -> str:
        """Return the phrase for a value: `ctx 512`, `bf16`, `5 warm-ups`."""
        if value is None or (self.unset and value == self.stored_default):
            return self.unset
        if (own := dict(self.phrases).get(value)) is not None:
            return own
        if isinstance(value, str) and ":" in value:
            return value  # a reference to the user's code, or a device, needs no phrase
        return self.phrase.format(value) + ("s" if self.is_count and value != 1 else "")

    @property
    def short_title(self) -> str:
        """The word before the value in the phrase, or else the title: `d` for `d 64`."""
        return self.phrase.removesuffix(" {}") if self.phrase.endswith(" {}") else self.title

    @property
    def compares(self) -> Comparison:
        """What comparing two values means."""
        return self.comparison or ("effort" if self.role == "effort" else "treatment")


SETTING = Axis("setting")


def find_axis(field: FieldInfo) -> Axis | None:
    """Return the Axis with which a field is marked; None if it is not an axis."""
    return next((mark for mark in field.metadata if isinstance(mark, Axis)), None)


def axes_of_model(model: type[BaseModel]) -> dict[str, Axis]:
    """Return the axes that the fields of a cell declare, or those of a spec, in order of declaration."""
    return {name: axis for name, field in model.model_fields.items() if (axis := find_axis(field)) is not None}


def value_if_not_stored(field: FieldInfo) -> object:
    """Return the value of an axis in cells that were stored without it: the first default of the spec's field."""
    default = field.default
    return next(iter(default), None) if isinstance(default, tuple) else default


HARDWARE = Axis("device", unset="this machine")
"""The device's name: not requested, but part of the record of a cell that was measured elsewhere."""

MOST_TELLING = (
    *("device", "simulate", "hardware", "size", "implementation", "dim", "seq", "ctx", "batch", "grad_accum"),
    *("precision", "mode", "execution", "attention", "optimizer", "heads"),
)
"""Axes with which the name of a cell begins, where they differ, and in which order cells are compared."""


def in_order_of_names(axes: Mapping[str, Axis]) -> dict[str, Axis]:
    """Return the axes as names have them: the most telling, then choices, threads and ranks, settings, the effort."""

    def spreads(axis: Axis) -> bool:
        return axis.is_count or any(spreads(axes[other]) for other, _ in axis.applies_to if other in axes)

    def position(item: tuple[str, Axis]) -> tuple[int, bool, bool, bool]:
        name, axis = item
        telling = MOST_TELLING.index(name) if name in MOST_TELLING else len(MOST_TELLING)
        return telling, axis.compares == "effort", axis.role == "setting", spreads(axis)

    return dict(sorted(axes.items(), key=position))


class DeclaredAxes(Mapping[str, Axis]):
    """The axes that the cells of all commands have, in the order of columns; without settings."""

    def __getitem__(self, name: str) -> Axis:
        return _axes(kinds())[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_axes(kinds()))

    def __len__(self) -> int:
        return len(_axes(kinds()))


@cache
def _axes(names: tuple[str, ...]) -> Mapping[str, Axis]:
    return {name: axis for name, axis in _fields(names).items() if axis.role != "setting"}


def declared_fields() -> Mapping[str, Axis]:
    """Return all axes and settings by field, in the order of names; a field without a mark is a setting."""
    return _named_fields(kinds())


@cache
def _named_fields(names: tuple[str, ...]) -> Mapping[str, Axis]:
    return in_order_of_names(_fields(names))


@cache
def _fields(names: tuple[str, ...]) -> Mapping[str, Axis]:
    """Return all axes and settings as the cells of the commands declare them, each where it is declared first."""
    marked: dict[str, Axis] = {"hardware": HARDWARE}
    defaults: dict[str, object] = {"device": None, "hardware": None}
    for cell in (command_of(name).models().cell for name in names):
        marked = {**axes_of_model(cell), **marked}
        for name, field in cell.model_fields.items():
            defaults.setdefault(name, field.get_default())
    return {
        name: _complete(name, marked.get(name, SETTING), default)
        for name, default in defaults.items()
        if name not in _UNNAMED
    }


_UNNAMED = ("kind", "model")
"""Fields of cells that are neither axes nor settings: the size names the model."""


def _complete(name: str, axis: Axis, default: object) -> Axis:
    words = name.replace("_", " ")
    return replace(
        axis,
        title=axis.title or words,
        phrase=f"{words} {{}}" if axis.role == "setting" and axis.phrase == "{}" else axis.phrase,
        stored_default=None if default is PydanticUndefined else default,
    )
