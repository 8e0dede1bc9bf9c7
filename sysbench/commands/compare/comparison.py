"""From two sides to what can be said of B in terms of A, cell by cell.

Whether B is worse than A by more than is allowed: known to be, not merely seen to be.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sysbench import __version__, units
from sysbench.command import Kind, measuring
from sysbench.commands.compare import match as compare_match
from sysbench.commands.compare.cells import SAMPLED, Side, SideCell, labels, times_of
from sysbench.commands.compare.differences import Difference, differences, refuse_other_machines, warnings
from sysbench.commands.compare.match import Matching, NothingInCommonError
from sysbench.errors import LogError, UsageError
from sysbench.log.events import SCHEMA_VERSION
from sysbench.log.outcomes import Outcome
from sysbench.spec.frozen import Frozen
from sysbench.statistics.verdict import (
    FEWEST_RUNS,
    MARGIN,
    Judged,
    Unit,
    Verdict,
    over_rounds,
    over_runs,
    within_processes,
)

Arm = Literal["A", "B"]


class TimeComparison(Frozen):
    """One time of one cell, on both sides; B in terms of A."""

    quantity: str
    """`step`, or one of its phases; `forward` and `backward` of attention."""
    headline: bool
    """Whether the cell is judged by it, or it is a part of what the cell is judged by."""
    a_s: float
    """Median; of several runs the median of their medians."""
    b_s: float
    ratio: float
    low: float | None
    """Ends of the interval at 99 %; None with too few samples for one."""
    high: float | None
    verdict: Verdict
    repeated: Unit
    """What the interval is over: steps of one process each, runs, or rounds of both."""
    count: int


class MemoryComparison(Frozen):
    """One figure of memory of one cell, on both sides."""

    quantity: str
    exact: bool
    """Counted by the allocator; else it was looked at from outside now and then."""
    a_bytes: int
    b_bytes: int


class CellComparison(Frozen):
    """One cell that both sides have."""

    kind: Kind
    axes: dict[str, Any]
    """What both have in common, by axis."""
    a_outcome: Outcome
    b_outcome: Outcome
    a_detail: str | None
    b_detail: str | None
    times: list[TimeComparison]
    memory: list[MemoryComparison]


class LeftOver(Frozen):
    """A cell that only one side has."""

    arm: Arm
    kind: Kind
    axes: dict[str, Any]
    outcome: Outcome


class GeometricMean(Frozen):
    """All cells' ratios of one time in one number."""

    kind: Kind
    quantity: str
    cells: int
    ratio: float
    verdicts: dict[Verdict, int]


class SideRecord(Frozen):
    """What was compared."""

    name: str
    runs: int
    unfinished: int
    """Of them, runs that were killed or interrupted."""
    started_at: str | None
    """Of the first."""


class GateRecord(Frozen):
    """Whether B may pass."""

    share: float
    failed: list[str]
    undecided: list[str]
    """What may or may not be a regression beyond the gate: it passes, and more samples would tell."""
    passed: int
    """How many times and peaks were held against it and are not in `failed`."""
    strict: bool = False
    """What is undecided does not pass."""

    @property
    def holds(self) -> bool:
        """Whether B may pass."""
        return not self.failed and not (self.strict and self.undecided)


class Comparison(Frozen):
    """Everything that is said of two sides."""

    schema_version: int = SCHEMA_VERSION
    kind: Literal["comparison"] = "comparison"
    sysbench_version: str = __version__
    a: SideRecord
    b: SideRecord
    margin: float
    across: list[str]
    """Axes in which the two cells of every pair differ."""
    differences: list[Difference]
    cells: list[CellComparison]
    left_over: list[LeftOver]
    geometric_means: list[GeometricMean]
    cautions: list[str]
    """What makes the verdicts doubtful."""
    gate: GateRecord | None = None


@dataclass(frozen=True)
class Rules:
    """How two sides are compared."""

    margin: float = MARGIN
    across: tuple[str, ...] = ()
    paired: bool = False
    """The n-th run of one side and the n-th of the other were made one right after the other."""
    parts: bool = True
    """Also judge the phases of a step, which takes several times as long."""


def compare(a: Side, b: Side, rules: Rules) -> Comparison:
    """Compare two sides.

    Raises UsageError where they must not be compared, and LogError where they hold nothing that could be, or times that
    are none.
    """
    kinds = [kind for kind in a.kinds if kind in b.kinds]
    if not kinds:
        raise LogError(f"nothing to compare: A holds {_held(a)}, and B {_held(b)}")
    for each in (a, b):
        _refuse_not_begun(each)
    matchings = _matchings(a, b, kinds, rules.across)
    refuse_other_machines(a, b, rules.across)
    cells = [cell for kind in kinds for cell in _cells(a, b, kind, matchings[kind], rules)]
    across = list(dict.fromkeys(axis for matching in matchings.values() for axis in matching.across))
    return Comparison(
        a=_described(a),
        b=_described(b),
        margin=rules.margin,
        across=across,
        differences=differences(a, b),
        cells=cells,
        left_over=[*_left_over("A", a, b, matchings), *_left_over("B", b, a, matchings)],
        geometric_means=list(_means(cells)),
        cautions=[*warnings(a, b), *_of_the_method(cells)],
    )


def _refuse_not_begun(side: Side) -> None:
    """Raise LogError for runs that ended before they knew what they would be measured on."""
    if not any(record.environment.devices or any(cell.device for cell in record.cells) for record in side.records):
        raise LogError(f"{side.name} holds nothing: it ended before anything could be measured")


def _matchings(a: Side, b: Side, kinds: Sequence[Kind], across: Sequence[str]) -> dict[Kind, Matching]:
    """How the cells of each kind go together; of several kinds some may have nothing in common, but not all."""
    found: dict[Kind, Matching] = {}
    apart: NothingInCommonError | None = None
    for kind in kinds:
        there, here = a.of_kind(kind), b.of_kind(kind)
        try:
            found[kind] = compare_match.match([cell.axes for cell in there], [cell.axes for cell in here], across)
        except NothingInCommonError as error:
            apart = error
            found[kind] = Matching((), tuple(range(len(there))), tuple(range(len(here))), ())
    if apart is not None and not any(matching.pairs for matching in found.values()):
        raise apart
    return found


def _held(side: Side) -> str:
    return " and ".join(f"`sysbench {kind}`" for kind in side.kinds) or "no cell"


def _described(side: Side) -> SideRecord:
    return SideRecord(
        name=side.name,
        runs=len(side.records),
        unfinished=sum(record.status != "complete" for record in side.records),
        started_at=min((record.started_at for record in side.records), default=None),
    )


def _cells(a: Side, b: Side, kind: Kind, matching: Matching, rules: Rules) -> Iterator[CellComparison]:
    there, here = a.of_kind(kind), b.of_kind(kind)
    for place_a, place_b in matching.pairs:
        first, second = there[place_a], here[place_b]
        yield CellComparison(
            kind=kind,
            axes={name: value for name, value in first.axes.items() if second.axes.get(name) == value},
            a_outcome=first.last.outcome,
            b_outcome=second.last.outcome,
            a_detail=first.last.detail,
            b_detail=second.last.detail,
            times=list(_times(first, second, rules)),
            memory=list(_memory(first, second)),
        )


def _times(a: SideCell, b: SideCell, rules: Rules) -> Iterator[TimeComparison]:
    headlines = measuring(a.kind).compared
    quantities = headlines if not rules.parts else (*headlines, *_phases(a, b, headlines))
    for quantity in quantities:
        # A round that was cut off says less than the others, and would count as much.
        there, here = a.times(quantity, whole=rules.paired), b.times(quantity, whole=rules.paired)
        if not there or not here:
            continue
        try:
            found = _judged(there, here, rules)
        except ValueError as error:
            raise LogError(f"{quantity} of {a.last.key} cannot be compared: {error}") from None
        if found is None:
            continue
        judged, a_s, b_s = found
        yield TimeComparison(
            quantity=quantity,
            headline=quantity in headlines,
            a_s=a_s,
            b_s=b_s,
            ratio=judged.ratio,
            low=judged.low,
            high=judged.high,
            verdict=judged.verdict,
            repeated=judged.repeated,
            count=judged.count,
        )


def _phases(a: SideCell, b: SideCell, headlines: Sequence[str]) -> list[str]:
    names = dict.fromkeys(name for each in (*a.occurrences, *b.occurrences) for name in times_of(each.record))
    return [name for name in names if name not in headlines]


def _judged(a: dict[int, list[float]], b: dict[int, list[float]], rules: Rules) -> tuple[Judged, float, float] | None:
    """What to make of the runs of each side, and both medians: of rounds where runs are paired, else of runs, of one
    or two their steps. None where no round has both."""
    if rules.paired:
        both = [run for run in a if run in b]
        if not both:
            return None
        first, second = ([statistics.median(runs[run]) for run in both] for runs in (a, b))
        return over_rounds(first, second, rules.margin), statistics.median(first), statistics.median(second)
    if min(len(a), len(b)) >= FEWEST_RUNS:
        first, second = ([statistics.median(samples) for samples in runs.values()] for runs in (a, b))
        return over_runs(first, second, rules.margin), statistics.median(first), statistics.median(second)
    last_a, last_b = list(a.values())[-1], list(b.values())[-1]
    judged = within_processes(last_a, last_b, rules.margin)
    return judged, statistics.median(last_a), statistics.median(last_b)


def _memory(a: SideCell, b: SideCell) -> Iterator[MemoryComparison]:
    there, here = a.memory(), b.memory()
    for name, value in there.items():
        if name in here:
            yield MemoryComparison(quantity=name, exact=name not in SAMPLED, a_bytes=value, b_bytes=here[name])


def _left_over(arm: Arm, side: Side, other: Side, matchings: dict[Kind, Matching]) -> Iterator[LeftOver]:
    for kind in side.kinds:
        cells = side.of_kind(kind)
        places: Sequence[int] = range(len(cells))
        if kind in other.kinds:
            places = matchings[kind].only_a if arm == "A" else matchings[kind].only_b
        for place in places:
            yield LeftOver(arm=arm, kind=kind, axes=dict(cells[place].axes), outcome=cells[place].last.outcome)


def _means(cells: Sequence[CellComparison]) -> Iterator[GeometricMean]:
    found: dict[tuple[Kind, str], list[TimeComparison]] = {}
    for cell in cells:
        for time in cell.times:
            if time.headline:
                found.setdefault((cell.kind, time.quantity), []).append(time)
    for (kind, quantity), times in found.items():
        verdicts = [time.verdict for time in times]
        yield GeometricMean(
            kind=kind,
            quantity=quantity,
            cells=len(times),
            ratio=math.exp(statistics.fmean(math.log(time.ratio) for time in times)),
            verdicts={verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)},
        )


CHANCE_WORTH_SAYING = 100
"""From this many verdicts on, one or more are wrong by chance alone, for each is at 1 %."""


def _of_the_method(cells: Sequence[CellComparison]) -> Iterator[str]:
    times = [time for cell in cells for time in cell.times]
    if any(time.repeated == "steps" for time in times):
        yield (
            "intervals know the steps of one process on each side, not what two processes differ by, which may be a "
            "few per cent; sysbench compare --ab measures both in turns, in fresh processes"
        )
    if any(time.repeated == "runs" for time in times):
        yield "the runs of A and B were not made in turns: whatever changed between them is in the ratio too"
    if any(time.low is None for time in times):
        yield "where there is no interval, there were too few steps or rounds for one: 9 steps, or 3 rounds, are needed"
    judged = sum(time.low is not None for time in times)
    if judged >= CHANCE_WORTH_SAYING:
        yield f"of {judged} verdicts at 99 %, about {round(judged / 100)} may be FASTER or SLOWER by chance alone"


def refuse_nothing_measured(found: Comparison) -> None:
    """Raise UsageError where no cell has a number on both sides: there is nothing that a gate could be held against."""
    if not any(cell.times or cell.memory for cell in found.cells):
        raise UsageError("--gate: no cell has a time or a peak of memory on both sides")


LOST = ("oom", "crashed", "timeout", "invalid")
"""Outcomes of a cell that had been measured before: worse than any regression."""


def gate(found: Comparison, share: float, *, strict: bool = False) -> GateRecord:
    """Hold everything that cells are judged by against a gate.

    A time fails when its whole interval lies above 1 + `share`; a peak of memory that was counted fails when it grew by
    more than that; and a cell fails that A had measured and B could not. Phases, and memory looked at from outside, are
    not held against it.
    """
    failed, undecided, passed = [], [], 0
    names = labels([(cell.kind, cell.axes) for cell in found.cells])
    for cell, name in zip(found.cells, names, strict=True):
        lost = list(_lost(cell))
        verdicts = [*_compare_gate_times(cell, share), *_compare_gate_memory(cell, share)]
        failed += [f"{name}: {text}" for text in lost] + [f"{name}: {text}" for bad, text in verdicts if bad]
        undecided += [f"{name}: {text}" for bad, text in verdicts if not bad and text]
        passed += sum(not bad for bad, _ in verdicts)
    return GateRecord(share=share, failed=failed, undecided=undecided, passed=passed, strict=strict)


Held = Sequence[tuple[bool, str]]
"""Whether each fails, and what there is to say of it."""


def _lost(cell: CellComparison) -> Iterator[str]:
    if cell.a_outcome == "ok" and cell.b_outcome in LOST:
        yield f"was measured in A, and is {cell.b_outcome} in B"


def _compare_gate_times(cell: CellComparison, share: float) -> Held:
    held = []
    for time in cell.times:
        if not time.headline:
            continue
        said = f"{time.quantity} takes {units.ratio(time.ratio)} as long"
        if time.low is None or time.high is None:
            held.append((False, f"{said}, with too few samples to tell" if time.ratio > 1 + share else ""))
            continue
        interval = f"{said} ({time.low:.3f}–{time.high:.3f})"
        held.append((time.low > 1 + share, interval if time.high > 1 + share else ""))
    return held


def _compare_gate_memory(cell: CellComparison, share: float) -> Held:
    held = []
    for memory in cell.memory:
        if not memory.exact:
            continue
        grew = memory.b_bytes > memory.a_bytes * (1 + share)
        said = f"{memory.quantity.replace('_', ' ')} grew from {units.size(memory.a_bytes)} to "
        held.append((grew, f"{said}{units.size(memory.b_bytes)}" if grew else ""))
    return held
