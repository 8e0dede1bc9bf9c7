"""Comparison of two sides cell by cell, and the gate, which fails if B is worse than A by more than allowed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from sysbench import units
from sysbench.command import Kind
from sysbench.commands.compare import cells
from sysbench.commands.compare.cells import Axes, Matching, NoMatchingCellsError, Side, SideCell
from sysbench.commands.compare.differences import (
    Difference,
    differences,
    machine_obstacles,
    threads_obstacles,
    warnings,
)
from sysbench.commands.compare.spec import CompareOptions
from sysbench.commands.kinds import command_of
from sysbench.errors import LogError, UsageError
from sysbench.log.measures import PROCESSOR_TIME, Better, Measures
from sysbench.log.outcomes import CautionCode, Outcome
from sysbench.log.predictions import PredictedStep, PredictedTime, step_ratio
from sysbench.log.schema import SCHEMA_VERSION
from sysbench.package import VERSION
from sysbench.spec.frozen import Frozen
from sysbench.spec.quantities import stored_unless
from sysbench.statistics import Estimate
from sysbench.statistics.verdict import (
    CPU_RESOLUTION_SHARE,
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
    """Bounds of the 99% interval of the ratio, widened by doubts about either time; None if there are too few samples.
    """
    high: float | None
    verdict: Verdict
    repeated: Unit
    """Kind of sample behind the interval: steps of one process per side, runs, or rounds."""
    count: int


class AmountComparison(Frozen):
    """One number of a cell on both sides that is no time, such as a peak of memory."""

    quantity: str
    unit: units.Unit
    better: Better
    exact: bool
    """Whether the number was counted; otherwise it was sampled from outside."""
    a: int | float
    """An integer stays one: a count of 6 is not 6.0."""
    b: int | float


class PredictionComparison(Frozen):
    """One predicted time of a cell on both sides. Nothing was measured, so there is no verdict."""

    quantity: str
    a: PredictedTime
    b: PredictedTime
    low: float | None = stored_unless(None)
    """Bounds of the 90% prediction interval of the ratio; None for phases, and for runs of versions without draws."""
    high: float | None = stored_unless(None)

    @property
    def ratio(self) -> float:
        """B over A; errors common to both predictions cancel."""
        return self.b.point_s / self.a.point_s


class CellComparison(Frozen):
    """A cell that both sides have."""

    kind: Kind
    axes: dict[str, object]
    """Values that both sides have in common, by axis."""
    a_outcome: Outcome
    b_outcome: Outcome
    a_detail: str | None
    b_detail: str | None
    a_simulated: bool = stored_unless(False)
    """Whether A was simulated: its memory was computed, and its times, if any, are predictions."""
    b_simulated: bool = stored_unless(False)
    times: list[TimeComparison]
    predictions: list[PredictionComparison] = stored_unless([])
    amounts: list[AmountComparison]
    excluded_by: list[CautionCode] = stored_unless([])
    """Cautions of either side that exclude the times from findings and the gate: they have no verdict. What rounds and
    runs repeat, they average out."""


class LeftOver(Frozen):
    """A cell that only one side has."""

    arm: Arm
    kind: Kind
    axes: dict[str, object]
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
    """Possible regressions beyond the gate, too imprecise to decide; they fail only if `strict`."""
    passed: int
    """Number of times and peaks that were checked and are not in `failed`."""
    strict: bool = False
    """Whether undecided times and peaks also fail the gate."""

    @property
    def holds(self) -> bool:
        return not self.failed and not (self.strict and self.undecided)


class Comparison(Frozen):
    """The complete result of a comparison."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["comparison"] = "comparison"
    sysbench_version: str = VERSION
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

    @property
    def named_cells(self) -> list[tuple[str, CellComparison]]:
        return list(zip(names(self.cells), self.cells, strict=True))

    @property
    def kinds(self) -> list[Kind]:
        return list(dict.fromkeys(cell.kind for cell in self.cells))


def names(found: Sequence[CellComparison | LeftOver]) -> list[str]:
    """Name cells by the axes in which they differ: `ctx 512 bf16`; the command comes first if there are several."""
    kinds = dict.fromkeys(cell.kind for cell in found)
    axes = {kind: cells.varying_axes([cell for cell in found if cell.kind == kind]) for kind in kinds}
    labels = [cells.label(cell, axes[cell.kind]) or cell.kind for cell in found]
    return labels if len(kinds) == 1 else [f"{cell.kind} {label}" for cell, label in zip(found, labels, strict=True)]


@dataclass(frozen=True)
class Rules:
    """Rules for comparing two sides."""

    margin: float = MARGIN
    across: tuple[str, ...] = ()
    paired: bool = False
    """Whether the n-th runs of both sides were made back to back."""
    include_phases: bool = True
    """Whether the phases of a step get verdicts as well, which takes several times as long."""


def compare(a: Side, b: Side, rules: Rules) -> Comparison:
    """Compare two sides; raises UsageError or LogError if they are not comparable, or if a side is empty."""
    kinds = [kind for kind in a.kinds if kind in b.kinds]
    if not kinds:
        problem = f"nothing to compare: A has {_list_commands(a)}, and B has {_list_commands(b)}"
        hint = f"; to select runs of one command, put it before the name, as in {b.kinds[0]}:NAME" if b.kinds else ""
        raise LogError(problem + hint)
    for side in (a, b):
        # A run can end before its device is known.
        if not any(record.environment.devices or any(cell.device for cell in record.cells) for record in side.records):
            raise LogError(f"{side.name} is empty: it ended before anything was measured")
    axes_by_kind = {
        kind: ([cell.axes for cell in a.of_kind(kind)], [cell.axes for cell in b.of_kind(kind)]) for kind in kinds
    }
    obstacles = [
        *(obstacle for sides in axes_by_kind.values() for obstacle in cells.find_obstacles(*sides, rules.across)),
        *machine_obstacles(a, b, rules.across),
        *threads_obstacles(a, b, rules.across),
    ]
    if obstacles and not any(command_of(kind).results().measures for kind in a.kinds):
        raise LogError(f"nothing to compare: {_list_commands(a)} has no numbers that are compared")
    # First, because `--across` is no remedy if no cells match with it.
    matchings = _match_cells(axes_by_kind)
    cells.refuse_obstacles(obstacles, rules.across)
    compared = [
        _compare_cells(a_cells[index_a], b_cells[index_b], rules)
        for kind in kinds
        for a_cells, b_cells in [(a.of_kind(kind), b.of_kind(kind))]
        for index_a, index_b in matchings[kind].pairs
    ]
    across = list(dict.fromkeys(axis for matching in matchings.values() for axis in matching.across))
    return Comparison(
        a=_side_record(a),
        b=_side_record(b),
        margin=rules.margin,
        across=across,
        differences=differences(a, b),
        cells=compared,
        left_over=[*_left_over_cells("A", a, b, matchings), *_left_over_cells("B", b, a, matchings)],
        geometric_means=list(_geometric_means(compared)),
        cautions=[*warnings(a, b), *_processor_times(a, b, compared), *_method_cautions(a, compared)],
    )


def _match_cells(axes_by_kind: Mapping[Kind, tuple[Sequence[Axes], Sequence[Axes]]]) -> dict[Kind, Matching]:
    matchings: dict[Kind, Matching] = {}
    no_match: NoMatchingCellsError | None = None
    for kind, (a_cells, b_cells) in axes_by_kind.items():
        try:
            matchings[kind] = cells.match(a_cells, b_cells)
        except NoMatchingCellsError as error:
            no_match = error
            matchings[kind] = Matching((), tuple(range(len(a_cells))), tuple(range(len(b_cells))), ())
    if no_match is not None and not any(matching.pairs for matching in matchings.values()):
        raise no_match
    return matchings


def _list_commands(side: Side) -> str:
    return " and ".join(f"`sysbench {kind}`" for kind in side.kinds) or "no cell"


def _side_record(side: Side) -> SideRecord:
    return SideRecord(
        name=side.name,
        runs=len(side.records),
        unfinished=sum(record.status != "complete" for record in side.records),
        started_at=min((record.started_at for record in side.records), default=None),
    )


def _compare_cells(a: SideCell, b: SideCell, rules: Rules) -> CellComparison:
    b_amounts = b.amounts()
    times = list(_compare_times(a, b, rules))
    by_steps = any(time.repeated == "steps" for time in times)
    a_record, b_record = a.latest.record, b.latest.record
    codes = {code for record in (a_record, b_record) if by_steps for code in record.excluding_cautions()}
    if codes:
        times = [time.model_copy(update={"verdict": "AMBIGUOUS"}) for time in times]
    return CellComparison(
        kind=a.kind,
        axes={name: value for name, value in a.axes.items() if b.axes.get(name) == value},
        a_outcome=a_record.outcome,
        b_outcome=b_record.outcome,
        a_detail=a_record.detail,
        b_detail=b_record.detail,
        a_simulated=bool(a.axes.get("simulate")),
        b_simulated=bool(b.axes.get("simulate")),
        times=times,
        predictions=list(_compare_predictions(a.latest.measures, b.latest.measures)),
        amounts=[
            AmountComparison(
                quantity=name, unit=amount.unit, better=amount.better, exact=amount.exact, a=amount.value, b=other.value
            )
            for name, amount in a.amounts().items()
            if (other := b_amounts.get(name)) is not None
        ],
        excluded_by=sorted(codes),
    )


def _compare_predictions(a: Measures, b: Measures) -> Iterator[PredictionComparison]:
    b_times = b.predicted_times
    for name, time in a.predicted_times.items():
        if name in b_times and time.point_s:
            low, high = _step_ratio_interval(a, b) if name == "step" else (None, None)
            yield PredictionComparison(quantity=name, a=time, b=b_times[name], low=low, high=high)


def _step_ratio_interval(a: Measures, b: Measures) -> tuple[float, float] | tuple[None, None]:
    """Return the 90% prediction interval of the step time in B over that in A; (None, None) without draws of both."""
    steps = [each for each in (b.prediction, a.prediction) if isinstance(each, PredictedStep) and each.step_draws_s]
    ratio = step_ratio(*steps) if len(steps) == 2 else None
    return (ratio.low, ratio.high) if ratio else (None, None)


def _compare_times(a: SideCell, b: SideCell, rules: Rules) -> Iterator[TimeComparison]:
    headlines = command_of(a.kind).verdicts
    # The headlines come first, in their own order.
    phases = (name for occurrence in (*a.occurrences, *b.occurrences) for name in occurrence.measures.times)
    for quantity in dict.fromkeys((*headlines, *phases)) if rules.include_phases else headlines:
        # An interrupted round has fewer samples than the others, but would have the same weight.
        a_samples, b_samples = (side.times(quantity, complete_only=rules.paired) for side in (a, b))
        if not a_samples or not b_samples:
            continue
        try:
            judged = _judge(a_samples, b_samples, rules)
        except ValueError as error:
            raise LogError(f"{quantity} of {a.latest.record.key} cannot be compared: {error}") from None
        if judged is not None:
            ratio, a_s, b_s = judged
            yield TimeComparison(quantity=quantity, headline=quantity in headlines, a_s=a_s, b_s=b_s, **asdict(ratio))


def _judge(a: dict[int, Estimate], b: dict[int, Estimate], rules: Rules) -> tuple[ComparedRatio, float, float] | None:
    """Return the verdict and the medians of A and B; None if runs are paired and no round contains both sides.

    The verdict compares rounds if runs are paired, runs if there are enough, otherwise the steps of the last runs. What
    disturbs a round disturbs both sides alike, so its doubts do not count.
    """
    rounds = [number for number in a if number in b] if rules.paired else []
    if rules.paired and not rounds:
        return None
    if rounds:
        a_s, b_s = ([side[number].median for number in rounds] for side in (a, b))
        return compare_rounds(a_s, b_s, rules.margin), statistics.median(a_s), statistics.median(b_s)
    if min(len(a), len(b)) >= MIN_RUNS:
        a_s, b_s = ([run.median for run in side.values()] for side in (a, b))
        judged = compare_runs(list(a.values()), list(b.values()), rules.margin)
        return judged, statistics.median(a_s), statistics.median(b_s)
    last_a, last_b = list(a.values())[-1], list(b.values())[-1]
    return compare_processes(last_a, last_b, rules.margin), last_a.median, last_b.median


def _left_over_cells(arm: Arm, side: Side, other: Side, matchings: dict[Kind, Matching]) -> Iterator[LeftOver]:
    for kind in side.kinds:
        left = side.of_kind(kind)
        if kind in other.kinds:
            left = [left[index] for index in (matchings[kind].only_a if arm == "A" else matchings[kind].only_b)]
        for cell in left:
            yield LeftOver(arm=arm, kind=kind, axes=dict(cell.axes), outcome=cell.latest.record.outcome)


def _geometric_means(cells: Sequence[CellComparison]) -> Iterator[GeometricMean]:
    grouped: dict[tuple[Kind, str], list[TimeComparison]] = {}
    for cell in cells:
        for time in cell.times:
            if time.headline and not cell.excluded_by:
                grouped.setdefault((cell.kind, time.quantity), []).append(time)
    for (kind, quantity), times in grouped.items():
        verdicts = [time.verdict for time in times]
        yield GeometricMean(
            kind=kind,
            quantity=quantity,
            cells=len(times),
            ratio=math.exp(statistics.fmean(math.log(time.ratio) for time in times)),
            verdicts={verdict: verdicts.count(verdict) for verdict in dict.fromkeys(verdicts)},
        )


def _processor_times(a: Side, b: Side, cells: Sequence[CellComparison]) -> Iterator[str]:
    """Yield the ratio of processor times if other processes used the CPU, which lengthens these far less."""
    codes = {caution.code for side in (a, b) for cell in side.cells for caution in cell.latest.record.cautions}
    ratios = [
        amount.b / amount.a
        for cell in cells
        for amount in cell.amounts
        if amount.quantity == PROCESSOR_TIME and amount.a and amount.b
    ]
    if "host-busy" in codes and ratios:
        mean = f" (geometric mean of {len(ratios)} cells)" if len(ratios) > 1 else ""
        yield (
            "other processes used the CPU, which lengthens a step more than its CPU time: a step takes "
            f"{units.ratio(statistics.geometric_mean(ratios))} as much CPU time in B as in A{mean}"
        )


MIN_VERDICTS_FOR_CHANCE_CAUTION = 100
"""With this many verdicts, one is expected to be wrong by chance, because each has an error rate of 1%."""


def _method_cautions(a: Side, cells: Sequence[CellComparison]) -> Iterator[str]:
    times = [time for cell in cells for time in cell.times]
    if any(time.repeated == "steps" for time in times):
        on_cpu = any((device := cell.latest.record.device) and device.type == "cpu" for cell in a.cells)
        known = (
            "on a CPU, two runs of the same code differ by several per cent, so that anything below "
            f"{CPU_RESOLUTION_SHARE:.0%} is AMBIGUOUS; to find less"
            if on_cpu
            else "intervals cover the variation between steps of one process, but not between processes, which can "
            "reach a few per cent; to include it"
        )
        yield f"{known}, use sysbench compare --ab, which alternates A and B in fresh processes"
    if any(time.repeated == "runs" for time in times):
        yield "the runs of A and B were not alternated: anything else that changed between them affects the ratio"
    if any(time.low is None for time in times):
        yield "cells with fewer than 3 steps or rounds have no interval"
    verdicts = sum(time.low is not None for time in times)
    if verdicts >= MIN_VERDICTS_FOR_CHANCE_CAUTION:
        yield f"of {verdicts} verdicts at 99%, about {round(verdicts / 100)} may be FASTER or SLOWER by chance"


MAX_CELLS_WITH_PHASES = 4
"""Largest number of cells whose phases get verdicts unless a program reads them: judging them takes long."""


def compare_sides(a: Side, b: Side, options: CompareOptions, *, paired: bool) -> Comparison:
    few = len(a.cells) <= MAX_CELLS_WITH_PHASES
    include_phases = bool(few or options.tables or options.json_path or options.format == "csv")
    result = compare(a, b, Rules(options.margin, options.across, paired, include_phases))
    if options.gate is None:
        return result
    refuse_unmeasured(result)
    return result.model_copy(update={"gate": apply_gate(result, options.gate, strict=options.strict)})


def refuse_unmeasured(comparison: Comparison) -> None:
    """Raise UsageError if the gate has nothing to check: no time or exact number on both sides, no failed cell."""
    if not any(
        has_failed_in_b(cell) or any(time.headline for time in cell.times) or any(map(is_gated, cell.amounts))
        for cell in comparison.cells
    ):
        raise UsageError("--gate: no cell has a measured time or an exact memory peak on both sides")


FAILING_OUTCOMES = ("oom", "crashed", "timeout", "invalid")
"""Outcomes in B that fail the gate if A measured the cell."""


def apply_gate(comparison: Comparison, share: float, *, strict: bool = False) -> GateRecord:
    """Apply the gate to the times that the cells' verdicts use, to exact amounts, and to outcomes.

    A time fails if its whole interval lies above 1 + `share`, an exact number if it is worse by more than `share`, and
    a cell if A measured it and B could not. A time that cautions exclude is undecided. The gate ignores phases and
    sampled memory.
    """
    failed, undecided, passed = [], [], 0
    for name, cell in comparison.named_cells:
        if has_failed_in_b(cell):
            failed.append(f"{name}: measured in A, but {cell.b_outcome} in B")
        for fails, text in _check_cell(cell, share):
            if fails:
                failed.append(f"{name}: {text}")
            else:
                passed += 1
                undecided += [f"{name}: {text}"] if text else []
    return GateRecord(share=share, failed=failed, undecided=undecided, passed=passed, strict=strict)


def has_failed_in_b(cell: CellComparison) -> bool:
    return cell.a_outcome == "ok" and cell.b_outcome in FAILING_OUTCOMES


def is_gated(number: AmountComparison) -> bool:
    """Whether the gate checks the number: it was counted, and one direction is better."""
    return number.exact and number.better is not None


def amount_text(unit: units.Unit, value: float) -> str:
    """Format a number with its unit; a plain number may be an error as small as 1e-7."""
    return f"{value:.3g}" if unit == "number" else units.quantity(unit, value)


def _check_cell(cell: CellComparison, share: float) -> Iterator[tuple[bool, str]]:
    """Yield, for each time and peak, whether it fails the gate, and a sentence if it fails or might fail."""
    for time in cell.times:
        if not time.headline:
            continue
        text = f"{time.quantity} takes {units.ratio(time.ratio)} as long in B"
        if time.low is None or time.high is None:
            yield False, f"{text}, without an interval: too few steps to decide"
        elif cell.excluded_by:
            yield False, f"{text}, but cautions exclude it ({', '.join(cell.excluded_by)})"
        else:
            decimals = 3 if time.high - time.low < 0.1 else 2
            interval = f"{text} (99% CI {time.low:.{decimals}f}–{time.high:.{decimals}f})"
            yield time.low > 1 + share, interval if time.high > 1 + share else ""
    for number in filter(is_gated, cell.amounts):
        change, direction = ("grew", 1) if number.better == "lower" else ("fell", -1)
        worse = direction * (number.b - number.a) > share * abs(number.a)
        a, b = (amount_text(number.unit, value) for value in (number.a, number.b))
        yield worse, f"{number.quantity.replace('_', ' ')} {change} from {a} to {b}" if worse else ""
