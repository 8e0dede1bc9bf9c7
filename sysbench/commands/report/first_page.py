"""The first page of a report, after which a reader can stop: headline numbers, answers, and a few figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from sysbench.command import command_of
from sysbench.commands.report.document import Headline, Picture, ReportedRun, Section
from sysbench.log.measures import Amount, measures_of
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
        for row, is_excluded in _rows(run, title):
            excluded |= {len(rows)} if is_excluded else set()
            rows.append(row)
    if len(runs) < 2 or not rows:
        return ()
    notes = ("cells: those that the numbers are from, of all with a number",)
    return (Table("headlines", "headline numbers", _COLUMNS, tuple(rows), 2, notes, excluded=frozenset(excluded)),)


def _rows(run: ReportedRun, title: str) -> Iterator[tuple[tuple[Cell, ...], bool]]:
    """Yield the row of each quantity of a run, and whether cautions exclude a cell from it."""
    finished = [cell for cell in run.record.cells if cell.outcome == "ok"]
    for name in command_of(run.record.kind).verdicts:
        yield from _row(run, title, name, _ends(finished, partial(_seconds, name=name), "times"), False)
    for headline in dict.fromkeys(amount.headline for cell in finished for amount in _amounts(cell)):
        ends = _ends(finished, partial(_bytes, headline=headline), "memory")
        yield from _row(run, title, headline, ends, True)


def _seconds(cell: CellRecord, name: str) -> float | None:
    measures = measures_of(cell)
    samples, predicted = measures.times.get(name), measures.predicted_times.get(name)
    return samples.median_s if samples else predicted.point_s if predicted else None


def _amounts(cell: CellRecord) -> list[Amount]:
    amounts = measures_of(cell).amounts.values()
    return [amount for amount in amounts if amount.headline and amount.unit == "bytes"]


def _bytes(cell: CellRecord, headline: str) -> float | None:
    return next((amount.value for amount in _amounts(cell) if amount.headline == headline), None)


_Ends = tuple[list[float], int]
"""The values of the cells that can be relied on, and the number of all cells with a value."""


def _ends(cells: Sequence[CellRecord], value: Callable[[CellRecord], float | None], subject: Subject) -> _Ends:
    known = [cell for cell in cells if value(cell)]
    return [found for cell in reliable(known, subject) if (found := value(cell))], len(known)


def _row(
    run: ReportedRun, title: str, what: str, ends: _Ends, is_memory: bool
) -> Iterator[tuple[tuple[Cell, ...], bool]]:
    values, count = ends
    if not count:
        return
    low: Cell = Measure(min(values)) if values else Word("excluded", "quiet")
    high: Cell = Measure(max(values)) if len(values) > 1 else EMPTY_CELL
    source = run.origin if run.origin != "predicted" or not is_memory else "simulated"
    cells = str(count) if len(values) == count else f"{len(values)} of {count}"
    empty = (EMPTY_CELL, EMPTY_CELL)
    numbers = (*empty, low, high) if is_memory else (low, high, *empty)
    yield (title, what, source, cells, *numbers), len(values) < count


def headlines(sections: Sequence[Section]) -> tuple[Headline, ...]:
    """Return the findings of the first page: the first two of every section, or the first if there are many sections.

    A report of a single section has none: the section itself begins with its findings.
    """
    if len(sections) < 2:
        return ()
    count = 2 if 2 * len(sections) <= MAX_HEADLINES else 1
    return tuple(
        Headline(section.title, section.anchor, finding) for section in sections for finding in section.findings[:count]
    )


def move_pictures(
    sections: Sequence[Section], runs: Sequence[ReportedRun]
) -> tuple[tuple[Picture, ...], tuple[Section, ...]]:
    """Return the figures for the first page, and the sections without them.

    These are the first figures of up to four sections, each of another command, with a cell that can be relied on.
    """
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
