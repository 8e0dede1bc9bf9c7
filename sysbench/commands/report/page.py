"""A report as one HTML page that needs nothing else: it can be handed in, sent round, printed, and read on a phone.

All of it stands in the markup and is there without JavaScript, which only adds sorting, copying and looking closer.
Whatever comes from records (names, messages, paths) is escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sysbench import __version__
from sysbench.commands.report import page_tables
from sysbench.commands.report.document import Document, Section, Term
from sysbench.commands.report.page_parts import MARKS, Anchors, cautions, concerning, findings, first_findings, remarks
from sysbench.commands.report.page_pictures import Looks, figure
from sysbench.commands.report.wording import simulated_notice
from sysbench.render import pages
from sysbench.render.pages import LONGEST_TEXT, escaped, line

FOLDER: Final = "report_page"
MACHINES_NAMED: Final = 3
_STYLES: Final = ("page.css", "contents.css", "findings.css", "tables.css", "pictures.css", "print.css")
_SCRIPTS: Final = (
    "theme.js",
    "contents.js",
    "sorting.js",
    "holding.js",
    "copying.js",
    "view.js",
    "enlarging.js",
    "printing.js",
    "page.js",
)
"""In the order in which they stand on the page."""


def render(document: Document) -> str:
    """The page as text."""
    looks = Looks()
    body = "\n".join(_body(document, Anchors.of(document), looks))
    styles = [*(pages.asset(FOLDER, name) for name in _STYLES), page_tables.tail_styles(body), looks.styles()]
    parts = {
        "title": line(document.title),
        "light": pages.asset(FOLDER, "light.css"),
        "dark": pages.asset(FOLDER, "dark.css"),
        "style": "\n".join(styles),
        "question": f'<p class="question">{line(document.question)}</p>' if document.question else "",
        "made_of": "".join(_made_of(document)),
        "contents": "\n".join(_contents(document)),
        "body": body,
        "version": escaped(__version__),
    }
    return pages.filled(FOLDER, parts, _SCRIPTS)


# --- what there is, in order


def _made_of(document: Document) -> Iterator[str]:
    runs = len(document.made_of)
    machines = _listed([row[0] for table in document.environment[:1] for row in table.rows])
    on = f" on {line(machines)}" if machines else ""
    yield f'<details class="made-of"><summary>Made of {runs} run{"" if runs == 1 else "s"}{on}</summary><ul>'
    yield from (f"<li>{line(each, LONGEST_TEXT)}</li>" for each in document.made_of)
    yield "</ul></details>"


def _contents(document: Document) -> Iterator[str]:
    if _found(document):
        yield '<li><a href="#_findings">What was found</a></li>'
    for section in document.sections:
        mark = ' <span class="mark" title="simulated">S</span>' if section.origin != "measured" else ""
        yield f'<li><a href="#{escaped(section.anchor)}">{line(section.title)}</a>{mark}</li>'
    if document.cautions:
        yield f'<li><a href="#_cautions">Cautions</a> <span class="count">{len(document.cautions)}</span></li>'
    if document.environment:
        yield '<li><a href="#_environment">Environment</a></li>'
    if document.method:
        yield '<li><a href="#_method">Method</a></li>'


def _listed(names: Sequence[object]) -> str:
    """`this`, `this and that`, `this, that and 3 more`."""
    texts = [str(name) for name in names]
    if len(texts) > MACHINES_NAMED:
        texts = [*texts[: MACHINES_NAMED - 1], f"{len(texts) - MACHINES_NAMED + 1} more"]
    return " and ".join(filter(None, [", ".join(texts[:-1]), *texts[-1:]]))


def _found(document: Document) -> bool:
    return bool(document.findings or document.pictures or any(section.findings for section in document.sections))


def _body(document: Document, anchors: Anchors, looks: Looks) -> Iterator[str]:
    yield from _simulated_notice(document)
    if _found(document):
        yield from _part("_findings", "What was found", _summary(document, anchors, looks))
    for section in document.sections:
        yield from _section(section, document, anchors, looks)
    if document.cautions:
        yield from _part("_cautions", "Cautions", cautions(document.cautions, anchors))
    if document.environment:
        tables = (page_tables.table(each, f"_environment_{n}") for n, each in enumerate(document.environment, 1))
        yield from _part("_environment", "Environment", tables)
    if document.method:
        yield from _part("_method", "Method", _terms(document.method))


def _part(anchor: str, title: str, content: Iterator[str]) -> Iterator[str]:
    yield f'<section id="{anchor}" aria-labelledby="{anchor}_title">'
    yield f'<h2 id="{anchor}_title">{escaped(title)}</h2>'
    yield from content
    yield "</section>"


def _simulated_notice(document: Document) -> Iterator[str]:
    notice = simulated_notice(document)
    if notice:
        yield f'<p class="banner">{escaped(notice)}</p>'


def _summary(document: Document, anchors: Anchors, looks: Looks) -> Iterator[str]:
    """What several runs show together, then what each shows first."""
    yield from findings(document.findings, anchors)
    yield from first_findings(document.sections)
    for picture in document.pictures:
        yield figure(picture, anchors.number(picture), looks, MARKS[picture.origin])


def _section(section: Section, document: Document, anchors: Anchors, looks: Looks) -> Iterator[str]:
    anchor = escaped(section.anchor)
    yield f'<section id="{anchor}" class="{section.origin}" aria-labelledby="{anchor}_title">'
    yield f'<h2 id="{anchor}_title">{line(section.title)}{MARKS[section.origin]}</h2>'
    if section.question:
        yield f'<p class="about">{line(section.question)}</p>'
    phrases = [*section.subject, *([section.machine] if section.machine else [])]
    yield f'<p class="subject">{" · ".join(line(phrase) for phrase in phrases)}</p>'
    yield from concerning(section, document.cautions)
    yield from findings(section.findings, anchors)
    for picture in section.pictures:
        yield figure(picture, anchors.number(picture), looks, MARKS[picture.origin])
    for number, table in enumerate(section.tables, 1):
        yield page_tables.table(table, f"{anchor}_{number}", MARKS[section.origin])
    yield from remarks(section.remarks)
    yield "</section>"


def _terms(terms: tuple[Term, ...]) -> Iterator[str]:
    yield '<dl class="terms">'
    for term in terms:
        yield f"<div><dt>{line(term.word)}</dt><dd>{line(term.meaning, LONGEST_TEXT)}</dd></div>"
    yield "</dl>"
