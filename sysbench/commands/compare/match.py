"""Which cell of one side is compared with which of the other, and which must not be compared at all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sysbench.errors import UsageError, unknown

Axes = Mapping[str, Any]

UNEQUAL: Mapping[str, str] = {
    "precision": "precision",
    "batch": "batch",
    "mode": "mode",
    "device": "device",
    "simulate": "simulated GPU",
    "sync": "synchronization",
    "cold": "cold caches",
}
"""Axes along which two times or two peaks are of different things, with what they are called."""

TREATMENTS: Mapping[str, str] = {
    "size": "size",
    "ctx": "ctx",
    "attention": "attention",
    "execution": "execution",
    "optimizer": "optimizer",
    "threads": "threads",
    "implementation": "implementation",
    "dim": "head dimension",
    "seq": "sequence length",
    "heads": "heads",
    "causal": "causal mask",
    "profiler": "profiler",
    "shapes": "recorded shapes",
    "find": "search",
}
"""Axes along which one compares."""

EFFORT = ("warmup", "steps", "until", "max_steps", "repeats", "active", "budget", "seed")
"""Axes that say how often or how long was measured, not what."""

MACHINE = "machine"

ACROSS = (*UNEQUAL, *TREATMENTS, MACHINE)
"""What may be told to make no difference."""


class NothingInCommonError(UsageError):
    """No cell of the one side is among those of the other."""


@dataclass(frozen=True)
class Matching:
    """Pairs of positions in the two lists of cells, what is left over, and along what the pairs differ."""

    pairs: tuple[tuple[int, int], ...]
    only_a: tuple[int, ...]
    only_b: tuple[int, ...]
    across: tuple[str, ...]
    """Axes in which the two cells of every pair differ."""


def refuse_unknown(across: Iterable[str]) -> None:
    """Raise UsageError for the name of an axis that there is not."""
    for name in across:
        if name not in ACROSS:
            raise UsageError(f"--across {unknown(name, 'an axis', ACROSS)}")


def match(a: Sequence[Axes], b: Sequence[Axes], across: Sequence[str] = ()) -> Matching:
    """Match the cells of two sides, all of one kind, by their axes.

    Cells are the same if all their axes are, except for those that say how often was measured, where the two sides have
    nothing in common there. Where each side holds just one value of an axis, and not the same, cells are matched across
    it: one such axis is what the comparison is about. Raises UsageError where there are two or more, where one of them
    makes the arms unequal, and is not among `across`, and NothingInCommonError where nothing matches.
    """
    constant, disjoint = _apart(a, b)
    _refuse_unequal([axis for axis in disjoint if axis in UNEQUAL and axis not in across], a, b)
    crossed = [axis for axis in constant if axis not in EFFORT]
    _refuse_confounded([axis for axis in crossed if axis not in across], a, b)
    _refuse_swept([axis for axis in disjoint if axis in across and axis not in constant], a, b)
    ignored = {*crossed, *(axis for axis in disjoint if axis in EFFORT)}
    keys_a, keys_b = _by_key(a, ignored), _by_key(b, ignored)
    pairs = tuple((place, keys_b[key]) for key, place in keys_a.items() if key in keys_b)
    if not pairs:
        raise NothingInCommonError(_nothing(disjoint, a, b))
    matched_a, matched_b = {first for first, _ in pairs}, {second for _, second in pairs}
    return Matching(
        pairs,
        tuple(place for place in range(len(a)) if place not in matched_a),
        tuple(place for place in range(len(b)) if place not in matched_b),
        tuple(crossed),
    )


def values(cells: Iterable[Axes], axis: str) -> tuple[str, ...]:
    """The values of an axis among cells, as text, in the order in which they appear."""
    return tuple(dict.fromkeys(text(cell.get(axis)) for cell in cells))


def text(value: object) -> str:
    """An axis's value as people write it."""
    if isinstance(value, str):
        return value
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(text(each) for each in value) or "none"
    return str(value)


def _apart(a: Sequence[Axes], b: Sequence[Axes]) -> tuple[list[str], list[str]]:
    """The axes of which each side holds one value, not the same; and all of which they have none in common."""
    names = list(dict.fromkeys(name for cell in (*a, *b) for name in cell))
    held = {name: (set(values(a, name)), set(values(b, name))) for name in names}
    disjoint = [name for name, (there, here) in held.items() if not there & here]
    return [name for name in disjoint if all(len(side) == 1 for side in held[name])], disjoint


def _refuse_unequal(axes: Sequence[str], a: Sequence[Axes], b: Sequence[Axes]) -> None:
    if axes:
        listed = "; ".join(_difference(axis, a, b) for axis in axes)
        raise UsageError(
            f"the two are not of the same thing: {listed}. Unequal arms are not compared, "
            f"unless --across {','.join(axes)} says that this is meant"
        )


def _refuse_confounded(axes: Sequence[str], a: Sequence[Axes], b: Sequence[Axes]) -> None:
    if len(axes) > 1:
        listed = "; ".join(_difference(axis, a, b) for axis in axes)
        raise UsageError(
            f"the two differ in more than one thing, and nobody could tell which of them makes a difference: {listed}. "
            f"--across {','.join(axes)} compares them all the same"
        )


def _refuse_swept(axes: Sequence[str], a: Sequence[Axes], b: Sequence[Axes]) -> None:
    for axis in axes:
        raise UsageError(f"--across {axis} takes one value on each side: {_difference(axis, a, b)}")


def _nothing(disjoint: Sequence[str], a: Sequence[Axes], b: Sequence[Axes]) -> str:
    named = [axis for axis in disjoint if axis not in EFFORT]
    why = "; ".join(_difference(axis, a, b) for axis in named) or "their axes have no combination in common"
    return f"no cell of A is in B: {why}"


def _difference(axis: str, a: Sequence[Axes], b: Sequence[Axes]) -> str:
    """`precision is fp32 in A and bf16 in B`."""
    name = UNEQUAL.get(axis) or TREATMENTS.get(axis) or axis.replace("_", " ")
    return f"{name} is {_some(values(a, axis))} in A and {_some(values(b, axis))} in B"


def _some(words: Sequence[str]) -> str:
    return ", ".join(words[:4]) + (f" and {len(words) - 4} more" if len(words) > 4 else "")


Key = tuple[tuple[str, str], ...]


def _by_key(cells: Sequence[Axes], ignored: set[str]) -> dict[Key, int]:
    """The place of each cell by its axes; of cells that differ only in what is ignored the last one counts."""
    return {
        tuple((name, text(cell[name])) for name in sorted(cell) if name not in ignored): place
        for place, cell in enumerate(cells)
    }
