"""Definitions of the terms in the tables of `sysbench accum`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sysbench.commands.accum.record import AccumCellRecord
from sysbench.render.terms import Term, used_terms

_EXPERIMENT_MEANINGS: Mapping[str, str] = {
    "sums": "one number added to itself repeatedly, in every format and order; errors are relative to exact "
    "arithmetic.",
    "autocast": "dtypes of parts of a model under autocast: measured on this device, and as simulated under CUDA's "
    "rules.",
    "norm": "layer norm over inputs scaled by powers of two, compared with fp64.",
    "scaling": "gradients of one backward pass in 16 bits, with the loss scaled by powers of two.",
    "matmul": "products of random matrices compared with fp64, by the length of the dot products.",
}


def terms(cells: Sequence[AccumCellRecord]) -> Iterator[Term]:
    return used_terms(_EXPERIMENT_MEANINGS, (cell.experiment for cell in cells))
