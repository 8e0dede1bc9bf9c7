"""A report as GitHub-flavoured Markdown, with its pictures as PNG files beside it."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from sysbench.commands.report.document import Document
from sysbench.commands.report.wording import WrittenFile, files_with_pictures, rendered
from sysbench.render.markdown import escaped, paragraph, table


def files(document: Document, name: str) -> Iterator[WrittenFile]:
    """The pictures, and at last the report itself, which will be called `name`."""
    return files_with_pictures(document, name, "png", text)


def text(document: Document, folder: str) -> str:
    """The report, with pictures in `folder`."""
    return rendered(
        "report.md",
        document,
        escaped,
        paragraph=paragraph,
        table=lambda content, mark: "\n\n".join(table(content, mark)),
        path=lambda picture: quote(f"{folder}/{picture.name}.png"),
    )
