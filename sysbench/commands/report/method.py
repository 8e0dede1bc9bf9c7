"""Definitions of the terms and numbers that occur in a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sysbench.commands.report.document import ReportedRun, reported_commands
from sysbench.render.terms import Term


def terms(runs: Sequence[ReportedRun]) -> Iterator[Term]:
    """Yield the definition of every term in the report once, in the order of the commands that use the terms."""
    term_by_word: dict[str, Term] = {}
    for command in reported_commands():
        cells = [cell for run in runs if run.record.kind == command.name for cell in run.record.cells]
        for term in command.part("terms")(cells) if cells and command.terms else ():
            term_by_word.setdefault(term.word, term)
    yield from term_by_word.values()
    if any(cell.cautions for run in runs for cell in run.record.cells):
        yield Term("caution", "a reason to doubt a number, detected in the data, with a remedy.")
    if any(run.origin in ("simulated", "mixed") for run in runs):
        yield Term(
            "simulated",
            "computed without the hardware: the allocations of the step, replayed with a model of CUDA's caching "
            "allocator on tensors without data. Simulated numbers next to measured ones are always marked.",
        )
    if any(run.origin == "predicted" for run in runs):
        yield Term(
            "predicted",
            "computed without the hardware: every kernel of the step is timed with the rates of the GPU, and a host "
            "issues the kernels one by one. The interval contains the time in 90 % of cases; the lower bound "
            "assumes data-sheet rates and zero host time, and is not a prediction. Predicted times never share a "
            "column with measured ones.",
        )
