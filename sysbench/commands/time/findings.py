"""Findings of a timing run: sentences with numbers, each with the cells it is based on.

Cells with serious cautions (`CellRecord.excluding_cautions`) are excluded and listed in a final sentence.
A finding is withheld if noise could explain it: if intervals overlap, if the means in the tables contradict the
medians, or if another cell of the run contradicts it.
"""

from __future__ import annotations

import itertools
import statistics as standard
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.time import predicted
from sysbench.commands.time.record import FORWARD_BACKWARD, TimeCellRecord, TimeRecord
from sysbench.log.records import CellRecord, Samples
from sysbench.render.finding_kinds import Compared, Comparison, Growth, fit_growth, growth_text, limit_findings, limits
from sysbench.render.findings import (
    MAX_ALL_NAMED,
    Namer,
    Statement,
    contains_one,
    count_phrase,
    exclusions,
    interval,
    join_words,
    name_cells,
    name_cells_along,
    namer,
    pooled_ratio,
    pooled_share,
    range_text,
    reliable,
    share_with_interval,
    undecided,
    with_interval,
    with_setting,
)
from sysbench.render.table import sentence
from sysbench.statistics import PowerLaw, direction, effect, ratio

Cells = Sequence[TimeCellRecord]

MAX_SETTINGS: Final = 4
"""Largest number of settings that get their own sentence."""

MAX_LISTED_ROWS: Final = 4
"""Largest number of rows along an axis that are listed one by one."""


def all_findings(cells: Cells) -> Iterator[Statement]:
    """Yield all findings of these cells, the most important first."""
    yield from headlines(cells)
    if any(cell.cell.simulate for cell in cells):
        return
    name, timed, known = namer(cells), reliable_cells(cells), reliable(cells, "memory")
    details = (
        _flat_times(timed), _growth(timed), _optimizer(timed), _rates(timed), _first_steps(timed, name),
        _relative_stds(timed, name), _peak_memory(known, name), _memory_limits(known),
    )  # fmt: skip
    yield from with_setting(itertools.chain.from_iterable(details), cells)
    yield from exclusions(cells)


def headlines(cells: Cells) -> Iterator[Statement]:
    """Yield only the findings to show below the tables; the others repeat what the tables show."""
    if any(cell.cell.simulate for cell in cells):
        yield from predicted.prediction_findings(reliable(cells))
        return
    timed, measured = reliable_cells(cells), [cell for cell in cells if cell.outcome == "ok" and cell.phases]
    answers = [*_comparisons(cells), *_warmup_study(cells)]
    if measured and not timed and not answers:
        answers = [undecided("how long a step takes", measured)]
    yield from with_setting([*answers, *_backward(timed)], cells)


def reliable_cells(cells: Iterable[TimeCellRecord]) -> list[TimeCellRecord]:
    """Return the completely measured cells whose times can be relied on."""
    return [cell for cell in reliable(cells) if cell.outcome == "ok" and cell.phases]


def launch_bound(cell: CellRecord) -> bool:
    return any(caution.code == "launch-bound" for caution in cell.cautions)


def _by_setting(cells: Cells, agree: Callable[[Cells], bool]) -> Iterator[tuple[str, Cells]]:
    """Yield the cells of each setting (device, mode, precision, …), with a prefix for the sentence about them."""
    groups = list(
        axes.named_groups(cells, "size", "ctx", "batch", "warmup", "steps", "until", "max_steps", "sync", "seed")
    )
    if not 1 < len(groups) <= MAX_SETTINGS or agree(cells):
        groups = [("", list(cells))]
    for name, group in groups:
        yield f"{name}: " if name else "", group


# --- comparison of two values of an axis


def _comparisons(cells: Cells) -> Iterator[Statement]:
    """Yield comparisons of each axis value with the first one; for compilation, also how soon it pays off."""
    for axis in ("device", *axes.CHOICES):
        values = [value for value in axes.values_along(cells, axis) if value is not None]
        phase = "optimizer" if axis == "optimizer" else "step"
        for arm in values[1:]:
            found = _Speedup(cells, axis, values[0], arm, phase)
            if found.is_slower:
                # Swap the values, so that the sentence says which one is faster.
                found = replace(found, base=arm, arm=values[0])
            if (comparison := found.comparison()) is not None:
                yield Statement(_comparison_sentence(found, comparison), comparison.cells)
                if axis == "execution":
                    yield from _compile_payback(comparison, cells)
            elif excluded := _excluded_pairs(cells, axis, values[0], arm):
                which = " or ".join(axes.phrase(axis, value) for value in (arm, values[0]))
                yield undecided(f"whether {which} is faster", excluded)


def _excluded_pairs(cells: Cells, axis: str, base: object, arm: object) -> list[TimeCellRecord]:
    measured = [cell for cell in cells if cell.outcome == "ok" and cell.phases]
    pairs = list(axes.pairs(measured, axis, base, arm))
    excluded = all(first.excluding_cautions() or second.excluding_cautions() for first, second in pairs)
    return [cell for pair in pairs for cell in pair] if excluded else []


@dataclass(frozen=True)
class _Speedup:
    among: Cells
    axis: str
    base: object
    arm: object
    phase: str

    def comparison(self, phase: str = "") -> Comparison[TimeCellRecord] | None:
        both = [
            (pair, one.samples_s, other.samples_s)
            for pair in axes.pairs(reliable_cells(self.among), self.axis, self.base, self.arm)
            if (one := pair[0].samples(phase or self.phase)) and (other := pair[1].samples(phase or self.phase))
        ]
        effects = [(pair, effect(one, other, len(both)), min(len(one), len(other))) for pair, one, other in both]
        return Comparison.of(Compared(found.ratio, pair, found.direction, count) for pair, found, count in effects)

    @property
    def is_slower(self) -> bool:
        found = self.comparison()
        return found is not None and bool(found.significant(-1)) and not found.significant(1)


def _comparison_sentence(asked: _Speedup, found: Comparison[TimeCellRecord]) -> str:
    prefix = "" if asked.phase == "step" else f"{asked.phase}: "
    arm, base = (axes.phrase(asked.axis, value) for value in (asked.arm, asked.base))
    significant = Comparison.of(found.significant(-1, 1))
    if significant is None:
        return f"{prefix}{found.no_difference(arm, base)}."
    name, exceptions = namer(asked.among, (asked.axis,)), _exceptions(asked, found)
    amount, where = significant.describe(name)
    count, every = len(significant.ratios), len(significant.ratios) == len(found.ratios)
    if every and (where or count == 1):
        return f"{prefix}{arm} is {amount} as fast as {base}{where}."
    if count == 1:
        return f"{prefix}{arm} is {amount} as fast as {base} at {name(significant.ratios[0].cells[0])}.{exceptions}"
    if where:
        amount = significant.ends
    mean = units.ratio(standard.geometric_mean(each.ratio.value for each in significant.ratios))
    over = count_phrase(count) if every else f"{count} cells"
    return (
        f"{prefix}{arm} is {amount} as fast as {base}, with a geometric mean of {mean} over {over}."
        f"{_phase_speedups(asked)}{_speedup_trends(found)}{exceptions}"
    )


def _phase_speedups(asked: _Speedup) -> str:
    parts: list[str] = []
    for phase in ("forward", "backward") if asked.phase == "step" else ():
        found = asked.comparison(phase)
        significant = Comparison.of(found.significant(-1, 1)) if found is not None else None
        if significant is not None and "backward" in significant.ratios[0].cells[0].phases:
            parts.append(f"{phase} {significant.ends}" if parts else f"{phase} is {significant.ends} as fast")
    return f" {sentence(', '.join(parts))}" if parts else ""


def _speedup_trends(found: Comparison[TimeCellRecord]) -> str:
    """Return the trends of the speed-up: ` The speed-up grows with model size and context length.`

    In every row of cells that differ only in size (or only in context), the speed-up must never drop significantly and
    must be largest in the last cell, with an interval above that of the first cell. At least one row must have three
    cells.
    """
    by_base = {each.cells[0].key: each.ratio for each in found.ratios}
    words = []
    for axis, extent in (("size", "model size"), ("ctx", "context length")):
        rows = [
            [by_base[cell.key] for cell in sorted(row, key=partial(_axis_extent, axis=axis))]
            for row in axes.group_ignoring([each.cells[0] for each in found.ratios], axis)
            if len(row) > 1
        ]
        if any(len(row) > 2 for row in rows) and all(
            all((after.high or 0) >= (before.low or 0) for before, after in itertools.pairwise(row))
            and row[-1].value == max(each.value for each in row)
            and (row[-1].low or 0) > (row[0].high or 0)
            for row in rows
        ):
            words.append(extent)
    return f" The speed-up grows with {' and '.join(words)}." if words else ""


def _axis_extent(cell: TimeCellRecord, axis: str) -> int:
    return cell.model.parameters or 0 if axis == "size" else int(cell.axes[axis])


def _exceptions(asked: _Speedup, found: Comparison[TimeCellRecord]) -> str:
    """Name the cells in which `arm` is slower, not significantly different, or launch-bound."""
    bases = [each.cells[0] for each in found.ratios]

    def where(cells: Cells, among: Cells = bases) -> str:
        return name_cells_along(cells, among, (asked.axis,))

    slower, same = ([each.cells[0] for each in found.significant(direction)] for direction in (-1, 0))
    text = ""
    if slower and found.significant(1):
        text += f" It is slower for {where(slower)}."
    if same:
        text += f" The difference is not significant for {where(same)}."
    if asked.axis in ("precision", "attention"):
        launch_limited = {cell.key for cell in launch_limited_cells(found.cells)}
        significant = found.significant(-1, 1)
        limited = [each.cells[1] for each in found.ratios if each.cells[1].key in launch_limited]
        if significant[0].cells[1] in limited and significant[-1].cells[1] not in limited:
            text += f" Kernel launches, not arithmetic, limit {where(limited, found.cells)}."
    return text


def _compile_payback(found: Comparison[TimeCellRecord], cells: Cells) -> Iterator[Statement]:
    faster = [(one, other) for one, other in (each.cells for each in found.significant(1)) if one.compile_s is None]
    paybacks = [
        (after.compile_s / (one.median_s - other.median_s), after)
        for before, after in faster
        if after.compile_s is not None and (one := before.samples("step")) and (other := after.samples("step"))
    ]
    if paybacks:
        takes = range_text([(cell.compile_s or 0.0, cell) for _, cell in paybacks], show=units.seconds)
        steps = range_text(paybacks, namer(cells, ("execution",)), "{:.0f} steps".format)
        compared = [cell for pair in faster for cell in pair if pair[1].compile_s is not None]
        graphs = " and recording CUDA graphs" if compared[-1].cell.uses_cuda_graphs else ""
        yield Statement(f"compiling{graphs} takes {takes} and pays off after {steps}.", compared)


# --- parts of a step


def _phase_ratios(
    cells: Cells, upper: Sequence[str], lower: Sequence[str] = ("forward",)
) -> Comparison[TimeCellRecord] | None:
    return Comparison.of(
        Compared(found, (cell,), direction(found), len(one))
        for cell in cells
        if (one := cell.sum_of_phases(upper)) and (other := cell.sum_of_phases(lower))
        if standard.median(one) > 0 and standard.median(other) > 0 and (found := ratio(one, other))
    )


def _phase_ratios_by_setting(
    cells: Cells, upper: str, lower: str
) -> Iterator[tuple[str, Cells, Comparison[TimeCellRecord], Namer]]:
    def agree(some: Cells) -> bool:
        found = _phase_ratios(some, (upper,), (lower,))
        return found is not None and found.pooled is not None

    for where, group in _by_setting(cells, agree):
        if (found := _phase_ratios(group, (upper,), (lower,))) is not None:
            # The prefix of the sentence already states the axis values that the cells of a setting share.
            yield where, group, found, namer(group) if len(group) > 1 else namer(cells)


def _backward(cells: Cells) -> Iterator[Statement]:
    for where, group, found, name in _phase_ratios_by_setting(cells, "backward", "forward"):
        undecided = [each for each in found.ratios if contains_one(each.ratio)]
        amount, where_agreed = found.describe(name)
        text = f"backward takes {amount} as long as forward{where_agreed}."
        if where_agreed:
            both = _phase_ratios(group, FORWARD_BACKWARD)
            if both is not None and (together := both.pooled) is not None:
                text += f" Forward, loss and backward together take {pooled_ratio(together)} as long as forward alone."
        elif len(undecided) == len(found.ratios):
            text = f"{found.no_difference('backward', 'forward')}."
        elif len(found.ratios) > 1 and found.differ:
            text = f"{_backward_range(found, name)}{_backward_without_launch_bound(found, group)}"
        elif len(found.ratios) > 1:
            text = f"{text[:-1]}; the cells do not differ significantly."
            if undecided:
                text += (
                    f" In {len(undecided)} of {len(found.ratios)} cells, backward and forward do not differ measurably."
                )
        yield Statement(f"{where}{text}", found.cells)


def _backward_range(found: Comparison[TimeCellRecord], name: Namer) -> str:
    """Return the smallest and the largest ratio; an end is not stated as a ratio if its interval contains 1."""
    first, last = found.ratios[0], found.ratios[-1]
    for known, equal in ((last, first), (first, last)):
        if contains_one(equal.ratio):
            return (
                f"backward takes {with_interval(known.ratio)} as long as forward at {name(known.cells[0])}. At "
                f"{name(equal.cells[0])}, the two do not differ measurably (95 % CI of the ratio "
                f"{interval(equal.ratio)})."
            )
    return f"backward takes {found.describe(name)[0]} as long as forward."


def _backward_without_launch_bound(found: Comparison[TimeCellRecord], group: Cells) -> str:
    """Return the ratio in the cells that are not launch-bound."""
    launch_limited = {cell.key for cell in launch_limited_cells(group)}
    rest = Comparison.of(each for each in found.ratios if each.cells[0].key not in launch_limited)
    if rest is None or not 2 <= len(rest.ratios) < len(found.ratios):
        return ""
    which = f"the {len(rest.cells)} cells that are not launch-bound"
    if len(rest.cells) <= MAX_ALL_NAMED // 2:
        which = f"cells that are not launch-bound ({name_cells_along(rest.cells, group)})"
    return f" In {which}, it takes {pooled_ratio(rest.pooled) if rest.pooled else rest.ends} as long."


def _optimizer(cells: Cells) -> Iterator[Statement]:
    for where, _, found, name in _phase_ratios_by_setting(cells, "optimizer", "step"):
        shares, common = [(each.ratio.value, each.cells[0]) for each in found.ratios], found.pooled
        if len(shares) == 1:
            share = f"{share_with_interval(found.ratios[0].ratio)} of the step"
        elif common is not None and common.value + common.max_deviation <= 1:
            share = f"{pooled_share(common)} of the step in {count_phrase(len(shares))}"
        elif found.differ:
            share = f"{range_text(shares, name)} of the step"
        else:
            share = f"{range_text(shares)} of the step; the cells do not differ significantly"
        yield Statement(f"{where}the optimizer takes {share}.", found.cells)


# --- times that do not grow with the work

MAX_EQUAL_RATIO: Final = 1.1
"""Two times count as equal up to this ratio."""

MIN_FLOPS_RATIO: Final = 1.5
"""Equal times are a finding only if the FLOPs of the two cells differ by at least this ratio."""


def _flat_rows(cells: Cells) -> list[tuple[Cells, float]]:
    """Return the flat part of each row along the context: the leading cells with nearly equal forward times."""
    found: list[tuple[Cells, float]] = []
    for row in axes.group_ignoring(cells, "ctx"):
        timed = sorted((cell for cell in row if cell.samples("forward")), key=lambda cell: cell.cell.ctx)
        flat = timed[
            : next((n for n, cell in enumerate(timed) if n and not _same_forward_time(timed[0], cell)), len(timed))
        ]
        least, most = (flat[end].model.forward_flops for end in (0, -1)) if flat else (None, None)
        if least and most and most / least >= MIN_FLOPS_RATIO:
            found.append((flat, most / least))
    return found


def _same_forward_time(first: TimeCellRecord, other: TimeCellRecord) -> bool:
    """Whether forward takes about as long in both, by the interval of the ratio and the ratio of the means."""
    before, after = first.samples("forward"), other.samples("forward")
    assert before is not None
    assert after is not None
    longer = ratio(after.samples_s, before.samples_s)
    if longer.low is None or longer.high is None:
        return False
    return (
        longer.low >= 1 / MAX_EQUAL_RATIO
        and longer.high <= MAX_EQUAL_RATIO
        and 1 / MAX_EQUAL_RATIO <= after.mean_s / before.mean_s <= MAX_EQUAL_RATIO
    )


def launch_limited_cells(cells: Cells) -> Cells:
    """Return the cells that have a `launch-bound` caution, or lie in the flat part of a row (`_flat_rows`)."""
    by_time = {cell.key for row, _ in _flat_rows(cells) for cell in row}
    return [cell for cell in cells if launch_bound(cell) or cell.key in by_time]


def _flat_times(cells: Cells) -> Iterator[Statement]:
    launch_bound_cells = [cell for cell in cells if launch_bound(cell)]
    if launch_bound_cells:
        verb = "is" if len(launch_bound_cells) == 1 else "are"
        which = name_cells_along(launch_bound_cells, cells)
        text = f"{which} {verb} launch-bound: the host, not the device, is the bottleneck."
        yield Statement(text, tuple(launch_bound_cells))
    for where, group in _by_setting(cells, lambda _: False):
        found = _flat_rows(group)
        if not found:
            continue
        name, words = namer(group, ("ctx",)), []
        for row, work in found[:MAX_LISTED_ROWS]:
            ends = [timed.median_s if (timed := cell.samples("forward")) else 0.0 for cell in (row[0], row[-1])]
            scale = units.time_scale(ends[0])
            first, last = (scale.digits(median_s, 1) for median_s in ends)
            words.append(
                f"{name(row[0])} takes {first} {scale.symbol} at ctx {row[0].cell.ctx} and {last} {scale.symbol} "
                f"at ctx {row[-1].cell.ctx}, for {units.ratio(work)} the FLOPs"
            )
        words += (
            [f"the same holds for {len(found) - MAX_LISTED_ROWS} more settings"] if len(found) > MAX_LISTED_ROWS else []
        )
        basis = tuple(cell for row, _ in found for cell in row)
        if all(map(launch_bound, basis)):
            bottleneck = " Kernel launches are the bottleneck there."
        else:
            device = basis[0].device
            likely = "; kernel launches probably are" if device is not None and device.type != "cpu" else ""
            bottleneck = f" Arithmetic is not the bottleneck there{likely}."
        yield Statement(
            f"{where}forward time barely grows with the amount of work: {'; '.join(words)}.{bottleneck}", basis
        )


# --- growth


def _growths(cells: Cells, axis: str, symbol: str) -> list[Growth[TimeCellRecord]]:
    """Return how the time of a step grows in each row of at least three cells along `ctx` or `size`."""
    launch_limited = {cell.key for cell in launch_limited_cells(cells)}
    rows = axes.group_ignoring([cell for cell in cells if cell.key not in launch_limited], axis)
    quantity = "forward time" if cells[0].cell.mode in ("forward", "inference") else "step time"
    found = (fit_growth(quantity, symbol, row, partial(_axis_extent, axis=axis), _step_median_s) for row in rows)
    return [
        each
        for each in found
        if each is not None and isinstance(each.law, PowerLaw) and each.is_significant(_step_mean_s)
    ]


def _step_median_s(cell: TimeCellRecord) -> float | None:
    return timed.median_s if (timed := cell.samples("step")) else None


def _step_mean_s(cell: TimeCellRecord) -> float | None:
    return timed.mean_s if (timed := cell.samples("step")) else None


def _growth(cells: Cells) -> Iterator[Statement]:
    for axis, symbol, along in (("ctx", "ctx", " with the context length"), ("size", "P", " with the parameters P")):
        for where, group in _by_setting(cells, lambda _: False):
            if group and (growths := _growths(group, axis, symbol)):
                name = None if len(axes.group_ignoring(group, axis)) == 1 else namer(group, (axis,))
                text = f"{where}{growth_text(growths, name, along)}."
                yield Statement(text, tuple(cell for growth in growths for cell in growth.cells))


# --- rates


def _rates(cells: Cells) -> Iterator[Statement]:
    by_peak: dict[tuple[str, float], list[tuple[float, TimeCellRecord]]] = {}
    for cell in cells:
        rates = cell.rates
        # A share above 1 means that the time or the peak is wrong; a caution reports it.
        if rates is not None and rates.peak_flops_per_s is not None and (rates.peak_share or 2.0) <= 1:
            key = (cell.cell.compute_precision, rates.peak_flops_per_s)
            by_peak.setdefault(key, []).append((rates.peak_share or 0.0, cell))
    # Precisions are in order of their smallest share.
    for (precision, peak), found in sorted(by_peak.items(), key=lambda each: min(share for share, _ in each[1])):
        found.sort(key=lambda each: each[0])
        rates = found[-1][1].rates
        source = f" ({rates.peak_source})" if rates and rates.peak_source else ""
        reached = range_text(found, namer(cells, ("precision",)))
        text = f"over the whole step, matrix products reach {reached} of the hardware's {precision} peak."
        yield Statement(f"{text} The peak is {units.flop_rate(peak)}{source}.", tuple(cell for _, cell in found))


# --- warming up

SETTLED_SHARE: Final = 0.02
"""Tolerance: a step has settled if it exceeds the slowest later step by at most this share of the median of later
steps, or exceeds that median by less than `OUTLIER_STDS` standard deviations."""

OUTLIER_STDS: Final = 4
"""A first step is an outlier if it exceeds the median of the other steps by this many standard deviations."""


@dataclass(frozen=True)
class _WarmupEffect:
    cell: TimeCellRecord
    first: float
    """The very first step as a multiple of the median of the measured steps."""
    slow: bool
    """Whether the very first step is slower than the measured steps."""
    settles_after: int
    """Number of the last warm-up step that has not settled; 0 if all have."""
    excess_share: float
    """Relative increase in the mean if the same number of steps had been measured without a warm-up."""
    steps: int
    """Number of measured steps."""


def _warmup_effect(cell: TimeCellRecord) -> _WarmupEffect | None:
    timed, warmup_s = cell.samples("step"), cell.warmup_samples_s
    if timed is None or not warmup_s or cell.phases["step"].wall is None:
        return None
    limit_s = max(timed.max_s + SETTLED_SHARE * timed.median_s, timed.median_s + OUTLIER_STDS * timed.std_s)
    settles_after = max((number + 1 for number, taken_s in enumerate(warmup_s) if taken_s > limit_s), default=0)
    count = len(timed.samples_s)
    excess = standard.fmean([*warmup_s, *timed.samples_s][:count]) / timed.mean_s - 1
    return _WarmupEffect(cell, warmup_s[0] / timed.median_s, warmup_s[0] > limit_s, settles_after, excess, count)


def _first_steps(cells: Cells, name: Namer) -> Iterator[Statement]:
    found = [first for cell in cells if (first := _warmup_effect(cell)) is not None]
    slow = sorted((each for each in found if each.slow), key=lambda each: -each.first)
    without_warmup = (cell for cell in cells if cell.cell.warmup == 0)
    if found and not slow and not any(_starts_slow(cell.samples("step")) for cell in without_warmup):
        where = f" in {count_phrase(len(found))}" if len(found) > 1 else ""
        text = f"the first warm-up step takes no longer than the measured steps{where}."
        yield Statement(text, tuple(each.cell for each in found))
    if not slow:
        return
    worst = slow[0]
    excess = f"the mean of {worst.steps} steps without warm-up would be {units.share(worst.excess_share)} higher"
    noticeable = worst.excess_share >= MIN_REPORTED_SHARE
    last_slow = max(each.settles_after for each in slow)
    which = "no later step is" if last_slow == 1 else f"step {last_slow} is the last that is"
    after = f"{which} clearly slower than the measured ones"
    if len(found) == 1:
        text = f"the first step takes {_multiple_text(worst.first)} as long as later steps; {after}."
        text += f" {sentence(excess)}" * noticeable
    else:
        ends = f"{_multiple_text(slow[-1].first)} to " if len(slow) > 1 else ""
        where = f"in {count_phrase(len(found))}" if len(slow) == len(found) else f"in {len(slow)} of {len(found)} cells"
        text = (
            f"the first step takes {ends}{_multiple_text(worst.first)} as long as later steps {where}; {after}. "
            f"The effect is largest for {name(worst.cell)}{f', where {excess}' * noticeable}."
        )
    yield Statement(text, tuple(each.cell for each in slow))


def _multiple_text(value: float) -> str:
    return f"{value:.0f}×" if value >= 20 else f"{value:.{1 if value >= 1.1 else 2}f}×"


def _warmup_study(cells: Cells) -> Iterator[Statement]:
    """Yield how far skipping the warm-up raises the mean above the median, which is robust."""
    if len(axes.values_along(cells, "warmup")) < 2:
        return
    name = namer(cells, ("warmup",))
    rows = axes.group_ignoring([cell for cell in cells if cell.outcome == "ok" and cell.samples("step")], "warmup")
    for row in rows:
        ordered = sorted(reliable(row, "warm-up"), key=lambda cell: cell.cell.warmup)
        where = f"{name(row[0])}: " if len(rows) > 1 else ""
        if len(ordered) < 2:
            if len(row) > len(ordered):
                yield undecided(f"{where}what a missing warm-up costs", row, "warm-up")
            continue
        count = ordered[0].cell.warmup
        slow_elsewhere = any(first.slow for cell in ordered if (first := _warmup_effect(cell)) is not None)
        few = f"with only {axes.phrase('warmup', count)}, the first measured" if count else "without warm-up, the first"
        if _starts_slow(ordered[0].samples("step")):
            text = _mean_against_median(ordered)
        elif count == 0 and slow_elsewhere:
            text = f"what a missing warm-up costs cannot be decided: {few} step is not slow here, but that of another "
            text += "cell is."
        else:
            text = f"even {few} step takes no longer than later steps, so the mean is unaffected."
        yield Statement(f"{where}{text}", tuple(ordered), about="warm-up")


def _starts_slow(timed: Samples | None) -> bool:
    if timed is None or len(timed.samples_s) < 3:
        return False
    first, *others = timed.samples_s
    level, spread = standard.median(others), standard.stdev(others)
    slow = first > max(max(others), level + OUTLIER_STDS * spread, (1 + SETTLED_SHARE) * level)
    return slow and timed.mean_s > timed.median_s


MIN_REPORTED_SHARE: Final = 0.0005
"""Smallest difference between mean and median that is reported, as a share of the median."""


def _mean_against_median(ordered: Cells) -> str:
    """Compare mean and median for each number of warm-up steps."""
    sentences: list[str] = []
    equal: list[tuple[int, str]] = []
    for cell in ordered:
        found = cell.samples("step")
        if found is None:
            continue
        shown = units.seconds_with_deviation(found.mean_s, found.std_s)
        excess = found.mean_s / found.median_s - 1
        if abs(excess) < MIN_REPORTED_SHARE:
            equal.append((cell.cell.warmup, shown))
            continue
        of = f" of {len(found.samples_s)} steps" if not sentences else ""
        side = "above" if excess >= 0 else "below"
        sentences.append(
            f"{_after_warmup_text([cell.cell.warmup])}, the mean{of} is {units.share(abs(excess))} {side} the median "
            f"({shown})."
        )
    if equal:
        shown = join_words([words for _, words in equal])
        sentences.append(
            f"{_after_warmup_text([count for count, _ in equal])}, the mean differs from the median by less than "
            f"0.05 % ({shown})."
        )
    return " ".join([*sentences[:1], *map(sentence, sentences[1:])])


def _after_warmup_text(counts: Sequence[int]) -> str:
    some = [str(count) for count in counts if count]
    after = f"after {join_words(some)} warm-up step{'' if some == ['1'] else 's'}" if some else ""
    return " and ".join(filter(None, ["without warm-up" if 0 in counts else "", after]))


# --- spread

SMALL_STD_SHARE: Final = 0.02
"""A standard deviation of at most this share of the mean is called small."""

HIGH_STD_SHARE: Final = 0.1
"""A standard deviation above this share of the mean is called high."""

_MIN_CELLS_FOR_TYPICAL: Final = 4
"""Smallest number of cells for which a typical value is stated."""

RelativeStd = tuple[float, TimeCellRecord]
"""Relative standard deviation of a phase, and the cell."""


def _relative_stds(cells: Cells, name: Namer) -> Iterator[Statement]:
    by_phase: dict[str, list[RelativeStd]] = {}
    for phase in ("forward", "backward", "step"):
        found = [
            (timed.std_s / timed.mean_s, cell)
            for cell in cells
            if (timed := cell.samples(phase)) is not None and len(timed.samples_s) > 2
            if timed.mean_s > 0
        ]
        if found:
            by_phase[phase] = sorted(found, key=lambda each: each[0])
    if "backward" not in by_phase and len(by_phase) == 2:
        del by_phase["step"]  # the step consists of forward only
    if not by_phase:
        return
    words = [f"{phase} {_relative_std_text(found, name)}" for phase, found in by_phase.items()]
    worst = max(found[-1][0] for found in by_phase.values())
    typical = max(found[len(found) // 2][0] for found in by_phase.values())
    verdict = ""
    if typical <= SMALL_STD_SHARE:
        verdict = " is small" if worst <= SMALL_STD_SHARE else " is mostly small"
    elif typical > HIGH_STD_SHARE:
        verdict = " is high"
    listing = ("; " if any(", " in each for each in words) else ", ").join(words)
    text = f"the relative standard deviation{verdict or ' varies'}: {listing}."
    every = {cell.key: cell for found in by_phase.values() for _, cell in found}
    yield Statement(text, tuple(every.values()))


def _relative_std_text(found: Sequence[RelativeStd], name: Namer) -> str:
    low, typical, high = (units.share(found[place][0]) for place in (0, len(found) // 2, -1))
    if len(found) == 1:
        return high
    if typical == high and (low == typical or len(found) >= _MIN_CELLS_FOR_TYPICAL):
        return typical
    return (
        f"{low} to {high}"
        if len(found) < _MIN_CELLS_FOR_TYPICAL
        else f"typically {typical}, at most {high} ({name(found[-1][1])})"
    )


# --- memory


def _peak_memory(cells: Cells, name: Namer) -> Iterator[Statement]:
    known = [(peak, cell) for cell in cells if cell.outcome == "ok" and (peak := cell.memory.allocated_peak_bytes)]
    if known:
        yield Statement(
            f"peak allocated memory is {range_text(known, name, units.size)}.",
            tuple(cell for _, cell in known),
            about="memory",
        )


def _memory_limits(cells: Cells) -> Iterator[Statement]:
    found = limits(cells, "ctx", lambda cell: cell.outcome == "ok", lambda cell: cell.outcome == "oom")
    yield from limit_findings(found, lambda some: name_cells(some, namer(cells, ("ctx",)), MAX_ALL_NAMED))


def of_run(record: TimeRecord) -> Iterator[Statement]:
    return all_findings(record.cells)
