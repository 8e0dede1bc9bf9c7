"""Reports as Markdown (GitHub-flavoured) and as LaTeX documents, with figures as separate files, and as CSV.

The LaTeX documents require LaTeX 2020 or later, with the packages booktabs, graphicx and geometry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final
from urllib.parse import quote

from sysbench.commands.report.document import Document
from sysbench.commands.report.writing import WrittenFile, files_with_pictures, render_template, text_file
from sysbench.render import latex, markdown
from sysbench.render.csv import csv_text
from sysbench.render.numbers import format_columns
from sysbench.render.table import Cell, Column, Table, notes
from sysbench.render.terminal import fit

ROWS_PER_PAGE: Final = 40
"""Number of rows after which a table is continued with a new heading, which may be on the next page."""

PAGE_WIDTH_CHARACTERS: Final = 124
"""Number of characters that fit the width of a page in a readable font."""


def latex_files(document: Document, name: str) -> Iterator[WrittenFile]:
    return files_with_pictures(document, name, "pdf", latex_text)


def latex_text(document: Document, folder: str) -> str:
    return render_template(
        "report.tex",
        document,
        latex.escaped,
        table=lambda content, mark: "\n\n".join(_latex_table(content, mark)),
        path=lambda picture: f"{folder}/{picture.name}.pdf",
    )


def _latex_table(table: Table, mark: str) -> Iterator[str]:
    fitted = fit(table, PAGE_WIDTH_CHARACTERS)
    hidden = () if fitted.stacked else fitted.hidden
    columns = format_columns(table) if fitted.stacked else fitted.columns
    caption = f"{latex.escaped(table.title)}{mark}"
    hidden_note = [f"hidden columns: {', '.join(hidden)}"] if hidden else []
    note_text = "".join(
        f"; {latex.escaped(note)}" for note in [*notes(table if fitted.stacked else fitted.table), *hidden_note]
    )
    for start in range(0, len(table.rows), ROWS_PER_PAGE):
        rows = range(start, min(start + ROWS_PER_PAGE, len(table.rows)))
        heading = rf"\sysbenchcaption{{table}}{{{caption}{note_text}}}" if start == 0 else r"\emph{continued}\\[0.5em]"
        yield "\n".join(
            [
                r"\sysbenchtogether{%",
                heading,
                r"\sysbenchfit{%",
                *latex.tabular(columns, rows, separate_units=True),
                "}}",
            ]
        )


def markdown_files(document: Document, name: str) -> Iterator[WrittenFile]:
    return files_with_pictures(document, name, "png", markdown_text)


def markdown_text(document: Document, folder: str) -> str:
    return render_template(
        "report.md",
        document,
        markdown.escaped,
        paragraph=markdown.paragraph,
        table=lambda content, mark: "\n\n".join(markdown.table(content, mark)),
        path=lambda picture: quote(f"{folder}/{picture.name}.png"),
    )


def csv_file(document: Document, name: str) -> WrittenFile:
    """Return all rows of all tables of runs as CSV, with the columns of `--format csv`, and where they are from."""
    tables = []
    for section in document.sections:
        source = {"run": section.run, "machine": section.machine, "section": section.title, "origin": section.origin}
        columns: tuple[tuple[Column, Cell], ...] = tuple((Column(key, key), text) for key, text in source.items())
        tables += [replace(table, constants=(*columns, *table.constants)) for table in section.tables]
    return text_file(name, csv_text(*tables))
