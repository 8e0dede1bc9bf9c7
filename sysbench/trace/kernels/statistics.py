"""Statistics of individual kernels within ranges, of operators, and of whole devices.

Kernel statistics are times per call (mean, median, minimum, maximum) and launch shapes, for a bounded number of kernels
in each range. Device statistics are idle time, how much of it is spent waiting for the host, and launch overhead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sysbench.trace.columns import (
    Intervals,
    depths,
    distinct,
    first_positions,
    self_time_ns,
    sum_by_group,
    sum_by_key,
    union,
    unique_with_inverse,
)
from sysbench.trace.kernels.time import WORK_PHASES, CallDetails, Calls, KernelTime, StepWork, phases_present
from sysbench.trace.recording import NONE, Integers
from sysbench.trace.summary import STEP, DeviceUse, KernelStatistics, OperatorStatistics, ancestry, folded

MAX_RANGES: Final = 80
"""Number of folded modules with their own kernel table: those that take the most time."""
MAX_KERNELS: Final = 100
"""Number of kernels with statistics per range: those that run longest. `ProfileSummary.spent` has all kernels."""


@dataclass(frozen=True)
class KernelRange:
    """A range: a set of modules, in one phase or in all phases."""

    name: str
    modules: NDArray[np.bool_]
    """Whether each module belongs to the range."""
    phase: int | None
    """Position in WORK_PHASES; None for all phases."""

    def contains(self, module: NDArray[np.signedinteger], phase: NDArray[np.signedinteger]) -> NDArray[np.bool_]:
        """Return whether each row with this module and phase belongs to the range."""
        chosen = self.modules[module]
        return chosen if self.phase is None else np.asarray(chosen & (phase == self.phase))

    def longest_kernels(self, time: KernelTime) -> Integers:
        """Return the positions in `KernelTime.kernels` of the kernels that take the most time in the range."""
        here = self.contains(time.module, time.phase)
        total = sum_by_group(time.total_ns[here], time.kernel[here], len(time.kernels))
        there = np.flatnonzero(np.bincount(time.kernel[here], minlength=len(time.kernels)))
        return there[np.argsort(-total[there], kind="stable")][:MAX_KERNELS]


def kernel_ranges(time: KernelTime, requested: Sequence[str]) -> Iterator[KernelRange]:
    """Yield the step, its phases, the modules that take the most time, and the requested modules."""
    everywhere = np.ones(len(time.modules), bool)
    present = phases_present(time)
    yield KernelRange(STEP, everywhere, None)
    for phase in present:
        yield KernelRange(WORK_PHASES[phase], everywhere, phase)
    seen = set()
    for name in [*_folded_by_time(time), *requested]:
        prefix, slash, path = name.rpartition("/")
        phases = [WORK_PHASES.index(prefix)] if slash and prefix in WORK_PHASES else present
        candidates = (folded(module) if "*" in path else module for module in time.modules)
        modules = np.array([module == path or module.startswith(f"{path}.") for module in candidates], bool)
        if path in seen or not modules.any():
            continue
        seen.add(path)
        if not slash:
            yield KernelRange(path, modules, None)
        for phase in phases:
            yield KernelRange(f"{WORK_PHASES[phase]}/{path}", modules, phase)


def _folded_by_time(time: KernelTime) -> list[str]:
    total: dict[str, int] = {}
    for path, total_ns in zip(time.modules, time.by_module_ns.tolist(), strict=True):
        for above in ancestry(folded(path)):
            total[above] = total.get(above, 0) + total_ns
    # `layers` covers the same modules as `layers.*`.
    counted = [path for path in total if f"{path}.*" not in total]
    return sorted(counted, key=lambda path: -total[path])[:MAX_RANGES]


_BATCH_CALLS: Final = 400_000
"""Number of calls that are sorted at a time; more if a single kernel has more."""


def kernel_statistics(
    calls: Calls, time: KernelTime, ranges: Sequence[KernelRange], shapes: Integers, names: int
) -> list[KernelStatistics]:
    """Return the statistics of the kernels that take the most time in each range.

    Rows are sorted by range, and within a range by total time, longest first.

    `shapes` are the recording's launch shapes, and `names` is the number of names in the recording.
    """
    wanted = np.zeros((len(ranges), len(time.kernels)), bool)
    for number, each in enumerate(ranges):
        wanted[number, each.longest_kernels(time)] = True
    found: list[list[KernelStatistics]] = [[] for _ in ranges]
    position = np.full(names, NONE, np.int32)
    position[time.kernels] = np.arange(len(time.kernels))
    chosen = np.flatnonzero(wanted.any(axis=0))
    # Kernels are processed in groups, which bounds the number of calls in memory.
    batch = np.cumsum(sum_by_group(time.calls, time.kernel, len(time.kernels))[chosen]) // _BATCH_CALLS
    for part in distinct(batch).tolist():
        kernels = chosen[batch == part]
        named = np.zeros(names, bool)
        named[time.kernels[kernels]] = True
        ordered = _SortedCalls(calls.of_kernels(named), position, time, shapes)
        for number, each in enumerate(ranges):
            if wanted[number, kernels].any():
                found[number] += ordered.statistics_of(each, wanted[number])
    return [row for rows in found for row in sorted(rows, key=lambda row: -row.total_ns)]


class _SortedCalls:
    def __init__(self, calls: CallDetails, position: NDArray[np.int32], time: KernelTime, shapes: Integers) -> None:
        kernel = position[calls.name]
        order = np.lexsort((calls.duration_ns, kernel))
        self._kernel = kernel[order]
        self._duration_ns = calls.duration_ns[order]
        self._launch_shape = calls.launch_shape[order]
        self._module = time.module_places[calls.module[order]]
        self._phase = calls.phase[order]
        self._shapes = shapes

    def statistics_of(self, range_: KernelRange, wanted: NDArray[np.bool_]) -> Iterator[KernelStatistics]:
        selected = np.flatnonzero(range_.contains(self._module, self._phase) & wanted[self._kernel])
        if not len(selected):
            return
        kernels, durations = self._kernel[selected], self._duration_ns[selected]
        first = np.flatnonzero(np.diff(kernels, prepend=kernels[0] - 1))
        calls = np.diff(first, append=len(kernels))
        totals = np.add.reduceat(durations, first)
        means = totals / calls
        squares = np.add.reduceat((durations - np.repeat(means, calls)) ** 2, first)
        deviations = np.sqrt(squares / np.maximum(calls - 1, 1))
        last = first + calls - 1
        medians = (durations[first + (calls - 1) // 2] + durations[first + calls // 2]) / 2
        shapes, kinds = self._shapes_of(selected, first)
        for number in range(len(first)):
            shape = shapes[number] if kinds[number] == 1 else None
            yield KernelStatistics(
                range=range_.name,
                kernel=int(kernels[first[number]]),
                total_ns=int(totals[number]),
                calls=int(calls[number]),
                mean_ns=float(means[number]),
                median_ns=float(medians[number]),
                min_ns=int(durations[first[number]]),
                max_ns=int(durations[last[number]]),
                std_ns=float(deviations[number]),
                grid=(int(shape[0]), int(shape[1]), int(shape[2])) if shape is not None else None,
                block=(int(shape[3]), int(shape[4]), int(shape[5])) if shape is not None else None,
                launch_shapes=int(kinds[number]),
            )

    def _shapes_of(self, selected: Integers, first: Integers) -> tuple[Integers, Integers]:
        """Return one launch shape of each kernel, and each kernel's number of distinct recorded launch shapes."""
        shape = self._launch_shape[selected]
        group = np.zeros(len(selected), np.int64)
        group[first[1:]] = 1
        width = len(self._shapes) + 1
        group, number = np.divmod(distinct(np.cumsum(group) * width + shape - NONE), width)
        known = number + NONE != NONE
        kinds = np.bincount(group[known], minlength=len(first))
        one = np.zeros(len(first), np.int64)
        one[group[known]] = number[known] + NONE
        return (self._shapes[one] if len(self._shapes) else np.zeros((len(first), 6), np.int64)), kinds


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
        operators, found = part.slice.operators, part.attribution
        parents = found.operators.parents
        self_device = np.zeros(len(operators.name), np.int64)
        if found.source == "device":
            attributed = part.is_counted & (found.operator != NONE)
            self_device = sum_by_group(
                found.work.duration_ns[attributed], found.operator[attributed], len(operators.name)
            )
        outermost = ~_is_nested_in_same_name(operators.name, parents)
        columns = (
            np.ones(len(operators.name), np.int64),
            self_time_ns(found.operators, operators.duration_ns),
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
        self.streams: set[tuple[int, int]] = set()

    def add(self, part: StepWork) -> None:
        """Add the work of one slice."""
        work = part.work
        self.work_ns += int(work.duration_ns.sum())
        (_, device), (streams, stream) = unique_with_inverse(work.device), unique_with_inverse(work.stream)
        pairs, which = unique_with_inverse(device * len(streams) + stream)
        first = first_positions(which, len(pairs))
        self.streams |= set(zip(work.device[first].tolist(), work.stream[first].tolist(), strict=True))
        queued = work.launch != NONE
        launches, which = unique_with_inverse(work.launch[queued])
        self.launches += len(launches)
        self.launch_ns += int(work.launch_ns[queued][first_positions(which, len(launches))].sum())


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
    for rows in calls.batches_by_time():
        everywhere.add(rows.start_ns, rows.start_ns + rows.duration_ns, rows.launched_ns)
        for device in distinct(rows.device).tolist():
            here = rows.device == device
            timeline = devices.setdefault(device, Timeline(windows))
            timeline.add(rows.start_ns[here], (rows.start_ns + rows.duration_ns)[here], rows.launched_ns[here])
    for timeline in (everywhere, *devices.values()):
        timeline.close()
    return everywhere, devices


def device_use(calls: Calls, devices: Mapping[int, Timeline], launched: LaunchSums, windows: Intervals) -> DeviceUse:
    """Return device utilisation within `windows`, the windows of the steps, summed over devices."""
    queues_ns = calls.queue_times_ns()
    return DeviceUse(
        window_ns=windows.total_ns * len(devices),
        busy_ns=sum(device.busy_ns for device in devices.values()),
        work_ns=launched.work_ns,
        waiting_ns=sum(device.waiting_ns for device in devices.values()),
        launches=launched.launches,
        launch_ns=launched.launch_ns,
        queue_median_ns=float(np.median(queues_ns, overwrite_input=True)) if len(queues_ns) else None,
        streams=len(launched.streams),
    )
