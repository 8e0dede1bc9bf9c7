"""A report as GitHub-flavoured Markdown, with its pictures as PNG files beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final
from urllib.parse import quote

from sysbench.commands.report.document import Document, Finding, GatheredCaution, Origin, Picture, Section
from sysbench.commands.report.wording import (
    MARKS,
    WrittenFile,
    headlines,
    phrases,
    pictures_of,
    rests_on,
    simulated_notice,
    text_file,
)
from sysbench.render import plots as picture_file
from sysbench.render.markdown import escaped, paragraph, remarks
from sysbench.render.markdown import table as table_blocks
from sysbench.render.table import Table

SUFFIX: Final = ".png"


def files(document: Document, name: str) -> Iterator[WrittenFile]:
    """The pictures, and at last the report itself, which will be called `name`."""
    folder = f"{PurePosixPath(name).stem}-files"
    report = text(document, folder)
    for picture in pictures_of(document):
        yield WrittenFile(f"{folder}/{picture.name}{SUFFIX}", picture_file.content(picture.draw, "png"))
    yield text_file(name, report)


def text(document: Document, folder: str) -> str:
    """The report, with pictures in `folder`."""
    return "\n\n".join(block for block in _blocks(document, folder) if block) + "\n"


def _blocks(document: Document, folder: str) -> Iterator[str]:
    yield f"# {escaped(document.title)}"
    yield paragraph(document.question)
    notice = simulated_notice(document)
    yield f"> {paragraph(notice)}" if notice else ""
    yield from _summary(document, folder)
    for section in document.sections:
        yield from _section(section, folder)
    if document.cautions:
        yield "## Cautions"
        yield "\n".join(_caution(each) for each in document.cautions)
    if document.environment:
        yield "## Environment"
        yield from _tables(document.environment)
    if document.method:
        yield "## Method"
        yield "\n".join(f"- **{escaped(term.word)}**: {escaped(term.meaning)}" for term in document.method)
    yield "## Runs"
    yield "\n".join(f"- {paragraph(line)}" for line in document.made_of)


def _summary(document: Document, folder: str) -> Iterator[str]:
    first = headlines(document.sections)
    if not (document.findings or first or document.pictures):
        return
    yield "## What was found"
    yield "\n".join(
        [
            *(_finding(each) for each in document.findings),
            *(_headline(each, section) for section, found in first for each in found),
        ]
    )
    yield from _pictures(document.pictures, folder)


def _headline(finding: Finding, section: Section) -> str:
    return f"- {paragraph(finding.text)}{_marked(finding.origin)} *{escaped(section.title)}*"


def _section(section: Section, folder: str) -> Iterator[str]:
    yield f"## {escaped(section.title)}"
    yield paragraph(section.question)
    yield " · ".join(escaped(phrase) for phrase in phrases(section))
    yield "\n".join(_finding(each, section.run) for each in section.findings)
    yield from _pictures(section.pictures, folder)
    yield from _tables(section.tables, section.origin)
    yield remarks(section.remarks)


def _tables(tables: Sequence[Table], origin: Origin = "measured") -> Iterator[str]:
    for table in tables:
        yield from table_blocks(table, _marked(origin))


def _pictures(pictures: Sequence[Picture], folder: str) -> Iterator[str]:
    for picture in pictures:
        alternative = escaped(picture.caption)
        yield f"![{alternative}]({quote(f'{folder}/{picture.name}{SUFFIX}')})"
        yield f"*{alternative}*{_marked(picture.origin)}"


def _finding(finding: Finding, run: str = "") -> str:
    basis = f"  \n  <sub>{escaped(rests_on(finding.rests_on, run))}</sub>" if finding.rests_on else ""
    return f"- {paragraph(finding.text)}{_marked(finding.origin)}{basis}"


def _caution(caution: GatheredCaution) -> str:
    remedy = f" → {escaped(caution.remedy)}" if caution.remedy else ""
    return f"- ⚠ {escaped(caution.message)}{remedy}  \n  <sub>{escaped(rests_on(caution.about))}</sub>"


def _marked(origin: Origin) -> str:
    return f" **{MARKS[origin].upper()}**" if MARKS[origin] else ""
