"""What all formats of a report share: notices, templates and output files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from sysbench.commands.report.document import (
    Basis,
    Document,
    Origin,
    Picture,
    Section,
)
from sysbench.render import pages, theme
from sysbench.render import plots as picture_file

MAX_NAMED_CELLS: Final = 6
"""Largest number of cells to name; further cells are only counted."""

ORIGIN_MARKS: Final[Mapping[Origin, str]] = {
    "measured": "",
    "simulated": "simulated",
    "predicted": "predicted",
    "mixed": "partly simulated",
}


def simulated_notice(document: Document) -> str:
    """Return a notice that some results were not measured; empty if all were."""
    origins = {section.origin for section in document.sections} or {finding.origin for _, finding in document.headlines}
    if origins == {"simulated"}:
        return "Nothing in this report was measured: everything is simulated."
    if origins <= {"simulated", "predicted"} and origins:
        return "Nothing in this report was measured: memory is simulated, and times are predicted."
    if origins - {"measured"}:
        marked = "predicted or simulated" if "predicted" in origins else "simulated"
        return f"Results marked as {marked} were computed with a model of the GPU; all others were measured."
    return ""


def describe_bases(bases: Sequence[Basis], omitted_run: str = "") -> str:
    """Name the cells on which a sentence is based: `time 1: small ctx 128, medium ctx 128`."""
    texts = []
    for basis in bases:
        cells = ", ".join(basis.cells)
        if len(basis.cells) > MAX_NAMED_CELLS:
            named = basis.cells[: MAX_NAMED_CELLS - 1]
            cells = f"{', '.join(named)} and {len(basis.cells) - len(named)} more cells"
        texts.append(cells if basis.run == omitted_run else f"{basis.run}: {cells}" if cells else basis.run)
    return "; ".join(texts)


def section_phrases(section: Section) -> Iterator[str]:
    """Yield the properties that all numbers of a section share, and their origin unless they were measured."""
    yield from section.subject
    if section.machine:
        yield f"on {section.machine}"
    if ORIGIN_MARKS[section.origin]:
        yield ORIGIN_MARKS[section.origin].upper()


_TEMPLATE_SYNTAX: Final = {
    "variable_start_string": "<<",
    "variable_end_string": ">>",
    "block_start_string": "<%",
    "block_end_string": "%>",
    "comment_start_string": "<#",
    "comment_end_string": "#>",
}
"""Syntax of templates, without braces because LaTeX uses them."""
_CONSECUTIVE_EMPTY_LINES: Final = re.compile(r"\n{3,}")


@dataclass(frozen=True)
class WrittenFile:
    """One file of a report."""

    name: str
    """Path relative to the directory of the report, with slashes."""
    content: bytes


def text_file(name: str, text: str) -> WrittenFile:
    return WrittenFile(name, theme.encodable(theme.without_control_characters(text), "utf-8").encode())


def pictures_of(document: Document) -> Iterator[Picture]:
    yield from document.pictures
    for section in document.sections:
        yield from section.pictures


def files_with_pictures(
    document: Document, name: str, suffix: str, text: Callable[[Document, str], str]
) -> Iterator[WrittenFile]:
    """Yield every figure as a file with this suffix, then the report as a file called `name`."""
    folder = f"{PurePosixPath(name).stem}-files"
    report = text(document, folder)
    for picture in pictures_of(document):
        yield WrittenFile(f"{folder}/{picture.name}.{suffix}", picture_file.content(picture.draw, suffix))
    yield text_file(name, report)


def render_template(
    template: str,
    document: Document,
    escaped: Callable[[str], str],
    **markup: Callable[..., str],
) -> str:
    """Render a template in `assets/report_text`; `escaped` escapes every text but the results of `markup`."""
    from markupsafe import Markup

    def trusted(function: Callable[..., str]) -> Callable[..., Markup]:
        return lambda *arguments: Markup(function(*arguments))

    functions: dict[str, object] = {name: trusted(function) for name, function in markup.items()}
    text = (
        pages.environment(trusted(escaped), **_TEMPLATE_SYNTAX)
        .get_template(f"report_text/{template}")
        .render(
            document=document,
            notice=simulated_notice(document),
            marks=ORIGIN_MARKS,
            section_phrases=section_phrases,
            describe_bases=describe_bases,
            **functions,
        )
    )
    return _CONSECUTIVE_EMPTY_LINES.sub("\n\n", text).strip("\n") + "\n"
