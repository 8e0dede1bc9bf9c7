"""Command line of `sysbench report`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from sysbench.commands.report.spec import ReportSpec
from sysbench.errors import UsageError, unknown
from sysbench.interpreter import gc_paused
from sysbench.spec.command_options import Given, command_options, validated
from sysbench.stderr import print_line

if TYPE_CHECKING:
    from sysbench.commands.report.document import Document
    from sysbench.commands.report.writing import WrittenFile


@command_options(ReportSpec)
def report(given: Given) -> None:
    """Write up finished runs: findings, tables, pictures, cautions, environment and method.

    Takes logs (including those of killed runs), records, directories of both, traces and memory snapshots. Needs no
    torch.
    """
    spec = validated(ReportSpec, given)
    _refuse_unwritable(spec.output)
    document = _build_document(spec)
    if not spec.output:
        _show(document)
    for path in spec.output:
        for written in _write(path, _files(document, path.name)):
            if not spec.quiet:
                print_line(f"saved  {written}")


def _refuse_unwritable(paths: Iterable[Path]) -> None:
    from sysbench.log import storage

    for path in paths:
        storage.refuse_unwritable(path)
        folder = path.with_name(f"{path.stem}-files")
        if path.suffix.lower() in _FORMATS_WITH_PICTURE_FILES:
            # Unlike Path.exists, os.path.lexists accepts a name that is too long.
            storage.refuse_unwritable(folder / "picture" if os.path.lexists(folder) else folder)


def _build_document(spec: ReportSpec) -> Document:
    from sysbench.commands.report.assemble import assemble_document, first_page_of
    from sysbench.commands.report.sources import read_sources
    from sysbench.render.dashboard.progress import show_status
    from sysbench.spec.run import RUNS

    if not spec.source and not RUNS.is_dir():
        raise UsageError(f"no directory {RUNS} here: name logs, records or directories that contain them")
    source_names = spec.source or (str(RUNS),)
    with show_status(f"looking for runs in {', '.join(source_names)}", silent=spec.quiet):
        sources = read_sources(source_names)
    kinds = [run.record.kind for run in sources.runs] + [artefact.kind for artefact in sources.artefacts]
    names = [run.name for run in sources.runs] + [artefact.name for artefact in sources.artefacts]
    for name in spec.only:
        if name not in (*names, *kinds):
            raise UsageError(f"--only {unknown(name, 'a run of this report', dict.fromkeys((*kinds, *names)))}")
    with gc_paused():
        document = assemble_document(
            [run for run in sources.runs if not spec.only or {run.name, run.record.kind} & set(spec.only)],
            [
                artefact
                for artefact in sources.artefacts
                if not spec.only or {artefact.name, artefact.kind} & set(spec.only)
            ],
            title=spec.title or sources.title,
            question=sources.question,
            missing_runs=() if spec.only else sources.missing_runs,
        )
    return first_page_of(document) if spec.summary else document


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
    """Write each file atomically, the report itself last, and yield the report's path."""
    from sysbench.log import storage

    for file in files:
        target = path.parent / file.name
        if target.parent != path.parent:
            storage.make_directory(target.parent)
        storage.write_atomically(target, file.content)
        if target == path:
            yield path


def _files(document: Document, name: str) -> Iterable[WrittenFile]:
    from sysbench.commands.report import page, text_formats
    from sysbench.commands.report.writing import WrittenFile

    match Path(name).suffix.lower():
        case ".md":
            return text_formats.markdown_files(document, name)
        case ".tex":
            return text_formats.latex_files(document, name)
        case ".csv":
            return [text_formats.csv_file(document, name)]
        case _:
            return [WrittenFile(name, page.render(document).encode())]


_FORMATS_WITH_PICTURE_FILES = (".md", ".tex")
