"""What a report is written into: one file, and for some kinds a picture beside it for each of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sysbench.views import theme
from sysbench.views.report.document import Document, Picture


@dataclass(frozen=True)
class WrittenFile:
    """One file of a report."""

    name: str
    """Its path from the directory that the report is in, with slashes."""
    content: bytes


def text_file(name: str, text: str) -> WrittenFile:
    """A file of text, in which nothing commands a terminal and every character can be written."""
    return WrittenFile(name, theme.encodable(theme.harmless(text), "utf-8").encode())


def pictures_of(document: Document) -> Iterator[Picture]:
    """Every picture, in order."""
    yield from document.pictures
    for section in document.sections:
        yield from section.pictures
