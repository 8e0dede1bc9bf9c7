"""What an attention sweep has shown."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench.commands.attention import words as attention_words
from sysbench.commands.attention.record import AttentionRecord
from sysbench.commands.attention.series import settings
from sysbench.commands.report.document import Finding, ReportedRun, origin_of


def findings(run: ReportedRun[AttentionRecord]) -> Iterator[Finding]:
    """Every sentence that the sweep carries, setting by setting."""
    groups = settings(run.record.cells)
    for cells in groups:
        for said in attention_words.sentences(cells, groups):
            yield Finding(said.text, (run.basis(said.cells),), origin_of(said.cells))
