"""Whether B is worse than A by more than is allowed: known to be, not merely seen to be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sysbench import units
from sysbench.analysis.compare_label import labels
from sysbench.analysis.comparison import CellComparison, Comparison, GateRecord

LOST = ("oom", "crashed", "timeout", "invalid")
"""Outcomes of a cell that had been measured before: worse than any regression."""


def gate(found: Comparison, share: float) -> GateRecord:
    """Hold everything that cells are judged by against a gate.

    A time fails when its whole interval lies above 1 + `share`; a peak of memory that was counted fails when it grew by
    more than that; and a cell fails that A had measured and B could not. Phases, and memory looked at from outside, are
    not held against it.
    """
    failed, undecided, passed = [], [], 0
    names = labels([(cell.kind, cell.axes) for cell in found.cells])
    for cell, name in zip(found.cells, names, strict=True):
        lost = list(_lost(cell))
        verdicts = [*_times(cell, share), *_memory(cell, share)]
        failed += [f"{name}: {text}" for text in lost] + [f"{name}: {text}" for bad, text in verdicts if bad]
        undecided += [f"{name}: {text}" for bad, text in verdicts if not bad and text]
        passed += sum(not bad for bad, _ in verdicts)
    return GateRecord(share=share, failed=failed, undecided=undecided, passed=passed)


Held = Sequence[tuple[bool, str]]
"""Whether each fails, and what there is to say of it."""


def _lost(cell: CellComparison) -> Iterator[str]:
    if cell.a_outcome == "ok" and cell.b_outcome in LOST:
        yield f"was measured in A, and is {cell.b_outcome} in B"


def _times(cell: CellComparison, share: float) -> Held:
    held = []
    for time in cell.times:
        if not time.headline:
            continue
        said = f"{time.quantity} takes {units.ratio(time.ratio)} as long"
        if time.low is None or time.high is None:
            held.append((False, f"{said}, with too few samples to tell" if time.ratio > 1 + share else ""))
            continue
        interval = f"{said} ({time.low:.3f}–{time.high:.3f})"
        held.append((time.low > 1 + share, interval if time.high > 1 + share else ""))
    return held


def _memory(cell: CellComparison, share: float) -> Held:
    held = []
    for memory in cell.memory:
        if not memory.exact:
            continue
        grew = memory.b_bytes > memory.a_bytes * (1 + share)
        said = f"{memory.quantity.replace('_', ' ')} grew from {units.size(memory.a_bytes)} to "
        held.append((grew, f"{said}{units.size(memory.b_bytes)}" if grew else ""))
    return held
