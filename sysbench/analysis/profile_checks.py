"""What is known of the model before it is profiled, and what the profile says: if they differ, one of them is wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from sysbench.analysis import work_estimate
from sysbench.analysis.attribution import Work
from sysbench.analysis.grouping import distinct
from sysbench.analysis.profile_rates import PRODUCTS
from sysbench.analysis.trace import NONE, Integers
from sysbench.profile_summary import Check, KernelName

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


def checks(
    cell: ModelCell | None,
    steps: int,
    work: Work,
    operator: Integers,
    names: list[KernelName],
    kernel: Integers,
    phase: NDArray[np.str_],
) -> Iterator[Check]:
    """The products of each phase, over all steps. Columns have a row for each piece of work; `phase` is its name."""
    expected = products_expected(cell) if cell is not None else None
    for name, count in (expected or {}).items():
        here = np.flatnonzero(phase == name)
        found = _products(work, operator[here], names, kernel[here])
        yield Check(name=f"matrix products in {name}", expected=count * steps, found=found)


def _products(work: Work, operator: Integers, names: list[KernelName], kernel: Integers) -> int:
    """On the CPU the operators that are one; else the operators that launched one; else the kernels themselves."""
    if work.source == "cpu":
        known = np.array([name.name.removeprefix("aten::") in PRODUCTS for name in names], bool)
        return int(known[kernel].sum())
    known = np.array(
        [name.kernel_class == "matmul" and not _PART_OF_A_PRODUCT.search(name.name[:4000]) for name in names], bool
    )
    caused = operator[known[kernel]]
    return len(distinct(caused)) if len(caused) and (caused != NONE).all() else len(caused)
