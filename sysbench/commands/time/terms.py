"""Definitions of the terms in the tables of `sysbench time`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sysbench.commands.time.record import TimeCellRecord
from sysbench.render.terms import Term, mode_terms, precision_terms, used_terms

_PHASE_MEANINGS: Mapping[str, str] = {
    "zero_grad": "gradients are set to None.",
    "forward": "from tokens to logits; the graph for backward is kept, except in inference.",
    "loss": "cross-entropy of the logits, in fp32.",
    "backward": "gradients of all parameters; gradients are None at the start of each step.",
    "optimizer": "one step of AdamW on all parameters.",
    "step": "the sum of the phases of the mode, step by step; with --sync step, one timed interval.",
}


def terms(cells: Sequence[TimeCellRecord]) -> Iterator[Term]:
    if not all(cell.cell.simulate for cell in cells):
        yield Term(
            "time",
            "after the warm-up steps, every phase is timed with the host's clock between two device "
            "synchronizations, or with device events if the host does not wait. Warm-up steps are recorded but not "
            "counted.",
        )
        yield Term("± after a mean", "the standard deviation of the measured steps (n − 1), not of their mean.")
        yield Term(
            "95% interval",
            "of a median, or of a ratio of two medians: from order statistics, without assuming a distribution; "
            "omitted for fewer than six samples.",
        )
        yield from used_terms(_PHASE_MEANINGS, (phase for cell in cells for phase in cell.phases))
    yield from mode_terms(cells)
    yield from precision_terms(cells)
    if any(cell.rates for cell in cells):
        yield Term(
            "achieved",
            "model FLOPs of the step divided by its mean time. A forward pass has B·[L(8Td² + 4T²d + 6T·d·d_ff) + "
            "2TdV], without a discount for causality; backward has twice that.",
        )
