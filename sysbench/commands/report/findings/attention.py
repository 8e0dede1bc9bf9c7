"""What an attention sweep shows."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench.commands.attention import findings as sweep
from sysbench.commands.attention.record import AttentionRecord
from sysbench.commands.report.document import Finding, ReportedRun, origin_of


def findings(run: ReportedRun[AttentionRecord]) -> Iterator[Finding]:
    """Every sentence that the sweep carries, setting by setting."""
    for found in sweep.findings(run.record):
        yield Finding(found.text, (run.basis(found.cells),), origin_of(found.cells))
