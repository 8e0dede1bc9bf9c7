"""Where the time went: added up by phase, module and kernel, slice by slice."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from sysbench.analysis.counted import COUNTED_PHASES, Counted
from sysbench.analysis.grouping import distinct, grouped, summed
from sysbench.analysis.trace import Integers
from sysbench.profile_summary import EVERYWHERE, SpentColumns

MOST_MODULES: Final = 4000
"""Modules that are told apart; where there are more, time is counted for what encloses them."""


@dataclass(frozen=True)
class Spent:
    """Time and calls, a row for every kernel that a module launched in a phase."""

    modules: tuple[str, ...]
    """Those that did something, in the order in which they began; the first is the model as a whole."""
    module_places: Integers
    """Position in `modules` for each of the ranges' own."""
    kernels: Integers
    """The kernels' names, as indices, in order."""
    phase: Integers
    module: Integers
    """Position in `modules`."""
    kernel: Integers
    """Position in `kernels`."""
    total_ns: Integers
    calls: Integers

    @cached_property
    def columns(self) -> SpentColumns:
        """As the summary holds them."""
        return SpentColumns(
            phase=self.phase.tolist(),
            module=self.module.tolist(),
            kernel=self.kernel.tolist(),
            total_ns=self.total_ns.tolist(),
            calls=self.calls.tolist(),
        )

    @property
    def by_module_ns(self) -> Integers:
        """Time of each of `modules`, without those below it."""
        return summed(self.total_ns, self.module, len(self.modules))

    @property
    def by_kernel_ns(self) -> Integers:
        """Time of each of `kernels`."""
        return summed(self.total_ns, self.kernel, len(self.kernels))


class SpentSums:
    """Grows with every slice."""

    def __init__(self, modules: tuple[str, ...], names: int) -> None:
        self._modules = modules
        self._names = max(names, 1)
        self._begun_ns = np.full(len(modules), np.iinfo(np.int64).max, np.int64)
        self._groups: list[tuple[Integers, Integers, Integers]] = []

    def add(self, part: Counted) -> None:
        """Take in what counts of a slice."""
        np.minimum.at(self._begun_ns, part.module, part.work.at_ns)
        keys = (part.phase * len(self._modules) + part.module) * self._names + part.work.name
        different, which = grouped(keys)
        total = summed(part.work.duration_ns, which, len(different))
        self._groups.append((different, total, np.bincount(which, minlength=len(different))))

    def spent(self) -> Spent:
        """Everything together."""
        keys, total_ns, calls = _added(*(np.concatenate(parts) for parts in zip(*self._groups, strict=True)))
        outer, name = np.divmod(keys, self._names)
        phase, module = np.divmod(outer, len(self._modules))
        modules, places = self._bounded(module, total_ns)
        kernels, kernel = grouped(name)
        rows = (phase * len(modules) + places[module]) * max(len(kernels), 1) + kernel
        keys, total_ns, calls = _added(rows, total_ns, calls)
        outer, kernel = np.divmod(keys, max(len(kernels), 1))
        phase, module = np.divmod(outer, len(modules))
        return Spent(modules, places, kernels, phase, module, kernel, total_ns, calls)

    def _bounded(self, module: Integers, total_ns: Integers) -> tuple[tuple[str, ...], Integers]:
        """The modules that did something, in the order in which they began, and the place of each among them.

        Where they are too many, those that take most time: what is not told apart counts for the nearest one around it.
        """
        total = summed(total_ns, module, len(self._modules))
        used = distinct(module)
        kept = used[np.argsort(-total[used], kind="stable")][:MOST_MODULES]
        numbers = {EVERYWHERE: 0}
        for number in kept[np.argsort(self._begun_ns[kept], kind="stable")].tolist():
            numbers.setdefault(self._modules[number], len(numbers))
        place = np.zeros(len(self._modules), np.int64)
        for number in used.tolist():
            path = self._modules[number]
            while path not in numbers:
                path = path.rpartition(".")[0]
            place[number] = numbers[path]
        return tuple(numbers), place


def _added(keys: Integers, total_ns: Integers, calls: Integers) -> tuple[Integers, Integers, Integers]:
    """The different keys in order, with what belongs to each added up."""
    different, which = grouped(keys)
    return different, summed(total_ns, which, len(different)), summed(calls, which, len(different))


def phases_present(spent: Spent) -> list[int]:
    """Positions in COUNTED_PHASES of the phases in which anything was done."""
    return [phase for phase in distinct(spent.phase).tolist() if COUNTED_PHASES[phase]]
