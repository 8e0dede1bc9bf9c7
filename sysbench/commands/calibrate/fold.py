"""Convert the event log of `sysbench calibrate` into a record."""

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
from sysbench.log.cautions import environment_cautions
from sysbench.log.collect import CellEvents, Run, cell_fields, collect, run_fields, signs_of
from sysbench.log.events import Event
from sysbench.spec import hardware
from sysbench.spec.hardware import Hardware, Rate
from sysbench.spec.steps import Precision

MIN_SPREAD = 0.01
"""Minimum spread of a rate: the time of the same kernel varies by this much from process to process."""

_SHEET_PRECISION: dict[str, tuple[Precision, ...]] = {
    "matmul_fp32": ("fp32",),
    "matmul_tf32": ("tf32",),
    "matmul_half": ("bf16", "fp16"),
    "attention_forward": ("bf16", "fp16"),
    "attention_backward": ("bf16", "fp16"),
}


def fold(events: Iterable[Event]) -> CalibrateRecord:
    run = collect(events)
    spec = CalibrateSpec.model_validate(run.started.spec)
    cells = [_cell(cell, run.cells.get(cell.key, CellEvents()), run) for cell in spec.cells()]
    known = next((found for cell in cells if (found := run.cells.get(cell.key, CellEvents()).last(RatesKnown))), None)
    device = next((cell.device for cell in cells if cell.device is not None), None)
    sheet = hardware.find(device.name, device.memory_bytes) if device is not None else None
    return CalibrateRecord(
        **run_fields(run),
        cells=cells,
        slug=known.slug if known else None,
        rates=rates_of([case for cell in cells for case in cell.cases], sheet, known.rates if known else {}),
    )


def _cell(cell: CalibrateCell, seen: CellEvents, run: Run) -> CalibrateCellRecord:
    cases = [case_of(timed) for timed in seen.all(WorkTimed)]
    cautions = list(environment_cautions(seen, run.lost, signs_of(cell, seen, run).load)) if cases else []
    return CalibrateCellRecord(**cell_fields(cell, seen), cautions=cautions, cases=cases)


def case_of(timed: WorkTimed) -> CaseRecord:
    median_s = statistics.median(timed.samples_s)
    logs = [math.log(sample_s) for sample_s in timed.samples_s]
    return timed.as_record(
        CaseRecord,
        value=timed.work / median_s if timed.rate in PER_SECOND else median_s / timed.work,
        spread=statistics.stdev(logs) if len(logs) > 1 else 0.0,
    )


def rates_of(cases: Sequence[CaseRecord], sheet: Hardware | None, before: Mapping[str, Rate]) -> list[RateRecord]:
    """Return every rate that at least one timed case determines, in order of measurement."""
    by_rate: dict[str, list[CaseRecord]] = {}
    for case in cases:
        by_rate.setdefault(case.rate, []).append(case)
    return [_rate(found, sheet, before) for found in by_rate.values()]


def _rate(cases: Sequence[CaseRecord], sheet: Hardware | None, before: Mapping[str, Rate]) -> RateRecord:
    name = cases[0].rate
    logs = [math.log(case.value) for case in cases]
    variance_within = statistics.fmean(case.spread**2 for case in cases)
    variance_between = statistics.variance(logs) if len(logs) > 1 else 0.0
    earlier = before.get(name)
    return RateRecord(
        name=name,
        value=math.exp(statistics.fmean(logs)),
        spread=max(MIN_SPREAD, math.sqrt(variance_within + variance_between)),
        sheet=_sheet_value(name, sheet),
        before=earlier.value if earlier else None,
        before_source=earlier.source if earlier else None,
    )


def _sheet_value(name: str, sheet: Hardware | None) -> float | None:
    if sheet is None:
        return None
    if name in ("stream", "reduce"):
        return sheet.memory_bandwidth_bytes_per_s
    peaks = sheet.peak_flops_per_s
    return next((peaks[each] for each in _SHEET_PRECISION.get(name, ()) if each in peaks), None)
