"""Every reason to doubt a number, once for all runs and cells that it is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sysbench.commands.report.document import Basis, Finding, GatheredCaution, ReportedRun
from sysbench.log.outcomes import Caution
from sysbench.log.records import CellRecord

Doubt = tuple[ReportedRun[Any], CellRecord, Caution]


def gathered(runs: Sequence[ReportedRun[Any]]) -> tuple[GatheredCaution, ...]:
    """Cautions with the same remedy together, those that are about most cells first."""
    grouped: dict[tuple[str, str], list[Doubt]] = {}
    for run in runs:
        for cell in run.record.cells:
            for caution in cell.cautions:
                grouped.setdefault((caution.code, caution.remedy), []).append((run, cell, caution))
    return tuple(_one(doubts) for doubts in sorted(grouped.values(), key=lambda doubts: -len(doubts)))


def reserved(finding: Finding) -> GatheredCaution:
    """What cautions do to the findings: which cells are in none of them."""
    return GatheredCaution(finding.text, "", tuple(Basis(basis.run, ()) for basis in finding.rests_on))


def _one(doubts: Sequence[Doubt]) -> GatheredCaution:
    by_run: dict[str, tuple[ReportedRun[Any], list[CellRecord]]] = {}
    for run, cell, _ in doubts:
        by_run.setdefault(run.name, (run, []))[1].append(cell)
    run, cell, caution = doubts[0]
    message = caution.message
    if any(other.message != message for _, _, other in doubts):
        # Every cell has numbers of its own in its message; those of the first stand for the others.
        message = f"{message} ({run.label(cell)}; the others alike)"
    return GatheredCaution(message, caution.remedy, tuple(run.basis(cells) for run, cells in by_run.values()))
