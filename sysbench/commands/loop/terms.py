"""Definitions of the terms in the tables of a recorded training loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sysbench.commands.loop.record import LoopCellRecord
from sysbench.render.terms import Term


def terms(cells: Sequence[LoopCellRecord]) -> Iterator[Term]:
    yield Term(
        "self-measured process",
        "a program timed its own training loop with marks; the bookkeeping happens between its steps, and no other "
        "process monitored it.",
    )
    if any(cell.outside for cell in cells):
        yield Term(
            "outside phases",
            ("the rest of a step; a step lasts from its first phase to the first phase of the next step."),
        )
