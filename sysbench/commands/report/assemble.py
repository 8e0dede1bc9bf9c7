"""Assembly of a report from records; its tables, findings and figures are computed elsewhere.

The report also contains figures that were drawn during a run from data missing in its record, such as every
allocation over time.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sysbench.commands import sheets
from sysbench.commands.artefacts import Artefact
from sysbench.commands.kinds import command_of
from sysbench.commands.report import agreement, environment, first_page
from sysbench.commands.report.document import (
    Basis,
    Document,
    Finding,
    GroupedCaution,
    Origin,
    Picture,
    ReportedRun,
    Section,
    origin_of,
    reported_commands,
)
from sysbench.commands.report.wording import group_cautions
from sysbench.log.predictions import MARK
from sysbench.log.records import RunRecord
from sysbench.render.findings import Statement
from sysbench.render.plots import DOTS_PER_INCH
from sysbench.render.table import Remark, Sheet, Table, sentence
from sysbench.render.terms import Term
from sysbench.spec.cell import spec_of
from sysbench.spec.command_options import command_line
from sysbench.spec.run import Selection

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_CELLS_FOR_DETAIL = 3
"""Largest number of cells for which tables with many rows per cell are shown."""

TOP_KERNELS = 10
"""Number of kernels, or operators, listed for each cell of a run with more than MAX_CELLS_FOR_DETAIL cells."""


def tables_of(record: RunRecord) -> Iterator[Table]:
    """Yield the tables of a run without duplicates, which occur in runs with only one cell or axis."""
    seen: set[tuple[object, ...]] = set()
    for table in _all_tables(record):
        content = (table.columns, table.rows)
        if table.rows and content not in seen:
            seen.add(content)
            yield table


def _all_tables(record: RunRecord) -> Iterable[Table]:
    few = len(record.cells) <= MAX_CELLS_FOR_DETAIL
    layout = command_of(record.kind).report
    requested = (*layout.tables, *(layout.tables_for_few_cells if few else ()))
    if not requested:
        return sheets.sheet(record).tables
    return sheets.nonempty_tables(record, requested, Selection() if few else Selection(top=TOP_KERNELS))


IMAGE_SUFFIX = ".png"


def saved_pictures(run: ReportedRun) -> Iterator[Picture]:
    for path in run.pictures:
        if path.suffix == IMAGE_SUFFIX and _is_complete_image(path):
            caption_name = path.stem.removeprefix(f"{run.name}-").replace("-", " ")
            caption = f"{command_of(run.record.kind).report.picture_caption}: {caption_name}."
            yield Picture(caption_name, caption, partial(_image_figure, path), run.origin)


def _is_complete_image(path: Path) -> bool:
    """Whether a file contains a complete image; a run may have been killed while writing it."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            image.load()
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError):
        return False
    return True


def _image_figure(path: Path) -> Figure:
    from matplotlib.figure import Figure
    from matplotlib.image import imread

    pixels = imread(path)
    height, width = pixels.shape[:2]
    figure = Figure(figsize=(width / DOTS_PER_INCH, height / DOTS_PER_INCH), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.imshow(pixels, interpolation="none", aspect="auto", cmap="gray")
    return figure


TITLE = "Where time and memory go"
"""Default title of a report."""

MAX_TITLE_PHRASES = 4
"""Largest number of phrases in a run's title that distinguish it from other runs."""


def assemble_document(
    runs: Sequence[ReportedRun],
    artefacts: Sequence[Artefact] = (),
    *,
    title: str = "",
    question: str = "",
    missing_runs: Sequence[str] = (),
) -> Document:
    """Assemble a report with a section for each run, trace and snapshot, and a line for each missing run."""
    machines = environment.machine_names(runs)
    names = _UniqueNames()
    sheets_by_run = [sheets.without_headlines(run.record) for run in runs]
    titles = _run_titles(runs, [sheet.subject for sheet in sheets_by_run])
    statements = [list(command_of(run.record.kind).results().findings(run.record)) for run in runs]
    several = len(set(machines.values())) > 1
    pictures, sections = first_page.move_pictures(
        (
            *(
                _section(run, title, sheet, found, machines[run.name] if several else "", names)
                for run, title, sheet, found in zip(runs, titles, sheets_by_run, statements, strict=True)
            ),
            *(_artefact_section(artefact, names) for artefact in artefacts),
        ),
        runs,
    )
    return Document(
        title=title or TITLE,
        question=question,
        run_lines=(*map(_describe_run, runs), *(f"{artefact.kind}: {artefact.name}" for artefact in artefacts)),
        missing_runs=tuple(missing_runs),
        environment=environment.tables(runs),
        findings=tuple(finding for across in agreement.CROSS_RUN_FINDINGS for finding in across(runs)),
        overview=first_page.overview(runs, titles),
        headlines=first_page.headlines(sections),
        pictures=pictures,
        sections=sections,
        cautions=(
            *group_cautions(runs),
            *(
                GroupedCaution(sentence(each.text), "", (Basis(run.name, ()),))
                for run, found in zip(runs, statements, strict=True)
                for each in found
                if each.is_exclusion
            ),
            *(
                GroupedCaution(remark.text, remark.remedy or "", (Basis(artefact.name, ()),))
                for artefact in artefacts
                for remark in artefact.sheet.remarks
                if remark.kind == "caution"
            ),
        ),
        method=tuple(_terms(runs)),
    )


def first_page_of(full: Document) -> Document:
    """Return only the first page of a report, its cautions and its environment."""
    only = [(section, finding) for section in full.sections for finding in section.findings]
    return replace(full, headlines=full.headlines or tuple(only), sections=(), pictures=(), method=())


def number_duplicates(titles: Sequence[str]) -> list[str]:
    """Return the titles, with a number after each title that occurs several times: `time 1`, `memory`, `time 2`."""
    seen: Counter[str] = Counter()
    result = []
    for title in titles:
        seen[title] += 1
        result.append(f"{title} {seen[title]}" if titles.count(title) > 1 else title)
    return result


class _UniqueNames:
    def __init__(self) -> None:
        self._used: set[str] = set()

    def reserve(self, *words: str) -> str:
        ascii_text = unicodedata.normalize("NFKD", " ".join(words)).encode("ascii", "ignore").decode()
        stem = "-".join(re.findall(r"[a-z0-9]+", ascii_text.lower()))[:80].strip("-") or "part"
        name, number = stem, 2
        while name in self._used:
            name, number = f"{stem}-{number}", number + 1
        self._used.add(name)
        return name


def _section(
    run: ReportedRun, title: str, sheet: Sheet, statements: Sequence[Statement], machine: str, names: _UniqueNames
) -> Section:
    remarks = [remark for remark in sheet.remarks if remark.kind in ("outcome", "note")]
    if run.record.status != "complete":
        remarks.insert(0, Remark("outcome", f"this run is not complete: {_describe_status(run)}"))
    return Section(
        anchor=names.reserve(run.name),
        title=title,
        question=run.question,
        run=run.name,
        machine=machine,
        subject=(
            # The origin is marked in every section that was not measured.
            *(phrase for phrase in sheet.subject if phrase.casefold() != title.casefold() and phrase != MARK),
            *([run.note] if run.note else []),
            *([f"cited as {run.name}"] if run.name != run.record.kind else []),
        ),
        origin=run.origin,
        findings=tuple(
            Finding(statement.text, (run.basis(statement.cells),), origin_of(statement.cells, statement.about))
            for statement in statements
            if not statement.is_exclusion
        ),
        tables=tuple(_rename_duplicates(tuple(tables_of(run.record)))),
        pictures=tuple(
            replace(picture, name=names.reserve(run.name, picture.name))
            for picture in (*_pictures(run), *saved_pictures(run))
        ),
        remarks=tuple(remarks),
    )


def _artefact_section(artefact: Artefact, names: _UniqueNames) -> Section:
    sheet = artefact.sheet
    remarks = {
        kind: [remark for remark in sheet.remarks if remark.kind == kind] for kind in ("finding", "outcome", "note")
    }
    origin: Origin = "simulated" if any("simulated" in phrase for phrase in sheet.subject) else "measured"
    return Section(
        anchor=names.reserve(artefact.kind, artefact.name),
        title=f"{artefact.kind.capitalize()} {artefact.name}",
        question="",
        run=artefact.name,
        machine="",
        subject=tuple(phrase for phrase in sheet.subject if phrase != artefact.name),
        origin=origin,
        findings=tuple(Finding(remark.text, (Basis(artefact.name, ()),), origin) for remark in remarks["finding"]),
        tables=tuple(_rename_duplicates(sheet.tables)),
        pictures=(),
        remarks=(*remarks["outcome"], *remarks["note"]),
    )


def _run_titles(runs: Sequence[ReportedRun], subjects: Sequence[tuple[str, ...]]) -> list[str]:
    titles = []
    for run, subject in zip(runs, subjects, strict=True):
        others = [
            set(other)
            for each, other in zip(runs, subjects, strict=True)
            if each is not run and each.record.kind == run.record.kind
        ]
        distinguishing = [phrase for phrase in subject if any(phrase not in other for other in others)]
        suffix = f": {', '.join(distinguishing[:MAX_TITLE_PHRASES])}" if distinguishing else ""
        titles.append(run.title or f"{command_of(run.record.kind).report.title}{suffix}")
    return [
        title if titles.count(title) == 1 else f"{title} ({run.name})" for title, run in zip(titles, runs, strict=True)
    ]


def _rename_duplicates(tables: Sequence[Table]) -> Iterator[Table]:
    for table, name in zip(tables, number_duplicates([table.name for table in tables]), strict=True):
        yield replace(table, name=name.replace(" ", "-"))


def _describe_run(run: ReportedRun) -> str:
    record = run.record
    started = record.started_at[:16].replace("T", " ") + " UTC"
    return f"{run.name}: {started}, {_describe_status(run)} — {command_line(spec_of(record.spec))}"


def _describe_status(run: ReportedRun) -> str:
    cells = run.record.cells
    others = Counter(cell.outcome for cell in cells if cell.outcome != "ok")
    counts = f" ({', '.join(f'{count} {outcome}' for outcome, count in others.items())})" if others else ""
    return f"{run.record.status}, {len(cells)} cell{'' if len(cells) == 1 else 's'}{counts}"


def _pictures(run: ReportedRun) -> Iterator[Picture]:
    for figure in command_of(run.record.kind).results().figures(run.record):
        yield Picture(figure.name, figure.caption, figure.draw, origin_of(figure.cells))


def _terms(runs: Sequence[ReportedRun]) -> Iterator[Term]:
    """Yield the definition of every term in the report once, in the order of the commands that use the terms."""
    term_by_word: dict[str, Term] = {}
    for command in reported_commands():
        cells = [cell for run in runs if run.record.kind == command.name for cell in run.record.cells]
        for term in command.results().terms(cells) if cells else ():
            term_by_word.setdefault(term.word, term)
    yield from term_by_word.values()
    if any(cell.cautions for run in runs for cell in run.record.cells):
        yield Term("caution", "a reason to doubt a number, detected in the data, with a remedy.")
    if any(run.origin in ("simulated", "mixed") for run in runs):
        yield Term(
            "simulated",
            "computed without the hardware: the allocations of the step, replayed with a model of CUDA's caching "
            "allocator on tensors without data. Simulated numbers next to measured ones are always marked.",
        )
    if any(run.origin == "predicted" for run in runs):
        yield Term(
            "predicted",
            "computed without the hardware: every kernel of the step is timed with the rates of the GPU, and a host "
            "issues the kernels one by one. The interval contains the time in 90% of cases; the lower bound "
            "assumes data-sheet rates and zero host time, and is not a prediction. Predicted times never share a "
            "column with measured ones.",
        )
