"""What the parts of a step compute and move at least, from the model's dimensions.

FLOPs are those of `sysbench.formulas`: one multiply-add is two, causality is not exploited, backward is twice forward.
Bytes are those of operands and results that each move once, as if nothing in between were written and read again: what
a kernel needs at least, not what one does. A product of matrices moves the same three matrices forward, and twice in
backward.

FLOPs of matrix products from the shapes that were recorded with their operators.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from sysbench import formulas
from sysbench.spec.model import Attention, ModelCell, Precision
from sysbench.trace.grouping import firsts, grouped
from sysbench.trace.kernel_time import COUNTED_PHASES, Counted, Kernels
from sysbench.trace.recording import NONE

ITEM_BYTES: Final[Mapping[Precision, int]] = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
"""Of what matrix products read and write."""

SOFTMAX_FLOPS: Final = 5
"""For each number, forward: maximum, difference, exponential, sum, quotient."""
SOFTMAX_BACKWARD_FLOPS: Final = 4
"""For each number, w·(g − Σ g·w): a product, a sum, a difference, a product."""
ADAMW_BYTES: Final = 28
"""For each parameter: it, its gradient and two moments are read, it and the moments are written, in fp32."""
ADAMW_FLOPS: Final = 14
"""For each parameter: decay 1, first moment 3, second moment 4, root, quotient and sum 3, update 3."""

WRITTEN_OUT: Final[tuple[Attention, ...]] = ("naive",)
"""Kinds of attention whose intermediates are tensors in memory."""


@dataclass(frozen=True)
class Amount:
    """Of one step, all layers together; None where it cannot be told."""

    flops: int | None
    bytes: int | None

    def twice(self) -> Amount:
        """The backward pass of a matrix product."""
        return Amount(None if self.flops is None else 2 * self.flops, None if self.bytes is None else 2 * self.bytes)


Amounts = dict[tuple[str, str], Amount]
"""By what it is of, and phase."""


def attention_parts(cell: ModelCell) -> Amounts:
    """Scores, mask, softmax and output of attention that is written out; nothing for other kinds."""
    if cell.attention not in WRITTEN_OUT:
        return {}
    shape, item = cell.model, ITEM_BYTES[cell.precision]
    numbers = shape.layers * cell.batch * shape.heads * cell.ctx**2
    product = _attention_product(cell)
    through = 2 * numbers * item
    return {
        ("scores", "forward"): product,
        ("scores", "backward"): product.twice(),
        ("mask", "forward"): Amount(numbers, through),
        ("mask", "backward"): Amount(numbers, through),
        ("softmax", "forward"): Amount(SOFTMAX_FLOPS * numbers, through),
        ("softmax", "backward"): Amount(SOFTMAX_BACKWARD_FLOPS * numbers, through + numbers * item),
        ("output", "forward"): product,
        ("output", "backward"): product.twice(),
    }


def classes(cell: ModelCell, fused: bool) -> Amounts:
    """Classes of kernels of which it can be told; `fused` says that attention is a kernel of its own."""
    products = _linear_products(cell)
    if not fused:
        product = _attention_product(cell)
        products = _sum(products, product, product)
    parameters = formulas.parameters(cell.model)
    found: Amounts = {
        ("matmul", "forward"): products,
        ("matmul", "backward"): products.twice(),
        ("optimizer", "optimizer"): Amount(ADAMW_FLOPS * parameters, ADAMW_BYTES * parameters),
    }
    if fused:
        flops = formulas.attention_forward_flops(cell.model, cell.ctx, cell.batch)
        stream = cell.model.layers * cell.tokens * cell.model.d_model * ITEM_BYTES[cell.precision]
        found["attention", "forward"] = Amount(flops, 4 * stream)
        found["attention", "backward"] = Amount(2 * flops, 8 * stream)
    return found


def _attention_product(cell: ModelCell) -> Amount:
    """q·kᵀ of all layers; weights·v is the same size."""
    shape, item = cell.model, ITEM_BYTES[cell.precision]
    flops = formulas.attention_forward_flops(shape, cell.ctx, cell.batch) // 2
    numbers = shape.layers * cell.batch * shape.heads * cell.ctx**2
    return Amount(flops, item * (2 * shape.layers * cell.tokens * shape.d_model + numbers))


def _linear_products(cell: ModelCell) -> Amount:
    """Projections and output head."""
    shape, tokens = cell.model, cell.tokens
    layer = [(shape.d_model, shape.d_model)] * 4 + [(shape.d_model, shape.d_ff)] * 3
    linears = [*layer * shape.layers, (shape.d_model, shape.vocab)]
    moved = sum(tokens * d_in + d_in * d_out + tokens * d_out for d_in, d_out in linears)
    return Amount(sum(2 * tokens * d_in * d_out for d_in, d_out in linears), moved * ITEM_BYTES[cell.precision])


def _sum(*amounts: Amount) -> Amount:
    return Amount(sum(each.flops or 0 for each in amounts), sum(each.bytes or 0 for each in amounts))


PRODUCTS: Final = frozenset({"mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_int_mm", "mv", "dot"})
"""Operators of ATen that are one product of matrices each."""

CALLERS: Final = frozenset({"matmul", "linear", "einsum", "inner", "tensordot", "addbmm", "chain_matmul"})
"""Operators that leave the product itself to one of those."""


class ProductShapes:
    """What the operators that launch products are called and given. Grows with every slice."""

    def __init__(self, names: Sequence[str], kernels: Kernels) -> None:
        self._names = names
        self._kernels = kernels
        self._seen: Counter[tuple[int, int, int]] = Counter()
        """Operators by phase, name and shapes."""
        self._complete = True

    def add(self, part: Counted) -> None:
        """Take in what counts of a slice."""
        operators = part.slice.operators
        rows = np.flatnonzero(self._kernels.are_products(part.work.name) & (part.work.duration_ns > 0))
        launched = part.operator[rows]
        if (launched == NONE).any() or (operators.shapes[launched] == NONE).any():
            self._complete = False
        if not self._complete or not len(rows):
            return
        caused, which = grouped(launched)
        phase, width = part.phase[rows[firsts(which, len(caused))]], len(self._names)
        different, which = grouped((phase * width + operators.name[caused]) * width + operators.shapes[caused])
        for key, times in zip(different.tolist(), np.bincount(which).tolist(), strict=True):
            (where, name), shapes = divmod(key // width, width), key % width
            self._seen[where, name, shapes] += times

    def amounts(self, steps: int) -> Amounts:
        """FLOPs by phase, of one step; nothing where any product's shapes are missing."""
        found: Amounts = {}
        if not self._complete:
            return found
        for phase in sorted({phase for phase, _, _ in self._seen}):
            flops = [
                (product_flops(self._names[name], self._names[shapes]), times)
                for (where, name, shapes), times in self._seen.items()
                if where == phase
            ]
            known = [each * times for each, times in flops if each is not None]
            if len(known) == len(flops):
                found["matmul", COUNTED_PHASES[phase]] = Amount(sum(known) // steps, None)
        return found


def product_flops(operator: str, shapes: str) -> int | None:
    """FLOPs of a matrix product from its inputs' shapes, `[[4, 128], [128, 64]]`; None for what is none."""
    bare = operator.removeprefix("aten::")
    if bare in CALLERS:
        return 0
    if bare not in PRODUCTS or len(shapes) > 4000:
        return None
    try:
        read = json.loads(shapes)
    except ValueError:
        return None
    sizes = [each for each in read if _is_size(each)] if isinstance(read, list) else []
    operands = sizes[1:3] if bare in ("addmm", "baddbmm") else sizes[:2]
    if len(operands) < 2 or operands[0][-1] != operands[1][-2 if len(operands[1]) > 1 else -1]:
        return None
    flops = 2
    for size in operands[0]:
        flops *= size
    return flops * (operands[1][-1] if len(operands[1]) > 1 else 1)


def _is_size(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, int) and each >= 0 for each in value)
