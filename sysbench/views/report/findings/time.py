"""What a timing run has shown."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench.records import TimeRecord
from sysbench.views import time_words
from sysbench.views.report.document import Finding
from sysbench.views.report.reported import ReportedRun


def findings(run: ReportedRun[TimeRecord]) -> Iterator[Finding]:
    """Every sentence that the run carries."""
    for said in time_words.said(run.record.cells):
        yield Finding(said.text, (run.basis(said.cells),), reservation=said.reservation)
