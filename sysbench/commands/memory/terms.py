"""Definitions of the terms in the tables of `sysbench memory`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sysbench.commands.memory.record import MemoryCellRecord
from sysbench.render.terms import Term, precision_terms, used_terms

_PROTOCOL_MEANINGS: Mapping[str, str] = {
    "inference": "no graph is kept: parameters, logits and the activations of one layer.",
    "forward": "the graph is kept; logits and loss are alive; no gradients.",
    "forward-backward": "gradients, which are None before forward; no optimizer.",
    "train-first": "the first step, which allocates the optimizer's state.",
    "train": "a later step: the optimizer's state exists; gradients are None before forward.",
}


def terms(cells: Sequence[MemoryCellRecord]) -> Iterator[Term]:
    yield Term(
        "allocated",
        "peak bytes of tensors, as rounded by the allocator. Before each protocol, tensors left from earlier steps "
        "are deleted and peaks are reset.",
    )
    if any(cell.peak_reserved_bytes is not None for cell in cells):
        yield Term("reserved", "device memory held by the caching allocator, in use or not.")
    if any(cell.host_rss_peak_bytes is not None for cell in cells):
        yield Term("worker, host memory", "peak resident memory of the whole measuring process.")
    yield from used_terms(_PROTOCOL_MEANINGS, (cell.cell.mode for cell in cells), "memory of {}")
    yield from precision_terms(cells)
