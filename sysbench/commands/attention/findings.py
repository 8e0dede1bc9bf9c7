"""What an attention sweep has shown, as numbers: growth, crossovers, ratios, and where memory ends.

Every finding holds the cells that it rests on; the words for it are those of `sysbench.views`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby

from sysbench.commands.attention.record import AttentionCellRecord
from sysbench.commands.attention.series import (
    QUANTITIES,
    TIMES,
    Quantity,
    Row,
    dims,
    implementations,
    over_memory,
    row_along,
    samples,
    value,
)
from sysbench.statistics import Crossover, NoPowerLaw, PowerLaw, Ratio, crossovers, direction, power_law, ratio


@dataclass(frozen=True)
class Growth:
    """How one quantity grows along one axis."""

    row: Row
    quantity: Quantity
    law: PowerLaw | NoPowerLaw


def growth(cells: Iterable[AttentionCellRecord], axis: str) -> list[Growth]:
    """Of every row of at least two cells and every quantity that was measured."""
    return [
        Growth(row, quantity, power_law([size for size, _ in points], [found for _, found in points]))
        for row in row_along(cells, axis)
        for quantity in QUANTITIES
        if len(points := _points(row, quantity)) > 1
    ]


def _points(row: Row, quantity: Quantity) -> list[tuple[float, float]]:
    known = ((float(cell.axes[row.axis]), value(cell, quantity)) for cell in row.cells)
    return [(size, found) for size, found in known if found]


@dataclass(frozen=True)
class Frontier:
    """Where memory ends along the sequence length."""

    row: Row
    fits: AttentionCellRecord | None
    """The longest that fits; None if none does."""
    beyond: AttentionCellRecord | None
    """The shortest that does not; None if all fit."""

    @property
    def untried(self) -> tuple[int, ...]:
        """Sequence lengths between the two, or beyond the first, of which nothing is known: skipped, or failed."""
        first = int(self.fits.axes["seq"]) if self.fits else 0
        last = int(self.beyond.axes["seq"]) if self.beyond else None
        lengths = (int(cell.axes["seq"]) for cell in self.row.cells if cell.outcome != "ok")
        return tuple(n for n in lengths if n > first and (last is None or n < last))


def frontier(cells: Iterable[AttentionCellRecord]) -> list[Frontier]:
    """Of every row along the sequence length in which anything is known of fitting."""
    found = []
    for row in row_along(cells, "seq"):
        fits = [cell for cell in row.cells if cell.outcome == "ok"]
        beyond = [cell for cell in row.cells if over_memory(cell)]
        if fits or beyond:
            found.append(Frontier(row, fits[-1] if fits else None, beyond[0] if beyond else None))
    return found


@dataclass(frozen=True)
class Compared:
    """One implementation against another on the same input: how many times as long the first takes."""

    first: AttentionCellRecord
    second: AttentionCellRecord
    quantity: Quantity
    ratio: Ratio


def compared(cells: Iterable[AttentionCellRecord], first: str, second: str, quantity: Quantity) -> list[Compared]:
    """Of two implementations everything that both have measured, ascending along the sequence length."""
    found = []
    for place in _places(cells):
        one, other = place.get(first), place.get(second)
        if one is not None and other is not None and (each := _compared(one, other, quantity)):
            found.append(each)
    return sorted(found, key=lambda each: int(each.first.axes["seq"]))


def _compared(first: AttentionCellRecord, second: AttentionCellRecord, quantity: Quantity) -> Compared | None:
    one, other = samples(first, quantity), samples(second, quantity)
    return Compared(first, second, quantity, ratio(one.samples_s, other.samples_s)) if one and other else None


def _places(cells: Iterable[AttentionCellRecord]) -> list[dict[str, AttentionCellRecord]]:
    """By implementation, the cells that have the same input."""
    return [{str(cell.axes["implementation"]): cell for cell in row} for row in _alike(cells)]


def _alike(cells: Iterable[AttentionCellRecord]) -> Iterator[list[AttentionCellRecord]]:
    found: dict[tuple[tuple[str, str], ...], list[AttentionCellRecord]] = {}
    for cell in cells:
        others = tuple(sorted((name, str(value)) for name, value in cell.axes.items() if name != "implementation"))
        found.setdefault(others, []).append(cell)
    yield from found.values()


@dataclass(frozen=True)
class Passage:
    """Between two implementations, at one head dimension, the faster one changes."""

    slower_first: str
    """Slower on shorter sequences, faster on longer ones."""
    other: str
    dim: int
    quantity: Quantity
    crossover: Crossover


def passages(cells: Sequence[AttentionCellRecord]) -> list[Passage]:
    """Every crossover of every two implementations; the cells must be of one setting."""
    found = []
    for dim in dims(cells):
        here = [cell for cell in cells if cell.axes["dim"] == dim]
        for first, second in combinations(implementations(here), 2):
            for quantity in TIMES:
                pairs = compared(here, first, second, quantity)
                lengths = [float(pair.first.axes["seq"]) for pair in pairs]
                for each in crossovers(lengths, [pair.ratio for pair in pairs]):
                    late, early = (first, second) if each.falls else (second, first)
                    found.append(Passage(late, early, dim, quantity, each))
    return found


@dataclass(frozen=True)
class Lead:
    """One implementation is the fastest from one sequence length to another."""

    implementation: str
    alike: tuple[str, ...]
    """Others that cannot be told apart from it on any of them."""
    first: int
    last: int


def leads(cells: Sequence[AttentionCellRecord], quantity: Quantity) -> list[Lead]:
    """Who is fastest, by ascending sequence length; the cells must be of one setting and one head dimension."""
    best: list[tuple[int, str, frozenset[str]]] = []
    for place in sorted(_places(cells), key=_length):
        timed = {name: found for name, cell in place.items() if (found := value(cell, quantity)) is not None}
        if len(timed) < 2:
            continue
        name = min(timed, key=lambda each: timed[each])
        best.append((_length(place), name, frozenset(_as_fast(place, name, timed, quantity))))
    runs = [(name, list(group)) for name, group in groupby(best, key=lambda each: each[1])]
    return [
        Lead(name, tuple(sorted(frozenset.intersection(*(alike for _, _, alike in run)))), run[0][0], run[-1][0])
        for name, run in runs
    ]


def _length(place: dict[str, AttentionCellRecord]) -> int:
    return int(next(iter(place.values())).axes["seq"])


def _as_fast(
    place: dict[str, AttentionCellRecord], best: str, others: Iterable[str], quantity: Quantity
) -> Iterator[str]:
    for name in others:
        found = _compared(place[name], place[best], quantity) if name != best else None
        if found is not None and direction(found.ratio) == 0:
            yield name
