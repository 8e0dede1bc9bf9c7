r"""A report as a LaTeX document, with its pictures as PDF files beside it.

It needs a LaTeX of 2020 or later with booktabs, graphicx and geometry.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sysbench.commands.report.document import Document
from sysbench.commands.report.wording import WrittenFile, files_with_pictures, rendered
from sysbench.render.latex import escaped, tabular
from sysbench.render.numbers import shown
from sysbench.render.table import Table, notes
from sysbench.render.terminal import fit

ROWS_A_PAGE: Final = 40
"""A longer table goes on below its own heading, on the next page if need be."""

CHARACTERS: Final = 124
"""That stand beside each other on a page in a font that can still be read."""


def files(document: Document, name: str) -> Iterator[WrittenFile]:
    """The pictures, and at last the report itself, which will be called `name`."""
    return files_with_pictures(document, name, "pdf", text)


def text(document: Document, folder: str) -> str:
    """The report, with pictures in `folder`."""
    return rendered(
        "report.tex",
        document,
        escaped,
        table=lambda content, mark: "\n\n".join(_table(content, mark)),
        path=lambda picture: f"{folder}/{picture.name}.pdf",
    )


def _table(table: Table, mark: str) -> Iterator[str]:
    """As many columns as a page has room for, the most important ones, in pieces that each fit a page."""
    found = fit(table, CHARACTERS)
    hidden = () if found.stacked else found.hidden
    columns = shown(table) if found.stacked else found.columns
    caption = f"{escaped(table.title)}{mark}"
    left_out = [f"no room for: {', '.join(hidden)}"] if hidden else []
    said = "".join(f"; {escaped(note)}" for note in [*notes(table if found.stacked else found.table), *left_out])
    for first in range(0, len(table.rows), ROWS_A_PAGE):
        rows = range(first, min(first + ROWS_A_PAGE, len(table.rows)))
        heading = rf"\sysbenchcaption{{table}}{{{caption}{said}}}" if first == 0 else r"\emph{continued}\\[0.5em]"
        yield "\n".join(
            [
                r"\sysbenchtogether{%",
                heading,
                r"\sysbenchfit{%",
                *tabular(columns, rows, units_apart=True),
                "}}",
            ]
        )
