"""Kinds of findings that several commands have: the numbers with their cells, and one sentence for each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic

from sysbench import cells as axes
from sysbench import units
from sysbench.log.records import AnyCell
from sysbench.render.sentences.findings import Finding
from sysbench.render.sentences.phrases import (
    Namer,
    count_phrase,
    exponent,
    intervals_overlap,
    join_words,
    no_difference_clause,
    pooled_ratio,
    ratio_range,
    ratio_with_name,
    with_interval,
)
from sysbench.statistics import NoPowerLaw, Pooled, PowerLaw, Ratio, pooled, power_law

# --- comparisons


@dataclass(frozen=True)
class Compared(Generic[AnyCell]):
    """A ratio of two times."""

    ratio: Ratio
    cells: tuple[AnyCell, ...]
    """The compared cells, or the single cell two of whose phases are compared. The first one names the ratio."""
    direction: int
    """1 if the ratio is significantly above 1, -1 if below, 0 if neither."""
    sample_count: int
    """Number of samples of whichever time has fewer."""


@dataclass(frozen=True)
class Comparison(Generic[AnyCell]):
    """Ratios of the same two times over cells, in ascending order; there is at least one."""

    ratios: tuple[Compared[AnyCell], ...]

    @classmethod
    def of(cls, ratios: Iterable[Compared[AnyCell]]) -> Comparison[AnyCell] | None:
        """Return the comparison of the ratios that have an interval; None if there are none."""
        known = [ratio for ratio in ratios if ratio.ratio.low is not None]
        return cls(tuple(sorted(known, key=lambda each: each.ratio.value))) if known else None

    def significant(self, *directions: int) -> list[Compared[AnyCell]]:
        """Return the ratios with one of these directions."""
        return [ratio for ratio in self.ratios if ratio.direction in directions]

    @property
    def cells(self) -> tuple[AnyCell, ...]:
        """All cells that are compared."""
        return tuple({cell.key: cell for ratio in self.ratios for cell in ratio.cells}.values())

    @property
    def pooled(self) -> Pooled | None:
        """The pooled ratio if all cells agree on it; otherwise None."""
        return pooled([ratio.ratio for ratio in self.ratios])

    @property
    def differ(self) -> bool:
        """Whether the largest ratio is significantly larger than the smallest."""
        return not intervals_overlap(self.ratios[0].ratio, self.ratios[-1].ratio)

    @property
    def ends(self) -> str:
        """The range of the ratios: `1.05 to 1.31×`."""
        return ratio_range(self.ratios[0].ratio.value, self.ratios[-1].ratio.value)

    def describe(self, name: Namer) -> tuple[str, str]:
        """Return the ratio, or a range if cells disagree, and the cells: `2.03 ± 0.02×`, ` in all 12 cells`."""
        first, last = self.ratios[0], self.ratios[-1]
        if len(self.ratios) == 1:
            return with_interval(first.ratio), ""
        if (common := self.pooled) is not None:
            return pooled_ratio(common), f" in {count_phrase(len(self.ratios))}"
        if self.differ:
            ends = (ratio_with_name(end.ratio, name(end.cells[0])) for end in (first, last))
            return " to ".join(ends), ""
        return self.ends, ""

    def no_difference(self, one: str, other: str) -> str:
        """Return a clause saying that the times of `one` and `other` do not differ measurably."""
        return no_difference_clause(one, other, [(ratio.ratio, ratio.sample_count) for ratio in self.ratios])


# --- where memory ends


@dataclass(frozen=True)
class Limit(Generic[AnyCell]):
    """Where memory ends along an axis."""

    axis: str
    row: Sequence[AnyCell]
    """Cells that differ only in this axis, in ascending order."""
    fits: AnyCell | None
    """The last cell that fits; None if none fits."""
    beyond: AnyCell | None
    """The first cell that does not fit; None if all fit."""

    @property
    def untried(self) -> tuple[int, ...]:
        """Values between `fits` and `beyond` for which it is unknown whether they fit."""
        start = self.row.index(self.fits) + 1 if self.fits is not None else 0
        end = self.row.index(self.beyond) if self.beyond is not None else len(self.row)
        return tuple(cell.axis_value(self.axis) for cell in self.row[start:end] if cell.outcome != "ok")

    def describe(self) -> str:
        """Return `ctx 512 fits, ctx 1024 does not`; empty if all fit, or if a later cell fits: the axis is not why."""
        if self.beyond is None:
            return ""
        beyond = axes.phrase(self.axis, self.beyond.axis_value(self.axis))
        if self.fits is None:
            return f"{beyond} does not fit"
        if self.row.index(self.fits) > self.row.index(self.beyond):
            return ""
        return f"{axes.phrase(self.axis, self.fits.axis_value(self.axis))} fits, {beyond} does not"


def limits(
    cells: Iterable[AnyCell], axis: str, fits: Callable[[AnyCell], bool], exceeds: Callable[[AnyCell], bool]
) -> list[Limit[AnyCell]]:
    """Return the limit of every row along `axis` in which a cell is known to fit or to exceed the memory."""
    found = []
    for row in axes.group_ignoring(cells, axis):
        ordered = sorted(row, key=lambda cell: int(cell.axis_value(axis)))
        fitting, beyond = list(filter(fits, ordered)), list(filter(exceeds, ordered))
        if fitting or beyond:
            found.append(Limit(axis, ordered, fitting[-1] if fitting else None, beyond[0] if beyond else None))
    return found


def limit_findings(
    found: Iterable[Limit[AnyCell]],
    name: Callable[[Sequence[AnyCell]], str],
    shortage: Callable[[Sequence[AnyCell]], str] = lambda _: "",
) -> Iterator[Finding]:
    """Yield `small and medium: ctx 512 fits, ctx 1024 does not.`; `name` and `shortage` describe cells beyond."""
    alike: dict[tuple[object, ...], list[Limit[AnyCell]]] = {}
    for limit in found:
        if limit.describe():
            ends = (cell and cell.axis_value(limit.axis) for cell in (limit.fits, limit.beyond))
            alike.setdefault((*ends, limit.untried), []).append(limit)
    for first, *others in alike.values():
        axis, untried = axes.AXES[first.axis].short_title, first.untried
        beyond = [limit.beyond for limit in (first, *others) if limit.beyond is not None]
        values = f"{axis} {join_words(list(map(str, untried)))}" if untried else ""
        unknown = f" Whether {values} {'fits' if len(untried) == 1 else 'fit'} is unknown." if untried else ""
        basis = tuple(cell for limit in (first, *others) for cell in (limit.fits, limit.beyond) if cell is not None)
        yield Finding(f"{name(beyond)}: {first.describe()}{shortage(beyond)}.{unknown}", basis, about="memory")


# --- growth along an axis


@dataclass(frozen=True)
class Growth(Generic[AnyCell]):
    """How a quantity grows along an axis."""

    quantity: str
    symbol: str
    """Symbol of the size that grows: `N`."""
    law: PowerLaw | NoPowerLaw
    cells: Sequence[AnyCell]
    """The cells to which the law is fitted, in ascending order of size."""

    @property
    def has_law(self) -> bool:
        """Whether there are enough sizes to tell how the quantity grows."""
        return isinstance(self.law, PowerLaw) or not self.law.too_few

    def is_significant(self, mean: Callable[[AnyCell], float | None]) -> bool:
        """Return whether the quantity grows significantly, judging by the exponents and by the means, where known."""
        if isinstance(self.law, NoPowerLaw):
            return min(self.law.slopes[0].exponent, self.law.slopes[-1].exponent) > 0
        first, last = mean(self.cells[-len(self.law.sizes)]), mean(self.cells[-1])
        return self.law.low > 0 and (first is None or last is None or first < last)

    def describe(self) -> tuple[str, str]:
        """Return the power and the sizes: `N^1.97 ± 0.03`, ` over 4 sizes from N 1024 to 16384`."""
        show = units.count if self.symbol == "P" else "{:.0f}".format
        if isinstance(self.law, PowerLaw):
            sizes = self.law.sizes
            span = f" over {len(sizes)} sizes from {self.symbol} {show(sizes[0])} to {show(sizes[-1])}"
            return exponent(self.law, self.symbol), span
        ends = [
            f"{self.symbol}^{end.exponent:.2f} from {self.symbol} {show(end.first)} to {show(end.last)}"
            for end in dict.fromkeys((self.law.slopes[0], self.law.slopes[-1]))
        ]
        return " and ".join(ends), ""


def fit_growth(
    quantity: str,
    symbol: str,
    row: Iterable[AnyCell],
    size: Callable[[AnyCell], int],
    value: Callable[[AnyCell], float | None],
) -> Growth[AnyCell] | None:
    """Fit the growth of a quantity to the cells of a row that have a value; None without two different sizes."""
    cells = sorted((cell for cell in row if value(cell)), key=size)
    sizes = [size(cell) for cell in cells]
    if len(cells) < 2 or len(set(sizes)) < len(sizes):
        return None
    return Growth(quantity, symbol, power_law(sizes, [value(cell) or 0.0 for cell in cells]), cells)


def growth_text(growths: Sequence[Growth[AnyCell]]) -> str:
    """Return `forward grows as N^1.97 ± 0.03 over 4 sizes from N 1024 to 16384; backward grows as …`."""
    return "; ".join(f"{each.quantity} grows as {''.join(each.describe())}" for each in growths)
