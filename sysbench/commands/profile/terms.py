"""Definitions of the terms in the tables of `sysbench profile`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sysbench.commands.profile.record import ProfileCellRecord
from sysbench.render.terms import Term, mode_terms, precision_terms


def terms(cells: Sequence[ProfileCellRecord]) -> Iterator[Term]:
    if all(cell.cell.simulate for cell in cells):
        yield from mode_terms(cells)
        yield from precision_terms(cells)
        return
    yield Term(
        "profile",
        "steps under a profiler, in a separate process. Backward kernels are attributed to the forward operator "
        "that caused them."
        + (" With several ranks: the kernels of rank 0." if any(cell.cell.ranks > 1 for cell in cells) else ""),
    )
    if any(cell.unprofiled for cell in cells):
        yield Term(
            "unprofiled", ("median time of the same step without a profiler, measured first in a separate process.")
        )
    if any(cell.coverage is not None for cell in cells):
        yield Term("covered", "share of the unprofiled median step during which the device was busy.")
    if any(cell.cost_share is not None for cell in cells):
        yield Term("by profiling", "relative increase of the median step under the profiler.")
    yield from mode_terms(cells)
    yield from precision_terms(cells)
