"""Reports in the terminal: findings, tables and cautions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from sysbench.commands.report.document import Document, Finding
from sysbench.commands.report.wording import MARKS, headlines, phrases, rests_on, simulated_notice
from sysbench.render.table import Remark, Sheet


def sheets(document: Document) -> Iterator[Sheet]:
    """Yield the parts of a report in order: main findings, a section for each run, cautions, environment."""
    head = tuple(text for text in (document.title, document.question, simulated_notice(document)) if text)
    first = [_finding(each) for each in document.findings]
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


_STATED: Final = re.compile(r"[^:]*\b(predicted|simulated)\b[^:]*:", re.IGNORECASE)
"""Matches a finding that begins with the origin of its numbers."""


def _finding(finding: Finding, of: str = "") -> Remark:
    """Return a finding, prefixed with its origin unless its numbers were measured or its text states the origin.

    For example: `Simulated: 2.7b: the peak …`.
    """
    mark = MARKS[finding.origin]
    stated = _STATED.match(finding.text) is not None
    text = f"{mark.capitalize()}: {finding.text}" if mark and not stated else finding.text
    return Remark("finding", f"{of}{'' if of.endswith('?') else ':'} {text}" if of else text)
