"""The axes of cells, with their titles, phrases and roles; grouping and naming of cells by axis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from sysbench.log.records import CellRecord
from sysbench.spec.axis import Axis, DeclaredAxes, in_order_of_names
from sysbench.spec.model import CHOICES as CHOICES

AXES: Mapping[str, Axis] = DeclaredAxes()
"""All axes of cells, in the order of columns."""


class HasAxes(Protocol):
    """A cell of a spec or of a record."""

    @property
    def axes(self) -> Mapping[str, Any]:
        """The values of all axes that are stored."""


AnyCell = TypeVar("AnyCell", bound=CellRecord)

# --- differing and common axes


def varying(cells: Iterable[HasAxes]) -> tuple[str, ...]:
    """Return the axes in which these cells differ."""
    stored = [cell.axes for cell in cells]
    return tuple(axis for axis in AXES if len({axes.get(axis) for axes in stored}) > 1)


def present_axes(cells: Iterable[HasAxes]) -> tuple[str, ...]:
    """Return the axes that at least one of these cells has."""
    present = set().union(*(cell.axes for cell in cells))
    return tuple(axis for axis in AXES if axis in present)


def group_ignoring(cells: Iterable[AnyCell], *ignored: str) -> list[list[AnyCell]]:
    """Group cells that have the same values on all axes except those in `ignored`, in the order of the run.

    If `ignored` contains `size`, the model's dimensions may also differ.
    """
    ignored_axes = {*ignored, "model"} if "size" in ignored else set(ignored)
    groups: dict[tuple[tuple[str, str], ...], list[AnyCell]] = {}
    for cell in cells:
        groups.setdefault(tuple([pair for pair in cell.written_axes if pair[0] not in ignored_axes]), []).append(cell)
    return list(groups.values())


def named_groups(cells: Iterable[AnyCell], *ignored: str) -> Iterator[tuple[str, list[AnyCell]]]:
    """Yield the groups of `group_ignoring`, each with the values in which the groups differ: `cuda, batch 8`."""
    groups = group_ignoring(cells, *ignored)
    differing = varying([group[0] for group in groups])
    for group in groups:
        yield ", ".join(filter(None, (phrase(axis, group[0].axes.get(axis)) for axis in differing))), group


def values_along(cells: Iterable[CellRecord], axis: str) -> list[object]:
    """Return the distinct values of an axis, in the order of the run."""
    return list(dict.fromkeys(cell.axis_value(axis) for cell in cells))


def pairs(cells: Iterable[AnyCell], axis: str, base: object, other: object) -> Iterator[tuple[AnyCell, AnyCell]]:
    """Yield pairs of cells that differ only in `axis`, with the value `base` in the first and `other` in the second."""
    for row in group_ignoring(cells, axis):
        by_value = {cell.axis_value(axis): cell for cell in row}
        if base in by_value and other in by_value:
            yield by_value[base], by_value[other]


# --- names


def phrase(axis: str, value: object) -> str:
    """Return the phrase for a value of an axis: `ctx 512`, `bf16`, `5 warm-ups`, `no heads`."""
    return AXES[axis].format_value(value) if axis in AXES else str(value)


def label(cell: HasAxes, axes: Iterable[str]) -> str:
    """Name a cell by its values on these axes: `small ctx 128 bf16`.

    If these values give no name, use the cell's size, implementation, name or kind.
    """
    stored = cell.axes
    named = " ".join(filter(None, (phrase(axis, stored.get(axis)) for axis in axes)))
    return named or str(stored.get("size") or stored.get("implementation") or stored.get("name") or stored["kind"])


def subject(cells: Sequence[HasAxes]) -> tuple[str, ...]:
    """Return phrases for the axes in which all cells agree.

    The optimizer is included only for training; eager execution, the default, is omitted.
    """
    if not cells:
        return ()
    cell, differing = cells[0].axes, varying(cells)
    phrases = [
        phrase(axis, cell[axis])
        for axis in in_order_of_names(AXES)
        if axis not in differing
        and AXES[axis].role in ("scale", "extent", "work", "choice")
        and axis in cell
        and (axis != "optimizer" or str(cell["mode"]).startswith("train"))
        and (axis != "execution" or cell["execution"] != "eager")
    ]
    dtypes = {cell.axes.get("parameter_dtype") for cell in cells}
    if "precision" not in differing and len(dtypes) == 1 and (dtype := dtypes.pop()):
        # A user's model decides itself in which format its parameters are; fp32 is then none that is computed in.
        index = phrases.index(precision := phrase("precision", cell["precision"]))
        phrases[index] = f"{dtype} parameters" if precision == "fp32" else f"{precision}, {dtype} parameters"
    if cell.get("size") == "custom" and "size" not in differing:
        model = cell["model"]
        layers, heads = (f"{model[name]} {name[:-1] if model[name] == 1 else name}" for name in ("layers", "heads"))
        phrases[0] = f"d_model {model['d_model']}, d_ff {model['d_ff']}, {layers}, {heads}"
    return tuple(phrases)


def effort(cells: Sequence[HasAxes]) -> tuple[str, ...]:
    """Return phrases for the numbers of warm-ups and steps that all cells share: `5 warm-ups`, `10 steps`."""
    shared = set(present_axes(cells)) - set(varying(cells))
    return tuple(phrase(axis, cells[0].axes[axis]) for axis in ("warmup", "steps") if axis in shared)
