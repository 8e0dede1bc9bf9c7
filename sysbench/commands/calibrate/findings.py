"""Findings of a calibration."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench import units
from sysbench.commands.calibrate.record import CalibrateRecord
from sysbench.render.findings import Statement, exclusions, join_words, reliable

SURPRISING = 3
"""Number of standard deviations by which a rate must differ from its previous value to be reported."""


def of_run(record: CalibrateRecord) -> Iterator[Statement]:
    cells = reliable(record.cells)
    timed = {case.rate for cell in cells for case in cell.cases}
    if record.read_from is not None:
        by_reason: dict[str, list[str]] = {}
        for name, why in record.unseen.items():
            by_reason.setdefault(why, []).append(name)
        unseen = "; ".join(f"{join_words(names)} ({why})" for why, names in by_reason.items())
        unchanged = f"The file does not show these, so they are unchanged: {unseen}."
        yield Statement(f"the rates were read from {record.read_from}. {unchanged}", cells)
    moved = [
        f"{rate.name} {units.ratio(rate.value / rate.before)}"
        for rate in record.rates
        if rate.name in timed and rate.before and abs(rate.value / rate.before - 1) > SURPRISING * rate.spread
    ]
    if moved:
        yield Statement(f"relative to the previous rates: {join_words(moved)}.", cells)
    without_link = [
        cell for cell in record.cells if cell.cell.part == "link" and cell.device and cell.device.type != "cuda"
    ]
    if without_link:
        yield Statement("there is no link to a GPU here: only the host's update was measured.", without_link)
    by_name = {rate.name: rate.value for rate in record.rates}
    for cell in cells:
        slower = [
            f"{case.case} {units.share(case.value / by_name[case.rate])}"
            for case in cell.cases
            if not case.counts and case.rate in by_name
        ]
        if slower:
            yield Statement(f"{cell.cell.part}: relative to the rate for large inputs, {join_words(slower)}.", (cell,))
    yield from exclusions(record.cells)
