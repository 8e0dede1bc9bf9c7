"""Fold the event log of `sysbench accum` into its record."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from operator import itemgetter

from sysbench.commands.accum.record import (
    AccumCellRecord,
    AccumRecord,
    DtypePart,
    DtypeRecord,
    DtypesMeasured,
    NormMeasured,
    NormPoint,
    NormRecord,
    SumMeasured,
    SumRecord,
)
from sysbench.commands.accum.spec import AccumCell
from sysbench.log import collect as run_record
from sysbench.log.collect import CellEvents, Run, fold_cells
from sysbench.log.events import Event
from sysbench.rounding import FORMATS, exact, stall

WRONG = 0.1
"""Outputs of layer norm with at least this relative error count as wrong; rounding alone never causes it."""

_NUMBERED = re.compile(r"(?<=\.)\d+(?=\.|$)")


def fold(events: Iterable[Event]) -> AccumRecord:
    run, cells = fold_cells(events, _cell)
    return AccumRecord(**run_record.run_fields(run), cells=cells)


def _cell(cell: AccumCell, seen: CellEvents, _: Run) -> AccumCellRecord:
    return AccumCellRecord(
        **run_record.cell_fields(cell, seen),
        cautions=[],
        experiment=cell.experiment,
        sums=[_sum(cell, measured) for measured in seen.all(SumMeasured)],
        dtypes=list(_dtypes(seen.all(DtypesMeasured))),
        norms=[_norm(measured) for measured in seen.all(NormMeasured)],
    )


# --- sums


def _sum(cell: AccumCell, measured: SumMeasured) -> SumRecord:
    value, count = exact(cell.value or 0.0), cell.count or 0
    addend = Fraction(measured.rounded_addend) if math.isfinite(measured.rounded_addend) else None
    stalled = stall(addend, FORMATS[measured.accumulator]) if addend and measured.order == "sequential" else None
    return measured.as_record(
        SumRecord,
        error=_difference(measured.result, value * count),
        representation_error=_difference(measured.rounded_addend, value) * count,
        accumulation_error=_difference(measured.result, addend * count) if addend is not None else 0.0,
        stall_step=stalled.step if stalled else None,
        stall_at=float(stalled.total) if stalled else None,
    )


def _difference(found: float, expected: Fraction) -> float:
    """Return the exact difference, rounded once; `found` if it is not finite."""
    return float(Fraction(found) - expected) if math.isfinite(found) else found


# --- dtypes


Place = tuple[DtypePart, str]


def _by_part(place: Place) -> str:
    return "" if place[0] in ("parameter", "gradient") else _by_layer(place)


def _by_layer(place: Place) -> str:
    return _NUMBERED.sub("*", place[1])


def _dtypes(measured: Sequence[DtypesMeasured]) -> Iterator[DtypeRecord]:
    """Yield the measured and the simulated dtypes for each precision; parts with the same dtypes are merged."""
    for precision in dict.fromkeys(each.precision for each in measured):
        here, cuda = (
            {
                (item.part, item.name): item.dtype
                for each in measured
                if (each.precision, each.source) == (precision, source)
                for item in each.seen
            }
            for source in ("measured", "simulated")
        )
        for name_of in (_by_part, _by_layer, itemgetter(1)):
            groups: dict[Place, list[Place]] = {}
            for place in dict.fromkeys([*here, *cuda]):
                groups.setdefault((place[0], name_of(place)), []).append(place)
            if all(len({(here.get(place), cuda.get(place)) for place in group}) == 1 for group in groups.values()):
                break
        for (part, name), group in groups.items():
            types = {"here": here.get(group[0]), "on_cuda": cuda.get(group[0])}
            yield DtypeRecord(precision=precision, part=part, name=name, count=len(group), **types)


# --- layer norm


def _norm(measured: NormMeasured) -> NormRecord:
    points = sorted(measured.points, key=lambda point: point.scale)
    at_one = min(points, key=lambda point: abs(math.log2(point.scale)))
    return measured.as_record(
        NormRecord,
        mean_overflows_from=_smallest_scale(points, lambda point: not math.isfinite(point.mean)),
        variance_overflows_from=_smallest_scale(points, lambda point: not math.isfinite(point.variance)),
        variance_vanishes_to=_largest_scale(points, lambda point: point.variance == 0),
        reciprocal_overflows_to=_largest_scale(points, lambda point: math.isinf(point.bare_reciprocal_deviation)),
        wrong_to=_largest_scale([point for point in points if point.scale < 1], _is_wrong),
        wrong_from=_smallest_scale([point for point in points if point.scale > 1], _is_wrong),
        error_at_one=at_one.relative_error,
        scales=[point.scale for point in points],
        relative_errors=[point.relative_error for point in points],
    )


def _is_wrong(point: NormPoint) -> bool:
    return not point.relative_error < WRONG  # NaN counts as wrong


def _smallest_scale(points: Sequence[NormPoint], matches: Callable[[NormPoint], bool]) -> float | None:
    return next((point.scale for point in points if matches(point)), None)


def _largest_scale(points: Sequence[NormPoint], matches: Callable[[NormPoint], bool]) -> float | None:
    return next((point.scale for point in reversed(points) if matches(point)), None)
