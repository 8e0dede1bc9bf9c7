"""What is known of the model before it is profiled, and what the profile says: if they differ, one of them is wrong."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from sysbench.analysis import work_estimate
from sysbench.analysis.counted import COUNTED_PHASES, Counted, Kernels
from sysbench.analysis.grouping import distinct, grouped
from sysbench.analysis.product_flops import PRODUCTS
from sysbench.analysis.trace import NONE
from sysbench.profile_summary import Check, KernelName, ProfileSource

if TYPE_CHECKING:
    from sysbench.specs.model import ModelCell

_PART_OF_A_PRODUCT: Final = re.compile(r"split_?k_?reduce", re.IGNORECASE)
"""Sums what several blocks of one product have computed."""

BACKWARD_PRODUCTS: Final = 2
"""Of every product, that of both operands' gradients."""


def products_expected(cell: ModelCell) -> dict[str, int] | None:
    """Matrix products in a step by phase: 9 in every layer, and the output head; None where compiled or fused."""
    if cell.attention not in work_estimate.WRITTEN_OUT or cell.execution != "eager":
        return None
    forward = 9 * cell.model.layers + 1
    expected = {"forward": forward, "backward": BACKWARD_PRODUCTS * forward}
    return {phase: count for phase, count in expected.items() if phase in cell.phases}


class ProductSums:
    """Matrix products that were found in each phase. Grows with every slice."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._found: Counter[str] = Counter()
        """What was called: on the CPU operators, else kernels."""
        self._callers: Counter[str] = Counter()
        """The operators that called them."""
        self._without_caller: set[str] = set()

    def add(self, part: Counted) -> None:
        """Take in what counts of a slice."""
        names, which = grouped(part.work.name)
        are_products = np.array([self._is_one(self._kernels[name], part.found.source) for name in names.tolist()], bool)
        rows = np.flatnonzero(are_products[which]) if len(names) else which
        phases = part.phase[rows]
        for number in distinct(phases).tolist():
            here, phase = rows[phases == number], COUNTED_PHASES[number]
            self._found[phase] += len(here)
            self._callers[phase] += len(distinct(part.operator[here]))
            if (part.operator[here] == NONE).any():
                self._without_caller.add(phase)

    def checks(self, cell: ModelCell | None, steps: int, source: ProfileSource) -> Iterator[Check]:
        """What is known of a cell's products, over all steps, beside what was found."""
        for phase, count in ((products_expected(cell) if cell is not None else None) or {}).items():
            by_caller = source == "device" and phase not in self._without_caller
            found = (self._callers if by_caller else self._found)[phase]
            yield Check(name=f"matrix products in {phase}", expected=count * steps, found=found)

    def _is_one(self, kernel: KernelName, source: ProfileSource) -> bool:
        if source == "cpu":
            return kernel.name.removeprefix("aten::") in PRODUCTS
        return kernel.kernel_class == "matmul" and not _PART_OF_A_PRODUCT.search(kernel.name[:4000])
