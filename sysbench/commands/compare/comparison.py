"""Comparison of two sides cell by cell, and the gate, which fails if B is worse than A by more than allowed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from sysbench import __version__, units
from sysbench.command import Kind, command_of
from sysbench.commands.compare import cells
from sysbench.commands.compare.cells import (
    SAMPLED,
    Matching,
    NothingInCommonError,
    Side,
    SideCell,
    labels,
    predictions_of,
    times_of,
)
from sysbench.commands.compare.differences import Difference, differences, refuse_other_machines, warnings
from sysbench.errors import LogError, UsageError
from sysbench.log.events import SCHEMA_VERSION
from sysbench.log.outcomes import Outcome
from sysbench.log.predictions import PredictedTime
from sysbench.spec.frozen import Frozen
from sysbench.statistics.verdict import (
    MARGIN,
    MIN_RUNS,
    ComparedRatio,
    Unit,
    Verdict,
    compare_processes,
    compare_rounds,
    compare_runs,
)

Arm = Literal["A", "B"]


class TimeComparison(Frozen):
    """One timed quantity of a cell on both sides, with the verdict."""

    quantity: str
    """`step`, or one of its phases; for attention, `forward` or `backward`."""
    headline: bool
    """Whether the cell's verdict uses this time; if not, this is a phase of a time that the verdict uses."""
    a_s: float
    """Median; for several runs, the median of their medians."""
    b_s: float
    ratio: float
    low: float | None
    """Bounds of the 99 % confidence interval of the ratio; None if there are too few samples."""
    high: float | None
    verdict: Verdict
    repeated: Unit
    """Kind of sample behind the interval: steps of one process per side, runs, or rounds."""
    count: int


class MemoryComparison(Frozen):
    """One memory figure of a cell on both sides."""

    quantity: str
    exact: bool
    """Whether the figure was counted by the allocator; otherwise it was sampled from outside."""
    a_bytes: int
    b_bytes: int


class PredictionComparison(Frozen):
    """One predicted time of a cell on both sides. Nothing was measured, so there is no verdict."""

    quantity: str
    a: PredictedTime
    b: PredictedTime

    @property
    def ratio(self) -> float:
        """B over A; errors common to both predictions cancel."""
        return self.b.point_s / self.a.point_s


class CellComparison(Frozen):
    """A cell that both sides have."""

    kind: Kind
    axes: dict[str, Any]
    """Values that both sides have in common, by axis."""
    a_outcome: Outcome
    b_outcome: Outcome
    a_detail: str | None
    b_detail: str | None
    times: list[TimeComparison]
    predictions: list[PredictionComparison] = Field(default=[], exclude_if=lambda value: not value)
    memory: list[MemoryComparison]


class LeftOver(Frozen):
    """A cell that only one side has."""

    arm: Arm
    kind: Kind
    axes: dict[str, Any]
    outcome: Outcome


class GeometricMean(Frozen):
    """Geometric mean of the ratio B / A of one time (such as `step`) over several cells."""

    kind: Kind
    quantity: str
    cells: int
    ratio: float
    verdicts: dict[Verdict, int]


class SideRecord(Frozen):
    """One side of the comparison."""

    name: str
    runs: int
    unfinished: int
    """Number of runs that were killed or interrupted."""
    started_at: str | None
    """Start of the earliest run."""


class GateRecord(Frozen):
    """Result of the gate."""

    share: float
    failed: list[str]
    undecided: list[str]
    """Possible regressions beyond the gate, with too few samples to decide; they fail only if `strict`."""
    passed: int
    """Number of times and peaks that were checked and are not in `failed`."""
    strict: bool = False
    """Whether undecided times and peaks also fail the gate."""

    @property
    def holds(self) -> bool:
        """Whether B passes the gate."""
        return not self.failed and not (self.strict and self.undecided)


class Comparison(Frozen):
    """The complete result of a comparison."""

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
    """Reasons to doubt the verdicts."""
    gate: GateRecord | None = None


@dataclass(frozen=True)
class Rules:
    """Rules for comparing two sides."""

    margin: float = MARGIN
    across: tuple[str, ...] = ()
    paired: bool = False
    """Whether the n-th runs of both sides were made back to back."""
    parts: bool = True
    """Whether the phases of a step get verdicts as well, which takes several times as long."""


def compare(a: Side, b: Side, rules: Rules) -> Comparison:
    """Compare two sides cell by cell.

    Raises UsageError if the sides are not comparable, and LogError if a side is empty, if the sides have no command in
    common, or if times are invalid.
    """
    kinds = [kind for kind in a.kinds if kind in b.kinds]
    if not kinds:
        problem = f"nothing to compare: A has {_held(a)}, and B has {_held(b)}"
        hint = f"; {b.kinds[0]}:latest~1 is the last but one run of `sysbench {b.kinds[0]}`" if b.kinds else ""
        raise LogError(problem + hint)
    for side in (a, b):
        # A run can end before its device is known.
        if not any(record.environment.devices or any(cell.device for cell in record.cells) for record in side.records):
            raise LogError(f"{side.name} is empty: it ended before anything was measured")
    matchings = _matchings(a, b, kinds, rules.across)
    refuse_other_machines(a, b, rules.across)
    cells = [
        _compared(there[place_a], here[place_b], rules)
        for kind in kinds
        for there, here in [(a.of_kind(kind), b.of_kind(kind))]
        for place_a, place_b in matchings[kind].pairs
    ]
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


def _matchings(a: Side, b: Side, kinds: Sequence[Kind], across: Sequence[str]) -> dict[Kind, Matching]:
    """Match the cells of each command; raises NothingInCommonError if no command has matching cells."""
    found: dict[Kind, Matching] = {}
    apart: NothingInCommonError | None = None
    for kind in kinds:
        there, here = a.of_kind(kind), b.of_kind(kind)
        try:
            found[kind] = cells.match([cell.axes for cell in there], [cell.axes for cell in here], across)
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


def _compared(a: SideCell, b: SideCell, rules: Rules) -> CellComparison:
    there, here = a.memory(), b.memory()
    predicted = predictions_of(a.last), predictions_of(b.last)
    return CellComparison(
        kind=a.kind,
        axes={name: value for name, value in a.axes.items() if b.axes.get(name) == value},
        a_outcome=a.last.outcome,
        b_outcome=b.last.outcome,
        a_detail=a.last.detail,
        b_detail=b.last.detail,
        times=list(_times(a, b, rules)),
        predictions=[
            PredictionComparison(quantity=name, a=time, b=predicted[1][name])
            for name, time in predicted[0].items()
            if name in predicted[1] and time.point_s
        ],
        memory=[
            MemoryComparison(quantity=name, exact=name not in SAMPLED, a_bytes=value, b_bytes=here[name])
            for name, value in there.items()
            if name in here
        ],
    )


def _times(a: SideCell, b: SideCell, rules: Rules) -> Iterator[TimeComparison]:
    headlines = command_of(a.kind).compared
    # The headlines come first, in their own order.
    parts = (name for each in (*a.occurrences, *b.occurrences) for name in times_of(each.record))
    for quantity in dict.fromkeys((*headlines, *parts)) if rules.parts else headlines:
        # An interrupted round has fewer samples than the others, but would have the same weight.
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


def _judged(
    a: dict[int, list[float]], b: dict[int, list[float]], rules: Rules
) -> tuple[ComparedRatio, float, float] | None:
    """Return the verdict and the medians of A and B; None if runs are paired and no round contains both sides.

    The verdict compares rounds if runs are paired, runs if there are enough, otherwise the steps of the last runs.
    """
    if rules.paired:
        both = [run for run in a if run in b]
        if not both:
            return None
        first, second = ([statistics.median(runs[run]) for run in both] for runs in (a, b))
        return compare_rounds(first, second, rules.margin), statistics.median(first), statistics.median(second)
    if min(len(a), len(b)) >= MIN_RUNS:
        first, second = ([statistics.median(samples) for samples in runs.values()] for runs in (a, b))
        return compare_runs(first, second, rules.margin), statistics.median(first), statistics.median(second)
    last_a, last_b = list(a.values())[-1], list(b.values())[-1]
    judged = compare_processes(last_a, last_b, rules.margin)
    return judged, statistics.median(last_a), statistics.median(last_b)


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
"""With this many verdicts, one is expected to be wrong by chance, because each has an error rate of 1 %."""


def _of_the_method(cells: Sequence[CellComparison]) -> Iterator[str]:
    times = [time for cell in cells for time in cell.times]
    if any(time.repeated == "steps" for time in times):
        yield (
            "intervals cover the variation between steps of one process, but not between processes, which can reach a "
            "few per cent; to include it, use sysbench compare --ab, which alternates A and B in fresh processes"
        )
    if any(time.repeated == "runs" for time in times):
        yield "the runs of A and B were not alternated: anything else that changed between them affects the ratio"
    if any(time.low is None for time in times):
        yield "cells with fewer than 9 steps or 3 rounds have no interval"
    judged = sum(time.low is not None for time in times)
    if judged >= CHANCE_WORTH_SAYING:
        yield f"of {judged} verdicts at 99 %, about {round(judged / 100)} may be FASTER or SLOWER by chance"


def refuse_nothing_measured(found: Comparison) -> None:
    """Raise UsageError if no cell has a number on both sides: the gate would have nothing to check."""
    if not any(cell.times or cell.memory for cell in found.cells):
        raise UsageError("--gate: no cell has a time or a memory peak on both sides")


LOST = ("oom", "crashed", "timeout", "invalid")
"""Outcomes in B that fail the gate if A measured the cell."""


def gate(found: Comparison, share: float, *, strict: bool = False) -> GateRecord:
    """Apply the gate to the times that the cells' verdicts use, to exact memory peaks, and to outcomes.

    A time fails if its whole interval lies above 1 + `share`, an exact memory peak if it grew by more than `share`, and
    a cell if A measured it and B could not. The gate ignores phases and sampled memory.
    """
    failed, undecided, passed = [], [], 0
    names = labels([(cell.kind, cell.axes) for cell in found.cells])
    for cell, name in zip(found.cells, names, strict=True):
        if cell.a_outcome == "ok" and cell.b_outcome in LOST:
            failed.append(f"{name}: measured in A, but {cell.b_outcome} in B")
        for fails, text in _checked(cell, share):
            if fails:
                failed.append(f"{name}: {text}")
            else:
                passed += 1
                undecided += [f"{name}: {text}"] if text else []
    return GateRecord(share=share, failed=failed, undecided=undecided, passed=passed, strict=strict)


def _checked(cell: CellComparison, share: float) -> Iterator[tuple[bool, str]]:
    """Yield, for each time and peak, whether it fails the gate, and a sentence if it fails or might fail."""
    for time in cell.times:
        if not time.headline:
            continue
        text = f"{time.quantity} takes {units.ratio(time.ratio)} as long in B"
        if time.low is None or time.high is None:
            yield False, f"{text}, without an interval" if time.ratio > 1 + share else ""
        else:
            interval = f"{text} (99 % CI {time.low:.3f}–{time.high:.3f})"
            yield time.low > 1 + share, interval if time.high > 1 + share else ""
    for memory in cell.memory:
        if memory.exact:
            grew = memory.b_bytes > memory.a_bytes * (1 + share)
            peaks = f"from {units.size(memory.a_bytes)} to {units.size(memory.b_bytes)}"
            yield grew, f"{memory.quantity.replace('_', ' ')} grew {peaks}" if grew else ""
