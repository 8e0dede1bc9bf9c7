"""Minimum FLOPs and bytes of the parts of a step, achieved rates, and counts of the matrix products in a trace.

The minimum is computed from the model's dimensions or, for custom models, from the input shapes of matrix products.
FLOPs follow `sysbench.formulas`: one multiply-add counts as two FLOPs, causality is not exploited, and backward needs
twice the FLOPs of forward. For bytes, every operand and result counts once, as if caches held all intermediates. The
bytes are a lower bound for a kernel, not its actual traffic. A matrix product moves three matrices in forward; in
backward, each of its two gradients moves three matrices of the same sizes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np

from sysbench import formulas
from sysbench.spec.hardware import Hardware
from sysbench.spec.model import Attention, ModelCell, ModelShape, Precision
from sysbench.spec.ranks import layout
from sysbench.trace.columns import distinct, first_positions, map_distinct, unique_with_inverse
from sysbench.trace.kernels.time import WORK_PHASES, Kernels, KernelTime, StepWork
from sysbench.trace.recording import NONE
from sysbench.trace.summary import PARTS, Check, KernelClass, KernelName, ProfileSource, Rate, part_of

ITEM_BYTES: Final[Mapping[Precision, int]] = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
"""Bytes per number that matrix products read and write."""

SOFTMAX_FLOPS: Final = 5
"""FLOPs per number in forward: maximum, difference, exponential, sum, quotient."""
SOFTMAX_BACKWARD_FLOPS: Final = 4
"""FLOPs per number in backward, w·(g − Σ g·w): a product, a sum, a difference, a product."""
ADAMW_BYTES: Final = 28
"""Bytes per parameter, in fp32: reads parameter, gradient and two moments, writes parameter and moments."""
ADAMW_FLOPS: Final = 14
"""FLOPs per parameter: decay 1, first moment 3, second moment 4, root, quotient and sum 3, update 3."""

MATERIALISED: Final[tuple[Attention, ...]] = ("naive",)
"""Attention implementations that materialise their intermediates as tensors."""

BACKWARD_PRODUCTS: Final = 2
"""Number of products in backward per forward product: one for the gradient of each operand."""

_ON_TENSOR_CORES: Final = frozenset({"scores", "output", "matmul", "attention"})

PRODUCTS: Final = frozenset({"mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_int_mm", "mv", "dot"})
"""ATen operators that perform exactly one matrix product."""

CALLERS: Final = frozenset({"matmul", "linear", "einsum", "inner", "tensordot", "addbmm", "chain_matmul"})
"""Operators that delegate the product to one of `PRODUCTS`."""

_SPLIT_K_REDUCTION: Final = re.compile(r"split_?k_?reduce", re.IGNORECASE)
"""Matches kernels that add up the partial results of several blocks for one product."""


@dataclass(frozen=True)
class Amount:
    """FLOPs and bytes of a part of one step, summed over layers; None if unknown."""

    flops: int | None
    bytes: int | None

    def times(self, count: int) -> Amount:
        """Return the amount multiplied by `count`, for example by two for the backward pass of a matrix product."""
        flops, moved = self.flops, self.bytes
        return Amount(None if flops is None else count * flops, None if moved is None else count * moved)


Amounts = dict[tuple[str, str], Amount]
"""FLOPs and bytes by part or class, and by phase."""


def attention_parts(cell: ModelCell) -> Amounts:
    """Return the FLOPs and bytes of the parts of materialised attention; empty if attention is fused."""
    shape, item_bytes = cell.shape_with_formulas, ITEM_BYTES[cell.compute_precision]
    if shape is None or cell.attention not in MATERIALISED:
        return {}
    product, score_count = _attention_product(cell, shape), _score_count(cell, shape)
    read_write_bytes = 2 * score_count * item_bytes
    found: Amounts = {
        ("scores", "forward"): product,
        ("scores", "backward"): product.times(2),
        ("mask", "forward"): Amount(score_count, read_write_bytes),
        ("mask", "backward"): Amount(score_count, read_write_bytes),
        ("softmax", "forward"): Amount(SOFTMAX_FLOPS * score_count, read_write_bytes),
        ("softmax", "backward"): Amount(
            SOFTMAX_BACKWARD_FLOPS * score_count, read_write_bytes + score_count * item_bytes
        ),
        ("output", "forward"): product,
        ("output", "backward"): product.times(2),
    }
    return _per_step(found, cell)


def _per_step(amounts: Amounts, cell: ModelCell) -> Amounts:
    return {(part, phase): amount.times(cell.occurrences(phase)) for (part, phase), amount in amounts.items()}


def class_amounts(cell: ModelCell, fused: bool) -> Amounts:
    """Return the FLOPs and bytes of those kernel classes for which formulas exist.

    `fused` means that one kernel computes attention. With several ranks, the result is for one rank.
    """
    shape, tokens, item_bytes = cell.shape_with_formulas, cell.tokens, ITEM_BYTES[cell.compute_precision]
    if shape is None:
        return {}
    d_model, split = shape.d_model, _tensor_parallel_ranks(cell)
    # q, k, v are split by columns, the output by rows; w1, w3, w2 are split the same way.
    layer = [(d_model, d_model // split)] * 3 + [(d_model // split, d_model)]
    layer += [(d_model, shape.d_ff // split)] * 2 + [(shape.d_ff // split, d_model)]
    linears = [*layer * shape.layers, (shape.d_model, shape.vocab)]  # projections and the output head
    elements = sum(tokens * d_in + d_in * d_out + tokens * d_out for d_in, d_out in linears)
    products = Amount(sum(2 * tokens * d_in * d_out for d_in, d_out in linears), elements * item_bytes)
    if not fused:
        product = _attention_product(cell, shape)
        amounts = (products, product, product)
        products = Amount(sum(each.flops or 0 for each in amounts), sum(each.bytes or 0 for each in amounts))
    other_ranks_parameters = shape.layers * (4 * d_model**2 + 3 * d_model * shape.d_ff) * (split - 1) // split
    shards = layout(cell.strategy, cell.ranks)[1] if split == 1 else 1
    parameters = (formulas.parameters(shape) - other_ranks_parameters) // shards
    found: Amounts = {
        ("matmul", "forward"): products,
        ("matmul", "backward"): products.times(2),
        ("optimizer", "optimizer"): Amount(ADAMW_FLOPS * parameters, ADAMW_BYTES * parameters),
    }
    if fused:
        flops = formulas.attention_forward_flops(shape, cell.ctx, cell.batch) // split
        tensor_bytes = shape.layers * tokens * d_model // split * item_bytes
        found["attention", "forward"] = Amount(flops, 4 * tensor_bytes)
        found["attention", "backward"] = Amount(2 * flops, 8 * tensor_bytes)
    return _per_step(found, cell)


def _attention_product(cell: ModelCell, shape: ModelShape) -> Amount:
    """Return the FLOPs and bytes of q·kᵀ in all layers; weights·v needs the same."""
    item_bytes = ITEM_BYTES[cell.compute_precision]
    split = _tensor_parallel_ranks(cell)
    flops = formulas.attention_forward_flops(shape, cell.ctx, cell.batch) // 2 // split
    operand_elements = 2 * shape.layers * cell.tokens * shape.d_model // split
    return Amount(flops, item_bytes * (operand_elements + _score_count(cell, shape)))


def _score_count(cell: ModelCell, shape: ModelShape) -> int:
    return shape.layers * cell.batch * (shape.heads // _tensor_parallel_ranks(cell)) * cell.ctx**2


def _tensor_parallel_ranks(cell: ModelCell) -> int:
    return cell.ranks if cell.strategy == "tp" else 1


def expected_products(cell: ModelCell) -> dict[str, int]:
    """Return the expected number of matrix products per step and phase: 9 per layer, plus the output head.

    Empty if the model has adapters or is compiled, if attention is fused, or under tensor parallelism: a DTensor
    operator calls the same operator on its local shard, so a CPU trace contains each product twice.
    """
    shape = cell.shape_with_formulas
    if shape is None or cell.attention not in MATERIALISED or cell.execution != "eager" or cell.strategy == "tp":
        return {}
    forward = 9 * shape.layers + 1
    expected = {"forward": forward, "backward": BACKWARD_PRODUCTS * forward}
    return {phase: cell.occurrences(phase) * count for phase, count in expected.items() if phase in cell.phases}


def rates(
    time: KernelTime, names: Sequence[KernelName], cell: ModelCell | None, products: Amounts, hardware: Hardware | None
) -> Iterator[Rate]:
    """Yield the time, FLOPs and bytes of the parts of attention, then of kernel classes; one row per part and phase.

    FLOPs and bytes come from the dimensions of `cell`, or from `products` if the model is custom or there is no cell.
    The parts of attention are omitted unless scores, softmax and output can all be identified.
    """
    parts = [part_of(module) for module in time.modules]
    by_part: dict[tuple[str, str], int] = {}
    by_class: dict[tuple[str, str], int] = {}
    columns = time.columns
    for number, module, kernel, ns in zip(columns.phase, columns.module, columns.kernel, columns.total_ns, strict=True):
        phase = WORK_PHASES[number]
        kind = names[kernel].class_in(phase)
        by_class[kind, phase] = by_class.get((kind, phase), 0) + ns
        if (part := parts[module]) is not None:
            by_part[part, phase] = by_part.get((part, phase), 0) + ns
    if not {part for part, _ in by_part} >= {"scores", "softmax", "output"}:
        by_part = {}
    if cell is not None and cell.shape_with_formulas is not None:
        products = class_amounts(cell, fused=any(kind == "attention" for kind, _ in by_class))
    yield from _rates("attention", by_part, PARTS, attention_parts(cell) if cell else {}, cell, hardware)
    yield from _rates("class", by_class, get_args(KernelClass), products, cell, hardware)


def _rates(
    kind: Literal["attention", "class"],
    time_ns: Mapping[tuple[str, str], int],
    order: Sequence[str],
    amounts: Amounts,
    cell: ModelCell | None,
    hardware: Hardware | None,
) -> Iterator[Rate]:
    for (part, phase), total_ns in sorted(time_ns.items(), key=lambda item: order.index(item[0][0])):
        amount = amounts.get((part, phase), Amount(None, None))
        # Matrix products run at the peak rate of their precision, which only a cell provides; everything else runs in
        # fp32.
        precision = "fp32" if part not in _ON_TENSOR_CORES else cell.compute_precision if cell is not None else None
        yield Rate(
            part=part,
            kind=kind,
            phase=phase,
            total_ns=total_ns,
            flops=amount.flops,
            bytes=amount.bytes,
            peak_flops_per_s=hardware.peak_flops_per_s.get(precision) if hardware and precision else None,
            peak_bytes_per_s=hardware.memory_bandwidth_bytes_per_s if hardware else None,
        )


class ProductShapes:
    """Names and input shapes of the operators that launch matrix products, collected slice by slice."""

    def __init__(self, names: Sequence[str], kernels: Kernels) -> None:
        self._names = names
        self._kernels = kernels
        self._seen: Counter[tuple[int, int, int]] = Counter()
        """Number of operators by phase, name and shapes."""
        self._complete = True

    def add(self, part: StepWork) -> None:
        """Add the work of one slice."""
        operators = part.slice.operators
        rows = np.flatnonzero(self._kernels.are_products(part.work.name) & (part.work.duration_ns > 0))
        launched = part.operator[rows]
        if (launched == NONE).any() or (operators.shapes[launched] == NONE).any():
            self._complete = False
        if not self._complete or not len(rows):
            return
        caused, which = unique_with_inverse(launched)
        phase, width = part.phase[rows[first_positions(which, len(caused))]], len(self._names)
        different, which = unique_with_inverse(
            (phase * width + operators.name[caused]) * width + operators.shapes[caused]
        )
        for key, count in zip(different.tolist(), np.bincount(which).tolist(), strict=True):
            (phase_, name), shapes = divmod(key // width, width), key % width
            self._seen[phase_, name, shapes] += count

    def amounts(self, steps: int) -> Amounts:
        """Return the FLOPs of matrix products per step and phase; empty if the shapes of any product are missing.

        A phase with a product of unknown FLOPs is omitted.
        """
        found: Amounts = {}
        if not self._complete:
            return found
        for phase in sorted({phase for phase, _, _ in self._seen}):
            flops = [
                (product_flops(self._names[name], self._names[shapes]), count)
                for (other_phase, name, shapes), count in self._seen.items()
                if other_phase == phase
            ]
            known = [each * count for each, count in flops if each is not None]
            if len(known) == len(flops):
                found["matmul", WORK_PHASES[phase]] = Amount(sum(known) // steps, None)
        return found


def product_flops(operator: str, shapes: str) -> int | None:
    """Return the FLOPs of a matrix product with input shapes such as `[[4, 128], [128, 64]]`.

    0 for CALLERS, which only call a product; None if the operator or the shapes are unknown.
    """
    name = operator.removeprefix("aten::")
    if name in CALLERS:
        return 0
    if name not in PRODUCTS or len(shapes) > 4000:
        return None
    try:
        decoded = json.loads(shapes)
    except ValueError:
        return None
    sizes = [
        size
        for size in (decoded if isinstance(decoded, list) else [])
        if isinstance(size, list) and size and all(isinstance(each, int) and each >= 0 for each in size)
    ]
    operands = sizes[1:3] if name in ("addmm", "baddbmm") else sizes[:2]
    if len(operands) < 2 or operands[0][-1] != operands[1][-2 if len(operands[1]) > 1 else -1]:
        return None
    flops = 2
    for size in operands[0]:
        flops *= size
    return flops * (operands[1][-1] if len(operands[1]) > 1 else 1)


class ProductCounts:
    """Number of matrix products in each phase, summed slice by slice."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._called: Counter[str] = Counter()
        """Number of product kernels by phase; in a CPU trace, number of product operators."""
        self._callers: Counter[str] = Counter()
        """Number of operators that launched the product kernels, by phase."""
        self._without_caller: set[str] = set()

    def add(self, part: StepWork) -> None:
        """Add the work of one slice."""

        def is_product(name: int) -> bool:
            kernel = self._kernels[name]
            if part.attribution.source == "cpu":
                return kernel.name.removeprefix("aten::") in PRODUCTS
            return kernel.kernel_class == "matmul" and not _SPLIT_K_REDUCTION.search(kernel.name[:4000])

        rows = np.flatnonzero(map_distinct(is_product, part.work.name, bool))
        phases = part.phase[rows]
        for number in distinct(phases).tolist():
            here, phase = rows[phases == number], WORK_PHASES[number]
            self._called[phase] += len(here)
            self._callers[phase] += len(distinct(part.operator[here]))
            if (part.operator[here] == NONE).any():
                self._without_caller.add(phase)

    def checks(self, cell: ModelCell, steps: int, source: ProfileSource) -> Iterator[Check]:
        """Yield one check per phase: the model's number of matrix products vs. the number in the trace."""
        for phase, count in expected_products(cell).items():
            by_caller = source == "device" and phase not in self._without_caller
            found = (self._callers if by_caller else self._called)[phase]
            yield Check(name=f"matrix products in {phase}", expected=count * steps, found=found)
