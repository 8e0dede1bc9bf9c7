"""What experiments on rounding have shown, each in a sentence or two."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench.commands.accum.findings import finding
from sysbench.commands.accum.record import AccumRecord
from sysbench.commands.report.document import Finding, ReportedRun


def findings(run: ReportedRun[AccumRecord]) -> Iterator[Finding]:
    """One for each experiment that shows something."""
    for cell in run.record.cells:
        said = finding(cell) if cell.outcome == "ok" else None
        if said:
            yield Finding(said, (run.basis([cell]),))
