"""What a timing run has shown, as numbers: ratios, growth, warm-up, spread; each holds the cells it rests on.

`sysbench.commands.time.words` has the words. Cells with doubts (see `time_series.DOUBTFUL`) are in none.
"""

from __future__ import annotations

import itertools
import statistics as standard
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sysbench.commands.time.record import TimeCellRecord
from sysbench.commands.time.series import Pair, believable, launch_bound, pairs, places, samples, summed
from sysbench.log.records import Samples
from sysbench.statistics import Effect, NoPowerLaw, Pooled, PowerLaw, Ratio, effect, pooled, power_law, ratio

FLAT: Final = 1.1
"""A time that grows by less than this while the work grows at least half as much again does not follow the work."""

MORE_WORK: Final = 1.5

SETTLED: Final = 0.02
"""A step is as later ones where it exceeds the slowest of them by no more than this share of their median, or where
it is less than `FAR_OUT` of their deviations above that."""


FAR_OUT: Final = 4
"""Standard deviations of the other steps by which one of the first stands out."""


@dataclass(frozen=True)
class Part:
    """Some phases of one cell as a multiple, or a share, of others."""

    cell: TimeCellRecord
    ratio: Ratio


@dataclass(frozen=True)
class Parts:
    """The same of many cells, and what they agree on, if they do."""

    each: tuple[Part, ...]
    """Ascending."""
    common: Pooled | None


def parts(cells: Iterable[TimeCellRecord], upper: Sequence[str], lower: Sequence[str]) -> Parts | None:
    """The time of `upper` over that of `lower` in every believable cell that has an interval of it."""
    found = [
        Part(cell, much)
        for cell in believable(cells)
        if (one := summed(cell, upper)) and (other := summed(cell, lower)) and standard.median(other) > 0
        if standard.median(one) > 0 and (much := ratio(one, other)).low is not None
    ]
    return together(found)


def together(found: Iterable[Part]) -> Parts | None:
    """What several cells show, or None without any."""
    ordered = tuple(sorted(found, key=lambda each: each.ratio.value))
    return Parts(ordered, pooled([each.ratio for each in ordered])) if ordered else None


# --- cells against each other


@dataclass(frozen=True)
class Compared:
    """One way of computing against another on the same input: how many times as fast the second is."""

    pair: Pair
    effect: Effect


@dataclass(frozen=True)
class Comparison:
    """The same over all inputs."""

    axis: str
    base: object
    arm: object
    phase: str
    each: tuple[Compared, ...]
    """Ascending in how much faster the arm is."""
    common: Pooled | None
    """The speed-up that all of them agree on; None where they do not or where it is none."""

    @property
    def mean(self) -> float:
        """The geometric mean of the speed-ups."""
        return standard.geometric_mean(each.effect.ratio.value for each in self.each)

    def decided(self, direction: int) -> list[Compared]:
        """Those that go one way without doubt."""
        return [each for each in self.each if each.effect.direction == direction]


def comparison(cells: Iterable[TimeCellRecord], axis: str, base: object, arm: object, phase: str) -> Comparison | None:
    """One value of an axis against another; None where nothing was measured under both."""
    both = [
        (pair, one.samples_s, other.samples_s)
        for pair in pairs(believable(cells, alone=False), axis, base, arm)
        if (one := samples(pair.base, phase)) is not None and (other := samples(pair.other, phase)) is not None
    ]
    compared = [Compared(pair, effect(one, other, len(both))) for pair, one, other in both]
    known = [each for each in compared if each.effect.ratio.low is not None]
    if not known:
        return None
    ordered = tuple(sorted(known, key=lambda each: each.effect.ratio.value))
    alike = pooled([each.effect.ratio for each in ordered])
    return Comparison(axis, base, arm, phase, ordered, alike)


@dataclass(frozen=True)
class Payback:
    """How long compiling takes, and after how many steps faster ones have made up for it."""

    cell: TimeCellRecord
    compile_s: float
    steps: float


def paybacks(found: Comparison) -> list[Payback]:
    """Of every compiled cell that is faster without doubt, ascending; nothing for other comparisons."""
    paid = []
    for each in found.each:
        before, after = (samples(cell, found.phase) for cell in (each.pair.base, each.pair.other))
        compile_s = each.pair.other.compile_s
        if compile_s is None or each.effect.direction != 1 or before is None or after is None:
            continue
        paid.append(Payback(each.pair.other, compile_s, compile_s / (before.median_s - after.median_s)))
    return sorted(paid, key=lambda each: each.steps)


def gains_along(found: Comparison, axis: str) -> bool:
    """Whether the arm gains the more the larger the model is (`size`), or the longer the context (`ctx`).

    In every row of three or more, all else being equal: no step goes down without doubt, and the last one's interval
    is above the first one's.
    """
    by_place: dict[tuple[tuple[str, str], ...], list[Compared]] = {}
    for each in found.each:
        but = (axis, "model") if axis == "size" else (axis,)
        others = tuple((name, str(value)) for name, value in each.pair.base.axes.items() if name not in but)
        by_place.setdefault(others, []).append(each)
    rows = [sorted(row, key=lambda each: _extent(each.pair.base, axis)) for row in by_place.values() if len(row) > 2]
    return bool(rows) and all(_ascends([each.effect.ratio for each in row]) for row in rows)


def _ascends(ratios: Sequence[Ratio]) -> bool:
    """Whether no step goes down without doubt, and the whole goes up without doubt."""
    up = all((after.high or 0) >= (before.low or 0) for before, after in itertools.pairwise(ratios))
    return up and (ratios[-1].low or 0) > (ratios[0].high or 0)


# --- growth


@dataclass(frozen=True)
class Growth:
    """How a phase grows along an axis, everything else being equal."""

    axis: str
    phase: str
    cells: tuple[TimeCellRecord, ...]
    law: PowerLaw | NoPowerLaw


def growth(cells: Iterable[TimeCellRecord], axis: str, phase: str) -> list[Growth]:
    """Of every row of at least three believable cells along `ctx`, `batch`, or `size` (by number of parameters).

    Where launching kernels sets the pace, time does not grow with anything of these, and a cell is in no row.
    """
    found, usable = [], believable(cells, alone=False)
    waiting = {cell.key for cell in paced_by_launches(usable)}
    for row in places([cell for cell in usable if cell.key not in waiting], axis):
        points = sorted(
            (_extent(cell, axis), number, timed.median_s, cell)
            for number, cell in enumerate(row)
            if (timed := samples(cell, phase)) is not None and timed.median_s > 0
        )
        sizes = [extent for extent, *_ in points]
        if len(set(sizes)) == len(sizes) > 2:
            law = power_law(sizes, [median_s for _, _, median_s, _ in points])
            found.append(Growth(axis, phase, tuple(cell for *_, cell in points), law))
    return found


def _extent(cell: TimeCellRecord, axis: str) -> int:
    return cell.model.parameters if axis == "size" else int(cell.axes[axis])


@dataclass(frozen=True)
class Flat:
    """From one context to another a phase takes as long, though its work grows."""

    phase: str
    first: TimeCellRecord
    last: TimeCellRecord
    cells: tuple[TimeCellRecord, ...]
    ratio: Ratio
    """The last one's time over the first one's."""
    work: float
    """The last one's FLOPs over the first one's."""


def flat(cells: Iterable[TimeCellRecord], phase: str) -> list[Flat]:
    """Of every row along the context the longest beginning over which the time does not follow the work."""
    found = []
    for row in places(believable(cells, alone=False), "ctx"):
        timed = sorted((cell for cell in row if samples(cell, phase)), key=lambda cell: int(cell.axes["ctx"]))
        beginnings = [_flat(timed[:end], phase) for end in range(len(timed), 1, -1)]
        found += [each for each in beginnings if each is not None][:1]
    return found


def _flat(row: Sequence[TimeCellRecord], phase: str) -> Flat | None:
    first, last = row[0], row[-1]
    before, after = samples(first, phase), samples(last, phase)
    if before is None or after is None:
        return None
    longer, work = ratio(after.samples_s, before.samples_s), last.model.forward_flops / first.model.forward_flops
    if longer.high is None or longer.high > FLAT or work < MORE_WORK:
        return None
    return Flat(phase, first, last, tuple(row), longer, work)


def paced_by_launches(cells: Sequence[TimeCellRecord]) -> list[TimeCellRecord]:
    """The cells in which launching kernels sets the pace: seen by their clocks, or by a forward that is flat."""
    by_time = {cell.key for each in flat(cells, "forward") for cell in each.cells}
    return [cell for cell in cells if launch_bound(cell) or cell.key in by_time]


# --- warming up, and spread


@dataclass(frozen=True)
class FirstSteps:
    """What the first steps take, against those that count."""

    cell: TimeCellRecord
    first: float
    """The very first step as a multiple of the median of those that count."""
    settles_after: int
    """From this step on, counted from 0, steps are as the ones that count."""
    excess_share: float
    """By how much the mean of as many steps would have been longer, had they been counted from the very first."""


def first_steps(cells: Iterable[TimeCellRecord]) -> list[FirstSteps]:
    """Of every believable cell that was warmed up."""
    found = []
    for cell in believable(cells):
        timed = samples(cell, "step")
        if timed is None or not cell.warmup_samples_s or cell.phases["step"].wall is None:
            continue
        every = [*cell.warmup_samples_s, *timed.samples_s][: len(timed.samples_s)]
        found.append(
            FirstSteps(
                cell,
                cell.warmup_samples_s[0] / timed.median_s,
                _settled(cell.warmup_samples_s, timed),
                standard.fmean(every) / timed.mean_s - 1,
            )
        )
    return found


def _settled(warmup_s: Sequence[float], timed: Samples) -> int:
    limit_s = max(timed.max_s + SETTLED * timed.median_s, timed.median_s + FAR_OUT * timed.std_s)
    slow = [number for number, taken_s in enumerate(warmup_s) if taken_s > limit_s]
    return slow[-1] + 1 if slow else 0


def starts_slow(cell: TimeCellRecord) -> bool:
    """Whether the first step that counts is slower than all others, by far more than they differ."""
    timed = samples(cell, "step")
    if timed is None or len(timed.samples_s) < 3:
        return False
    first, *others = timed.samples_s
    level, spread = standard.median(others), standard.stdev(others)
    return first > max(max(others), level + FAR_OUT * spread, (1 + SETTLED) * level)


@dataclass(frozen=True)
class Spread:
    """The standard deviation of a phase as a share of its mean."""

    cell: TimeCellRecord
    phase: str
    share: float


def spreads(cells: Iterable[TimeCellRecord], phase: str) -> list[Spread]:
    """Of every cell that was measured to the end, ascending: doubts about a cell are no reason to hide its spread."""
    found = [
        Spread(cell, phase, timed.std_s / timed.mean_s)
        for cell in cells
        if cell.outcome == "ok" and (timed := samples(cell, phase)) is not None and len(timed.samples_s) > 2
        if timed.mean_s > 0
    ]
    return sorted(found, key=lambda each: each.share)


# --- rates and memory


@dataclass(frozen=True)
class Rated:
    """A cell and the share of the hardware's peak that its median step reaches."""

    cell: TimeCellRecord
    share: float
    peak_flops_per_s: float


def rated(cells: Iterable[TimeCellRecord]) -> list[Rated]:
    """Every believable cell on hardware whose peak is known, ascending."""
    found = [
        Rated(cell, cell.rates.peak_share, cell.rates.peak_flops_per_s)
        for cell in believable(cells)
        if cell.rates is not None and cell.rates.peak_share is not None and cell.rates.peak_flops_per_s is not None
    ]
    return sorted(found, key=lambda each: each.share)


@dataclass(frozen=True)
class Frontier:
    """Where memory ends along the context."""

    fits: TimeCellRecord | None
    """The longest that ran; None if none did."""
    beyond: TimeCellRecord
    """The shortest that did not."""


def frontiers(cells: Iterable[TimeCellRecord]) -> list[Frontier]:
    """Of every row along the context in which a cell ran out of memory."""
    found = []
    for row in places(cells, "ctx"):
        ordered = sorted(row, key=lambda cell: int(cell.axes["ctx"]))
        beyond = [cell for cell in ordered if cell.outcome == "oom"]
        if beyond:
            fits = [cell for cell in ordered if cell.outcome == "ok"]
            found.append(Frontier(fits[-1] if fits else None, beyond[0]))
    return found
