"""The matrix products of a trace: their number, and their FLOPs by the shapes of their inputs."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from sysbench.spec.model import ModelCell
from sysbench.trace.grouping import distinct, firsts, grouped
from sysbench.trace.kernels.time import WORK_PHASES, Kernels, StepWork
from sysbench.trace.kernels.work_estimate import Amount, Amounts, products_expected
from sysbench.trace.recording import NONE
from sysbench.trace.summary import Check, ProfileSource

PRODUCTS: Final = frozenset({"mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_int_mm", "mv", "dot"})
"""ATen operators that are one matrix product each."""

CALLERS: Final = frozenset({"matmul", "linear", "einsum", "inner", "tensordot", "addbmm", "chain_matmul"})
"""Operators that delegate the product to one of those."""


class ProductShapes:
    """Names and input shapes of the operators that launch matrix products, collected slice by slice."""

    def __init__(self, names: Sequence[str], kernels: Kernels) -> None:
        self._names = names
        self._kernels = kernels
        self._seen: Counter[tuple[int, int, int]] = Counter()
        """Number of operators by phase, name and shapes."""
        self._complete = True

    def add(self, part: StepWork) -> None:
        """Add the work of a slice that counts."""
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
        """Return FLOPs per step by phase; empty if the shapes of any product are missing."""
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
                found["matmul", WORK_PHASES[phase]] = Amount(sum(known) // steps, None)
        return found


def product_flops(operator: str, shapes: str) -> int | None:
    """FLOPs of a matrix product from its input shapes, `[[4, 128], [128, 64]]`; 0 for CALLERS, None if unknown."""
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


_SPLIT_K_REDUCTION: Final = re.compile(r"split_?k_?reduce", re.IGNORECASE)
"""A kernel that adds up the partial results of several blocks for one product."""


class ProductCounts:
    """Number of matrix products in each phase, collected slice by slice."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._called: Counter[str] = Counter()
        """Kernels, or operators on the CPU."""
        self._callers: Counter[str] = Counter()
        """Operators that launched the kernels."""
        self._without_caller: set[str] = set()

    def add(self, part: StepWork) -> None:
        """Add the work of a slice that counts."""
        names, which = grouped(part.work.name)
        are_products = []
        for name in names.tolist():
            kernel = self._kernels[name]
            if part.found.source == "cpu":
                are_products.append(kernel.name.removeprefix("aten::") in PRODUCTS)
            else:
                splits = _SPLIT_K_REDUCTION.search(kernel.name[:4000])
                are_products.append(kernel.kernel_class == "matmul" and not splits)
        rows = np.flatnonzero(np.array(are_products, bool)[which]) if len(names) else which
        phases = part.phase[rows]
        for number in distinct(phases).tolist():
            here, phase = rows[phases == number], WORK_PHASES[number]
            self._called[phase] += len(here)
            self._callers[phase] += len(distinct(part.operator[here]))
            if (part.operator[here] == NONE).any():
                self._without_caller.add(phase)

    def checks(self, cell: ModelCell, steps: int, source: ProfileSource) -> Iterator[Check]:
        """Yield checks of the number of products: that of the cell's model, over all steps, and the number found."""
        for phase, count in products_expected(cell).items():
            by_caller = source == "device" and phase not in self._without_caller
            found = (self._callers if by_caller else self._called)[phase]
            yield Check(name=f"matrix products in {phase}", expected=count * steps, found=found)
