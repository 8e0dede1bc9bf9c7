"""Time by phase, module and kernel, summed slice by slice.

Work is counted if it was launched within a step. If no steps are marked, all work is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sysbench.trace.attribution import MIN_SLICE_ROWS, Attribution, LaunchedWork, Slice
from sysbench.trace.columns import distinct, sum_by_group, sum_by_key, take_or_none, unique_with_inverse
from sysbench.trace.range_tree import RangeTree
from sysbench.trace.recording import NONE, Integers, Table
from sysbench.trace.summary import EVERYWHERE, NO_PHASE, PHASES, KernelTimeColumns

WORK_PHASES = (NO_PHASE, *PHASES)
"""Phases of work; `StepWork.phase` holds positions in this tuple."""


@dataclass(frozen=True)
class StepWork:
    """Work launched within steps, one row per piece of work, attributed to step, phase, module and operator."""

    slice: Slice
    attribution: Attribution
    ranges: RangeTree
    is_counted: NDArray[np.bool_]
    """Whether each piece of work in `attribution` is counted."""
    work: LaunchedWork
    step: Integers
    phase: Integers
    """Position in WORK_PHASES."""
    module: Integers
    """Position in `ranges.modules`."""
    operator: Integers
    """Index of the innermost operator around the launch, among the slice's operators; NONE if there is none."""

    @classmethod
    def of(cls, part: Slice, attribution: Attribution, ranges: RangeTree) -> StepWork:
        """Select the work of a slice that was launched within a step."""
        # Work without a known launch belongs to the last step that began before it.
        before = np.searchsorted(ranges.step_start_ns, attribution.work.start_ns, side="right") - 1
        step = np.where((attribution.step == NONE) & (attribution.work.thread == NONE), before, attribution.step)
        counted = step != NONE if ranges.steps else np.ones(len(step), bool)
        work = attribution.work
        if not counted.all():
            columns: dict[str, NDArray[Any]] = {name: column[counted] for name, column in vars(work).items()}
            work = replace(work, **columns)
        return cls(
            slice=part,
            attribution=attribution,
            ranges=ranges,
            is_counted=counted,
            work=work,
            step=step[counted],
            phase=attribution.phase[counted] + 1,
            module=attribution.module[counted],
            operator=attribution.operator[counted],
        )

    @cached_property
    def counted_operators(self) -> NDArray[np.bool_]:
        """Return whether each of the slice's operators is within a step."""
        operators, ranges = self.slice.operators, self.ranges
        if not ranges.steps:
            return np.ones(len(operators.name), bool)
        if self.attribution.source == "cpu":
            return self.is_counted
        range_index = ranges.at(operators.thread, operators.start_ns)
        milestone = ranges.milestone_at(operators.start_ns)
        return np.asarray(
            (take_or_none(ranges.step, range_index) != NONE) | (take_or_none(ranges.step, milestone) != NONE)
        )


MAX_MODULES: Final = 4000
"""Maximum number of modules. The time of further modules is charged to their ancestors."""


@dataclass(frozen=True)
class StepTime:
    """Time and number of calls over all steps."""

    modules: tuple[str, ...]
    """Modules that launch work, in order of first launch; the first is the whole model."""
    kernels: Integers
    """Name indices of the kernels, in ascending order."""
    spent: KernelTimeColumns
    """Time by phase, module and kernel; positions are in WORK_PHASES, `modules` and `kernels`."""
    kernel_ns: Integers
    """Time of each of `kernels`."""
    kernel_calls: Integers


class KernelTimeSums:
    """Time and number of calls, summed slice by slice."""

    def __init__(self, modules: tuple[str, ...], names: int) -> None:
        self._modules = modules
        self._names = max(names, 1)
        self._first_launch_ns = np.full(len(modules), np.iinfo(np.int64).max, np.int64)
        self._groups: list[tuple[Integers, Integers, Integers]] = []

    def add(self, part: StepWork) -> None:
        """Add the work of one slice."""
        np.minimum.at(self._first_launch_ns, part.module, part.work.at_ns)
        keys = (part.phase * len(self._modules) + part.module) * self._names + part.work.name
        different, which = unique_with_inverse(keys)
        total = sum_by_group(part.work.duration_ns, which, len(different))
        self._groups.append((different, total, np.bincount(which, minlength=len(different))))

    def total(self) -> StepTime:
        """Return the sums over all slices."""
        keys, total_ns, calls = sum_by_key(*(np.concatenate(parts) for parts in zip(*self._groups, strict=True)))
        outer, name = np.divmod(keys, self._names)
        phase, module = np.divmod(outer, len(self._modules))
        modules, places = self._limit_modules(module, total_ns)
        kernels, kernel = unique_with_inverse(name)
        rows = (phase * len(modules) + places[module]) * max(len(kernels), 1) + kernel
        keys, total_ns, calls = sum_by_key(rows, total_ns, calls)
        outer, kernel = np.divmod(keys, max(len(kernels), 1))
        phase, module = np.divmod(outer, len(modules))
        columns = {"phase": phase, "module": module, "kernel": kernel, "total_ns": total_ns, "calls": calls}
        spent = KernelTimeColumns(**{name: column.tolist() for name, column in columns.items()})
        kernel_ns, kernel_calls = (sum_by_group(each, kernel, len(kernels)) for each in (total_ns, calls))
        return StepTime(modules, kernels, spent, kernel_ns, kernel_calls)

    def _limit_modules(self, module: Integers, total_ns: Integers) -> tuple[tuple[str, ...], Integers]:
        """Return the modules that launch work, by first launch, and for each module its position among them."""
        total = sum_by_group(total_ns, module, len(self._modules))
        used = distinct(module)
        kept = used[np.argsort(-total[used], kind="stable")][:MAX_MODULES]
        numbers = {EVERYWHERE: 0}
        for number in kept[np.argsort(self._first_launch_ns[kept], kind="stable")].tolist():
            numbers.setdefault(self._modules[number], len(numbers))
        place = np.zeros(len(self._modules), np.int64)
        for number in used.tolist():
            path = self._modules[number]
            while path not in numbers:
                path = path.rpartition(".")[0]
            place[number] = numbers[path]
        return tuple(numbers), place


# --- single calls

_START, _DURATION, _DEVICE, _LAUNCHED, _NAME, _PHASE, _LAUNCH_SHAPE = range(7)


class Calls:
    """All calls of kernels that were launched within steps, collected slice by slice."""

    def __init__(self) -> None:
        self._table = Table(7)

    def add(self, part: StepWork) -> None:
        """Add the work of one slice."""
        work = part.work
        launched = np.where(work.launch == NONE, NONE, work.at_ns)
        moments = [work.start_ns, work.duration_ns, work.device, launched]
        self._table.add([*moments, work.name, part.phase, work.launch_shape])

    def batches_by_time(self) -> Iterator[list[Integers]]:
        """Yield start, duration, device and launch time (NONE if unknown) of all calls, in batches ordered by time."""
        sample = [column[:: max(1, MIN_SLICE_ROWS // 64)] for (column,) in self._table.chunks(_START)]
        starts = distinct(np.concatenate(sample)) if sample else np.zeros(0, np.int64)
        every = max(1, len(starts) * MIN_SLICE_ROWS // max(len(self._table), 1))
        for first, beyond in pairwise([-(2**63), *starts[every::every].tolist(), 2**63 - 1]):
            yield self._table.rows_between(_START, first, beyond)[1][: _LAUNCHED + 1]

    def of_kernels(self, wanted: NDArray[np.bool_]) -> list[NDArray[Any]]:
        """Return name, duration, phase and launch shape of all calls of the wanted kernels; a mask over names."""
        found = []
        for name, duration_ns, *others in self._table.chunks(_NAME, _DURATION, _PHASE, _LAUNCH_SHAPE):
            chosen = wanted[name]
            phase, shape = (column[chosen].astype(np.int32) for column in others)
            found.append((name[chosen].astype(np.int32), duration_ns[chosen], phase, shape))
        return [np.concatenate(parts) for parts in zip(*found, strict=True)]
