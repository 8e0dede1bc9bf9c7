"""Time of kernels by phase and module and by call, and statistics of operators and devices, summed slice by slice.

Work is counted if it was launched within a step. If no steps are marked, all work is counted, including work that was
launched before the recording began.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sysbench.trace.attribution import MIN_SLICE_ROWS, Attribution, LaunchedWork, Slice
from sysbench.trace.columns import (
    Intervals,
    depths,
    distinct,
    first_positions,
    self_time_ns,
    sum_by_group,
    sum_by_key,
    take_or_none,
    union,
    unique_with_inverse,
)
from sysbench.trace.range_tree import RangeTree
from sysbench.trace.recording import NONE, Integers, Table
from sysbench.trace.summary import (
    EVERYWHERE,
    NO_PHASE,
    PHASES,
    STEP,
    DeviceUse,
    KernelStatistics,
    KernelTimeColumns,
    OperatorStatistics,
)

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
        work = attribution.work
        # Work without a known launch belongs to the last step that began before it.
        is_unlinked = (attribution.step == NONE) & (work.thread == NONE)
        step = np.where(is_unlinked, ranges.last_step_begun(work.at_ns), attribution.step)
        counted = (step != NONE) & (work.is_backlog == 0) if ranges.steps else np.ones(len(step), bool)
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
        kernel_ns, kernel_calls = (sum_by_group(amounts, kernel, len(kernels)) for amounts in (total_ns, calls))
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


_BATCH_CALLS: Final = 400_000
"""Number of calls that are sorted at a time; more if a single kernel has more."""


def kernel_statistics(calls: Calls, time: StepTime, shapes: Integers, names: int) -> list[KernelStatistics]:
    """Return the statistics of every kernel in the step and in each phase.

    `shapes` are the recording's launch shapes, and `names` is the number of names in the recording.
    """
    phases = [phase for phase in sorted(set(time.spent.phase)) if WORK_PHASES[phase]]
    found: dict[int | None, list[KernelStatistics]] = {phase: [] for phase in (None, *phases)}
    position = np.full(names, NONE, np.int32)
    position[time.kernels] = np.arange(len(time.kernels))
    # Kernels are processed in groups, which bounds the number of calls in memory.
    batch = np.cumsum(time.kernel_calls) // _BATCH_CALLS
    for part in distinct(batch).tolist():
        named = np.zeros(names, bool)
        named[time.kernels[batch == part]] = True
        name, durations, phases_of_calls, launch_shape = calls.of_kernels(named)
        kernel = position[name]
        order = np.lexsort((durations, kernel))
        for phase, rows in found.items():
            chosen = order if phase is None else order[phases_of_calls[order] == phase]
            range_name = STEP if phase is None else WORK_PHASES[phase]
            rows.extend(_statistics(range_name, kernel[chosen], durations[chosen], launch_shape[chosen], shapes))
    return [row for rows in found.values() for row in rows]


def _statistics(
    range_name: str,
    kernels: NDArray[np.int32],
    durations: Integers,
    launch_shape: NDArray[np.int32],
    shapes: Integers,
) -> Iterator[KernelStatistics]:
    if not len(kernels):
        return
    first = np.flatnonzero(np.diff(kernels, prepend=NONE))
    counts = np.diff(first, append=len(kernels))
    means = np.add.reduceat(durations, first) / counts
    squares = np.add.reduceat((durations - np.repeat(means, counts)) ** 2, first)
    deviations = np.sqrt(squares / np.maximum(counts - 1, 1))
    medians = (durations[first + (counts - 1) // 2] + durations[first + counts // 2]) / 2
    least, most = (extreme.reduceat(launch_shape, first) for extreme in (np.minimum, np.maximum))
    common_shape = np.where(least == most, least, NONE).tolist()
    for number, (start, count) in enumerate(zip(first.tolist(), counts.tolist(), strict=True)):
        shape = shapes[common_shape[number]].tolist() if common_shape[number] != NONE else None
        yield KernelStatistics(
            range=range_name,
            kernel=int(kernels[start]),
            median_ns=float(medians[number]),
            min_ns=int(durations[start]),
            max_ns=int(durations[start + count - 1]),
            std_ns=float(deviations[number]),
            grid=shape and tuple(shape[:3]),
            block=shape and tuple(shape[3:]),
        )


# --- operators

MAX_OPERATORS = 400
"""Maximum number of rows by operator name, and maximum number of rows by name and input shapes."""


class OperatorSums:
    """Sums over the operators within steps and over the work launched by each operator, collected slice by slice."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._width = len(names) + 1
        self._by_name: list[list[Integers]] = []
        self._by_shapes: list[list[Integers]] = []

    def add(self, part: StepWork) -> None:
        """Add a slice."""
        operators, attribution = part.slice.operators, part.attribution
        parents = attribution.operators.parents
        self_device = np.zeros(len(operators.name), np.int64)
        if attribution.source == "device":
            attributed = part.is_counted & (attribution.operator != NONE)
            self_device = sum_by_group(
                attribution.work.duration_ns[attributed], attribution.operator[attributed], len(operators.name)
            )
        outermost = ~_is_nested_in_same_name(operators.name, parents)
        columns = (
            np.ones(len(operators.name), np.int64),
            self_time_ns(attribution.operators, operators.duration_ns),
            np.where(outermost, operators.duration_ns, 0),
            self_device,
            np.where(outermost, _sum_with_nested(self_device, parents, depths(parents)), 0),
        )
        chosen = np.flatnonzero(part.counted_operators)
        shaped = np.flatnonzero(part.counted_operators & (operators.shapes != NONE))
        name_keys = operators.name[chosen] * self._width
        self._by_name.append(sum_by_key(name_keys, *(column[chosen] for column in columns)))
        keys = operators.name[shaped] * self._width + operators.shapes[shaped] - NONE
        self._by_shapes.append(sum_by_key(keys, *(column[shaped] for column in columns)))

    def statistics(self) -> list[OperatorStatistics]:
        """Return one row per operator name, then one row per name and input shapes."""
        return [*self._rows(self._by_name), *self._rows(self._by_shapes)]

    def _rows(self, parts: list[list[Integers]]) -> list[OperatorStatistics]:
        """Return one row per key, sorted by self time on the device, then on the host; at most MAX_OPERATORS."""
        keys, *columns = (np.concatenate(pieces) for pieces in zip(*parts, strict=True))
        groups, calls, self_host, total_host, self_device, total_device = sum_by_key(keys, *columns)
        order = np.lexsort((-self_host, -self_device))[:MAX_OPERATORS].tolist()
        return [
            OperatorStatistics(
                name=self._names[groups[row] // self._width],
                shapes=self._names[shape] if (shape := int(groups[row] % self._width) + NONE) != NONE else None,
                calls=int(calls[row]),
                self_host_ns=int(self_host[row]),
                total_host_ns=int(total_host[row]),
                self_device_ns=int(self_device[row]),
                total_device_ns=int(total_device[row]),
            )
            for row in order
        ]


def _sum_with_nested(values: Integers, parents: Integers, depth: Integers) -> Integers:
    total = values.copy()
    order = np.argsort(-depth, kind="stable")
    levels = np.flatnonzero(np.diff(depth[order], prepend=-1, append=-1))
    for first, beyond in zip(levels[:-1].tolist(), levels[1:].tolist(), strict=True):
        rows = order[first:beyond]
        rows = rows[parents[rows] != NONE]
        np.add.at(total, parents[rows], total[rows])
    return total


def _is_nested_in_same_name(name: Integers, parents: Integers) -> NDArray[np.bool_]:
    same = np.zeros(len(name), bool)
    outer, inside = parents.copy(), np.flatnonzero(parents != NONE)
    while len(inside):
        same[inside] |= name[inside] == name[outer[inside]]
        outer[inside] = parents[outer[inside]]
        inside = inside[(outer[inside] != NONE) & ~same[inside]]
    return same


class LaunchSums:
    """Sums of launch overhead, collected slice by slice. All work launched by the same call is in the same slice."""

    def __init__(self) -> None:
        self.launches = self.launch_ns = self.work_ns = 0

    def add(self, part: StepWork) -> None:
        """Add the work of one slice."""
        work = part.work
        self.work_ns += int(work.duration_ns.sum())
        known = work.launch != NONE
        launches, which = unique_with_inverse(work.launch[known])
        self.launches += len(launches)
        self.launch_ns += int(work.launch_ns[known][first_positions(which, len(launches))].sum())


class Timeline:
    """Busy time, and idle time spent waiting for the host. Work is added in chronological order."""

    def __init__(self, windows: Intervals) -> None:
        self._windows = windows
        self.total_ns = 0
        """Time in which at least one piece of work runs."""
        self.busy_ns = 0
        """The part of `total_ns` within the windows."""
        self.waiting_ns = 0
        """Idle time before the launch of the work that ends the idle time."""
        self._open = np.zeros((3, 0), np.int64)
        """The last busy interval, which later work may extend: start, end, and launch time of its first piece of
        work."""
        self._idle_since = windows.start_ns[:1]

    def add(self, start_ns: Integers, end_ns: Integers, launched_ns: Integers) -> None:
        """Add work that starts no earlier than all work added before; `launched_ns` is NONE if unknown."""
        start, end, launched = np.concatenate([self._open, np.stack([start_ns, end_ns, launched_ns])], axis=1)
        running = union(start, end)
        # If several pieces of work end the same gap, the first to start determines the launch.
        order = np.lexsort((launched, start))
        beginning = order[np.searchsorted(start[order], running.start_ns)]
        self._close(running, launched[beginning], len(running.start_ns) - 1)

    def close(self) -> None:
        """Add the last busy interval to the totals. No work may be added afterwards."""
        start, end, launched = self._open
        self._close(Intervals(start, end), launched, len(start))

    def _close(self, running: Intervals, launched: Integers, count: int) -> None:
        """Add the first `count` busy intervals to the totals. Later work may still extend the others."""
        count = max(count, 0)
        starts, ends = running.start_ns[:count], running.end_ns[:count]
        self._open = np.stack([running.start_ns[count:], running.end_ns[count:], launched[count:]])
        self.total_ns += int((ends - starts).sum())
        if not count or not len(self._windows.start_ns):
            return
        self.busy_ns += Intervals(starts, ends).overlap_ns(self._windows)
        gap_begins = np.concatenate([self._idle_since, ends[:-1]])
        gap_ends = np.where(launched[:count] == NONE, gap_begins, np.minimum(starts, launched[:count]))
        waited = gap_ends > gap_begins
        self.waiting_ns += Intervals(gap_begins[waited], gap_ends[waited]).overlap_ns(self._windows)
        self._idle_since = ends[-1:]


def busy_timelines(calls: Calls, windows: Intervals) -> tuple[Timeline, dict[int, Timeline]]:
    """Return one timeline for all devices together, and one for each device."""
    everywhere = Timeline(windows)
    devices: dict[int, Timeline] = {}
    for start_ns, duration_ns, device, launched_ns in calls.batches_by_time():
        everywhere.add(start_ns, start_ns + duration_ns, launched_ns)
        for number in distinct(device).tolist():
            here = device == number
            timeline = devices.setdefault(number, Timeline(windows))
            timeline.add(start_ns[here], (start_ns + duration_ns)[here], launched_ns[here])
    for timeline in (everywhere, *devices.values()):
        timeline.close()
    return everywhere, devices


def device_use(devices: Mapping[int, Timeline], launched: LaunchSums, windows: Intervals) -> DeviceUse:
    """Return device utilisation within `windows`, the windows of the steps, summed over devices."""
    return DeviceUse(
        window_ns=windows.total_ns * len(devices),
        busy_ns=sum(device.busy_ns for device in devices.values()),
        work_ns=launched.work_ns,
        waiting_ns=sum(device.waiting_ns for device in devices.values()),
        launches=launched.launches,
        launch_ns=launched.launch_ns,
    )
