"""What a timing run has shown."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench.commands.report.document import Finding, ReportedRun
from sysbench.commands.time import findings as time_findings
from sysbench.commands.time.record import TimeRecord


def findings(run: ReportedRun[TimeRecord]) -> Iterator[Finding]:
    """Every sentence that the run carries."""
    for said in time_findings.said(run.record.cells):
        yield Finding(said.text, (run.basis(said.cells),), reservation=said.reservation)
