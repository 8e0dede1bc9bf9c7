"""Findings of a timing run: sentences with numbers, each with the cells it is based on.

Cells whose times are wrong (`CellRecord.excluding_cautions`) are excluded, and named in a final sentence. A measured
difference is withheld if noise, or a doubt about either time, could explain it (`sysbench.statistics.effect`).
"""

from __future__ import annotations

import statistics as standard
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.time import predicted
from sysbench.commands.time.record import TimeCellRecord, TimeRecord
from sysbench.log.predictions import PredictedRatio, PredictionRecord, step_ratio
from sysbench.render.sentences.finding_kinds import Compared, Comparison
from sysbench.render.sentences.findings import Finding, exclusions, prefixed, reliable, undecided, with_setting
from sysbench.render.sentences.phrases import Namer, count_phrase, join_words, name_cells, namer, range_text
from sysbench.render.table import sentence
from sysbench.statistics import direction, effect, estimate, ratio
from sysbench.statistics.doubt import Cause

Cells = Sequence[TimeCellRecord]

NOTABLE_MEMORY_SHARE: Final = 0.01
"""Smallest difference between two peaks that is reported, as a share."""

MAX_NAMED_GPUS = 3

MAX_NAMED_CHOICES = 6

MAX_SETTINGS = 4
"""Largest number of settings with a sentence of their own about predictions."""


def of_run(record: TimeRecord) -> Iterator[Finding]:
    yield from headlines(record.cells)
    if not predicted.is_predicted(record):
        yield from exclusions(record.cells)


def headlines(cells: Cells) -> Iterator[Finding]:
    """Yield the findings to show below the tables."""
    if any(cell.cell.simulate for cell in cells):
        yield from prediction_findings(reliable(cells))
        return
    timed, measured = reliable_cells(cells), [cell for cell in cells if cell.outcome == "ok" and cell.phases]
    answers = [*_comparisons(cells), *_warmup_study(cells)]
    if measured and not timed and not answers:
        answers = [undecided("how long a step takes", measured)]
    yield from with_setting([*answers, *_duration(timed), *_backward(timed)], cells)


def reliable_cells(cells: Iterable[TimeCellRecord]) -> list[TimeCellRecord]:
    """Return the completely measured cells whose times can be relied on."""
    return [cell for cell in reliable(cells) if cell.outcome == "ok" and cell.phases]


_REASONS: Final[Mapping[Cause, str]] = {
    "host-busy": "other processes used the CPU",
    "threads-wait": "its threads waited for each other",
    "gpu-shared": "other processes used the GPU",
    "warmup-unfinished": "the first steps were still warming up",
    "two-modes": "it has two levels",
    "drift": "it was still changing",
}


def _duration(cells: Cells) -> Iterator[Finding]:
    """Yield how long the step of the only cell takes, with its interval and the first cause that widens it."""
    samples = cells[0].samples("step") if len(cells) == 1 else None  # tables have those of several
    if samples is None or samples.ci95_s is None:
        return
    low_s, high_s = samples.ci95_s
    because = f": {_REASONS[samples.doubts[0].cause]}" if samples.doubts else ""
    about = "about " if samples.doubts else ""
    shown = units.seconds_with_interval(samples.median_s, low_s, high_s)
    processor_s = cells[0].phases["step"].processor_median_s
    is_busy = any(doubt.cause == "host-busy" for doubt in samples.doubts)
    own = f" Its CPU time is {units.seconds(processor_s)}." if is_busy and processor_s is not None else ""
    yield Finding(f"a step takes {about}{shown}{because}.{own}", cells)


# --- two values of an axis


def _comparisons(cells: Cells) -> Iterator[Finding]:
    """Yield comparisons of each axis value with the first one; for compilation, also how soon it pays off."""
    for axis in ("device", *axes.CHOICES):
        values = [value for value in axes.values_along(cells, axis) if value is not None]
        for arm in values[1:]:
            base = values[0]
            comparison = _compare(cells, axis, base, arm)
            if comparison is not None and comparison.significant(-1) and not comparison.significant(1):
                # Swap the values, so that the sentence says which one is faster.
                base, arm = arm, base
                comparison = _compare(cells, axis, base, arm)
            if comparison is not None:
                text = _comparison_text(axis, (base, arm), comparison)
                yield Finding(f"{text}{_memory_effect(cells, axis, base, arm)}", comparison.cells)
                if axis == "execution":
                    yield from _compile_payback(comparison)
            elif excluded := _excluded_pairs(cells, axis, base, arm):
                which = " or ".join(axes.phrase(axis, value) for value in (arm, base))
                yield undecided(f"whether {which} is faster", excluded)


def _compare(cells: Cells, axis: str, base: object, arm: object) -> Comparison[TimeCellRecord] | None:
    phase = "optimizer" if axis == "optimizer" else "step"
    timed = [
        (pair, before.estimate, after.estimate)
        for pair in axes.pairs(reliable_cells(cells), axis, base, arm)
        if (before := pair[0].samples(phase)) and (after := pair[1].samples(phase))
    ]
    effects = [(pair, effect(one, other, len(timed)), min(len(one), len(other))) for pair, one, other in timed]
    return Comparison.of(Compared(found.ratio, pair, found.direction, count) for pair, found, count in effects)


def _excluded_pairs(cells: Cells, axis: str, base: object, arm: object) -> list[TimeCellRecord]:
    measured = [cell for cell in cells if cell.outcome == "ok" and cell.phases]
    pairs = list(axes.pairs(measured, axis, base, arm))
    excluded = all(first.excluding_cautions() or second.excluding_cautions() for first, second in pairs)
    return [cell for pair in pairs for cell in pair] if excluded else []


def _comparison_text(axis: str, values: tuple[object, object], found: Comparison[TimeCellRecord]) -> str:
    base, arm = (axes.phrase(axis, value) for value in values)
    prefix, name = "optimizer: " if axis == "optimizer" else "", namer(found.cells, (axis,))
    significant = Comparison.of(found.significant(-1, 1))
    if significant is None:
        return f"{prefix}{found.no_difference(arm, base)}."
    amount, where = _amount(found, significant, name)
    slower = [compared.cells[0] for compared in found.significant(-1)] if found.significant(1) else []
    exception = f" It is slower for {name_cells(slower, name)}." if slower else ""
    return f"{prefix}{arm} is {amount} as fast as {base}{where}.{exception}"


def _amount(found: Comparison[TimeCellRecord], significant: Comparison[TimeCellRecord], name: Namer) -> tuple[str, str]:
    """Return the significant ratios, and where they hold: `1.64× (small) to 2.56× (large)`, ` in 4 of 6 cells …`."""
    amount, where = significant.describe(name)
    count, total = len(significant.ratios), len(found.ratios)
    if count < total:
        names = name_cells([compared.cells[0] for compared in significant.ratios], name)
        where = f" in {count} of {total} cells ({names}); the rest does not differ significantly"
    elif count > 1 and not where:
        mean = units.ratio(standard.geometric_mean(compared.ratio.value for compared in significant.ratios))
        where = f", with a geometric mean of {mean} over {count_phrase(count)}"
    return amount, where


def _memory_effect(cells: Cells, axis: str, base: object, arm: object) -> str:
    """Return how much less or more memory `arm` needs than `base`: ` Full checkpointing needs 18.0 GiB less memory.`

    The text is empty if memory was not measured, or if the peaks differ by less than `NOTABLE_MEMORY_SHARE`.
    """
    pairs = axes.pairs(reliable(cells, "memory"), axis, base, arm)
    peaks = [tuple(cell.memory.allocated_peak_bytes or 0 for cell in pair) for pair in pairs]
    changes = [(after - before, before) for before, after in peaks if before and after]
    notable = [change for change, before in changes if abs(change) >= NOTABLE_MEMORY_SHARE * before]
    if not notable or len(notable) < len(changes) or min(notable) < 0 < max(notable):
        return ""
    amount = range_text([(abs(change), None) for change in notable], show=units.size)
    which = "less" if notable[0] < 0 else "more"
    return f" {sentence(f'{axes.phrase(axis, arm)} needs {amount} {which} memory')}"


def _compile_payback(found: Comparison[TimeCellRecord]) -> Iterator[Finding]:
    paybacks = [
        (cell.compile_s / (before.median_s - after.median_s), cell)
        for base, cell in (compared.cells for compared in found.significant(1))
        if base.compile_s is None and cell.compile_s is not None
        if (before := base.samples("step")) and (after := cell.samples("step"))
    ]
    if paybacks:
        takes = range_text([(cell.compile_s or 0.0, cell) for _, cell in paybacks], show=units.seconds)
        steps = range_text(paybacks, namer(found.cells, ("execution",)), "{:.0f} steps".format)
        graphs = " and recording CUDA graphs" if paybacks[-1][1].cell.uses_cuda_graphs else ""
        yield Finding(f"compiling{graphs} takes {takes} and pays off after {steps}.", found.cells)


# --- parts of a step, and its warm-up


def _backward(cells: Cells) -> Iterator[Finding]:
    comparison = Comparison.of(
        Compared(longer, (cell,), direction(longer), len(forward.samples_s))
        for cell in cells
        if (forward := cell.samples("forward")) and (backward := cell.samples("backward"))
        if forward.median_s > 0 and backward.median_s > 0
        # Without their doubts: what disturbs one phase of a step disturbs the other, and cancels.
        if (longer := ratio(estimate(backward.samples_s), estimate(forward.samples_s)))
    )
    if comparison is None:
        return
    significant = Comparison.of(comparison.significant(-1, 1))
    if significant is None:
        text = f"{comparison.no_difference('backward', 'forward')}."
    else:
        amount, where = _amount(comparison, significant, namer(comparison.cells))
        text = f"backward takes {amount} as long as forward{where}."
    yield Finding(text, comparison.cells)


def _warmup_study(cells: Cells) -> Iterator[Finding]:
    """Yield how far the mean lies above the median, which is robust, for each number of warm-up steps."""
    if len(axes.values_along(cells, "warmup")) < 2:
        return
    name = namer(cells, ("warmup",))
    rows = axes.group_ignoring([cell for cell in cells if cell.outcome == "ok" and cell.samples("step")], "warmup")
    for row in rows:
        ordered = sorted(reliable(row), key=lambda cell: cell.cell.warmup)
        where = f"{name(row[0])}: " if len(rows) > 1 else ""
        if len(ordered) > 1:
            text = f"{where}the mean step is {', '.join(map(_mean_against_median, ordered))}."
            yield Finding(text, tuple(ordered), named=frozenset(axes.varying(cells)))
        elif len(row) > len(ordered):
            yield undecided(f"{where}what a missing warm-up costs", row)


def _mean_against_median(cell: TimeCellRecord) -> str:
    """Return `339% above the median without warm-up (258.2 ± 630.6 ms)`."""
    samples = cell.samples("step")
    assert samples is not None
    after = f"after {axes.phrase('warmup', cell.cell.warmup)}" if cell.cell.warmup else "without warm-up"
    excess = samples.mean_s / samples.median_s - 1
    shown = f"{units.share(abs(excess))} {'above' if excess >= 0 else 'below'} the median {after}"
    return f"{shown} ({units.seconds_with_deviation(samples.mean_s, samples.std_s)})"


# --- predictions

_LIMIT_NAMES: Final = {"host": "the host", "matmul": "matrix products", "elementwise": "elementwise kernels"}
"""Names in sentences of what limits a step; the others are nouns already."""


def prediction_findings(cells: Cells) -> Iterator[Finding]:
    """Yield the best GPU for each setting, what each choice changes, and the cells that are limited by the host."""
    gpu_groups = [(group, _gpus_text(group)) for group in axes.group_ignoring(cells, "simulate")[:MAX_SETTINGS]]
    choice_groups = [(group, _choices_text(group)) for group in predicted.choice_groups(cells)[:MAX_SETTINGS]]
    for groups, ignored in ((gpu_groups, ("simulate",)), (choice_groups, axes.CHOICES)):
        name = namer(cells, ignored)
        for group, text in groups:
            where = name(group[0]) if len(groups) > 1 else ""
            if text:
                yield prefixed(Finding(text, group, states_origin=True), where)
    yield from _host_limits(cells)


def _gpus_text(group: Cells) -> str:
    """Return which GPU is predicted to be the best, or which ones may be; empty if fewer than two can be compared."""
    compared = [row for row in predicted.compare(group) if row.ratio]
    if len(compared) < 2:
        return ""
    by_cost = predicted.are_compared_by_cost(group)
    among = f" of the {len(compared)} GPUs that can be compared" if len(compared) < len(group) else ""
    candidates = [row for row in compared if row.ratio and row.ratio.low <= 1]
    best = compared[0].cell
    if len(candidates) == 1:
        return f"{_best_gpu_text(best, among, by_cost)} {_others_text(compared[1:2], best, by_cost)}"
    named = [str(row.cell.cell.simulate) for row in candidates[:MAX_NAMED_GPUS]]
    if len(candidates) > len(named):
        named = [*named[:-1], f"{len(candidates) - len(named) + 1} others"]
    return (
        f"the predictions do not decide which of {join_words(named)} is the {'cheapest' if by_cost else 'fastest'}"
        f"{among}. {_others_text(candidates[1:MAX_NAMED_GPUS], best, by_cost)}"
    )


def _best_gpu_text(best: TimeCellRecord, among: str, by_cost: bool) -> str:
    ((_, prediction),) = predicted.timed([best])
    cost, step = prediction.price_per_million_tokens, prediction.step
    assert step is not None
    what = f"the fastest{among}"
    if by_cost and cost:
        low, high = (units.with_digits(cost / step.point_s * end) for end in (step.low_s, step.high_s))
        what = f"the cheapest{among}, at {units.with_digits(cost)} per million tokens (90% interval {low} to {high})"
    return (
        f"{best.cell.simulate} is predicted to be {what}. A step takes "
        f"{units.seconds_with_interval(step.point_s, step.low_s, step.high_s)} and is limited by "
        f"{_LIMIT_NAMES.get(prediction.limited_by, prediction.limited_by)}."
    )


def _others_text(others: Sequence[predicted.PredictedRow], best: TimeCellRecord, by_cost: bool) -> str:
    ratios = [
        f"{_ratio_text(other.ratio, 'much' if by_cost else 'long')} on {other.cell.cell.simulate}"
        for other in others
        if other.ratio
    ]
    host = predicted.with_which_host([best, *(other.cell for other in others)])
    return sentence(f"{host}, a step {'costs' if by_cost else 'takes'} {join_words(ratios)} as on {best.cell.simulate}")


def _ratio_text(found: PredictedRatio, word: str) -> str:
    return f"{found.point:.2f}× (90% interval {found.low:.2f} to {found.high:.2f}) as {word}"


def _choices_text(group: Cells) -> str:
    """Return what each single choice saves and costs, compared with the first cell with a time, shortest step first.

    `compared with no checkpointing: full checkpointing −18.0 GiB, step 1.27× (…) as long.` Choices that change together
    with another one are left out. The sentence is empty if nothing can be compared.
    """
    timed, choices = predicted.timed(group), [axis for axis in axes.varying(group) if axis in axes.CHOICES]
    if not timed:
        return ""
    first, base = timed[0]
    effects: list[tuple[PredictedRatio, str]] = []
    for cell, prediction in timed[1:]:
        changed = [axis for axis in choices if cell.axes.get(axis) != first.axes.get(axis)]
        if len(changed) == 1 and (found := step_ratio(prediction, base)) is not None:
            phrase = axes.phrase(changed[0], cell.axes.get(changed[0]))
            has_graphs = cell.cell.uses_cuda_graphs or first.cell.uses_cuda_graphs
            memory = "" if has_graphs else _memory_change(prediction, base)
            effects.append((found, f"{phrase} {memory}step {_ratio_text(found, 'long')}"))
    shown = "; ".join(text for _, text in sorted(effects)[:MAX_NAMED_CHOICES])
    return f"compared with {axes.label(first, choices)}, predicted: {shown}." if shown else ""


def _memory_change(prediction: PredictionRecord, base: PredictionRecord) -> str:
    """Return `−18.0 GiB, `, or `same memory, `."""
    change_bytes = prediction.reserved_peak_bytes - base.reserved_peak_bytes
    if units.size(prediction.reserved_peak_bytes) == units.size(base.reserved_peak_bytes):
        return "same memory, "
    return f"{'−' if change_bytes < 0 else '+'}{units.size(abs(change_bytes))}, "


def _host_limits(cells: Cells) -> Iterator[Finding]:
    """Yield how many cells the host limits, and how much time a faster GPU would save at most."""
    timed = predicted.timed(cells)
    limited = [(cell, prediction) for cell, prediction in timed if prediction.limited_by == "host"]
    if not limited:
        return
    saved = units.share(max(1 - prediction.limited_share for _, prediction in limited))
    text = (
        f"the host is predicted to limit {len(limited)} of {len(timed)} predicted steps; with the same host, a faster "
        f"GPU would save at most {saved} there."
    )
    if any(cell.cell.host is None and prediction.host == predicted.TYPICAL_HOST for cell, prediction in limited):
        text += " Host speeds differ, which widens the interval: calibrate the host (--host FILE)."
    yield Finding(text, tuple(cell for cell, _ in limited), states_origin=True)
