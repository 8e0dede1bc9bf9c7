"""Minimum FLOPs and bytes of parts of attention and of kernel classes, achieved rates, and counts of matrix products.

FLOPs follow `sysbench.formulas`: one multiply-add counts as two FLOPs, causality is not exploited, and backward needs
twice the FLOPs of forward. For bytes, every operand and result counts once, as if caches held all intermediates: a
lower bound for a kernel, not its actual traffic. A matrix product moves three matrices in forward; in backward, each of
its two gradients moves three matrices of the same sizes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from sysbench import formulas
from sysbench.spec.hardware import Hardware
from sysbench.spec.model import ModelCell
from sysbench.spec.steps import TRUE_PRECISIONS, Precision
from sysbench.trace.columns import distinct, map_distinct
from sysbench.trace.kernels.names import classify
from sysbench.trace.kernels.statistics import WORK_PHASES, StepTime, StepWork
from sysbench.trace.recording import NONE
from sysbench.trace.summary import PARTS, Check, KernelClass, KernelName, ProfileSource, Rate, part_of

ITEM_BYTES: Final[Mapping[Precision, int]] = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
"""Bytes per number that matrix products read and write."""

SOFTMAX_FLOPS: Final = 5
"""FLOPs per number in forward: maximum, difference, exponential, sum, quotient."""
SOFTMAX_BACKWARD_FLOPS: Final = 4
"""FLOPs per number in backward, w·(g − Σ g·w): a product, a sum, a difference, a product."""

ADAMW_BYTES: Final = 28
"""Bytes per parameter, in fp32: AdamW reads parameter, gradient and two moments, and writes parameter and moments."""

CLASSES: Final[tuple[KernelClass, ...]] = ("matmul", "attention", "optimizer")
"""Kernel classes whose FLOPs or bytes follow from the model's dimensions."""

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
"""FLOPs and bytes by part of attention or kernel class, and by phase."""


def attention_parts(cell: ModelCell) -> Amounts:
    """Return the FLOPs and bytes of the parts of naive attention on one rank; empty if attention is fused."""
    shape, item_bytes = cell.shape_with_formulas, ITEM_BYTES[cell.compute_precision]
    if shape is None or cell.attention != "naive":
        return {}
    split = cell.ranks if cell.strategy == "tp" else 1
    scores = shape.layers * cell.batch * (shape.heads // split) * cell.ctx**2
    operands = 2 * shape.layers * cell.tokens * shape.d_model // split
    # q·kᵀ in all layers; weights·v needs the same.
    product_flops = formulas.attention_forward_flops(shape, cell.ctx, cell.batch) // 2 // split
    product = Amount(product_flops, item_bytes * (operands + scores))
    read_write_bytes = 2 * scores * item_bytes
    found: Amounts = {
        ("scores", "forward"): product,
        ("scores", "backward"): product.times(2),
        ("mask", "forward"): Amount(scores, read_write_bytes),
        ("mask", "backward"): Amount(scores, read_write_bytes),
        ("softmax", "forward"): Amount(SOFTMAX_FLOPS * scores, read_write_bytes),
        ("softmax", "backward"): Amount(SOFTMAX_BACKWARD_FLOPS * scores, read_write_bytes + scores * item_bytes),
        ("output", "forward"): product,
        ("output", "backward"): product.times(2),
    }
    return {(part, phase): amount.times(cell.occurrences(phase)) for (part, phase), amount in found.items()}


def class_amounts(cell: ModelCell, *, fused: bool) -> Amounts:
    """Return the FLOPs and bytes of the kernel classes in `CLASSES` on one rank; `fused` is whether attention is.

    Fused attention does not compute masked scores, so it has half of the formula's FLOPs. Empty if the model has
    adapters, is sharded, or computes parts of forward again.
    """
    shape, tokens, item_bytes = cell.shape_with_formulas, cell.tokens, ITEM_BYTES[cell.compute_precision]
    if shape is None or cell.repeats_forward or cell.ranks > 1:
        return {}
    d, layers = shape.d_model, shape.layers
    linears = [*[(d, d)] * 4 * layers, *[(d, shape.d_ff)] * 3 * layers, (d, shape.vocab)]
    elements = sum(tokens * inner + inner * outer + tokens * outer for inner, outer in linears)
    attention_flops = formulas.attention_forward_flops(shape, cell.ctx, cell.batch)
    operands = 4 * layers * tokens * d
    scores = 0 if fused else 2 * layers * cell.batch * shape.heads * cell.ctx**2
    attention = Amount(attention_flops // 2 if fused else attention_flops, item_bytes * (operands + scores))
    products = Amount(sum(2 * tokens * inner * outer for inner, outer in linears), item_bytes * elements)
    found: Amounts = {}
    if fused:
        found |= {("attention", "forward"): attention, ("attention", "backward"): attention.times(2)}
    else:
        products = Amount(products.flops + attention.flops, products.bytes + attention.bytes)
    found |= {("matmul", "forward"): products, ("matmul", "backward"): products.times(2)}
    if cell.optimizer in ("foreach", "fused") and cell.precision not in TRUE_PRECISIONS:
        found["optimizer", "optimizer"] = Amount(0, ADAMW_BYTES * formulas.parameters(shape))
    return {(part, phase): amount.times(cell.occurrences(phase)) for (part, phase), amount in found.items()}


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
    time: StepTime, names: Sequence[KernelName], cell: ModelCell | None, hardware: Hardware | None
) -> Iterator[Rate]:
    """Yield the time of the parts of attention, then of kernel classes, by phase, with FLOPs and bytes from `cell`.

    The parts of attention are left out unless scores, softmax and output can all be identified.
    """
    parts = [part_of(module) for module in time.modules]
    part_ns, class_ns = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    spent = time.spent
    for number, module, kernel, ns in zip(spent.phase, spent.module, spent.kernel, spent.total_ns, strict=True):
        phase = WORK_PHASES[number]
        class_ns[names[kernel].class_in(phase), phase] += ns
        if (part := parts[module]) is not None:
            part_ns[part, phase] += ns
    if {part for part, _ in part_ns} >= {"scores", "softmax", "output"}:
        yield from _rates(part_ns, PARTS, attention_parts(cell) if cell is not None else {}, cell, hardware)
    fused = any(kind == "attention" for kind, _ in class_ns)
    amounts = class_amounts(cell, fused=fused) if cell is not None else {}
    yield from _rates({key: ns for key, ns in class_ns.items() if key in amounts}, CLASSES, amounts, cell, hardware)


def _rates(
    total_ns: Mapping[tuple[str, str], int],
    order: Sequence[str],
    amounts: Amounts,
    cell: ModelCell | None,
    hardware: Hardware | None,
) -> Iterator[Rate]:
    for part, phase in sorted(total_ns, key=lambda key: order.index(key[0])):
        amount = amounts.get((part, phase))
        # Matrix products run at the peak rate of their precision, which only a cell provides; all else runs in fp32.
        precision = "fp32" if part not in _ON_TENSOR_CORES else cell.compute_precision if cell is not None else None
        yield Rate(
            part=part,
            phase=phase,
            total_ns=total_ns[part, phase],
            flops=amount.flops or None if amount else None,
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
