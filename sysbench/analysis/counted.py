"""What of a slice counts: work that was launched within a step, or all of it where nothing marks steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sysbench.analysis import kernel_classes, kernel_names
from sysbench.analysis.attribution import Attribution
from sysbench.analysis.grouping import grouped
from sysbench.analysis.range_tree import PHASES, RangeTree
from sysbench.analysis.slices import Launched, Slice
from sysbench.analysis.trace import NONE, Integers
from sysbench.profile_summary import NO_PHASE, KernelName

COUNTED_PHASES = (NO_PHASE, *PHASES)
"""What `Counted.phase` is a position in."""


class Kernels:
    """What is known of kernels by their names, found out once for each."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._known: dict[int, KernelName] = {}

    def __getitem__(self, name: int) -> KernelName:
        """The kernel of a name, which is given by its index."""
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = _kernel_name(self._names[name])
        return known

    def are_products(self, name: Integers) -> NDArray[np.bool_]:
        """Which of these are products of matrices."""
        different, which = grouped(name)
        products = [self[each].kernel_class == "matmul" for each in different.tolist()]
        return np.array(products, bool)[which] if products else np.zeros(0, bool)


def _kernel_name(text: str) -> KernelName:
    kind = kernel_classes.classified(text)
    return KernelName(
        name=text,
        short=kernel_names.shortened(text),
        kernel_class=kind or "other",
        placed=kind is not None,
        precision=kernel_classes.precision(text) if kind in ("matmul", "attention") else None,
    )


@dataclass(frozen=True)
class Counted:
    """A slice, attributed; columns have a row for each piece of work that counts."""

    slice: Slice
    found: Attribution
    ranges: RangeTree
    is_counted: NDArray[np.bool_]
    """Of everything in `found`."""
    work: Launched
    step: Integers
    phase: Integers
    """Position in COUNTED_PHASES."""
    module: Integers
    """Position in `ranges.modules`."""
    operator: Integers
    """Index into the slice's operators: the innermost around the launch; NONE where there is none."""

    @classmethod
    def of(cls, part: Slice, found: Attribution, ranges: RangeTree) -> Counted:
        """Choose what counts."""
        step = _steps(found, ranges)
        counted = step != NONE if ranges.steps else np.ones(len(step), bool)
        return cls(
            slice=part,
            found=found,
            ranges=ranges,
            is_counted=counted,
            work=_only(found.work, counted),
            step=step[counted],
            phase=found.phase[counted] + 1,
            module=found.module[counted],
            operator=found.operator[counted],
        )

    @cached_property
    def operators_counted(self) -> NDArray[np.bool_]:
        """The slice's operators that lie in steps."""
        operators, ranges = self.slice.operators, self.ranges
        if not ranges.steps:
            return np.ones(len(operators.name), bool)
        if self.found.source == "cpu":
            return self.is_counted
        around = ranges.at(operators.thread, operators.start_ns)
        elsewhere = ranges.milestone_at(operators.start_ns)
        here = np.where(around == NONE, NONE, ranges.step[around])
        there = np.where(elsewhere == NONE, NONE, ranges.step[elsewhere])
        return np.asarray((here != NONE) | (there != NONE))


def _steps(found: Attribution, ranges: RangeTree) -> Integers:
    """The step of every piece of work; what no launch is known of belongs to the last step that began before it."""
    before = np.searchsorted(ranges.step_start_ns, found.work.start_ns, side="right") - 1
    return np.where((found.step == NONE) & (found.work.thread == NONE), before, found.step)


def _only(work: Launched, chosen: NDArray[np.bool_]) -> Launched:
    if chosen.all():
        return work
    columns: dict[str, Any] = {name: column[chosen] for name, column in vars(work).items()}
    return replace(work, **columns)
