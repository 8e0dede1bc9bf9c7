"""Parts of sentences: names of cells, lists, ranges, and numbers with their intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Final, TypeVar

from sysbench import cells as axes
from sysbench import units
from sysbench.log.records import CellRecord
from sysbench.render.table import EXCLUDED_MARK
from sysbench.statistics import Pooled, PowerLaw, Ratio
from sysbench.statistics.pooling import MIN_EFFECT_SHARE

MAX_NAMED_CELLS: Final = 3
"""Largest number of cells named in a sentence; the others are counted."""

MAX_NAMED_AMONG: Final = 4
"""Largest number of cells that are all named among those of a run; if there are more, the others are counted."""

MAX_ALL_NAMED: Final = 6
"""Largest number of cells that are all named; cells that differ only in context count once."""

Named = TypeVar("Named")

Namer = Callable[[CellRecord], str]
"""Function that returns the name of a cell among others."""


def namer(cells: Sequence[CellRecord], ignored: Collection[str] = ()) -> Namer:
    """Return a function that names a cell by the axes in which `cells` differ, except the axes in `ignored`."""
    named = [axis for axis in axes.varying(cells) if axis not in ignored]
    return lambda cell: axes.label(cell, named)


def marked(name: Namer) -> Namer:
    """Return a function that names a cell as `name` does, with a mark if cautions exclude its times from findings."""
    return lambda cell: f"{name(cell)} {EXCLUDED_MARK}" if cell.excluding_cautions() else name(cell)


def join_words(words: Sequence[str]) -> str:
    """Join words into a list such as `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def name_cells(cells: Sequence[CellRecord], name: Namer, max_named: int = MAX_NAMED_CELLS) -> str:
    """Name cells, and count those after the first `max_named`: `small ctx 128, small ctx 256 and 4 more`."""
    words = list(dict.fromkeys(name(cell) for cell in cells))
    return join_words([*words[:max_named], f"{len(words) - max_named} more"] if len(words) > max_named + 1 else words)


def name_among(cells: Sequence[CellRecord], all_cells: Sequence[CellRecord]) -> str:
    """Name cells by the axes in which the cells of the run differ; `every cell` if these are all cells of the run.

    Cells that are all those with certain values of an axis are named by the values: `flex and flash-attn`.
    """
    if len(cells) == len(all_cells) > 1:
        return "every cell"
    differing = axes.varying(all_cells)
    for axis in differing if len(cells) > 1 else ():
        values = axes.values_along(cells, axis)
        if len(values) <= MAX_NAMED_AMONG and sum(cell.axis_value(axis) in values for cell in all_cells) == len(cells):
            return join_words([axes.phrase(axis, value) for value in values])
    shown = cells if len(cells) <= MAX_NAMED_AMONG else cells[: MAX_NAMED_AMONG - 1]
    names = ", ".join(axes.label(cell, differing) for cell in shown)
    return names if len(shown) == len(cells) else f"{names} and {len(cells) - len(shown)} more cells"


def name_cells_along(
    cells: Sequence[CellRecord],
    among: Sequence[CellRecord] | None = None,
    ignored: Collection[str] = (),
    along: str = "ctx",
) -> str:
    """Name cells by the axes in which the cells in `among` differ, with their values of `along` after the other names:
    `small at ctx 128 and 256, and xl at ctx 128`.
    """
    all_cells = cells if among is None else among
    differing = axes.varying(all_cells)
    if along not in differing:
        return name_cells(cells, namer(all_cells, ignored), MAX_ALL_NAMED)
    values: dict[str, set[int]] = {}
    for cell in cells:
        phrases = (axes.phrase(axis, cell.axes.get(axis)) for axis in differing if axis not in (*ignored, along))
        values.setdefault(" ".join(phrases), set()).add(cell.axes[along])
    symbol = axes.AXES[along].short_title
    words = [
        f"{f'{name} at ' if name else ''}{symbol} {join_words(list(map(str, sorted(found))))}"
        for name, found in values.items()
    ]
    if len(words) > MAX_ALL_NAMED:
        words = [*words[:MAX_ALL_NAMED], f"{len(words) - MAX_ALL_NAMED} more cells"]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])}, and {words[-1]}"


def count_phrase(count: int) -> str:
    """Return a count in words: `the only cell`, `both cells`, `all 12 cells`."""
    return "the only cell" if count == 1 else "both cells" if count == 2 else f"all {count} cells"


def with_interval(found: Ratio, prefix: str = "95% CI ") -> str:
    """Format a ratio with its interval: `3.65× (95% CI 3.61–3.69)`.

    The interval is left out if both of its ends round to the ratio.
    """
    decimals = units.ratio_decimals([found.value])
    shown = {f"{each:.{decimals}f}" for each in (found.low, found.value, found.high) if each is not None}
    return units.ratio(found.value) if len(shown) == 1 else f"{units.ratio(found.value)} ({prefix}{interval(found)})"


def interval(found: Ratio) -> str:
    """Format the interval of a ratio, which must have one: `3.61–3.69`, with as many decimals as the ratio."""
    decimals = units.ratio_decimals([found.value])
    return f"{found.low:.{decimals}f}–{found.high:.{decimals}f}"


def contains_one(found: Ratio) -> bool:
    """Whether the interval of a ratio contains 1: no difference was resolved, so a finding must not state the ratio."""
    return found.low is not None and found.high is not None and found.low <= 1 <= found.high


def no_difference_clause(one: str, other: str, each: Sequence[tuple[Ratio, int]], noun: str = "step") -> str:
    """Return a clause saying that the times of `one` and `other` do not differ measurably.

    `each` contains the ratio of every cell and its number of samples; `noun` is the word for a sample.
    """
    ratios, count = [ratio for ratio, _ in each], min(count for _, count in each)
    cells = f" in {count_phrase(len(each))}" if len(each) > 1 else ""
    ends = [end for ratio in ratios for end in (ratio.low, ratio.high) if end is not None]
    if ends and all(abs(end - 1) < MIN_EFFECT_SHARE for end in ends):
        return f"{one} and {other} are equally fast to within 1%{cells}"
    if not all(map(contains_one, ratios)):  # an interval without 1 may belong to an insignificant difference
        where = f" in any of {len(each)} cells" if cells else ""
        return f"{count} {noun}s are too few, or vary too much, to tell whether {one} or {other} is faster{where}"
    widest = max(ratios, key=lambda ratio: (ratio.high or 1.0) / (ratio.low or 1.0))
    return f"{one} and {other} do not differ measurably{cells}: the 95% interval of the ratio is {interval(widest)}"


def ratio_range(low: float, high: float) -> str:
    """Format a range of ratios: `1.05 to 1.31×`, or `1.31×` if both round to the same value."""
    if units.ratio(low) == units.ratio(high):
        return units.ratio(high)
    decimals = min(units.ratio_decimals([low]), units.ratio_decimals([high]))
    return f"{low:.{decimals}f} to {high:.{decimals}f}×"


def intervals_overlap(one: Ratio, other: Ratio) -> bool:
    """Whether the intervals of two ratios overlap, so that noise may explain the difference between the ratios.

    True if an interval is unknown.
    """
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return True
    return one.low <= other.high and other.low <= one.high


def ratio_with_name(found: Ratio, name: str) -> str:
    """Format a ratio with the name of its cell, and the interval if it is wide: `2.17× (small, 95% CI 1.84–2.70)`."""
    is_wide = found.low is not None and found.high is not None and found.high - found.low > 0.04 * found.value
    return f"{units.ratio(found.value)} ({name}{f', 95% CI {interval(found)}' if is_wide else ''})"


def pooled_ratio(found: Pooled) -> str:
    """Format a pooled ratio: `2.03 ± 0.02×`. The deviation (after ±) determines the decimals, and is rounded up."""
    deviation = found.max_deviation
    decimals = min(3, max(1, math.ceil(-math.log10(deviation)))) if deviation > 0 else 3
    steps = 10.0**decimals
    return f"{found.value:.{decimals}f} ± {math.ceil(deviation * steps - 1e-9) / steps:.{decimals}f}×"


def exponent(law: PowerLaw, symbol: str) -> str:
    """Format the exponent of a power law: `N^1.97 ± 0.03`, or `N^2.00` if the uncertainty rounds to 0."""
    uncertainty = f"{law.half_width:.2f}"
    return f"{symbol}^{law.exponent:.2f}{f' ± {uncertainty}' * (uncertainty != '0.00')}"


def range_text(
    values: Sequence[tuple[float, Named]],
    name: Callable[[Named], str] | None = None,
    show: Callable[[float], str] = units.share,
) -> str:
    """Return a range of values: `86%` if all look the same, otherwise `47% (small) to 60% (large)`."""
    ordered = sorted(values, key=lambda each: each[0])
    (low, least), (high, most) = ordered[0], ordered[-1]
    if show(low) == show(high):
        return show(low)
    return (
        f"{show(low)} to {show(high)}"
        if name is None
        else f"{show(low)} ({name(least)}) to {show(high)} ({name(most)})"
    )
