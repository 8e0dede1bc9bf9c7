"""Tables of a loop, phases and memory, and what other commands compare of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from operator import attrgetter

from sysbench.cells import phrase
from sysbench.commands.loop.record import LoopCellRecord, LoopRecord
from sysbench.commands.loop.spec import STEP, LoopSpec
from sysbench.log.measures import Measures, peaks, phase_times
from sysbench.log.records import PhaseRecord
from sysbench.render import phase_rows
from sysbench.render.declared import DeclaredTable, Field, build_tables, leading_axes, leading_fields
from sysbench.render.phase_rows import in_step_row
from sysbench.render.sentences import notes
from sysbench.render.sentences.cautions import cautions_of
from sysbench.render.sentences.findings import Finding, exclusions
from sysbench.render.table import Remark, Sheet, mean_of
from sysbench.spec.run import Selection

OUTSIDE = "outside phases"

Row = tuple[LoopCellRecord, str, PhaseRecord]
"""A phase of a loop."""


def _phases(record: LoopRecord) -> Iterator[Row]:
    for cell in record.cells:
        for name, phase in cell.phases.items():
            if name == STEP and cell.outside is not None:
                yield cell, OUTSIDE, PhaseRecord(wall=cell.outside, device=None, enqueue_median_s=None)
            yield cell, name, phase


def _share(row: Row) -> float | None:
    part, whole = row[2].times, row[0].phases[STEP].times
    return sum(part.samples_s) / sum(whole.samples_s) if part and whole and row[1] != STEP else None


def _samples(row: Row) -> int:
    return len(row[2].times.samples_s) if row[2].times else 0


PHASES = DeclaredTable(
    "phases",
    "phases of a step",
    rows=_phases,
    leading=leading_fields(
        Field("phase", get=lambda row: row[1]), is_excluded=lambda row: bool(row[0].excluding_cautions())
    ),
    columns=(
        Field("wall", "mean", "s", get=lambda row: mean_of(row[2].wall), optional=True),
        Field("device", "device", "s", get=lambda row: mean_of(row[2].device), optional=True, importance=2),
        Field("median", unit="s", get=lambda row: times.median_s if (times := row[2].times) else None, importance=3),
        Field("step", "of step", "share", get=_share, optional=True, importance=1),
        Field(
            "", "tokens", "tokens_per_s", get=in_step_row(lambda cell: cell.tokens_per_s), optional=True, importance=1
        ),
        Field("samples", unit="count", get=_samples, importance=4),
    ),
    needs="a measured step",
)
"""One row per phase, and one for the whole step."""


_peak = partial(Field, unit="bytes", optional=True)

MEMORY = DeclaredTable(
    "memory",
    "peak memory of the measured steps",
    leading=leading_axes(lambda record: ("name",)),
    columns=(
        _peak("allocated_peak", "allocated", get=attrgetter("memory.allocated_peak_bytes")),
        _peak("reserved_peak", "reserved", get=attrgetter("memory.reserved_peak_bytes")),
        _peak("device_used_peak", "whole device", get=attrgetter("memory.device_used_peak_bytes"), importance=2),
        _peak(
            "host_rss_peak",
            "process",
            get=attrgetter("memory.host_rss_peak_bytes"),
            importance=1,
            note="process: peak resident set size of the process since its start",
        ),
    ),
    when=lambda record: any(any(cell.memory.model_dump().values()) for cell in record.cells),
    needs="a measured memory peak",
)
"""Memory peaks of the loop."""

CELLS = DeclaredTable(
    "cells",
    "all phases",
    rows=_phases,
    leading=leading_axes(lambda record: ("name",), lambda row: row[:1]),
    columns=(
        *phase_rows.cell_columns(has_model=False),
        phase_rows.PHASE,
        Field("samples", get=_samples),
        *phase_rows.phase_columns(),
        Field("", "tokens", "tokens_per_s", get=in_step_row(lambda cell: cell.tokens_per_s)),
        *phase_rows.peak_columns(attrgetter("memory")),
        Field("cautions", get=phase_rows.cautions),
    ),
)
"""One row per phase with every statistic, for programs."""

TABLES = {table.name: table for table in (PHASES, MEMORY, CELLS)}
"""All tables by name."""


def sheet(record: LoopRecord, names: Iterable[str] = (), selection: Selection | None = None) -> Sheet:
    (cell,) = record.cells
    tables = build_tables(TABLES, record, names) if names else [*PHASES(record), *MEMORY(record)]
    return Sheet(
        subject=(
            cell.cell.name,
            *((cell.device.name,) if cell.device else ()),
            phrase("warmup", len(cell.warmup_samples_s)),
            phrase("steps", cell.steps),
            *record.environment.software,
        ),
        tables=tuple(tables),
        remarks=(
            *notes.outcomes(record),
            *cautions_of(record),
            *(Remark("finding", finding.text) for finding in findings(record)),
            *(Remark("note", text) for text in _notes(cell)),
        ),
    )


def _notes(cell: LoopCellRecord) -> Iterator[str]:
    yield "measured by the process itself, not from outside"
    if not cell.phases:
        yield f"no step was measured{_why_nothing_measured(cell)}"
        return
    if cell.outcome == "ok" and cell.detail is not None:
        yield cell.detail
    if cell.trace is not None:
        steps = phrase("steps", cell.trace.steps)
        yield f"trace of {steps}, excluded from the times: sysbench profile --from {cell.trace.path}"


def _why_nothing_measured(cell: LoopCellRecord) -> str:
    if cell.warmup_samples_s:
        return ": all steps were warm-up; run more steps"
    return f": {cell.detail}" if cell.outcome == "ok" and cell.detail is not None else ""


def findings(record: LoopRecord) -> Iterator[Finding]:
    return exclusions(record.cells)


def measures(cell: LoopCellRecord) -> Measures:
    return Measures(phase_times(cell.phases), peaks(cell.memory))


def usual(spec: LoopSpec) -> tuple[str, ...]:
    return "phases", "memory"
