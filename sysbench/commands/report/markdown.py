"""Reports as GitHub-flavoured Markdown, with figures as separate PNG files."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

from sysbench.commands.report.document import Document
from sysbench.commands.report.wording import WrittenFile, files_with_pictures, render_template
from sysbench.render.markdown import escaped, paragraph, table


def files(document: Document, name: str) -> Iterator[WrittenFile]:
    """Yield the figures as PNG files, then the report as a file called `name`."""
    return files_with_pictures(document, name, "png", text)


def text(document: Document, folder: str) -> str:
    """Return the report as Markdown; its figures are files in `folder`."""
    return render_template(
        "report.md",
        document,
        escaped,
        paragraph=paragraph,
        table=lambda content, mark: "\n\n".join(table(content, mark)),
        path=lambda picture: quote(f"{folder}/{picture.name}.png"),
    )
