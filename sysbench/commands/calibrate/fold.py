"""Folds the event log of `sysbench calibrate` into its record."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from sysbench.commands.calibrate.record import (
    PER_SECOND,
    CalibrateCellRecord,
    CalibrateRecord,
    CaseRecord,
    RateRecord,
    RatesKnown,
    WorkTimed,
)
from sysbench.commands.calibrate.spec import CalibrateCell, CalibrateSpec
from sysbench.log.cautions import surroundings
from sysbench.log.collect import CellEvents, Run, collect, of_cell, of_run
from sysbench.log.events import Event
from sysbench.spec import hardware
from sysbench.spec.hardware import Hardware, Rate
from sysbench.spec.model import Precision

LEAST_SPREAD = 0.01
"""Least spread of a rate: the same kernel varies by as much from process to process."""

_SHEET_PRECISION: dict[str, tuple[Precision, ...]] = {
    "matmul_fp32": ("fp32",),
    "matmul_tf32": ("tf32",),
    "matmul_half": ("bf16", "fp16"),
    "attention_forward": ("bf16", "fp16"),
    "attention_backward": ("bf16", "fp16"),
}


def fold(events: Iterable[Event]) -> CalibrateRecord:
    """The record of a run, finished or not; raises LogError when the events hold no run."""
    run = collect(events)
    spec = CalibrateSpec.model_validate(run.started.spec)
    cells = [_cell(cell, run.cells.get(cell.key, CellEvents()), run) for cell in spec.cells()]
    device = next((cell.device for cell in cells if cell.device is not None), None)
    sheet = hardware.find(device.name, device.memory_bytes) if device is not None else None
    before = [known for cell in cells if (known := run.cells.get(cell.key, CellEvents()).last(RatesKnown))]
    return CalibrateRecord(
        **of_run(run),
        cells=cells,
        slug=before[0].slug if before else None,
        rates=rates_of([case for cell in cells for case in cell.cases], sheet, before[0].rates if before else {}),
    )


def _cell(cell: CalibrateCell, seen: CellEvents, run: Run) -> CalibrateCellRecord:
    cases = [case_of(timed) for timed in seen.all(WorkTimed)]
    cautions = list(surroundings(seen, run.lost)) if cases else []
    return CalibrateCellRecord(**of_cell(cell, seen), cautions=cautions, cases=cases)


def case_of(timed: WorkTimed) -> CaseRecord:
    """What one piece of work comes down to."""
    median_s = statistics.median(timed.samples_s)
    logs = [math.log(each) for each in timed.samples_s]
    return CaseRecord(
        **timed.model_dump(exclude={"event", "at_s", "cell"}),
        value=timed.work / median_s if timed.rate in PER_SECOND else median_s / timed.work,
        spread=statistics.stdev(logs) if len(logs) > 1 else 0.0,
    )


def rates_of(cases: Sequence[CaseRecord], sheet: Hardware | None, before: Mapping[str, Rate]) -> list[RateRecord]:
    """Return every rate with a timed case, in the order of measurement."""
    by_rate: dict[str, list[CaseRecord]] = {}
    for case in cases:
        if case.counts:
            by_rate.setdefault(case.rate, []).append(case)
    return [_rate(found, sheet, before) for found in by_rate.values()]


def _rate(cases: Sequence[CaseRecord], sheet: Hardware | None, before: Mapping[str, Rate]) -> RateRecord:
    """Return the geometric mean of its cases, which differ in layout and format."""
    name = cases[0].rate
    logs = [math.log(case.value) for case in cases]
    within = statistics.fmean(case.spread**2 for case in cases)
    between = statistics.variance(logs) if len(logs) > 1 else 0.0
    earlier = before.get(name)
    return RateRecord(
        name=name,
        value=math.exp(statistics.fmean(logs)),
        spread=max(LEAST_SPREAD, math.sqrt(within + between)),
        sheet=_promised(name, sheet),
        before=earlier.value if earlier else None,
        before_source=earlier.source if earlier else None,
    )


def _promised(name: str, sheet: Hardware | None) -> float | None:
    """Return the data sheet's value of a rate."""
    if sheet is None:
        return None
    if name in ("stream", "reduce"):
        return sheet.memory_bandwidth_bytes_per_s
    peaks = sheet.peak_flops_per_s
    return next((peaks[each] for each in _SHEET_PRECISION.get(name, ()) if each in peaks), None)
