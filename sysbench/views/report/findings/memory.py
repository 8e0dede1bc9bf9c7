"""What memory measurements and simulations have shown."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench.records import MemoryRecord
from sysbench.views import memory_words
from sysbench.views.report.document import Finding
from sysbench.views.report.reported import ReportedRun, origin_of


def findings(run: ReportedRun[MemoryRecord]) -> Iterator[Finding]:
    """Every sentence that the run carries, measured and simulated cells apart."""
    for said in memory_words.said(run.record.cells):
        yield Finding(said.text, (run.basis(said.cells),), origin_of(said.cells))
