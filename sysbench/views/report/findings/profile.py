"""What profiles have shown."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench.records import ProfileRecord
from sysbench.views import profile_words
from sysbench.views.report.document import Finding
from sysbench.views.report.reported import ReportedRun


def findings(run: ReportedRun[ProfileRecord]) -> Iterator[Finding]:
    """Every sentence that the run carries."""
    for said in profile_words.said(run.record.cells):
        yield Finding(said.text, (run.basis(said.cells),), reservation=said.reservation)
