"""Findings of an attention sweep: the fastest implementations, growth with the sequence length, and memory limits.

`of_run` yields sentences; `growth`, `frontier`, `passages` and `leads` compute the numbers, which tables show too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations, groupby, pairwise
from typing import Final, Literal, NamedTuple

from sysbench import units
from sysbench.cells import group_ignoring, named_groups, pairs
from sysbench.commands.attention.record import AttentionCellRecord, AttentionRecord
from sysbench.log.outcomes import Subject
from sysbench.log.predictions import PredictedTime
from sysbench.log.records import Samples
from sysbench.render.sentences.finding_kinds import Growth, Limit, fit_growth, growth_text, limit_findings, limits
from sysbench.render.sentences.findings import Finding, exclusions, prefixed, reliable, undecided
from sysbench.render.sentences.phrases import join_words, name_cells_along, range_text, with_interval
from sysbench.statistics import Crossover, Ratio, crossovers, direction, effect

Quantity = Literal["forward", "backward", "saved"]
"""`forward` and `backward` are times; `saved` is the memory that forward keeps for backward."""

Cells = Sequence[AttentionCellRecord]

QUANTITIES: Final[tuple[Quantity, ...]] = ("forward", "backward", "saved")

TIMES: Final[tuple[Quantity, ...]] = ("forward", "backward")

NAMES: Final[dict[Quantity, str]] = {
    "forward": "forward",
    "backward": "backward",
    "saved": "memory kept for backward",
}

USUAL_DIM: Final = 64
"""Head dimension of most models; findings refer to it if the sweep includes it."""

# --- cells


def dims(cells: Iterable[AttentionCellRecord]) -> list[int]:
    return sorted({cell.cell.dim for cell in cells})


def implementations(cells: Iterable[AttentionCellRecord]) -> list[str]:
    return list(dict.fromkeys(cell.cell.implementation for cell in cells))


def usual_dim(cells: Cells) -> int | None:
    """Return the head dimension that findings refer to: 64 if the sweep includes it, otherwise the middle one."""
    found = dims(cells)
    if not found:
        return None
    return USUAL_DIM if USUAL_DIM in found else found[(len(found) - 1) // 2]


def samples(cell: AttentionCellRecord, quantity: Quantity) -> Samples | None:
    """Return the times of a phase; None for `saved`, and for cells that did not finish."""
    if cell.outcome != "ok" or quantity == "saved":
        return None
    return cell.forward if quantity == "forward" else cell.backward


def predicted(cell: AttentionCellRecord, quantity: Quantity) -> PredictedTime | None:
    """Return the predicted time of a phase; None for measured cells, cells that do not fit, and `saved`."""
    return cell.prediction.phase(quantity) if cell.prediction is not None and cell.outcome == "ok" else None


def value(cell: AttentionCellRecord, quantity: Quantity) -> float | None:
    """Return the measured median or the predicted time of a phase, in seconds; for `saved`, bytes."""
    if quantity == "saved":
        return cell.saved_bytes
    found, instead = samples(cell, quantity), predicted(cell, quantity)
    return found.median_s if found else instead.point_s if instead else None


def subject_of(quantity: Quantity) -> Subject:
    return "memory" if quantity == "saved" else "times"


def _is_doubtful(cell: AttentionCellRecord, quantity: Quantity) -> bool:
    found = samples(cell, quantity)
    return found is not None and bool(found.doubts)


SWEPT: Final = ("implementation", "dim", "seq")
"""Axes along which cells of one setting differ."""


# --- numbers


def growth(cells: Iterable[AttentionCellRecord]) -> list[Growth[AttentionCellRecord]]:
    """Return the growth of each quantity with N, for each row with two or more reliable values.

    Times that are doubtful are left out: the interval of an exponent would not be wider for it.
    """
    growths = [
        fit_growth(
            NAMES[quantity],
            "N",
            [cell for cell in reliable(row, subject_of(quantity)) if not _is_doubtful(cell, quantity)],
            lambda cell: cell.cell.seq,
            partial(value, quantity=quantity),
        )
        for row in group_ignoring(cells, "seq")
        for quantity in QUANTITIES
    ]
    return [each for each in growths if each is not None]


def frontier(cells: Iterable[AttentionCellRecord]) -> list[Limit[AttentionCellRecord]]:
    return limits(cells, "seq", lambda cell: cell.outcome == "ok", lambda cell: cell.lacks_memory)


def smallest_beyond(cells: Cells) -> AttentionCellRecord | None:
    """Return the cell that needs the least memory among the cells that do not fit and whose tensors are known."""
    over = [row.beyond for row in frontier(cells) if row.beyond is not None and row.beyond.tensors]
    return min(over, key=lambda cell: sum(tensor.size_bytes for tensor in cell.tensors), default=None)


def compared(
    cells: Iterable[AttentionCellRecord], first: str, second: str, quantity: Quantity
) -> list[tuple[AttentionCellRecord, Ratio]]:
    """Return by how much `second` is faster on each input on which both have a reliable value, by ascending length.

    Each ratio comes with the cell of `first`.
    """
    timed = [cell for cell in reliable(cells) if value(cell, quantity)]
    found = [(pair[0], _ratio(*pair, quantity)) for pair in pairs(timed, "implementation", first, second)]
    return sorted(found, key=lambda each: each[0].cell.seq)


def _ratio(first: AttentionCellRecord, second: AttentionCellRecord, quantity: Quantity) -> Ratio:
    """Return the ratio of the first time to the second.

    For predictions, the interval of the ratio contains 1 if the intervals of the two times overlap. For measurements,
    the interval is omitted if it suggests an effect that is insignificant, negligible, or not confirmed by the means.
    """
    above, below = predicted(first, quantity), predicted(second, quantity)
    if above is not None and below is not None:
        return Ratio(above.point_s / below.point_s, above.low_s / below.high_s, above.high_s / below.low_s)
    one, other = samples(first, quantity), samples(second, quantity)
    assert one is not None
    assert other is not None
    found = effect(one.estimate, other.estimate)
    return found.ratio if direction(found.ratio) == found.direction else Ratio(found.ratio.value, None, None)


class Passage(NamedTuple):
    """A sequence length at which one implementation overtakes another, at one head dimension."""

    slower_first: str
    other: str
    dim: int
    quantity: Quantity
    crossover: Crossover
    cells: Cells
    """The cells of both implementations at this dimension."""


def passages(cells: Cells) -> list[Passage]:
    """Return all crossovers of all pairs of implementations; all cells have the same setting."""
    found = []
    for dim in dims(cells):
        here = [cell for cell in cells if cell.cell.dim == dim]
        for first, second in combinations(implementations(here), 2):
            for quantity in TIMES:
                both_timed = compared(here, first, second, quantity)
                lengths = [float(cell.cell.seq) for cell, _ in both_timed]
                for crossover in crossovers(lengths, [ratio for _, ratio in both_timed]):
                    late, early = (first, second) if crossover.falls else (second, first)
                    both = [cell for cell in here if cell.cell.implementation in (first, second)]
                    found.append(Passage(late, early, dim, quantity, crossover, both))
    return found


class Lead(NamedTuple):
    """A range of sequence lengths over which one implementation is the fastest."""

    implementation: str
    alike: tuple[str, ...]
    """Other implementations that do not differ significantly from the fastest one at any of these lengths."""
    first: int
    last: int

    @property
    def leaders(self) -> list[str]:
        """The implementation and those that it is tied with."""
        return [self.implementation, *self.alike]

    @property
    def span(self) -> str:
        """The range in words: `at N 256`, or `from N 256 to 1024`."""
        return f"at N {self.first}" if self.first == self.last else f"from N {self.first} to {self.last}"


def leads(cells: Cells, quantity: Quantity) -> list[Lead]:
    """Return the fastest implementation for each range of sequence lengths, ascending."""
    best: list[tuple[int, str, frozenset[str]]] = []
    for row in sorted(group_ignoring(cells, "implementation"), key=lambda row: row[0].cell.seq):
        timed = {cell.cell.implementation: cell for cell in row if value(cell, quantity)}
        if len(timed) > 1:
            name = min(timed, key=lambda each: value(timed[each], quantity) or 0.0)
            ratios = {other: _ratio(timed[other], timed[name], quantity) for other in timed if other != name}
            tied = frozenset(other for other, ratio in ratios.items() if direction(ratio) == 0)
            best.append((row[0].cell.seq, name, tied))
    # Noise decides which tied implementation has the smallest median: merge consecutive lengths with the same tied set.
    runs = [list(group) for _, group in groupby(best, key=lambda each: {each[1]} | each[2])]
    return [Lead(run[-1][1], tuple(sorted(run[-1][2])), run[0][0], run[-1][0]) for run in runs]


# --- sentences


def of_run(record: AttentionRecord) -> Iterator[Finding]:
    for setting, cells in named_groups(record.cells, *SWEPT):
        dim = usual_dim(cells)
        here = [cell for cell in cells if cell.cell.dim == dim]
        marks: dict[Subject, str] = {
            "times": "predicted" if any(cell.source == "predicted" for cell in cells) else "",
            "memory": "simulated" if any(cell.cell.simulated for cell in cells) else "",
        }
        for finding in (
            *_unanswered(cells),
            *_fastest(reliable(here), dim),
            *_grows(here, dim),
            *_ends(reliable(cells, "memory")),
        ):
            mark = marks[finding.about]
            prefix = ", ".join(filter(None, [setting, mark]))
            yield replace(prefixed(finding, prefix), states_origin=bool(mark))
        for excluded in exclusions(cells):
            yield prefixed(excluded, setting)


def _unanswered(cells: Cells) -> Iterator[Finding]:
    timed = [cell for cell in cells if value(cell, "forward") is not None]
    if len(implementations(timed)) > 1 and len(implementations(reliable(cells))) < 2:
        yield undecided("which implementation is fastest", timed)


def _fastest(cells: Cells, dim: int | None) -> Iterator[Finding]:
    """Yield the fastest implementation for each range of lengths, and the crossovers between the fastest ones."""
    for quantity in TIMES:
        if found := leads(cells, quantity):
            takes = {(late.implementation, early.implementation) for early, late in pairwise(found)}
            crossings = [
                f" From about N {passage.crossover.at:.0f} on, {passage.slower_first} is faster than {passage.other} "
                f"(interpolated between N {passage.crossover.below:.0f} and N {passage.crossover.above:.0f})."
                for passage in passages(cells)
                if passage.quantity == quantity and (passage.slower_first, passage.other) in takes
            ]
            said = "; ".join([*map(_lead, found), *_margin(found[-1], cells, quantity)])
            timed = [cell for cell in cells if value(cell, quantity) is not None]
            yield Finding(f"{quantity} at d {dim}: {said}.{''.join(crossings)}", timed)


def _lead(lead: Lead) -> str:
    if lead.alike:
        return f"{join_words(lead.leaders)} share the lead {lead.span}, without a significant difference"
    return f"{lead.implementation} is fastest {lead.span}"


def _margin(lead: Lead, cells: Cells, quantity: Quantity) -> Iterator[str]:
    """Yield how much faster the leader is than the slowest implementation, at the longest length that both have."""
    others = [name for name in implementations(cells) if name not in lead.leaders]
    longest = [pairs[-1] for name in others if (pairs := compared(cells, name, lead.implementation, quantity))]
    slow, ratio = max(longest, key=lambda pair: pair[1].value, default=(None, None))
    if slow is not None and ratio is not None and direction(ratio) > 0:
        factor = with_interval(ratio, "90% interval " if slow.prediction is not None else "95% CI ")
        yield f"{lead.implementation} is {factor} as fast as {slow.cell.implementation} at N {slow.cell.seq}"


def _grows(cells: Cells, dim: int | None) -> Iterator[Finding]:
    """Yield how times and memory grow with N; implementations that grow alike share a sentence."""
    told = [each for each in growth(cells) if each.has_law]
    grouped: dict[tuple[object, ...], list[tuple[Subject, list[Growth[AttentionCellRecord]]]]] = {}
    for name in implementations(cells):
        own = [each for each in told if each.cells[0].cell.implementation == name]
        times = [each for each in own if each.quantity in TIMES and each.is_significant(_mean_of(each.quantity))]
        memory = [each for each in own if each.quantity not in TIMES]
        by_subject: dict[Subject, list[Growth[AttentionCellRecord]]] = {"times": times, "memory": memory}
        for about, growths in by_subject.items():
            if growths:
                shown = tuple((each.quantity, *each.describe()) for each in growths)
                grouped.setdefault(shown, []).append((about, growths))
    for alike in grouped.values():
        about, growths = alike[0]
        basis = [cell for _, own in alike for each in own for cell in each.cells]
        text = f"for {join_words(implementations(basis))} at d {dim}, {growth_text(growths)}."
        yield Finding(text, basis, about=about)


def _mean_of(quantity: str) -> Callable[[AttentionCellRecord], float | None]:
    return lambda cell: times.mean_s if (times := getattr(cell, quantity)) else None


def _ends(cells: Cells) -> Iterator[Finding]:
    def name(some: Cells) -> str:
        return name_cells_along(some, cells, ("seq",), along="dim")

    def shortage(beyond: Cells) -> str:
        known = [cell for cell in beyond if cell.needed_bytes is not None]
        if not known:
            return ""
        where = f" at d {join_words(list(map(str, dims(known))))}" if len(known) < len(beyond) else ""
        needed = range_text([(cell.needed_bytes or 0, cell) for cell in known], show=units.size)
        available = [(cell.available_bytes, cell) for cell in known if cell.available_bytes is not None]
        rest = f", {range_text(available, show=units.size)} available" if available else ""
        return f" (needs {needed}{where}{rest})"

    for implementation in implementations(cells):
        own = [cell for cell in cells if cell.cell.implementation == implementation]
        yield from limit_findings(frontier(own), name, shortage)
