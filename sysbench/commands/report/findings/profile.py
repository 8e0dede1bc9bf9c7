"""What profiles have shown."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench.commands.profile import findings as profile_findings
from sysbench.commands.profile.record import ProfileRecord
from sysbench.commands.report.document import Finding, ReportedRun


def findings(run: ReportedRun[ProfileRecord]) -> Iterator[Finding]:
    """Every sentence that the run carries."""
    for said in profile_findings.findings(run.record.cells):
        yield Finding(said.text, (run.basis(said.cells),), reservation=said.reservation)
