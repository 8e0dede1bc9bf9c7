"""The ranges that have kernel tables of their own, and which kernels are in them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sysbench.analysis.counted import COUNTED_PHASES
from sysbench.analysis.grouping import summed
from sysbench.analysis.spent import Spent, phases_present
from sysbench.analysis.trace import Integers

MOST_RANGES: Final = 80
"""Folded modules that have kernel tables of their own: those that take most time."""
MOST_KERNELS: Final = 100
"""Kernels whose statistics are kept for each range: those that take most time in it. The time of all is in `spent`."""
STEP: Final = "step"
"""The range that is everything."""
_NUMBER: Final = re.compile(r"(^|\.)\d+(?=\.|$)")


def folded(path: str) -> str:
    """`layers.*.attention` for `layers.3.attention`: what stands for every layer."""
    return _NUMBER.sub(r"\1*", path)


@dataclass(frozen=True)
class KernelRange:
    """What a range's kernels are chosen by: modules, and a phase or all of them."""

    name: str
    modules: NDArray[np.bool_]
    """For every module, whether it belongs to it."""
    phase: int | None
    """Position in COUNTED_PHASES."""

    def holds(self, module: NDArray[np.integer[Any]], phase: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Which rows of these columns belong to it."""
        chosen = self.modules[module]
        return chosen if self.phase is None else np.asarray(chosen & (phase == self.phase))

    def longest(self, spent: Spent) -> Integers:
        """Its kernels, as positions in `Spent.kernels`: those that take most time in it, the longest first."""
        here = self.holds(spent.module, spent.phase)
        total = summed(spent.total_ns[here], spent.kernel[here], len(spent.kernels))
        there = np.flatnonzero(np.bincount(spent.kernel[here], minlength=len(spent.kernels)))
        return there[np.argsort(-total[there], kind="stable")][:MOST_KERNELS]


def kernel_ranges(spent: Spent, asked: Sequence[str]) -> Iterator[KernelRange]:
    """The step, its phases, the modules that take most time, and what is asked for by name beside them."""
    everywhere = np.ones(len(spent.modules), bool)
    present = phases_present(spent)
    yield KernelRange(STEP, everywhere, None)
    for phase in present:
        yield KernelRange(COUNTED_PHASES[phase], everywhere, phase)
    done = set()
    for name in [*_folded_by_time(spent), *asked]:
        before, slash, path = name.rpartition("/")
        wanted = [COUNTED_PHASES.index(before)] if slash and before in COUNTED_PHASES else present
        modules = _below(spent.modules, path)
        if path in done or not modules.any():
            continue
        done.add(path)
        if not slash:
            yield KernelRange(path, modules, None)
        for phase in wanted:
            yield KernelRange(f"{COUNTED_PHASES[phase]}/{path}", modules, phase)


def _below(modules: Sequence[str], path: str) -> NDArray[np.bool_]:
    """The modules at the path, folded or not, and below it."""
    candidates = (folded(module) if "*" in path else module for module in modules)
    return np.array([module == path or module.startswith(f"{path}.") for module in candidates], bool)


def _folded_by_time(spent: Spent) -> list[str]:
    """Folded modules, those that take most time together with everything below them first."""
    total: dict[str, int] = {}
    for path, total_ns in zip(spent.modules, spent.by_module_ns.tolist(), strict=True):
        parts = folded(path).split(".") if path else []
        for depth in range(1, len(parts) + 1):
            above = ".".join(parts[:depth])
            total[above] = total.get(above, 0) + total_ns
    # `layers` says the same as `layers.*`.
    counted = [path for path in total if f"{path}.*" not in total]
    return sorted(counted, key=lambda path: -total[path])[:MOST_RANGES]
