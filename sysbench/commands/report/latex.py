r"""A report as a LaTeX document, with its pictures as PDF files beside it.

It needs a LaTeX of 2020 or later with booktabs, graphicx and geometry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final

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
from sysbench.render.latex import escaped, tabular
from sysbench.render.numbers import shown
from sysbench.render.table import Remark, Table, notes
from sysbench.render.terminal import fit

ROWS_A_PAGE: Final = 40
"""A longer table goes on below its own heading, on the next page if need be."""

CHARACTERS: Final = 124
"""That stand beside each other on a page in a font that can still be read."""

SUFFIX: Final = ".pdf"

_SIZE: Final = r"width=\linewidth,height=0.8\textheight,keepaspectratio"

_PREAMBLE: Final = r"""\documentclass[11pt,a4paper]{article}
\usepackage{iftex}
\ifPDFTeX
  \usepackage[T1]{fontenc}
  \usepackage[utf8]{inputenc}
  \IfFileExists{lmodern.sty}{\usepackage{lmodern}}{}
\else
  \usepackage{fontspec}
\fi
\usepackage[margin=2.2cm]{geometry}
\usepackage{booktabs}
\usepackage{graphicx}
\setlength{\parindent}{0pt}
\setlength{\parskip}{0.5em plus 0.2em}
\setlength{\emergencystretch}{3em}
% A table as wide as the page at most.
\newsavebox{\sysbenchbox}
\newcommand{\sysbenchfit}[1]{\sbox{\sysbenchbox}{\footnotesize #1}%
  \ifdim\wd\sysbenchbox>\linewidth\resizebox{\linewidth}{!}{\usebox{\sysbenchbox}}\else\usebox{\sysbenchbox}\fi}
% Tables and pictures stand where they are spoken of, are numbered, and are not parted from their captions.
\newcommand{\sysbenchtogether}[1]{\par\medskip\noindent
  \begin{minipage}{\linewidth}\centering #1\end{minipage}\par\medskip}
\makeatletter
\newcommand{\sysbenchcaption}[2]{\def\@captype{#1}\caption{#2}}
\makeatother"""


def files(document: Document, name: str) -> Iterator[WrittenFile]:
    """The pictures, and at last the report itself, which will be called `name`."""
    folder = f"{PurePosixPath(name).stem}-files"
    report = text(document, folder)
    for picture in pictures_of(document):
        yield WrittenFile(f"{folder}/{picture.name}{SUFFIX}", picture_file.content(picture.draw, "pdf"))
    yield text_file(name, report)


def text(document: Document, folder: str) -> str:
    """The report, with pictures in `folder`."""
    return "\n\n".join(block for block in _blocks(document, folder) if block) + "\n"


def _blocks(document: Document, folder: str) -> Iterator[str]:
    yield _PREAMBLE
    yield rf"\title{{{escaped(document.title)}}}" + "\n" + r"\author{}" + "\n" + r"\date{}"
    yield r"\begin{document}" + "\n" + r"\maketitle"
    yield escaped(document.question)
    notice = simulated_notice(document)
    yield rf"\fbox{{\parbox{{0.97\linewidth}}{{{escaped(notice)}}}}}" if notice else ""
    yield from _summary(document, folder)
    for section in document.sections:
        yield from _section(section, folder)
    if document.cautions:
        yield r"\section*{Cautions}"
        yield _listed([_caution(each) for each in document.cautions])
    if document.environment:
        yield r"\section*{Environment}"
        yield from _tables(document.environment)
    if document.method:
        yield r"\section*{Method}"
        terms = (rf"\item[{{{escaped(term.word)}}}] {escaped(term.meaning)}" for term in document.method)
        yield "\n".join([r"\begin{description}", *terms, r"\end{description}"])
    yield r"\section*{Runs}"
    yield _listed([escaped(line) for line in document.made_of])
    yield r"\end{document}"


def _summary(document: Document, folder: str) -> Iterator[str]:
    first = headlines(document.sections)
    if not (document.findings or first or document.pictures):
        return
    yield r"\section*{What was found}"
    yield _listed(
        [
            *(_finding(each) for each in document.findings),
            *(_headline(each, section) for section, found in first for each in found),
        ]
    )
    yield from _pictures(document.pictures, folder)


def _headline(finding: Finding, section: Section) -> str:
    return rf"{escaped(finding.text)}{_marked(finding.origin)} \emph{{{escaped(section.title)}}}"


def _section(section: Section, folder: str) -> Iterator[str]:
    yield rf"\section{{{escaped(section.title)}}}"
    yield rf"\emph{{{escaped(section.question)}}}" if section.question else ""
    yield r" $\cdot$ ".join(escaped(phrase) for phrase in phrases(section))
    yield _listed([_finding(each, section.run) for each in section.findings])
    yield from _pictures(section.pictures, folder)
    yield from _tables(section.tables, section.origin)
    yield _listed([_remark(each) for each in section.remarks])


def _tables(tables: Sequence[Table], origin: Origin = "measured") -> Iterator[str]:
    for table in tables:
        yield from _table(table, origin)


def _table(table: Table, origin: Origin) -> Iterator[str]:
    """As many columns as a page has room for, the most important ones, in pieces that each fit a page."""
    found = fit(table, CHARACTERS)
    hidden = () if found.stacked else found.hidden
    columns = shown(table) if found.stacked else found.columns
    caption = f"{escaped(table.title)}{_marked(origin)}"
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


def _pictures(pictures: Sequence[Picture], folder: str) -> Iterator[str]:
    for picture in pictures:
        yield "\n".join(
            [
                r"\sysbenchtogether{%",
                rf"\includegraphics[{_SIZE}]{{{_path(folder, picture)}}}",
                rf"\sysbenchcaption{{figure}}{{{escaped(picture.caption)}{_marked(picture.origin)}}}}}",
            ]
        )


def _path(folder: str, picture: Picture) -> str:
    r"""A file's name as `\includegraphics` takes it: quoted and detokenized, so that nothing in it is a command."""
    return rf"\detokenize{{{folder}/{picture.name}{SUFFIX}}}"


def _finding(finding: Finding, run: str = "") -> str:
    basis = rf"\\{{\footnotesize {escaped(rests_on(finding.rests_on, run))}}}" if finding.rests_on else ""
    return f"{escaped(finding.text)}{_marked(finding.origin)}{basis}"


def _caution(caution: GatheredCaution) -> str:
    remedy = rf" $\rightarrow$ {escaped(caution.remedy)}" if caution.remedy else ""
    return rf"{escaped(caution.message)}{remedy}\\{{\footnotesize {escaped(rests_on(caution.about))}}}"


def _remark(remark: Remark) -> str:
    return escaped(remark.text) + (rf" $\rightarrow$ {escaped(remark.remedy)}" if remark.remedy else "")


def _listed(items: Sequence[str]) -> str:
    # Empty braces keep an item that begins with a bracket from becoming its label.
    return "\n".join([r"\begin{itemize}", *(rf"\item{{}} {item}" for item in items), r"\end{itemize}"]) if items else ""


def _marked(origin: Origin) -> str:
    return rf" \textbf{{{MARKS[origin].upper()}}}" if MARKS[origin] else ""
