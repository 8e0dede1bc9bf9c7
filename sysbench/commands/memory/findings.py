"""What memory measurements and simulations have shown, as numbers: growth, what precision changes, what is largest.

Peaks are exact for the cell that they are of: nothing here has an interval. Differences below `NOTABLE` are none, since
simulated peaks lay within 1 % of recorded ones. The words are those of `sysbench.commands.memory.words`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from sysbench.commands.memory.record import AllocationGroup, MemoryCellRecord

NOTABLE: Final = 0.01
"""Of a peak: a smaller difference is none."""

EXACT: Final = 0.01
"""Of every value: as far as a formula for growth may be off."""

FEWEST: Final = 4
"""Contexts: through three a parabola always goes, and nothing says whether it means anything."""

TRAINING: Final = ("train", "train-first")

FOR_GOOD: Final = ("parameters", "gradients", "optimizer state")

_HALF: Final = ("bf16", "fp16")

ROUNDING: Final = 512
"""What the allocator rounds up to."""

SPLIT: Final = 1 << 20
"""What is left of a large block has to be larger to be split off."""


def known(cells: Iterable[MemoryCellRecord]) -> list[MemoryCellRecord]:
    """The cells that came to an end with a peak, and for which there is memory enough, as far as that is known.

    What a search has found is of another size than was asked for, and stands beside none of these.
    """
    return [
        cell
        for cell in cells
        if cell.outcome == "ok"
        and cell.found is None
        and cell.peak_allocated_bytes
        and (cell.verdict is None or cell.verdict.fits)
    ]


def peak(cell: MemoryCellRecord) -> int:
    """Bytes allocated at the peak; of a cell that is known."""
    return cell.peak_allocated_bytes or 0


def contexts(cell: MemoryCellRecord) -> int:
    """The context that a cell is of."""
    return int(cell.axes["ctx"])


def rows(cells: Iterable[MemoryCellRecord], *axes: str) -> list[list[MemoryCellRecord]]:
    """Cells that are alike in everything but these axes."""
    but = {*axes, "model"} if "size" in axes else set(axes)
    found: dict[tuple[tuple[str, str], ...], list[MemoryCellRecord]] = {}
    for cell in cells:
        others = tuple(sorted((name, str(value)) for name, value in cell.axes.items() if name not in but))
        found.setdefault(others, []).append(cell)
    return list(found.values())


@dataclass(frozen=True)
class Pair:
    """Two cells that differ in one axis."""

    base: MemoryCellRecord
    other: MemoryCellRecord

    @property
    def share(self) -> float:
        """By how much the other one's peak is larger, as a share of the first one's."""
        return peak(self.other) / peak(self.base) - 1

    @property
    def difference(self) -> int:
        """In bytes."""
        return peak(self.other) - peak(self.base)


def pairs(cells: Iterable[MemoryCellRecord], axis: str, base: Any, other: Any) -> list[Pair]:
    """Whatever is known under both values of an axis, everything else being equal."""
    found = []
    for row in rows(known(cells), axis):
        by_value = {cell.axes[axis]: cell for cell in row}
        if base in by_value and other in by_value:
            found.append(Pair(by_value[base], by_value[other]))
    return found


# --- growth


@dataclass(frozen=True)
class Parabola:
    """peak ≈ fixed + linear · ctx + square · ctx², in bytes."""

    cells: tuple[MemoryCellRecord, ...]
    fixed: float
    linear: float
    square: float
    off: float
    """By how much it misses the value that it misses most, as a share of it."""

    @property
    def even_at(self) -> float:
        """The context at which the square has become as much as the linear part."""
        return self.linear / self.square


def parabola(row: Sequence[MemoryCellRecord]) -> Parabola | None:
    """Of cells that differ in their context; None for fewer than four, or where none fits to 1 %, or not upwards."""
    ordered = sorted(row, key=contexts)
    sizes = np.array([contexts(cell) for cell in ordered], np.float64)
    values = np.array([peak(cell) for cell in ordered], np.float64)
    if len(set(sizes.tolist())) < FEWEST or len(set(sizes.tolist())) < len(ordered):
        return None
    # Relative residuals, so that a small context counts as much as a large one.
    design = np.stack([np.ones_like(sizes), sizes, sizes**2], axis=1) / values[:, None]
    (fixed, linear, square), *_ = np.linalg.lstsq(design, np.ones_like(values), rcond=None)
    off = float(np.abs(design @ np.array([fixed, linear, square]) - 1).max())
    if off > EXACT or linear <= 0 or square <= 0:
        return None
    return Parabola(tuple(ordered), float(fixed), float(linear), float(square), off)


def unmoved(row: Sequence[MemoryCellRecord]) -> bool:
    """Whether the peak does not depend on the context over at least twice as long a one."""
    ordered = sorted(row, key=contexts)
    values = [peak(cell) for cell in ordered]
    return (
        len(ordered) > 1
        and contexts(ordered[-1]) >= 2 * contexts(ordered[0])
        and max(values) - min(values) <= NOTABLE * min(values)
    )


# --- precision


def copies_bytes(cell: MemoryCellRecord) -> int | None:
    """What 16-bit copies of the weights take that autocast makes, by their number: of all matrices but the embedding.

    None where nothing is copied.
    """
    if cell.axes["precision"] not in _HALF:
        return None
    model = cell.axes["model"]
    d_model, layers = int(model["d_model"]), int(model["layers"])
    gains = (2 * layers + 1) * d_model
    return 2 * (cell.model.parameters - int(model["vocab"]) * d_model - gains)


def category_changes(pair: Pair) -> list[tuple[str, int]]:
    """By category what the second has more at its peak, the largest change first; those below 1 % of the peak not."""
    names = dict.fromkeys((*pair.base.by_category, *pair.other.by_category))
    changes = [(name, pair.other.by_category.get(name, 0) - pair.base.by_category.get(name, 0)) for name in names]
    notable = [(name, change) for name, change in changes if abs(change) >= NOTABLE * peak(pair.base)]
    return sorted(notable, key=lambda item: -abs(item[1]))


# --- what is largest


@dataclass(frozen=True)
class Explained:
    """The largest allocations at a peak, and the product of dimensions that they are."""

    cell: MemoryCellRecord
    group: AllocationGroup
    product: str | None
    """`batch 4 × heads 32 × ctx 512² × 4 bytes`; None where no product of dimensions is as large."""


def largest_each(cell: MemoryCellRecord) -> Explained | None:
    """The group whose single allocations are largest; of several such, the one that takes most together.

    What libraries keep to work in is not the model's, and does not count.
    """
    groups = [group for group in cell.largest if group.category != "workspace"]
    if not groups:
        return None
    group = max(groups, key=lambda group: (group.size_bytes, group.total_bytes))
    return Explained(cell, group, product_of(cell, group))


def largest_together(cell: MemoryCellRecord) -> Explained | None:
    """The group that takes most together."""
    if not cell.largest:
        return None
    group = max(cell.largest, key=lambda group: group.total_bytes)
    return Explained(cell, group, product_of(cell, group))


def product_of(cell: MemoryCellRecord, group: AllocationGroup) -> str | None:
    """The product of a model's dimensions that each allocation of a group is, once the allocator has rounded it up.

    Of a large block up to 1 MiB is not split off, and counts with it.

    Products of different dimensions can be as large as each other (heads × ctx and d_ff, say): then the module that the
    group belongs to decides, and where it does not, nothing is said.
    """
    modules = " ".join(group.modules)
    for slack in (0, SPLIT):
        found = [
            (place, f"{words} × {width} bytes")
            for place, words, count in _products(cell)
            for width in (4, 2)
            if 0
            <= group.size_bytes - -(-count * width // ROUNDING) * ROUNDING
            <= (slack if count * width > SPLIT else 0)
        ]
        here = [words for place, words in found if place and place in modules]
        if len(here) == 1 or len(found) == 1:
            return here[0] if len(here) == 1 else found[0][1]
        if found:
            return None
    return None


def _products(cell: MemoryCellRecord) -> Iterator[tuple[str, str, int]]:
    """What tensors of a Transformer have as many numbers as, with what the modules are called that make them."""
    model: Mapping[str, int] = cell.axes["model"]
    batch, ctx, heads, d_model = int(cell.axes["batch"]), contexts(cell), model["heads"], model["d_model"]
    d_ff, vocab = model["d_ff"], model["vocab"]
    yield "attend", f"batch {batch} × heads {heads} × ctx {ctx}²", batch * heads * ctx * ctx
    yield "feed_forward", f"batch {batch} × ctx {ctx} × d_ff {d_ff}", batch * ctx * d_ff
    yield "head", f"batch {batch} × ctx {ctx} × vocabulary {vocab}", batch * ctx * vocab
    yield "", f"batch {batch} × ctx {ctx} × d_model {d_model}", batch * ctx * d_model
    yield "feed_forward", f"d_model {d_model} × d_ff {d_ff}", d_model * d_ff
    yield "embedding", f"vocabulary {vocab} × d_model {d_model}", vocab * d_model
    yield "attention", f"d_model {d_model}²", d_model * d_model


# --- where it ends


@dataclass(frozen=True)
class Frontier:
    """Where memory ends along the context."""

    fits: MemoryCellRecord | None
    """The longest that fits; None if none does."""
    beyond: MemoryCellRecord
    """The shortest that does not."""


def frontiers(cells: Iterable[MemoryCellRecord]) -> list[Frontier]:
    """Of every row along the context in which something does not fit."""
    found = []
    for row in rows([cell for cell in cells if cell.found is None], "ctx"):
        ordered = sorted(row, key=contexts)
        beyond = [cell for cell in ordered if cell.outcome == "oom" or (cell.verdict and not cell.verdict.fits)]
        if beyond:
            fits = [cell for cell in known(ordered) if contexts(cell) < contexts(beyond[0])]
            found.append(Frontier(fits[-1] if fits else None, beyond[0]))
    return found
