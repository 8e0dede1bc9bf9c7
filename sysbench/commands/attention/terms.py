"""Definitions of the terms in the tables of `sysbench attention`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sysbench.commands.attention.record import AttentionCellRecord
from sysbench.render.terms import Term


def terms(cells: Sequence[AttentionCellRecord]) -> Iterator[Term]:
    yield Term(
        "attention",
        "the operator alone, softmax(q kᵀ / √d) v and its gradients, on random inputs of (batch, N, d), with heads "
        "(batch, heads, N, d).",
    )
    if any(cell.source == "predicted" for cell in cells):
        yield Term(
            "attention, predicted",
            "the time of the kernels that one call launches, at the rates of the GPU, without the host. Memory is "
            "simulated: allocations of tensors without data, with a model of CUDA's caching allocator.",
        )
    if any(cell.forward for cell in cells):
        clock = "device events" if all(cell.device_events for cell in cells if cell.forward) else "the host's clock"
        yield Term(
            "attention, forward and backward", f"each call is timed separately, after warm-up calls, with {clock}."
        )
    if any(cell.saved_bytes is not None for cell in cells):
        yield Term("kept for backward", "memory that forward leaves allocated, excluding inputs and output.")
    if any(cell.before_backward_bytes is not None for cell in cells):
        yield Term("before backward", "all memory allocated when backward starts, including inputs and output.")
    if any(cell.rates for cell in cells):
        yield Term(
            "of limit",
            "the minimum time according to the data sheet, limited by FLOPs or by bytes moved, whichever is longer, "
            "divided by the median.",
        )
