"""Reports in the terminal: findings, tables and cautions."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench.commands.report.document import Document, Finding
from sysbench.commands.report.wording import MARKS, headlines, phrases, rests_on, simulated_notice
from sysbench.render.table import Remark, Sheet


def sheets(document: Document) -> Iterator[Sheet]:
    """Yield the parts of a report in order: main findings, a section for each run, cautions, environment."""
    head = tuple(text for text in (document.title, document.question, simulated_notice(document)) if text)
    first = [_finding(each) for each in document.findings]
    if len(document.sections) > 1:
        # The first screen lists the main findings; a single run begins with them anyway.
        first += [_finding(finding, section.title) for section, (finding, *_) in headlines(document.sections)]
    yield Sheet(head, (), tuple(first))
    for section in document.sections:
        subject = (section.title, *([section.question] if section.question else ()), *phrases(section))
        yield Sheet(subject, (), tuple(_finding(each) for each in section.findings))
        yield Sheet((), section.tables, section.remarks)
    if document.cautions:
        said = (
            Remark("caution", f"{rests_on(caution.about)}: {caution.message}", caution.remedy or None)
            for caution in document.cautions
        )
        yield Sheet(("Cautions",), (), tuple(said))
    if document.environment:
        yield Sheet(("Environment",), document.environment)


def _finding(finding: Finding, of: str = "") -> Remark:
    """Return a finding after `of`, with its origin unless measured: `2.7b: the peak is 3.0 GiB (simulated).`"""
    mark = MARKS[finding.origin]
    text = f"{finding.text.removesuffix('.')} ({mark})." if mark else finding.text
    return Remark("finding", f"{of}: {text}" if of else text)
