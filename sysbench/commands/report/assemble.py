"""From records to a document: everything is put into its place here, and computed elsewhere.

Which tables of a run a report has: all that answer a question, and not those that are only for programs.

Pictures that a run has drawn itself, of what its record does not keep: every allocation over time, say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sysbench import cells as axes
from sysbench.command import measuring
from sysbench.commands.artefacts import Artefact
from sysbench.commands.report import agreement
from sysbench.commands.report.document import Picture, ReportedRun, how_reported, origin_of
from sysbench.log.records import RunRecord
from sysbench.render import output as sheets
from sysbench.render.plots import DOTS_PER_INCH
from sysbench.render.table import Table
from sysbench.spec.run import Selection

if TYPE_CHECKING:
    from matplotlib.figure import Figure
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace

from sysbench.command import spec_of
from sysbench.commands.report import environment, method
from sysbench.commands.report.document import Basis, Document, Finding, GatheredCaution, Origin, Section
from sysbench.commands.report.environment import Identity, Machine
from sysbench.commands.report.wording import gathered, reserved
from sysbench.errors import UsageError, unknown
from sysbench.render.table import Remark, Sheet
from sysbench.spec.command_line import command_line

FEW_CELLS = 3
"""Tables that have many rows for every cell are shown of runs with at most as many cells."""

TOP_KERNELS = 10
"""Kernels, or operators, that are named of each cell where there are more than FEW_CELLS of them."""

OF_AXES: Mapping[str, str] = {"warmup": "warmup"}
"""What is shown only of runs in which an axis varies."""


def tables_of(record: RunRecord[Any]) -> tuple[Table, ...]:
    """The tables of one run."""
    return tuple(_without_repeats(_all(record)))


def _all(record: RunRecord[Any]) -> Iterable[Table]:
    few, how = len(record.cells) <= FEW_CELLS, how_reported(record.kind)
    differing = axes.varying(axes.axes_of(record.cells))
    shown = (name for name in how.tables if name not in OF_AXES or OF_AXES[name] in differing)
    if record.kind == "time" and not any(cell.memory.allocated_peak_bytes for cell in record.cells):
        # The summary has what there is then: the peak on the host.
        shown = (name for name in shown if name != "memory")
    names = (*shown, *(how.tables_of_few if few else ()))
    if not names:
        return sheets.sheet(record).tables
    return sheets.fillable(record, names, Selection() if few else Selection(top=TOP_KERNELS))


def _without_repeats(found: Iterable[Table]) -> Iterator[Table]:
    """Some tables come down to the same numbers where a run has one cell or one axis."""
    seen: set[tuple[object, ...]] = set()
    for table in found:
        content = (table.columns, table.rows)
        if table.rows and content not in seen:
            seen.add(content)
            yield table


SUFFIX = ".png"


def kept(run: ReportedRun[Any]) -> Iterator[Picture]:
    """Every picture that lies beside the run's record and can be read; pixel for pixel as it is."""
    for path in run.pictures:
        if path.suffix == SUFFIX and _whole(path):
            named = path.stem.removeprefix(f"{run.name}-").replace("-", " ")
            caption = f"{how_reported(run.record.kind).kept_picture}: {named}."
            yield Picture(named, caption, partial(_draw, path), run.origin)


def _whole(path: Path) -> bool:
    """Whether a file holds all of a picture: a run may have been killed while it was writing."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            image.load()
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError):
        return False
    return True


def _draw(path: Path) -> Figure:
    """A figure of nothing but the picture, in its own size."""
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
"""Of a report whose runs have no experiment that names it."""

PHRASES = 4
"""Of what sets a run apart, as many are in its title."""


def document(
    runs: Sequence[ReportedRun[Any]],
    artefacts: Sequence[Artefact] = (),
    *,
    title: str = "",
    question: str = "",
    absent: Sequence[str] = (),
) -> Document:
    """The report of these runs, then of traces and snapshots, in their order.

    `absent` says of runs that are not there why, a line for each.
    """
    known = environment.machines(runs)
    names = _Names()
    shown = [sheets.without_headlines(run.record) for run in runs]
    titles = _titles(runs, [sheet.subject for sheet in shown])
    said = [_found(run) for run in runs]
    return Document(
        title=title or TITLE,
        question=question,
        made_of=(*(_made_of(run) for run in runs), *(f"{each.kind}: {each.name}" for each in artefacts), *absent),
        environment=environment.tables(runs),
        findings=tuple(finding for across in agreement.ACROSS for finding in across(runs)),
        pictures=(),
        sections=(
            *(
                _section(run, title, sheet, [each for each in found if not each.reservation], known, names)
                for run, title, sheet, found in zip(runs, titles, shown, said, strict=True)
            ),
            *(_of_artefact(each, names) for each in artefacts),
        ),
        cautions=(
            *gathered(runs),
            *(reserved(each) for found in said for each in found if each.reservation),
            *(
                GatheredCaution(each.text, each.remedy or "", (Basis(artefact.name, ()),))
                for artefact in artefacts
                for each in artefact.sheet.remarks
                if each.kind == "caution"
            ),
        ),
        method=tuple(method.terms(runs)),
    )


def narrowed(whole: Document, tables: Sequence[str] = (), *, summary: bool = False) -> Document:
    """The document with some tables of its sections alone, or with its sentences alone; raises UsageError."""
    known = dict.fromkeys(_plain_name(table) for section in whole.sections for table in section.tables)
    for name in tables:
        if name not in known:
            raise UsageError(f"--tables {unknown(name, 'a table of this report', known)}")
    if summary:
        sections = [replace(section, tables=(), pictures=()) for section in whole.sections]
        return replace(whole, sections=tuple(sections), pictures=(), method=())
    if not tables:
        return whole
    sections = [
        replace(section, tables=tuple(table for table in section.tables if _plain_name(table) in tables))
        for section in whole.sections
    ]
    return replace(whole, sections=tuple(sections))


def _plain_name(table: Table) -> str:
    """Without the number that tells it from others of its name."""
    return re.sub(r"-\d+$", "", table.name)


def numbered(titles: Sequence[str]) -> list[str]:
    """The titles, those that several share with a number behind them: `time 1`, `memory`, `time 2`."""
    seen: dict[str, int] = {}
    found = []
    for title in titles:
        seen[title] = seen.get(title, 0) + 1
        found.append(f"{title} {seen[title]}" if titles.count(title) > 1 else title)
    return found


class _Names:
    """Gives out names that are fit for files and anchors, each once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def take(self, *words: str) -> str:
        """A name that reads like these words."""
        plain = unicodedata.normalize("NFKD", " ".join(words)).encode("ascii", "ignore").decode()
        stem = "-".join(re.findall(r"[a-z0-9]+", plain.lower()))[:80].strip("-") or "part"
        name, number = stem, 2
        while name in self._taken:
            name, number = f"{stem}-{number}", number + 1
        self._taken.add(name)
        return name


def _section(
    run: ReportedRun[Any],
    title: str,
    sheet: Sheet,
    found: Sequence[Finding],
    known: Mapping[Identity, Machine],
    names: _Names,
) -> Section:
    return Section(
        anchor=names.take(run.name),
        title=title,
        question=run.question,
        run=run.name,
        machine=known[environment.identity(run)].name if len(known) > 1 else "",
        subject=(
            *(phrase for phrase in sheet.subject if phrase.casefold() != title.casefold()),
            *([run.note] if run.note else []),
        ),
        origin=run.origin,
        findings=tuple(found),
        tables=tuple(_told_apart(tables_of(run.record))),
        pictures=tuple(_named(each, run.name, names) for each in (*_drawn(run), *kept(run))),
        remarks=(*_notes(run), *(each for each in sheet.remarks if each.kind in ("outcome", "note"))),
    )


def _of_artefact(artefact: Artefact, names: _Names) -> Section:
    """A trace or a memory snapshot, as `--from` shows it."""
    sheet = artefact.sheet
    said = {kind: [each for each in sheet.remarks if each.kind == kind] for kind in ("finding", "outcome", "note")}
    origin: Origin = "simulated" if any("simulated" in phrase for phrase in sheet.subject) else "measured"
    return Section(
        anchor=names.take(artefact.kind, artefact.name),
        title=f"{artefact.kind.capitalize()} {artefact.name}",
        question="",
        run=artefact.name,
        machine="",
        subject=tuple(phrase for phrase in sheet.subject if phrase != artefact.name),
        origin=origin,
        findings=tuple(Finding(each.text, (Basis(artefact.name, ()),), origin) for each in said["finding"]),
        tables=tuple(_told_apart(sheet.tables)),
        pictures=(),
        remarks=(*said["outcome"], *said["note"]),
    )


def _titles(runs: Sequence[ReportedRun[Any]], subjects: Sequence[tuple[str, ...]]) -> list[str]:
    """What experiments call their runs; of others the command in words, with what sets it apart from its like."""
    said = []
    for run, subject in zip(runs, subjects, strict=True):
        others = [
            set(other)
            for each, other in zip(runs, subjects, strict=True)
            if each is not run and each.record.kind == run.record.kind
        ]
        apart = [phrase for phrase in subject if any(phrase not in other for other in others)]
        own = f": {', '.join(apart[:PHRASES])}" if apart else ""
        said.append(run.title or f"{how_reported(run.record.kind).title}{own}")
    return numbered(said)


def _notes(run: ReportedRun[Any]) -> Iterator[Remark]:
    if run.record.status != "complete":
        yield Remark("outcome", f"this run is not complete: {_ended(run)}")


def _named(picture: Picture, run: str, names: _Names) -> Picture:
    return replace(picture, name=names.take(run, picture.name))


def _told_apart(tables: Sequence[Table]) -> Iterator[Table]:
    """Tables of one name and of several cells get names of their own, for files and for data frames."""
    for table, name in zip(tables, numbered([table.name for table in tables]), strict=True):
        yield replace(table, name=name.replace(" ", "-"))


def _made_of(run: ReportedRun[Any]) -> str:
    """`time: 2026-11-20 14:30 UTC, complete, 12 cells (2 oom) — sysbench time --size small`."""
    record = run.record
    when = record.started_at[:16].replace("T", " ") + " UTC"
    return f"{run.name}: {when}, {_ended(run)} — {command_line(spec_of(record.spec))}"


def _ended(run: ReportedRun[Any]) -> str:
    cells = run.record.cells
    others: dict[str, int] = {}
    for cell in cells:
        if cell.outcome != "ok":
            others[cell.outcome] = others.get(cell.outcome, 0) + 1
    counted = f" ({', '.join(f'{count} {outcome}' for outcome, count in others.items())})" if others else ""
    return f"{run.record.status}, {len(cells)} cell{'' if len(cells) == 1 else 's'}{counted}"


def _found(run: ReportedRun[Any]) -> tuple[Finding, ...]:
    """Every sentence that the data of a run carry."""
    said = measuring(run.record.kind).part("findings")(run.record)
    return tuple(
        Finding(each.text, (run.basis(each.cells),), origin_of(each.cells), reservation=each.reservation)
        for each in said
    )


def _drawn(run: ReportedRun[Any]) -> Iterator[Picture]:
    """What is drawn of a run. Names are unique within it only: the report puts the run's own in front."""
    for each in measuring(run.record.kind).part("figures")(run.record):
        yield Picture(each.name, each.caption, each.draw, origin_of(each.cells))
