"""What a report is written into: one file, and for some kinds a picture beside it for each of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sysbench.views.report.document import Document, Picture


@dataclass(frozen=True)
class WrittenFile:
    """One file of a report."""

    name: str
    """Its path from the directory that the report is in, with slashes."""
    content: bytes


def pictures_of(document: Document) -> Iterator[Picture]:
    """Every picture, in order."""
    yield from document.pictures
    for section in document.sections:
        yield from section.pictures
