"""What an attention sweep has shown."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench.analysis.attention_series import settings
from sysbench.records import AttentionRecord
from sysbench.views import attention_words
from sysbench.views.report.document import Finding
from sysbench.views.report.reported import ReportedRun, origin_of


def findings(run: ReportedRun[AttentionRecord]) -> Iterator[Finding]:
    """Every sentence that the sweep carries, setting by setting."""
    groups = settings(run.record.cells)
    for cells in groups:
        for said in attention_words.sentences(cells, groups):
            yield Finding(said.text, (run.basis(said.cells),), origin_of(said.cells))
