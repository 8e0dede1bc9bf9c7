"""Findings of an attention sweep: growth, the fastest implementations, memory saved for backward, and memory limits.

`findings` yields sentences, each with the cells that support it. `growth`, `frontier`, `passages` and `leads` compute
the numbers, which tables and figures also show.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, groupby, pairwise
from operator import methodcaller
from typing import Final, Literal

from sysbench import units
from sysbench.cells import AXES, group_ignoring, named_groups, pairs
from sysbench.commands.attention.record import AttentionCellRecord, AttentionRecord
from sysbench.log.outcomes import Subject
from sysbench.log.predictions import PredictedTime
from sysbench.log.records import Samples
from sysbench.render.finding_kinds import Compared, Growth, Limit, fit_growth, growth_text, limit_findings, limits
from sysbench.render.findings import (
    Statement,
    contains_one,
    exclusions,
    interval,
    join_words,
    name_cells_along,
    no_difference_clause,
    range_text,
    reliable,
    undecided,
    with_interval,
)
from sysbench.statistics import Crossover, PowerLaw, Ratio, crossovers, direction, effect, ratio

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

LARGEST: Final = 2
"""Largest number of kinds of tensors that a sentence names."""


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


SWEPT: Final = ("implementation", "dim", "seq")
"""Axes along which cells of one setting differ."""


# --- numbers


def growth(
    cells: Iterable[AttentionCellRecord], axis: str, quantities: Sequence[Quantity] = QUANTITIES
) -> list[Growth[AttentionCellRecord]]:
    """Return the growth of each quantity along `axis`, for each row with two or more reliable values."""
    symbol, found = AXES[axis].short_title, []
    for row in group_ignoring(cells, axis):
        for quantity in quantities:
            known = reliable(row, subject_of(quantity))
            found.append(
                fit_growth(
                    NAMES[quantity], symbol, known, methodcaller("axis_value", axis), partial(value, quantity=quantity)
                )
            )
    return [each for each in found if each is not None]


def frontier(cells: Iterable[AttentionCellRecord]) -> list[Limit[AttentionCellRecord]]:
    return limits(cells, "seq", lambda cell: cell.outcome == "ok", lambda cell: cell.lacks_memory)


def smallest_beyond(cells: Cells) -> AttentionCellRecord | None:
    """Return the cell that needs the least memory among the cells that do not fit and whose tensors are known."""
    over = [row.beyond for row in frontier(cells) if row.beyond is not None and row.beyond.tensors]
    return min(over, key=lambda cell: sum(each.size_bytes for each in cell.tensors), default=None)


def compared(
    cells: Iterable[AttentionCellRecord], first: str, second: str, quantity: Quantity
) -> list[Compared[AttentionCellRecord]]:
    """Return by how much `second` is faster on each input on which both have a reliable value, by ascending length."""
    timed = [cell for cell in reliable(cells) if value(cell, quantity)]
    found = []
    for pair in pairs(timed, "implementation", first, second):
        ratio = _ratio(pair[0], quantity, pair[1], quantity)
        counts = [len(times.samples_s) for cell in pair if (times := samples(cell, quantity))]
        found.append(Compared(ratio, pair, direction(ratio), min(counts, default=0)))
    return sorted(found, key=lambda each: each.cells[0].cell.seq)


def _ratio(
    first: AttentionCellRecord, quantity: Quantity, second: AttentionCellRecord, other_quantity: Quantity
) -> Ratio:
    """Return the ratio of the first time to the second.

    For predictions, the interval of the ratio contains 1 if the intervals of the two times overlap. For measurements of
    the same phase, the interval is omitted if it suggests an effect that is not significant.
    """
    above, below = predicted(first, quantity), predicted(second, other_quantity)
    if above is not None and below is not None:
        return Ratio(above.point_s / below.point_s, above.low_s / below.high_s, above.high_s / below.low_s)
    one, other = samples(first, quantity), samples(second, other_quantity)
    assert one is not None
    assert other is not None
    if quantity != other_quantity:
        return ratio(one.samples_s, other.samples_s)
    found = effect(one.samples_s, other.samples_s)
    if direction(found.ratio) != found.direction:
        # The interval must not suggest an effect that is insignificant, negligible, or not confirmed by the means.
        return Ratio(found.ratio.value, None, None)
    return found.ratio


@dataclass(frozen=True)
class Passage:
    """A sequence length at which one implementation overtakes another, at one head dimension."""

    slower_first: str
    """The implementation that is slower on shorter sequences and faster on longer ones."""
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
                lengths = [float(pair.cells[0].cell.seq) for pair in both_timed]
                for each in crossovers(lengths, [pair.ratio for pair in both_timed]):
                    late, early = (first, second) if each.falls else (second, first)
                    both = [cell for cell in here if cell.cell.implementation in (first, second)]
                    found.append(Passage(late, early, dim, quantity, each, both))
    return found


@dataclass(frozen=True)
class Lead:
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
            ratios = {other: _ratio(timed[other], quantity, timed[name], quantity) for other in timed if other != name}
            tied = frozenset(other for other, found in ratios.items() if direction(found) == 0)
            best.append((row[0].cell.seq, name, tied))
    # Noise decides which tied implementation has the smallest median: merge consecutive lengths with the same tied set.
    runs = [list(group) for _, group in groupby(best, key=lambda each: {each[1]} | each[2])]
    return [Lead(run[-1][1], tuple(sorted(run[-1][2])), run[0][0], run[-1][0]) for run in runs]


# --- sentences


def findings(record: AttentionRecord) -> Iterator[Statement]:
    for setting, cells in named_groups(record.cells, *SWEPT):
        dim = usual_dim(cells)
        believed, known = reliable(cells), reliable(cells, "memory")
        timed = [cell for cell in believed if cell.cell.dim == dim]
        marks: dict[Subject, str] = {
            "times": "predicted" if any(cell.source == "predicted" for cell in cells) else "",
            "memory": "simulated" if any(cell.cell.simulated for cell in cells) else "",
        }
        for each in (
            *_unanswered(cells, believed),
            *_fastest(timed, dim),
            *_compiled(timed, dim),
            *_grows(known, believed, dim),
            *_phases(timed, dim),
            *_kept([cell for cell in known if cell.cell.dim == dim], dim),
            *_ends(known),
            *_accounted(known),
        ):
            prefix = ", ".join(filter(None, [setting, marks[each.about]]))
            yield replace(each, text=f"{prefix}: {each.text}" if prefix else each.text)
        prefix = f"{setting}: " if setting else ""
        for excluded in exclusions(cells):
            yield Statement(f"{prefix}{excluded.text}", excluded.cells, excluded.is_exclusion)


def _unanswered(cells: Cells, believed: Cells) -> Iterator[Statement]:
    timed = [cell for cell in cells if value(cell, "forward") is not None]
    if len(implementations(timed)) > 1 and len(implementations(believed)) < 2:
        yield Statement(undecided("which implementation is fastest", timed).text, ())


def _fastest(cells: Cells, dim: int | None) -> Iterator[Statement]:
    """Yield the fastest implementation for each range of lengths, and the crossovers between the fastest ones."""
    for quantity in TIMES:
        found = leads(cells, quantity)
        timed = [cell for cell in cells if value(cell, quantity) is not None]
        if len(found) == 1:
            text = f"{quantity} at d {dim}: {_only_lead(found[0], cells, quantity)}."
            yield Statement(text, timed)
        elif found:
            takes = {(late.implementation, early.implementation) for early, late in pairwise(found)}
            crossings = [
                f" From about N {each.crossover.at:.0f} on, {each.slower_first} is faster than {each.other} "
                f"(interpolated between N {each.crossover.below:.0f} and N {each.crossover.above:.0f})."
                for each in passages(cells)
                if each.quantity == quantity and (each.slower_first, each.other) in takes
            ]
            text = f"{quantity} at d {dim}: {_several_leads(found, cells)}.{''.join(crossings)}"
            yield Statement(text, timed)


def _several_leads(found: Sequence[Lead], cells: Cells) -> str:
    """`naive is fastest at N 256 and flex from N 1024 to 4096; flex and naive do not differ measurably at N 512`."""
    alone: dict[str, list[str]] = {}
    tied: dict[tuple[str, ...], list[str]] = {}
    for lead in found:
        if lead.alike:
            tied.setdefault(tuple(sorted(lead.leaders)), []).append(lead.span)
        else:
            alone.setdefault(lead.implementation, []).append(lead.span)
    fastest = [
        f"{name} {join_words(spans)}" if number else f"{name} is fastest {join_words(spans)}"
        for number, (name, spans) in enumerate(alone.items())
    ]
    parts = [join_words(fastest)] if fastest else []
    for names, spans in tied.items():
        first = "are fastest and " if set(implementations(cells)) - set(names) else ""
        parts.append(f"{join_words(names)} {first}{_do_not_differ(cells)} {join_words(spans)}")
    return "; ".join(parts)


def _only_lead(lead: Lead, cells: Cells, quantity: Quantity) -> str:
    others = [name for name in implementations(cells) if name not in lead.leaders]
    against = [pairs for name in others if (pairs := compared(cells, name, lead.implementation, quantity))]
    equal = _do_not_differ(cells)
    if not against:
        tied = compared(cells, lead.alike[0], lead.implementation, quantity) if len(lead.alike) == 1 else []
        if tied and tied[0].cells[0].prediction is None:
            return no_difference_clause(
                lead.alike[0], lead.implementation, [(pair.ratio, pair.sample_count) for pair in tied], "call"
            )
        return f"{join_words(lead.leaders)} {equal} {lead.span}"
    slowest = max(against, key=lambda pairs: pairs[-1].ratio.value)
    pair = next((pair for pair in reversed(slowest) if pair.direction != 0), slowest[-1])
    much = f"{_with_interval(pair)} as fast as {pair.cells[0].cell.implementation} at N {pair.cells[0].cell.seq}"
    if not lead.alike:
        return f"{lead.implementation} is fastest {lead.span}, {much}"
    return f"{join_words(lead.leaders)} are fastest {lead.span} and {equal}; {lead.implementation} is {much}"


def _do_not_differ(cells: Cells) -> str:
    return "do not differ significantly" if any(cell.prediction for cell in cells) else "do not differ measurably"


def _with_interval(pair: Compared[AttentionCellRecord]) -> str:
    return with_interval(pair.ratio, "90 % interval " if pair.cells[0].prediction is not None else "95 % CI ")


def _compiled(cells: Cells, dim: int | None) -> Iterator[Statement]:
    for quantity in TIMES:
        pairs = compared(cells, "naive", "compiled", quantity)
        ends = pairs[:1] + pairs[1:][-1:]
        differ = [pair for pair in ends if pair.direction != 0]
        faster = [
            f"{_with_interval(pair)} as fast{' as naive' * (pair is differ[0])} at N {pair.cells[0].cell.seq}"
            for pair in differ
        ]
        same = [str(pair.cells[0].cell.seq) for pair in ends if pair.direction == 0]
        parts = [f"compiled is {' and '.join(faster)}"] if faster else []
        parts += [f"compiled and naive {_do_not_differ(cells)} at N {join_words(same)}"] if same else []
        if parts:
            text = f"{quantity} at d {dim}: {'; '.join(parts)}."
            yield Statement(text, [cell for pair in ends for cell in pair.cells])


def _grows(cells: Cells, reliable: Cells, dim: int | None) -> Iterator[Statement]:
    """Yield how times and memory at `dim` grow with N, and how times grow with d at the longest sequence."""
    every_dim = dims(reliable)
    timed = [cell for cell in reliable if value(cell, "forward") is not None]
    complete = [row for row in group_ignoring(timed, "implementation", "dim") if dims(row) == every_dim]
    longest = max((row[0].cell.seq for row in complete), default=None)
    in_n = growth([cell for cell in reliable if cell.cell.dim == dim], "seq", TIMES)
    in_d = growth([cell for cell in reliable if cell.cell.seq == longest], "dim", TIMES)
    saved = growth([cell for cell in cells if cell.cell.dim == dim], "seq", ("saved",))
    told: tuple[tuple[list[Growth[AttentionCellRecord]], str, Subject], ...] = (
        ([each for each in in_n if each.has_law and _is_significant(each)], f"d {dim}", "times"),
        ([each for each in in_d if isinstance(each.law, PowerLaw) and _is_significant(each)], f"N {longest}", "times"),
        ([each for each in saved if each.has_law], f"d {dim}", "memory"),
    )
    grouped: dict[tuple[str, str, Subject], list[Growth[AttentionCellRecord]]] = {}
    for name in implementations(cells):
        for growths, where, about in told:
            if own := [each for each in growths if each.cells[0].cell.implementation == name]:
                grouped.setdefault((where, growth_text(own), about), []).extend(own)
    for (where, text, about), growths in grouped.items():
        basis = [cell for each in growths for cell in each.cells]
        yield Statement(f"for {join_words(implementations(basis))} at {where}, {text}.", basis, about=about)


def _is_significant(growth: Growth[AttentionCellRecord]) -> bool:
    quantity: Quantity = "forward" if growth.quantity == "forward" else "backward"
    return growth.is_significant(lambda cell: times.mean_s if (times := samples(cell, quantity)) else None)


def _longest(cells: Iterable[AttentionCellRecord], name: str) -> AttentionCellRecord | None:
    own = (cell for cell in cells if cell.cell.implementation == name)
    return max(own, key=lambda cell: cell.cell.seq, default=None)


def _phases(cells: Cells, dim: int | None) -> Iterator[Statement]:
    both = [cell for cell in cells if value(cell, "forward") and value(cell, "backward")]
    by_length: dict[int, list[tuple[str, AttentionCellRecord]]] = {}
    for name in implementations(cells):
        if cell := _longest(both, name):
            by_length.setdefault(cell.cell.seq, []).append((name, cell))
    for n, found in by_length.items():
        ratios = {name: _ratio(cell, "backward", cell, "forward") for name, cell in found}
        called = "90 % interval " if found[0][1].prediction is not None else "95 % CI "
        differing = [name for name, ratio in ratios.items() if not contains_one(ratio)]
        longer = [
            f"{with_interval(ratios[name], called)} as long{' as forward' * (name == differing[0])} in {name}"
            for name in differing
        ]
        equal = [f"{name} ({called}of the ratio {interval(ratio)})"
                 for name, ratio in ratios.items() if contains_one(ratio)]  # fmt: skip
        parts = [f"backward takes {join_words(longer)}"] if longer else []
        parts += [f"backward and forward {_do_not_differ(cells)} in {join_words(equal)}"] if equal else []
        yield Statement(f"at d {dim} and N {n}, {'; '.join(parts)}.", [cell for _, cell in found])


def _kept(cells: Cells, dim: int | None) -> Iterator[Statement]:
    known = [cell for cell in cells if cell.saved_bytes is not None]
    grouped: dict[tuple[int, str], list[AttentionCellRecord]] = {}
    for name in implementations(cells):
        if cell := _longest(known, name):
            saved, squares = cell.saved_bytes or 0, cell.naive_saved_bytes
            two = f"two N × N tensors ({units.size(squares)})"
            if saved >= squares / 4:
                against = f"That is {saved / squares:.2f}× the size of {two}."
            else:
                per_query = f"{saved / cell.fused_saved_bytes:.2f}× the size of one fp32 number per query"
                against = f"That is {per_query} and {saved / squares * 100:.2g} % of the size of {two}."
            kept = f"{units.size(saved)} for backward besides inputs and output. {against}"
            grouped.setdefault((cell.cell.seq, kept), []).append(cell)
    for (n, kept), found in grouped.items():
        keep = "keep" if len(found) > 1 else "keeps"
        yield Statement(
            f"at d {dim} and N {n}, {join_words(implementations(found))} {keep} {kept}", found, about="memory"
        )


def _ends(cells: Cells) -> Iterator[Statement]:
    def name(some: Cells) -> str:
        return name_cells_along(some, cells, ("seq",), along="dim")

    def shortage(beyond: Cells) -> str:
        known = [cell for cell in beyond if cell.needed_bytes is not None]
        if not known:
            return ""
        where = f" at d {join_words(list(map(str, dims(known))))}" if len(known) < len(beyond) else ""
        available = [(cell.available_bytes, cell) for cell in known if cell.available_bytes is not None]
        rest = f", {range_text(available, show=units.size)} available" if available else ""
        return (
            f" (needs {range_text([(cell.needed_bytes or 0, cell) for cell in known], show=units.size)}{where}{rest})"
        )

    for name_of_run in implementations(cells):
        own = [cell for cell in cells if cell.cell.implementation == name_of_run]
        yield from limit_findings(frontier(own), name, shortage)


def _accounted(cells: Cells) -> Iterator[Statement]:
    cell = smallest_beyond(cells)
    if cell is None or not cell.tensors:
        return
    grouped: dict[tuple[str, int], int] = {}
    for each in sorted(cell.tensors, key=lambda each: -each.size_bytes):
        shape = " × ".join(str(length) for length in each.shape if length != 1)
        kind = (f"tensor of {shape} {each.dtype}" if shape else each.name), each.size_bytes
        grouped[kind] = grouped.get(kind, 0) + 1
    parts = []
    for (name, size_bytes), count in list(grouped.items())[:LARGEST]:
        if count == 1:
            parts.append(f"{units.size(size_bytes)} for {'a ' if name.startswith('tensor') else ''}{name}")
        else:
            many = re.sub(r"^(tensor|workspace) of", r"\1s of", name)
            parts.append(f"{units.size(size_bytes)} for each of {count} {many}")
    smaller = sum(list(grouped.values())[LARGEST:])
    parts += [f"{smaller} smaller tensor{'s' if smaller > 1 else ''}"] if smaller else []
    total_bytes = sum(each.size_bytes for each in cell.tensors)
    total = f"in total {units.size(total_bytes)}"
    if cell.needed_bytes is not None and cell.needed_bytes > total_bytes:
        total += f", for which the allocator would reserve {units.size(cell.needed_bytes)}"
    have = f"; {units.size(cell.available_bytes)} are available" if cell.available_bytes is not None else ""
    which = f"{cell.cell.implementation} at d {cell.cell.dim} and N {cell.cell.seq}"
    text = f"the smallest cell that does not fit is {which}. It needs {join_words(parts)}, {total}{have}."
    yield Statement(text, [cell], about="memory", hint="--tables accounting lists all tensors by name")
