"""`sysbench report`: finished runs → document → files, or the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from sysbench.commands.report.spec import ReportSpec
from sysbench.errors import UsageError
from sysbench.spec.command_options import Given, command_options, validated
from sysbench.stderr import say

if TYPE_CHECKING:
    from sysbench.commands.report.document import Document
    from sysbench.commands.report.wording import WrittenFile


@command_options(ReportSpec)
def report(given: Given) -> None:
    """Write finished runs up: findings, tables, pictures, cautions, environment and method.

    Takes logs, also of runs that were killed, records, directories of both, traces and memory snapshots.
    Needs no torch.
    """
    spec = validated(ReportSpec, given)
    _refuse_unwritable(spec.output)
    document = _document(spec)
    if not spec.output:
        _show(document)
    for path in spec.output:
        for written in _write(path, _WRITERS[path.suffix.lower()](document, path.name)):
            if not spec.quiet:
                say(f"saved  {written}")


def _refuse_unwritable(paths: Iterable[Path]) -> None:
    """Raise OutputError before anything is read or drawn for a report that has no place to be."""
    from sysbench.log import storage

    for path in paths:
        storage.refuse_unwritable(path)
        folder = path.with_name(f"{path.stem}-files")
        if path.suffix.lower() in _WITH_PICTURES and folder.exists() and not folder.is_dir():
            storage.refuse_unwritable(folder / "picture")


def _document(spec: ReportSpec) -> Document:
    from sysbench.commands.report.assemble import document
    from sysbench.commands.report.sources import sources
    from sysbench.log.runs import RUNS
    from sysbench.render.dashboard.progress import waiting

    if not spec.source and not RUNS.is_dir():
        raise UsageError(f"there is no directory {RUNS} here: name logs, records or directories of them")
    names = spec.source or (str(RUNS),)
    with waiting(f"looking for runs in {', '.join(names)}", silent=spec.quiet):
        found = sources(names)
    return document(
        found.runs,
        found.artefacts,
        title=spec.title or found.title,
        question=found.question,
        absent=found.absent,
    )


def _show(document: Document) -> None:
    from sysbench.commands.report.screen import sheets
    from sysbench.render.output import results
    from sysbench.render.terminal import SheetView

    with results() as console:
        for number, sheet in enumerate(sheets(document)):
            if number and sheet.subject:
                console.print()
            console.print(SheetView(sheet))


def _write(path: Path, files: Iterable[WrittenFile]) -> Iterable[Path]:
    """Write each file whole or not at all, the report itself last; yields the report's own path."""
    from sysbench.log import storage

    for file in files:
        target = path.parent / file.name
        if target.parent != path.parent:
            storage.make_directory(target.parent)
        storage.write_atomically(target, file.content)
        if target == path:
            yield path


def _html(document: Document, name: str) -> Iterable[WrittenFile]:
    from sysbench.commands.report import page
    from sysbench.commands.report.wording import WrittenFile

    return [WrittenFile(name, page.render(document).encode())]


def _markdown(document: Document, name: str) -> Iterable[WrittenFile]:
    from sysbench.commands.report import markdown

    return markdown.files(document, name)


def _latex(document: Document, name: str) -> Iterable[WrittenFile]:
    from sysbench.commands.report import latex

    return latex.files(document, name)


def _csv(document: Document, name: str) -> Iterable[WrittenFile]:
    from sysbench.commands.report import long_table

    return long_table.files(document, name)


_WITH_PICTURES = (".md", ".tex")
_WRITERS: dict[str, Callable[[Document, str], Iterable[WrittenFile]]] = {
    ".html": _html,
    ".md": _markdown,
    ".tex": _latex,
    ".csv": _csv,
}
