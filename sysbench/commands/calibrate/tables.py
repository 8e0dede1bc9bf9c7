"""The table of `sysbench calibrate`, one row per rate, and its findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from sysbench import units
from sysbench.commands.calibrate.record import PER_SECOND, CalibrateRecord, RateRecord
from sysbench.commands.calibrate.spec import CalibrateCell
from sysbench.render.declared import DeclaredTable, Field, build_tables, leading_fields
from sysbench.render.sentences import notes
from sysbench.render.sentences.cautions import cautions_of
from sysbench.render.sentences.findings import Finding, exclusions, reliable
from sysbench.render.sentences.phrases import join_words
from sysbench.render.table import Cell, Column, Measure, Remark, Sheet, Table
from sysbench.spec.hardware import Hardware
from sysbench.spec.run import Selection

MEANINGS: dict[str, str] = {
    "matmul_fp32": "large fp32 products",
    "matmul_tf32": "large tf32 products",
    "matmul_half": "large 16-bit products",
    "matmul_fp8": "large fp8 products",
    "attention_forward": "fused attention, forward",
    "attention_backward": "fused attention, backward",
    "stream": "elementwise kernels",
    "reduce": "reductions over rows",
    "indexed": "broadcasts",
    "transpose": "transposing copies",
    "new_memory": "first writes to new memory",
    "kernel_s": "an empty kernel",
    "gap_s": "gap between two kernels",
    "operator": "host, forward of an operator",
    "view": "host, forward of a view",
    "operator_backward": "host, backward of an operator",
    "view_backward": "host, backward of a view",
    "scalar": "host, reading a number",
    "launch": "host, launching a kernel",
    "synchronize": "host, waiting for the device",
    "device_to_host": "copies from the device to the host",
    "host_to_device": "copies from the host to the device",
    "update": "host, fused AdamW",
}
"""Readable names of rates."""


def sheet(record: CalibrateRecord, names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    devices = dict.fromkeys(each.name for cell in record.cells if (each := cell.device))
    torch = record.environment.torch
    return Sheet(
        subject=("calibration", *devices, *((f"torch {torch.torch}",) if torch else ())),
        tables=tuple(build_tables(TABLES, record, names) if names else RATES(record)),
        remarks=(
            *notes.outcomes(record),
            *cautions_of(record),
            *(Remark("finding", statement.text) for statement in of_run(record)),
        ),
    )


def plan(cells: Sequence[CalibrateCell], _: Hardware | None = None) -> Sheet:
    columns = (Column("part", "part"), Column("precisions", "precisions"), Column("budget", "about", "s"))
    rows = tuple(
        (cell.part, ", ".join(cell.precisions) or "the whole device", Measure(cell.budget_s)) for cell in cells
    )
    return Sheet((), (Table("plan", f"{len(cells)} part{'' if len(cells) == 1 else 's'}", columns, rows, 1),))


def rate_cell(name: str, value: float | None) -> Cell:
    return None if value is None else Measure(value, text=units.quantity(PER_SECOND.get(name, "s"), value))


def _share_of_sheet(rate: RateRecord) -> float | None:
    return rate.value / rate.sheet if rate.sheet else None


RATES = DeclaredTable(
    "rates",
    "rates used by predictions",
    rows=lambda record: record.rates,
    leading=leading_fields(Field("rate", get=lambda rate: rate.name)),
    columns=(
        Field("of", "of", get=lambda rate: MEANINGS[rate.name], importance=3),
        Field("value", unit="number", get=lambda rate: rate_cell(rate.name, rate.value)),
        Field("unit", get=lambda rate: PER_SECOND.get(rate.name, "s"), on_request=True),
        Field("spread", "spread", "share", get=lambda rate: rate.spread,
              note="spread: standard deviation over samples, layouts and formats"),
        Field("sheet", "of data sheet", "share", get=_share_of_sheet, optional=True, importance=1),
        Field("before", unit="number", get=lambda rate: rate_cell(rate.name, rate.before), optional=True, importance=1),
        Field("change", "relative to before", "ratio", optional=True, importance=2,
              get=lambda rate: rate.value / rate.before if rate.before else None),
    ),
)  # fmt: skip

TABLES: dict[str, DeclaredTable] = {"rates": RATES}


SURPRISING = 3
"""Number of standard deviations by which a rate must differ from its previous value to be reported."""


def of_run(record: CalibrateRecord) -> Iterator[Finding]:
    cells = reliable(record.cells)
    timed = {case.rate for cell in cells for case in cell.cases}
    moved = [
        f"{rate.name} {units.ratio(rate.value / rate.before)}"
        for rate in record.rates
        if rate.name in timed and rate.before and abs(rate.value / rate.before - 1) > SURPRISING * rate.spread
    ]
    if moved:
        yield Finding(f"relative to the previous rates: {join_words(moved)}.", cells)
    without_link = [
        cell for cell in record.cells if cell.cell.part == "link" and cell.device and cell.device.type != "cuda"
    ]
    if without_link:
        yield Finding("there is no link to a GPU here: only the host's update was measured.", without_link)
    yield from exclusions(record.cells)
