"""Reports in the terminal: findings, tables and cautions."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench.commands.report.document import Document, ReportedFinding
from sysbench.commands.report.writing import (
    ORIGIN_MARKS,
    describe_bases,
    section_phrases,
    simulated_notice,
)
from sysbench.render.table import Remark, Sheet


def sheets(document: Document) -> Iterator[Sheet]:
    title_lines = tuple(text for text in (document.title, document.question, simulated_notice(document)) if text)
    main_findings = [_finding(finding) for finding in document.findings]
    main_findings += [_finding(finding, section.title) for section, finding in document.headlines]
    yield Sheet(title_lines, document.overview, tuple(main_findings))
    for section in document.sections:
        subject = (section.title, *([section.question] if section.question else ()), *section_phrases(section))
        yield Sheet(subject, (), tuple(_finding(finding) for finding in section.findings))
        yield Sheet((), section.tables, section.remarks)
    if document.missing_runs:
        yield Sheet(("Missing runs",), (), tuple(Remark("outcome", line) for line in document.missing_runs))
    if document.cautions:
        cautions = (
            Remark(
                "caution",
                f"{describe_bases(caution.bases)}: {caution.message}",
                caution.remedy or None,
            )
            for caution in document.cautions
        )
        yield Sheet(("Cautions",), (), tuple(cautions))
    if document.environment:
        yield Sheet(("Environment",), document.environment)


def _finding(finding: ReportedFinding, section_title: str = "") -> Remark:
    """Return a finding, prefixed with its origin unless its numbers were measured or its text states the origin."""
    mark = ORIGIN_MARKS[finding.origin]
    text = f"{mark.capitalize()}: {finding.text}" if mark and not finding.states_origin else finding.text
    return Remark(
        "finding", f"{section_title}{'' if section_title.endswith('?') else ':'} {text}" if section_title else text
    )
