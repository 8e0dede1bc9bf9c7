"""A report in the terminal: findings, tables and cautions."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench.commands.report.document import Document, Finding, Origin, Section
from sysbench.commands.report.wording import MARKS, headlines, phrases, rests_on, simulated_notice
from sysbench.render.table import Remark, Sheet


def sheets(document: Document) -> Iterator[Sheet]:
    """What stands one under the other: the whole, each run, then cautions and environment."""
    head = tuple(text for text in (document.title, document.question, simulated_notice(document)) if text)
    first = [_finding(each) for each in document.findings]
    if len(document.sections) > 1:
        # What was found stands on the first screen; a single run begins with it anyway.
        first += [
            Remark("finding", f"{section.title}: {finding.text}")
            for section, (finding, *_) in headlines(document.sections)
        ]
    yield Sheet(head, (), tuple(first))
    for section in document.sections:
        yield from _section(section)
    if document.cautions:
        said = (
            Remark("caution", f"{rests_on(caution.about)}: {caution.message}", caution.remedy or None)
            for caution in document.cautions
        )
        yield Sheet(("Cautions",), (), tuple(said))
    if document.environment:
        yield Sheet(("Environment",), document.environment)


def _section(section: Section) -> Iterator[Sheet]:
    """What was found stands before the tables that it is read from."""
    subject = (section.title, *([section.question] if section.question else ()), *phrases(section))
    yield Sheet(subject, (), tuple(_finding(each) for each in section.findings))
    yield Sheet((), section.tables, section.remarks)


def _finding(finding: Finding) -> Remark:
    return Remark("finding", finding.text + _marked(finding.origin))


def _marked(origin: Origin) -> str:
    return f" ({MARKS[origin]})" if MARKS[origin] else ""
