"""Pairs up the cells of two sides, and refuses sides that are not comparable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sysbench.errors import UsageError, unknown

Axes = Mapping[str, Any]

UNEQUAL: Mapping[str, str] = {
    "precision": "precision",
    "batch": "batch",
    "grad_accum": "micro-batches per step",
    "mode": "mode",
    "device": "device",
    "simulate": "simulated GPU",
    "sync": "synchronization",
    "cold": "cold caches",
    "tokens": "tokens per step",
    "by": "measured by",
}
"""Axes whose values make times and peaks incomparable, with their names in messages."""

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
    "name": "name",
}
"""Axes that comparisons are made across."""

EFFORT = ("warmup", "steps", "until", "max_steps", "repeats", "active", "budget", "seed")
"""Axes that say how often or how long something was measured, not what."""

MACHINE = "machine"

ACROSS = (*UNEQUAL, *TREATMENTS, MACHINE)
"""Allowed values of --across."""


class NothingInCommonError(UsageError):
    """The two sides have no cell in common."""


@dataclass(frozen=True)
class Matching:
    """Pairs of positions in the two lists of cells, and the positions left over."""

    pairs: tuple[tuple[int, int], ...]
    only_a: tuple[int, ...]
    only_b: tuple[int, ...]
    across: tuple[str, ...]
    """Axes in which the two cells of every pair differ."""


def refuse_unknown(across: Iterable[str]) -> None:
    """Raise UsageError for an unknown axis."""
    for name in across:
        if name not in ACROSS:
            raise UsageError(f"--across {unknown(name, 'an axis', ACROSS)}")


def match(a: Sequence[Axes], b: Sequence[Axes], across: Sequence[str] = ()) -> Matching:
    """Match the cells of two sides, all of one command, by their axes.

    Cells match if all their axes are equal; EFFORT axes are ignored if the two sides have no value in common. If each
    side has a single value of an axis, and the two differ, cells are matched across it: this one axis is the subject of
    the comparison. Raises UsageError if there are several such axes, or if one is UNEQUAL, unless they are in `across`,
    and NothingInCommonError if no cells match.
    """
    names = list(dict.fromkeys(name for cell in (*a, *b) for name in cell))
    held = {name: (set(values(a, name)), set(values(b, name))) for name in names}
    disjoint = [name for name, (there, here) in held.items() if not there & here]
    crossed = [name for name in disjoint if name not in EFFORT and all(len(side) == 1 for side in held[name])]
    _refuse(disjoint, crossed, across, a, b)
    ignored = {*crossed, *(axis for axis in disjoint if axis in EFFORT)}
    keys_a, keys_b = _by_key(a, ignored), _by_key(b, ignored)
    pairs = tuple((place, keys_b[key]) for key, place in keys_a.items() if key in keys_b)
    if not pairs:
        why = "; ".join(_difference(axis, a, b) for axis in disjoint if axis not in EFFORT)
        raise NothingInCommonError(f"no cell of A is in B: {why or 'their axes have no combination in common'}")
    matched_a, matched_b = {first for first, _ in pairs}, {second for _, second in pairs}
    return Matching(
        pairs,
        tuple(place for place in range(len(a)) if place not in matched_a),
        tuple(place for place in range(len(b)) if place not in matched_b),
        tuple(crossed),
    )


def values(cells: Iterable[Axes], axis: str) -> tuple[str, ...]:
    """Distinct values of an axis as text, in order of appearance."""
    return tuple(dict.fromkeys(text(cell.get(axis)) for cell in cells))


def text(value: object) -> str:
    """A value of an axis as text."""
    if isinstance(value, str):
        return value
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(text(each) for each in value) or "none"
    return str(value)


def _refuse(
    disjoint: Sequence[str], crossed: Sequence[str], across: Sequence[str], a: Sequence[Axes], b: Sequence[Axes]
) -> None:
    """Raise UsageError if the axes with no common value make the two sides incomparable."""
    unequal = [axis for axis in disjoint if axis in UNEQUAL and axis not in across]
    if unequal:
        raise UsageError(
            f"A and B are not comparable: {'; '.join(_difference(axis, a, b) for axis in unequal)}. "
            f"--across {','.join(unequal)} compares them anyway"
        )
    several = [axis for axis in crossed if axis not in across]
    if len(several) > 1:
        raise UsageError(
            "A and B differ in several ways, so the cause of a difference would be unclear: "
            f"{'; '.join(_difference(axis, a, b) for axis in several)}. "
            f"--across {','.join(several)} compares them anyway"
        )
    for axis in disjoint:
        if axis in across and axis not in crossed and axis not in EFFORT:
            raise UsageError(f"--across {axis} takes one value on each side: {_difference(axis, a, b)}")


def _difference(axis: str, a: Sequence[Axes], b: Sequence[Axes]) -> str:
    """`precision is fp32 in A and bf16 in B`."""
    name = UNEQUAL.get(axis) or TREATMENTS.get(axis) or axis.replace("_", " ")
    return f"{name} is {_some(values(a, axis))} in A and {_some(values(b, axis))} in B"


def _some(words: Sequence[str]) -> str:
    return ", ".join(words[:4]) + (f" and {len(words) - 4} more" if len(words) > 4 else "")


Key = tuple[tuple[str, str], ...]


def _by_key(cells: Sequence[Axes], ignored: set[str]) -> dict[Key, int]:
    """Position of each cell by its axes; of cells that differ only in ignored axes, the last one counts."""
    return {
        tuple((name, text(cell[name])) for name in sorted(cell) if name not in ignored): place
        for place, cell in enumerate(cells)
    }
