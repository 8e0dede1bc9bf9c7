"""Time by phase, module and kernel, summed slice by slice.

Work is counted if it was launched within a step. If no steps are marked, all work is counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sysbench.trace.attribution import ROWS, Attribution, Launched, Slice
from sysbench.trace.columns import added_up, distinct, grouped, looked_up, summed
from sysbench.trace.kernels.names import classified, precision, shortened
from sysbench.trace.range_tree import RangeTree
from sysbench.trace.recording import NONE, Integers, Table
from sysbench.trace.summary import EVERYWHERE, NO_PHASE, PHASES, KernelName, KernelTimeColumns

WORK_PHASES = (NO_PHASE, *PHASES)
"""Phases of work; `StepWork.phase` holds positions in this tuple."""


class Kernels:
    """Class, precision and short name of each kernel, determined once per name."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._known: dict[int, KernelName] = {}

    def __getitem__(self, name: int) -> KernelName:
        """Return the kernel with this name index."""
        known = self._known.get(name)
        if known is None:
            text = self._names[name]
            kind = classified(text)
            known = self._known[name] = KernelName(
                name=text,
                short=shortened(text),
                kernel_class=kind or "other",
                placed=kind is not None,
                precision=precision(text) if kind in ("matmul", "attention") else None,
            )
        return known

    def are_products(self, name: Integers) -> NDArray[np.bool_]:
        """Return whether each of these kernels is a matrix product."""
        different, which = grouped(name)
        products = [self[each].kernel_class == "matmul" for each in different.tolist()]
        return np.array(products, bool)[which] if products else np.zeros(0, bool)


@dataclass(frozen=True)
class StepWork:
    """An attributed slice, restricted to the work launched within a step; one row per piece of work."""

    slice: Slice
    found: Attribution
    ranges: RangeTree
    is_counted: NDArray[np.bool_]
    """Whether each piece of work in `found` is counted."""
    work: Launched
    step: Integers
    phase: Integers
    """Position in WORK_PHASES."""
    module: Integers
    """Position in `ranges.modules`."""
    operator: Integers
    """Index of the innermost operator around the launch, among the slice's operators; NONE if there is none."""

    @classmethod
    def of(cls, part: Slice, found: Attribution, ranges: RangeTree) -> StepWork:
        """Select the work of a slice that was launched within a step."""
        # Work without a known launch belongs to the last step that began before it.
        before = np.searchsorted(ranges.step_start_ns, found.work.start_ns, side="right") - 1
        step = np.where((found.step == NONE) & (found.work.thread == NONE), before, found.step)
        counted = step != NONE if ranges.steps else np.ones(len(step), bool)
        work = found.work
        if not counted.all():
            columns: dict[str, Any] = {name: column[counted] for name, column in vars(work).items()}
            work = replace(work, **columns)
        return cls(
            slice=part,
            found=found,
            ranges=ranges,
            is_counted=counted,
            work=work,
            step=step[counted],
            phase=found.phase[counted] + 1,
            module=found.module[counted],
            operator=found.operator[counted],
        )

    @cached_property
    def operators_counted(self) -> NDArray[np.bool_]:
        """Return whether each of the slice's operators is within a step."""
        operators, ranges = self.slice.operators, self.ranges
        if not ranges.steps:
            return np.ones(len(operators.name), bool)
        if self.found.source == "cpu":
            return self.is_counted
        around = ranges.at(operators.thread, operators.start_ns)
        elsewhere = ranges.milestone_at(operators.start_ns)
        return np.asarray((looked_up(ranges.step, around) != NONE) | (looked_up(ranges.step, elsewhere) != NONE))


MOST_MODULES: Final = 4000
"""Maximum number of modules. The time of further modules is charged to their ancestors."""


@dataclass(frozen=True)
class KernelTime:
    """Time and number of calls; one row per phase, module and kernel."""

    modules: tuple[str, ...]
    """Modules that launch work, in order of first appearance; the first is the whole model."""
    module_places: Integers
    """Position in `modules` for each module of the range tree."""
    kernels: Integers
    """Name indices of the kernels, in ascending order."""
    phase: Integers
    module: Integers
    """Position in `modules`."""
    kernel: Integers
    """Position in `kernels`."""
    total_ns: Integers
    calls: Integers

    @cached_property
    def columns(self) -> KernelTimeColumns:
        """Return the rows in the format of the summary."""
        return KernelTimeColumns(
            phase=self.phase.tolist(),
            module=self.module.tolist(),
            kernel=self.kernel.tolist(),
            total_ns=self.total_ns.tolist(),
            calls=self.calls.tolist(),
        )

    @property
    def by_module_ns(self) -> Integers:
        """Return the time of each module in `modules`, excluding submodules."""
        return summed(self.total_ns, self.module, len(self.modules))

    @property
    def by_kernel_ns(self) -> Integers:
        """Return the time of each kernel in `kernels`."""
        return summed(self.total_ns, self.kernel, len(self.kernels))


class KernelTimeSums:
    """Time and number of calls, summed slice by slice."""

    def __init__(self, modules: tuple[str, ...], names: int) -> None:
        self._modules = modules
        self._names = max(names, 1)
        self._begun_ns = np.full(len(modules), np.iinfo(np.int64).max, np.int64)
        self._groups: list[tuple[Integers, Integers, Integers]] = []

    def add(self, part: StepWork) -> None:
        """Add the work that a slice launches within steps."""
        np.minimum.at(self._begun_ns, part.module, part.work.at_ns)
        keys = (part.phase * len(self._modules) + part.module) * self._names + part.work.name
        different, which = grouped(keys)
        total = summed(part.work.duration_ns, which, len(different))
        self._groups.append((different, total, np.bincount(which, minlength=len(different))))

    def total(self) -> KernelTime:
        """Return the sums over all slices."""
        keys, total_ns, calls = added_up(*(np.concatenate(parts) for parts in zip(*self._groups, strict=True)))
        outer, name = np.divmod(keys, self._names)
        phase, module = np.divmod(outer, len(self._modules))
        modules, places = self._bounded(module, total_ns)
        kernels, kernel = grouped(name)
        rows = (phase * len(modules) + places[module]) * max(len(kernels), 1) + kernel
        keys, total_ns, calls = added_up(rows, total_ns, calls)
        outer, kernel = np.divmod(keys, max(len(kernels), 1))
        phase, module = np.divmod(outer, len(modules))
        return KernelTime(modules, places, kernels, phase, module, kernel, total_ns, calls)

    def _bounded(self, module: Integers, total_ns: Integers) -> tuple[tuple[str, ...], Integers]:
        """Return the modules that launch work, in order of first launch, and for each module its position among them.

        If there are too many modules, only those that take the most time remain. The time of any other module is
        charged to its nearest remaining ancestor.
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


def phases_present(time: KernelTime) -> list[int]:
    """Return the positions in WORK_PHASES of the named phases that have work."""
    return [phase for phase in distinct(time.phase).tolist() if WORK_PHASES[phase]]


# --- single calls

_START, _DURATION, _DEVICE, _LAUNCHED, _NAME, _MODULE, _PHASE, _LAUNCH_SHAPE = range(8)


@dataclass(frozen=True)
class Moments:
    """Times of calls; one row per call."""

    start_ns: Integers
    duration_ns: Integers
    device: Integers
    launched_ns: Integers
    """Launch times; NONE if unknown."""


@dataclass(frozen=True)
class Kinds:
    """Duration, kernel, module, phase and launch shape of calls; one row per call."""

    duration_ns: Integers
    name: NDArray[np.int32]
    module: NDArray[np.int32]
    """Position in `RangeTree.modules`."""
    phase: NDArray[np.int32]
    """Position in WORK_PHASES."""
    launch_shape: NDArray[np.int32]


class Calls:
    """All calls of kernels that were launched within steps, collected slice by slice."""

    def __init__(self) -> None:
        self._table = Table(8)

    def add(self, part: StepWork) -> None:
        """Add the work that a slice launches within steps."""
        work = part.work
        launched = np.where(work.launch == NONE, NONE, work.at_ns)
        moments = [work.start_ns, work.duration_ns, work.device, launched]
        self._table.add([*moments, work.name, part.module, part.phase, work.launch_shape])

    def in_order_of_time(self) -> Iterator[Moments]:
        """Yield all calls in batches; the batches are in order of time."""
        sample = [column[:: max(1, ROWS // 64)] for (column,) in self._table.stretches(_START)]
        starts = distinct(np.concatenate(sample)) if sample else np.zeros(0, np.int64)
        every = max(1, len(starts) * ROWS // max(len(self._table), 1))
        for first, beyond in pairwise([-(2**63), *starts[every::every].tolist(), 2**63 - 1]):
            yield Moments(*self._table.between(_START, first, beyond)[1][: _LAUNCHED + 1])

    def of_kernels(self, wanted: NDArray[np.bool_]) -> Kinds:
        """Return all calls of the wanted kernels; `wanted` is a Boolean mask over name indices."""
        durations, others = [], []
        for duration_ns, *rest in self._table.stretches(_DURATION, _NAME, _MODULE, _PHASE, _LAUNCH_SHAPE):
            chosen = wanted[rest[0]]
            durations.append(duration_ns[chosen])
            others.append([column[chosen].astype(np.int32) for column in rest])
        columns = (np.concatenate(parts) for parts in zip(*others, strict=True))
        return Kinds(np.concatenate(durations), *columns)

    def queues_ns(self) -> Integers:
        """Return the time between launch and start for each call with a known launch."""
        waits = [(start - launched)[launched != NONE] for start, launched in self._table.stretches(_START, _LAUNCHED)]
        return np.concatenate(waits) if waits else np.zeros(0, np.int64)
