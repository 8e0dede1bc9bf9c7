"""Sentences computed from the data: by the command that a run is of, and across runs.

A finder yields nothing where the data do not carry a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sysbench.command import Kind
from sysbench.commands.report.document import Finding, ReportedRun
from sysbench.commands.report.findings import accum, agreement, attention, memory, profile, time

FINDINGS: Mapping[Kind, Callable[[ReportedRun[Any]], Iterable[Finding]]] = {
    "time": time.findings,
    "profile": profile.findings,
    "memory": memory.findings,
    "attention": attention.findings,
    "accum": accum.findings,
}
"""What one run has to say by itself, by its command."""

ACROSS: tuple[Callable[[Sequence[ReportedRun[Any]]], Iterable[Finding]], ...] = (
    agreement.clocks,
    agreement.simulations,
)
"""What several runs have to say together; each is given all runs of the report."""
