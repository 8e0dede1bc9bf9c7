"""The first page of a report, after which a reader can stop: headline numbers, answers, and a few figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from sysbench.commands.kinds import command_of, measures_of
from sysbench.commands.report.document import Finding, Picture, ReportedRun, Section
from sysbench.log.outcomes import Subject
from sysbench.log.records import CellRecord
from sysbench.render.findings import reliable
from sysbench.render.table import EMPTY_CELL, Cell, Column, Measure, Remark, Table, Word

MAX_PICTURES: Final = 4
"""Largest number of figures on the first page."""

MAX_HEADLINES: Final = 10
"""Largest number of section findings on the first page, unless there are more sections than that."""

_COLUMNS: Final = (
    Column("section", "section", elastic=True),
    Column("quantity", "what"),
    Column("source", "source"),
    Column("cells", "cells"),
    Column("time_from", "from", "s", "median time", wide_range=True),
    Column("time_to", "to", "s", "median time", wide_range=True),
    Column("memory_from", "from", "bytes", "memory", wide_range=True),
    Column("memory_to", "to", "bytes", "memory", wide_range=True),
)


def overview(runs: Sequence[ReportedRun], titles: Sequence[str]) -> tuple[Table, ...]:
    """Return the table of headline numbers: for each run, the range of its times and of its memory over the cells.

    Cells that cautions exclude from findings are left out of the ranges, and their runs are marked. A report of one run
    has no such table, because the tables of the run show the same numbers.
    """
    rows: list[tuple[Cell, ...]] = []
    excluded: set[int] = set()
    for run, title in zip(runs, titles, strict=True):
        numbers: dict[tuple[str, Subject], list[tuple[CellRecord, float]]] = {}
        for cell in run.record.cells:
            for what, subject, value in _headline_numbers(cell) if cell.outcome == "ok" else ():
                numbers.setdefault((what, subject), []).append((cell, value))
        for (what, subject), found in numbers.items():
            values = [value for cell, value in found if not cell.excluding_cautions(subject)]
            if len(values) < len(found):
                excluded.add(len(rows))
            low: Cell = Measure(min(values)) if values else Word("excluded", "quiet")
            high: Cell = Measure(max(values)) if len(values) > 1 else EMPTY_CELL
            source = "simulated" if run.origin == "predicted" and subject == "memory" else run.origin
            count = str(len(found)) if len(values) == len(found) else f"{len(values)} of {len(found)}"
            empty = (EMPTY_CELL, EMPTY_CELL)
            ranges = (low, high, *empty) if subject == "times" else (*empty, low, high)
            rows.append((title, what, source, count, *ranges))
    if len(runs) < 2 or not rows:
        return ()
    notes = ("cells: those that the numbers are from, of all with a number",)
    return (Table("headlines", "headline numbers", _COLUMNS, tuple(rows), 2, notes, excluded=frozenset(excluded)),)


def _headline_numbers(cell: CellRecord) -> Iterator[tuple[str, Subject, float]]:
    measures = measures_of(cell)
    for name in command_of(cell.cell.kind).verdicts:
        if samples := measures.times.get(name):
            yield name, "times", samples.median_s
        elif predicted := measures.predicted_times.get(name):
            yield name, "times", predicted.point_s
    for amount in measures.amounts.values():
        if amount.headline and amount.unit == "bytes" and amount.value:
            yield amount.headline, "memory", amount.value


def headlines(sections: Sequence[Section]) -> tuple[tuple[Section, Finding], ...]:
    """Return the first two findings of every section, or the first if there are many; none for a single section."""
    if len(sections) < 2:
        return ()
    count = 2 if 2 * len(sections) <= MAX_HEADLINES else 1
    return tuple((section, finding) for section in sections for finding in section.findings[:count])


def move_pictures(
    sections: Sequence[Section], runs: Sequence[ReportedRun]
) -> tuple[tuple[Picture, ...], tuple[Section, ...]]:
    """Return the first figures of up to four commands with reliable cells, and the sections without these."""
    if len(sections) < 2:
        return (), tuple(sections)
    kinds = {run.name: run.record.kind for run in runs if reliable(run.record.cells)}
    chosen: dict[str, Section] = {}
    for section in sections:
        if section.pictures and section.run in kinds:
            chosen.setdefault(kinds[section.run], section)
    shown = list(chosen.values())[:MAX_PICTURES]
    pictures = tuple(
        replace(section.pictures[0], caption=f"{section.title.rstrip('?.')}. {section.pictures[0].caption}")
        for section in shown
    )
    note = Remark("note", "the first figure is on the first page")
    moved = {
        section.anchor: replace(section, pictures=section.pictures[1:], remarks=(*section.remarks, note))
        for section in shown
    }
    return pictures, tuple(moved.get(section.anchor, section) for section in sections)
