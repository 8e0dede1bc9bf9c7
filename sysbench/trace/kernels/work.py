"""Minimum FLOPs and bytes of the parts of a step, achieved rates, and counts of the matrix products in a trace.

FLOPs follow `sysbench.formulas`: one multiply-add counts as two FLOPs, causality is not exploited, and backward needs
twice the FLOPs of forward. For bytes, every operand and result counts once, as if caches held all intermediates: a
lower bound for a kernel, not its actual traffic. A matrix product moves three matrices in forward; in backward, each of
its two gradients moves three matrices of the same sizes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, get_args

import numpy as np

from sysbench import formulas
from sysbench.spec.hardware import Hardware
from sysbench.spec.model import ModelCell, ModelShape, Precision
from sysbench.spec.ranks import layout
from sysbench.trace.columns import distinct, map_distinct
from sysbench.trace.kernels.names import classify
from sysbench.trace.kernels.time import WORK_PHASES, KernelTime, StepWork
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

_ON_TENSOR_CORES: Final = frozenset({"scores", "output", "matmul", "attention"})

PRODUCTS: Final = frozenset({"mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_int_mm", "mv", "dot"})
"""ATen operators that perform exactly one matrix product."""

_SPLIT_K_REDUCTION: Final = re.compile(r"split_?k_?reduce", re.IGNORECASE)
"""Matches kernels that add up the partial results of several blocks for one product."""


class Amount(NamedTuple):
    """FLOPs and bytes of a part of one step, summed over layers."""

    flops: int
    bytes: int

    def times(self, count: int) -> Amount:
        """Return the amount multiplied by `count`, for example by two for the backward pass of a matrix product."""
        return Amount(count * self.flops, count * self.bytes)


Amounts = dict[tuple[str, str], Amount]
"""FLOPs and bytes by part or class, and by phase."""


def attention_parts(cell: ModelCell) -> Amounts:
    """Return the FLOPs and bytes of the parts of materialised attention; empty if attention is fused."""
    shape, item_bytes = cell.shape_with_formulas, ITEM_BYTES[cell.compute_precision]
    if shape is None or cell.attention != "naive":
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
        products = Amount(products.flops + 2 * product.flops, products.bytes + 2 * product.bytes)
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
    if shape is None or cell.attention != "naive" or cell.execution != "eager" or cell.strategy == "tp":
        return {}
    forward = 9 * shape.layers + 1
    expected = {"forward": forward, "backward": 2 * forward}
    return {phase: cell.occurrences(phase) * count for phase, count in expected.items() if phase in cell.phases}


def rates(
    time: KernelTime, names: Sequence[KernelName], cell: ModelCell | None, hardware: Hardware | None
) -> Iterator[Rate]:
    """Yield the time of the parts of attention, then of kernel classes with known FLOPs; one row per part and phase.

    FLOPs and bytes come from the dimensions of `cell`. The parts of attention are omitted unless scores, softmax and
    output can all be identified.
    """
    parts = [part_of(module) for module in time.modules]
    by_part, by_class = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    columns = time.columns
    for number, module, kernel, ns in zip(columns.phase, columns.module, columns.kernel, columns.total_ns, strict=True):
        phase = WORK_PHASES[number]
        by_class[names[kernel].class_in(phase), phase] += ns
        if (part := parts[module]) is not None:
            by_part[part, phase] += ns
    if {part for part, _ in by_part} >= {"scores", "softmax", "output"}:
        yield from _rates("attention", by_part, PARTS, attention_parts(cell) if cell else {}, cell, hardware)
    if cell is not None:
        amounts = class_amounts(cell, fused=any(kind == "attention" for kind, _ in by_class))
        known_ns = {key: total_ns for key, total_ns in by_class.items() if key in amounts}
        yield from _rates("class", known_ns, get_args(KernelClass), amounts, cell, hardware)


def _rates(
    kind: Literal["attention", "class"],
    time_ns: Mapping[tuple[str, str], int],
    order: Sequence[str],
    amounts: Amounts,
    cell: ModelCell | None,
    hardware: Hardware | None,
) -> Iterator[Rate]:
    for (part, phase), total_ns in sorted(time_ns.items(), key=lambda item: order.index(item[0][0])):
        amount = amounts.get((part, phase))
        # Matrix products run at the peak rate of their precision, which only a cell provides; all else runs in fp32.
        precision = "fp32" if part not in _ON_TENSOR_CORES else cell.compute_precision if cell is not None else None
        yield Rate(
            part=part,
            kind=kind,
            phase=phase,
            total_ns=total_ns,
            flops=amount.flops if amount else None,
            bytes=amount.bytes if amount else None,
            peak_flops_per_s=hardware.peak_flops_per_s.get(precision) if hardware and precision else None,
            peak_bytes_per_s=hardware.memory_bandwidth_bytes_per_s if hardware else None,
        )


class ProductCounts:
    """Number of matrix products in each phase, summed slice by slice."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._called = Counter[str]()
        """Number of product kernels by phase; in a CPU trace, number of product operators."""
        self._callers = Counter[str]()
        """Number of operators that launched the product kernels, by phase."""
        self._without_caller: set[str] = set()

    def add(self, part: StepWork) -> None:
        """Add the work of one slice."""
        is_product = _is_product_operator if part.attribution.source == "cpu" else _is_product_kernel
        rows = np.flatnonzero(map_distinct(lambda name: is_product(self._names[name]), part.work.name, bool))
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


def _is_product_operator(name: str) -> bool:
    return name.removeprefix("aten::") in PRODUCTS


def _is_product_kernel(name: str) -> bool:
    return classify(name) == "matmul" and not _SPLIT_K_REDUCTION.search(name[:4000])
