"""Findings of `sysbench memory`: sentences, each with the cells that support it.

Peaks are exact, so findings have no confidence intervals. Differences below `NOTABLE` are ignored, because simulated
peaks differ from recorded ones by up to 1 %.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

import numpy as np

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.memory.record import AllocationGroup, MemoryCellRecord, MemoryRecord
from sysbench.commands.memory.spec import search_goal
from sysbench.render.finding_kinds import limit_findings, limits
from sysbench.render.findings import (
    MAX_ALL_NAMED,
    Statement,
    count_phrase,
    exclusions,
    join_words,
    name_cells,
    name_cells_along,
    namer,
    range_text,
    reliable,
    with_setting,
)
from sysbench.render.table import sentence

NOTABLE: Final = 0.01
"""Smallest difference between two peaks that is reported, as a share."""

MAX_FIT_ERROR: Final = 0.01
"""Largest allowed relative error of a growth formula at any of its points."""

MIN_FIT_POINTS: Final = 4
"""Smallest number of contexts for a growth formula, because a parabola fits any three points exactly."""

MAX_ROWS: Final = 4
"""Up to this number of rows, each row has its own sentence; otherwise one sentence states the extremes."""

TRAINING_MODES: Final = ("train", "train-first")
MODE_NAMES: Final = {"train": "a full training step", "train-first": "the first training step"}
PERSISTENT_CATEGORIES: Final = ("parameters", "gradients", "optimizer state")


def findings(cells: Sequence[MemoryCellRecord]) -> Iterator[Statement]:
    """Yield all findings, most important first. No finding covers both measured and simulated cells."""
    yield from _by_source(
        cells, _headlines, _growth, _peak_phases, _persistent_state, _largest_allocations, _reserved, _context_limits,
        _rank_limits, _search_results, _residual_stream,
    )  # fmt: skip


def headlines(cells: Sequence[MemoryCellRecord]) -> Iterator[Statement]:
    """Yield the findings to show below the tables. The tables already show the other findings."""
    yield from _by_source(cells, _headlines)


def _by_source(
    cells: Sequence[MemoryCellRecord], *kinds: Callable[[Sequence[MemoryCellRecord]], Iterator[Statement]]
) -> Iterator[Statement]:
    """Yield the findings of all `kinds` for the measured cells, then for the cells of each simulated GPU."""
    groups = axes.group_ignoring(cells, "model", *(axis for axis in axes.AXES if axis != "simulate"))
    for group in groups:
        known = reliable(group, "memory")
        gpu = group[0].cell.simulate
        where = f"simulated for {gpu}" if gpu else "measured"
        prefix = f"{where}: " if len(groups) > 1 else ""
        for kind in kinds:
            for each in with_setting(kind(known), group):
                yield Statement(f"{prefix}{each.text}", each.cells, about="memory")
        yield from exclusions(group, "memory")


def _headlines(cells: Sequence[MemoryCellRecord]) -> Iterator[Statement]:
    for mode in TRAINING_MODES:
        pairs = _pairs(cells, "mode", "forward", mode)
        by_base = {pair.base.key: pair for pair in pairs}
        along_ctx = axes.group_ignoring([pair.base for pair in pairs], "ctx")
        if len(along_ctx) > MAX_ROWS:
            ratios = [(1 + pair.share, pair.base) for pair in pairs]
            needs = range_text(ratios, namer(_cells_of(pairs), ("mode",)), units.ratio)
            text = f"{MODE_NAMES[mode]} needs {needs} as much memory as forward, which keeps its graph."
            yield Statement(text, _cells_of(pairs))
            continue
        label = namer(_cells_of(pairs), ("mode", "ctx"))
        for bases in along_ctx:
            row = [by_base[cell.key] for cell in sorted(bases, key=_ctx)]
            where = f"{label(row[0].base)}: " if len(along_ctx) > 1 else ""
            ends = [
                f"{units.size(peak_bytes(pair.other))} at ctx {_ctx(pair.base)}, {_compared_with_forward(pair)}"
                for pair in row[:: max(len(row) - 1, 1)]
            ]
            yield Statement(f"{where}{MODE_NAMES[mode]} needs {', and '.join(ends)}.", _cells_of(row))
    several_modes = len({_mode_name(cell) for cell in cells}) > 1
    for axis in axes.CHOICES:
        base, *others = axes.values_along(cells, axis)
        for other in others:
            pairs = _pairs(cells, axis, base, other)
            for mode in dict.fromkeys(_mode_name(pair.base) for pair in pairs):
                of_mode = [pair for pair in pairs if _mode_name(pair.base) == mode]
                where = f"in {mode}, " if several_modes else ""
                yield Statement(f"{where}{_axis_comparison(of_mode, axis)}", _cells_of(of_mode))


# --- cells that differ in one axis


def cells_with_peak(cells: Iterable[MemoryCellRecord]) -> list[MemoryCellRecord]:
    """Return the finished cells that have a peak and are not known to exceed the device's memory.

    Cells with a search are excluded, because their results are for the value found.
    """
    return [
        cell
        for cell in cells
        if cell.outcome == "ok" and cell.found is None and cell.peak_allocated_bytes and not does_not_fit(cell)
    ]


def does_not_fit(cell: MemoryCellRecord) -> bool:
    return cell.outcome == "oom" or (cell.verdict is not None and not cell.verdict.fits)


def peak_bytes(cell: MemoryCellRecord) -> int:
    """Return the bytes allocated at the peak; 0 if unknown."""
    return cell.peak_allocated_bytes or 0


def _ctx(cell: MemoryCellRecord) -> int:
    return cell.cell.ctx


def _mode_name(cell: MemoryCellRecord) -> str:
    return MODE_NAMES.get(cell.cell.mode, cell.cell.mode)


@dataclass(frozen=True)
class Pair:
    """Two cells that differ only in one axis."""

    base: MemoryCellRecord
    other: MemoryCellRecord

    @property
    def difference(self) -> int:
        return peak_bytes(self.other) - peak_bytes(self.base)

    @property
    def share(self) -> float:
        return self.difference / peak_bytes(self.base)


def _pairs(cells: Iterable[MemoryCellRecord], axis: str, base: object, other: object) -> list[Pair]:
    return [Pair(*each) for each in axes.pairs(cells_with_peak(cells), axis, base, other)]


def _cells_of(pairs: Iterable[Pair]) -> tuple[MemoryCellRecord, ...]:
    return tuple({cell.key: cell for pair in pairs for cell in (pair.base, pair.other)}.values())


def _compared_with_forward(pair: Pair) -> str:
    """Compare a pair's memory with that of forward: `1.39× as much as forward (96.3 MiB)`, or `as much as forward`."""
    if units.size(peak_bytes(pair.base)) == units.size(peak_bytes(pair.other)):
        return "as much as forward"
    return f"{units.ratio(1 + pair.share)} as much as forward ({units.size(peak_bytes(pair.base))})"


def _axis_comparison(pairs: Sequence[Pair], axis: str) -> str:
    """Compare two values of an axis over pairs of one mode, and name the category with the largest difference."""
    base, other = (axes.phrase(axis, cell.axis_value(axis)) for cell in (pairs[0].base, pairs[0].other))
    ordered = sorted(pairs, key=lambda pair: pair.share)
    low, high = ordered[0], ordered[-1]
    saves, costs = low.share < -NOTABLE, high.share > NOTABLE
    if not saves and not costs:
        peaks_in_optimizer = {cell.peak_phase for cell in _cells_of(pairs)} == {"optimizer"}
        why = " The peak is in the optimizer, when activations are already freed and everything is in fp32."
        text = f"{other} instead of {base} changes the peak by less than {units.share(NOTABLE)}."
        return f"{text}{why * (axis == 'precision' and peaks_in_optimizer)}"
    bases = [pair.base for pair in pairs]
    name = namer(bases, ("mode",))
    several_pairs = len(pairs) > 1
    ends = [
        f"{verb}{' up to' * several_pairs} {units.size(abs(pair.difference))} ({units.share(abs(pair.share))})"
        f"{f' for {name(pair.base)}' * several_pairs}"
        for verb, pair, notable in (("saves", low, saves), ("costs", high, costs))
        if notable
    ]
    same = [pair.base for pair in ordered if abs(pair.share) <= NOTABLE]
    rest = f" It makes no difference for {name_cells_along(same, bases, ('mode',))}." if same else ""
    why = _difference_cause(
        high if costs else low, autocast=axis == "precision" and costs, offset=saves, several=several_pairs
    )
    comparison = ", compared with" if len(ends) > 1 else " compared with"
    return f"{other} {' and '.join(ends)}{comparison} {base}.{why}{rest}"


def _difference_cause(pair: Pair, *, autocast: bool, offset: bool, several: bool) -> str:
    copies = autocast_copies_bytes(pair.other) if autocast else None
    if copies is not None:
        against = ", partly offset by smaller activations" if offset else ""
        of = f"of the weights ({units.size(copies)}, computed)"
        return f" The increase comes from autocast's 16-bit copies {of}{against}."
    words = [
        f"{'other memory' if category == 'other' else category} {'grow' if change > 0 else 'shrink'}"
        f"{'' if category.endswith('s') else 's'} by {units.size(abs(change))}"
        for category, change in category_changes(pair)[:2]
    ]
    there = " there" if several else ""
    return f" {sentence(f'{join_words(words)}{there}')}" if words else ""


def autocast_copies_bytes(cell: MemoryCellRecord) -> int | None:
    """Return the computed size of autocast's 16-bit copies of all weight matrices except the embedding.

    None if the cell does not use autocast, or for a custom model.
    """
    shape = cell.cell.shape_with_formulas
    if shape is None or cell.model.parameters is None or cell.cell.precision not in ("bf16", "fp16"):
        return None
    gains = (2 * shape.layers + 1) * shape.d_model
    return 2 * (cell.model.parameters - shape.vocab * shape.d_model - gains)


def category_changes(pair: Pair) -> list[tuple[str, int]]:
    """Return the change of each category from `base` to `other` at the peak, in bytes, largest change first.

    Changes below 1 % of the peak of `base` are omitted.
    """
    before, after = pair.base.by_category, pair.other.by_category
    changes = [(name, after.get(name, 0) - before.get(name, 0)) for name in dict.fromkeys((*before, *after))]
    notable = [(name, change) for name, change in changes if abs(change) >= NOTABLE * peak_bytes(pair.base)]
    return sorted(notable, key=lambda item: -abs(item[1]))


# --- growth


@dataclass(frozen=True)
class Parabola:
    """Formula for the peak in bytes: fixed + linear · ctx + square · ctx²."""

    constant: float
    linear: float
    quadratic: float
    max_relative_error: float
    """The largest relative error at any of the fitted points."""


def fit_parabola(row: Sequence[MemoryCellRecord]) -> Parabola | None:
    """Fit a parabola to the peaks of cells that differ only in their context.

    None if there are fewer than four cells, if the relative error exceeds 1 % at any cell, or if a growth term is not
    positive.
    """
    sizes = np.array([_ctx(cell) for cell in row], np.float64)
    values = np.array([peak_bytes(cell) for cell in row], np.float64)
    if len(set(sizes.tolist())) < max(MIN_FIT_POINTS, len(row)):
        return None
    # Fit relative residuals, so that small contexts count as much as large ones.
    design = np.stack([np.ones_like(sizes), sizes, sizes**2], axis=1) / values[:, None]
    solution, *_ = np.linalg.lstsq(design, np.ones_like(values), rcond=None)
    max_relative_error = float(np.abs(design @ solution - 1).max())
    constant, linear, quadratic = map(float, solution)
    return (
        Parabola(constant, linear, quadratic, max_relative_error)
        if max_relative_error <= MAX_FIT_ERROR and linear > 0 and quadratic > 0
        else None
    )


def _growth(cells: Sequence[MemoryCellRecord]) -> Iterator[Statement]:
    along_ctx = [sorted(row, key=_ctx) for row in axes.group_ignoring(cells_with_peak(cells), "ctx")]
    name = namer(cells_with_peak(cells), ("ctx",))
    formulas = [(row, formula) for row in along_ctx if (formula := fit_parabola(row)) is not None]
    for row, formula in formulas[:MAX_ROWS]:
        yield Statement(
            f"{name(row[-1])}: the peak is {units.size(formula.constant)} + {units.size(formula.linear)} × ctx + "
            f"{units.size(formula.quadratic)} × ctx² from ctx {_ctx(row[0])} to {_ctx(row[-1])}, "
            f"to within {units.share(max(formula.max_relative_error, 0.001))}. The quadratic term exceeds the linear "
            f"one from ctx {formula.linear / formula.quadratic:.0f} on.",
            tuple(row),
        )
    flat = [
        row
        for row in along_ctx
        if _ctx(row[-1]) >= 2 * _ctx(row[0]) and max(map(peak_bytes, row)) <= (1 + NOTABLE) * min(map(peak_bytes, row))
    ]
    if flat:
        words = []
        for row in flat[:MAX_ROWS]:
            phases = {cell.peak_phase for cell in row}
            where = f", in {row[0].peak_phase}" if len(phases) == 1 and row[0].peak_phase is not None else ""
            span = f"ctx {_ctx(row[0])} to {_ctx(row[-1])}"
            ends = dict.fromkeys(units.size(end(map(peak_bytes, row))) for end in (min, max))
            words.append(f"{name(row[0])} needs {' to '.join(ends)} from {span}{where}")
        is_equal = all(len(set(map(peak_bytes, row))) == 1 for row in flat)
        text = f"the peak {'does not depend' if is_equal else 'hardly depends'} on the context: {'; '.join(words)}."
        yield Statement(text, tuple(cell for row in flat for cell in row))


# --- phases and categories


def _peak_phases(cells: Sequence[MemoryCellRecord]) -> Iterator[Statement]:
    with_phases = [cell for cell in cells_with_peak(cells) if cell.peak_phase and len(cell.peaks_by_phase) > 1]
    for mode in dict.fromkeys(map(_mode_name, with_phases)):
        of_mode = [cell for cell in with_phases if _mode_name(cell) == mode]
        phases = dict.fromkeys(str(cell.peak_phase) for cell in of_mode)
        if len(phases) == 1:
            words = f"in the {of_mode[0].peak_phase} phase{' in every cell' if len(of_mode) > 1 else ''}"
        else:
            alike = [[cell for cell in of_mode if cell.peak_phase == phase] for phase in phases]
            words = join_words(
                [f"in the {row[0].peak_phase} phase for {name_cells_along(row, of_mode, ('mode',))}" for row in alike]
            )
        yield Statement(f"the peak of {mode} is {words}.", tuple(of_mode))


def _persistent_state(cells: Sequence[MemoryCellRecord]) -> Iterator[Statement]:
    training = [cell for cell in cells_with_peak(cells) if cell.cell.mode in TRAINING_MODES and cell.by_category]
    shares = [
        (sum(cell.by_category.get(name, 0) for name in PERSISTENT_CATEGORIES) / peak_bytes(cell), cell)
        for cell in training
    ]
    if shares:
        text = f"weights, gradients and optimizer state make up {range_text(shares, namer(training))}"
        yield Statement(f"{text} of a training step's peak.", tuple(training))


def _largest_allocations(cells: Sequence[MemoryCellRecord]) -> Iterator[Statement]:
    """Yield a finding on the largest tensors and the group with the largest total in the cell with the highest peak."""
    with_groups = [cell for cell in cells_with_peak(cells) if cell.largest]
    cell = max(
        [cell for cell in with_groups if cell.cell.mode not in TRAINING_MODES] or with_groups,
        key=peak_bytes,
        default=None,
    )
    # Library workspaces are not part of the model.
    groups = [group for group in cell.largest if group.category != "workspace"] if cell else []
    if cell is None or not groups:
        return
    largest = max(groups, key=lambda group: (group.size_bytes, group.total_bytes))
    largest_total = max(groups, key=lambda group: group.total_bytes)
    one = "allocation at the peak is" if largest.count == 1 else "allocations at the peak are"
    text = f"{namer(cells)(cell)}: the largest {one} {group_description(cell, largest)}"
    if largest_total.total_bytes > largest.total_bytes:
        text += f". The group with the largest total is {group_description(cell, largest_total)}"
    yield Statement(f"{text}.", (cell,))


def group_description(cell: MemoryCellRecord, group: AllocationGroup) -> str:
    frame = group.stack[0] if group.stack else None
    line = f" from {PurePath(frame.filename.replace(chr(92), '/')).name}:{frame.line}" if frame and frame.line else ""
    many = f"{group.count} × " if group.count > 1 else ""
    return f"{many}{units.size(group.size_bytes)} of {group.category}{line}"


def _reserved(cells: Sequence[MemoryCellRecord]) -> Iterator[Statement]:
    excess_shares = [
        (cell.peak_reserved_bytes / peak_bytes(cell) - 1, cell)
        for cell in cells_with_peak(cells)
        if cell.peak_reserved_bytes
    ]
    if excess_shares:
        excess = range_text(excess_shares, namer(cells))
        more = "no more" if excess == units.share(0.0) else f"{excess} more"
        text = f"the allocator reserves {more} than is allocated at the peak."
        yield Statement(text, tuple(cell for _, cell in excess_shares))


# --- limits


def _context_limits(cells: Sequence[MemoryCellRecord]) -> Iterator[Statement]:
    fitting = {cell.key for cell in cells_with_peak(cells)}
    without_search = [cell for cell in cells if cell.found is None]
    found = limits(without_search, "ctx", lambda cell: cell.key in fitting, does_not_fit)
    name = namer(cells, ("ctx",))
    yield from limit_findings(found, lambda some: name_cells(some, name, MAX_ALL_NAMED), _shortage)


def _shortage(cells: Sequence[MemoryCellRecord]) -> str:
    verdict = cells[0].verdict
    missing = -(verdict.margin_bytes or 0) if verdict is not None and len(cells) == 1 else 0
    return f" (short by {units.size(missing)})" if missing > 0 else ""


def _rank_limits(cells: Sequence[MemoryCellRecord]) -> Iterator[Statement]:
    name = namer(cells, ("ranks", "strategy"))
    for row in axes.group_ignoring([cell for cell in cells if cell.found is None], "ranks", "strategy"):
        for strategy in dict.fromkeys(cell.cell.strategy for cell in row if cell.cell.strategy is not None):
            # One rank has no strategy.
            compared = [cell for cell in row if cell.cell.strategy in (None, strategy)]
            fitting = min(cells_with_peak(compared), key=_ranks, default=None)
            short = max(filter(does_not_fit, compared), key=_ranks, default=None)
            if fitting is not None and short is not None and _ranks(short) < _ranks(fitting):
                words = f"fits with {_ranks(fitting)} ranks ({strategy}), not with {_ranks(short)}"
                yield Statement(f"{name(fitting)}: {words}.", (short, fitting))


def _ranks(cell: MemoryCellRecord) -> int:
    return cell.cell.ranks


def _search_results(cells: Sequence[MemoryCellRecord]) -> Iterator[Statement]:
    searched = [(cell, cell.found) for cell in cells if cell.found is not None and cell.found.value]
    if searched:
        axis = searched[0][1].axis
        name = namer([cell for cell, _ in searched], (axis,))
        found_by: dict[str, list[str]] = {}
        for cell, found in searched:
            at_least = "" if found.beyond or axis == "ranks" else "at least "
            found_by.setdefault(f"{at_least}{found.answer}", []).append(name(cell))
        words = [f"{value} ({', '.join(names)})" for value, names in found_by.items()]
        if len(found_by) == 1:
            words = [f"{next(iter(found_by))}{f' in {count_phrase(len(searched))}' * (len(searched) > 1)}"]
        verb = "fits is" if axis != "ranks" else "fit are"
        yield Statement(
            f"the {search_goal(axis)} that {verb} {join_words(words)}.", tuple(cell for cell, _ in searched)
        )


# --- computed sizes


def _residual_stream(cells: Sequence[MemoryCellRecord]) -> Iterator[Statement]:
    by_size: dict[str, dict[int, MemoryCellRecord]] = {}
    for cell in sorted((each for each in cells if each.found is None and each.residual_bytes is not None), key=_ctx):
        by_size.setdefault(cell.cell.size, {}).setdefault(_ctx(cell), cell)
    basis = tuple(cell for row in by_size.values() for cell in row.values())
    if len({cell.cell.batch for cell in basis}) != 1:
        return
    batch = basis[0].cell.batch
    if len(by_size) == 1:
        ((size, row),) = by_size.items()
        amounts = join_words([f"{units.size(cell.residual_bytes)} at ctx {_ctx(cell)}" for cell in row.values()])
        product = f"batch {batch} × ctx × d_model {getattr(basis[0].cell.shape, 'd_model', '')} × 4 bytes"
        yield Statement(f"the residual stream of {size} takes {amounts}: {product}.", basis)
        return
    words = []
    for size, row in by_size.items():
        first, *_, last = *row.values(), *row.values()
        more = f" to {units.size(last.residual_bytes)} at ctx {_ctx(last)}" if len(row) > 1 else ""
        words.append(f"{units.size(first.residual_bytes)} at ctx {_ctx(first)}{more} for {size}")
    yield Statement(f"the residual stream takes batch {batch} × ctx × d_model × 4 bytes: {', '.join(words)}.", basis)


def of_run(record: MemoryRecord) -> Iterator[Statement]:
    return findings(record.cells)
