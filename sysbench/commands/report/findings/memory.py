"""What memory measurements and simulations have shown."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench.commands.memory import findings as memory_findings
from sysbench.commands.memory.record import MemoryRecord
from sysbench.commands.report.document import Finding, ReportedRun, origin_of


def findings(run: ReportedRun[MemoryRecord]) -> Iterator[Finding]:
    """Every sentence that the run carries, measured and simulated cells apart."""
    for said in memory_findings.said(run.record.cells):
        yield Finding(said.text, (run.basis(said.cells),), origin_of(said.cells))
