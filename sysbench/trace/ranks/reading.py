"""Analysis of one rank's recording: compute, communication and idle time in each step."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Final, Literal, NamedTuple

import numpy as np

from sysbench.trace import range_tree
from sysbench.trace.columns import Intervals, map_distinct, union
from sysbench.trace.device_steps import DeviceSteps
from sysbench.trace.kernels.names import classify
from sysbench.trace.launches import Backlog, LaunchIndex
from sysbench.trace.ranks.summary import Kind, kind_of
from sysbench.trace.recording import (
    CALLED,
    HOST_RAN,
    KERNEL,
    KERNEL_RAN,
    NONE,
    Collectives,
    DeviceWork,
    Integers,
    Operators,
    ProcessGroup,
    Ranges,
    Recording,
    column_index,
)

_COMPUTES: Final = re.compile(
    r"(?!(c10d|_c10d_functional|c10d_functional|_dtensor|symm_mem|autograd|torch::autograd)::)\w[\w.]*::.*|"
    r".*(cpp|triton)_\w*fused.*",
    re.DOTALL,
)
"""CPU operators that compute: those with a namespace, and kernels of the compiler. Autograd's nodes and functions
(`AddmmBackward0`) only call these; other operators start or await communication."""

_EXECUTED_AS_ANOTHER: Final = frozenset({("all_reduce", "reduce_scatter"), ("all_reduce", "barrier")})
"""Pairs (executed, called): gloo executes the first collective if the second is called."""


_BYTES: Final = (
    (re.compile(r"float8\w*|byte|char|bool|(unsigned|signed) char|u?int8(_t)?", re.IGNORECASE), 1),
    (re.compile(r"(c10::)?(half|bfloat16)|u?short( int)?|float16|u?int16(_t)?", re.IGNORECASE), 2),
    (re.compile(r"float|float32|(unsigned )?int|u?int32(_t)?", re.IGNORECASE), 4),
    (re.compile(r"double|float64|(unsigned )?long( int)?|u?int64(_t)?", re.IGNORECASE), 8),
    (re.compile(r"complexfloat|c10::complex<float>", re.IGNORECASE), 8),
    (re.compile(r"complexdouble|c10::complex<double>", re.IGNORECASE), 16),
)
"""Bytes per element. Kineto spells types differently in collectives (`BFloat16`) and operators (`c10::BFloat16`)."""


@dataclass(frozen=True)
class Breakdown:
    """Durations by activity, one row per window: window = compute + exposed + other + idle."""

    window_ns: Integers
    compute_ns: Integers
    communication_ns: Integers
    exposed_ns: Integers
    """Communication during which nothing computes."""
    other_ns: Integers
    """Time in which only copies and memory sets run."""
    idle_ns: Integers

    @classmethod
    def of(cls, activity: Activity, start_ns: Integers, end_ns: Integers) -> Breakdown:
        """Return the duration of each kind of activity in windows from `start_ns` to `end_ns`."""

        def duration_ns(intervals: Intervals) -> Integers:
            return intervals.covered_before_ns(end_ns) - intervals.covered_before_ns(start_ns)

        computing, communicating, busy = map(duration_ns, activity)
        either = duration_ns(_merge(activity.compute, activity.communication))
        return cls(
            window_ns=end_ns - start_ns,
            compute_ns=computing,
            communication_ns=communicating,
            exposed_ns=either - computing,
            other_ns=busy - either,
            idle_ns=end_ns - start_ns - busy,
        )


class Activity(NamedTuple):
    """When a rank computes, when it communicates, and when it does any work at all."""

    compute: Intervals
    communication: Intervals
    busy: Intervals


@dataclass(frozen=True)
class Group:
    """A process group as recorded by one rank; ranks and size are None if not recorded."""

    name: str
    ranks: tuple[int, ...] | None
    size: int | None


@dataclass(frozen=True)
class Collective:
    """One collective on one rank; times are nanoseconds on the clock of the rank's host."""

    kind: Kind
    start_ns: int
    end_ns: int
    step: int
    """Position among the rank's steps; NONE outside them."""
    group: Group
    bytes: int | None
    sequence: int
    """Number within the group; NONE if not recorded."""


@dataclass(frozen=True)
class RankReading:
    """Steps, activity and collectives of one rank, read from its trace."""

    title: str
    rank: int | None
    world_size: int | None
    host: str | None
    source: Literal["device", "cpu"]
    steps: tuple[str, ...]
    """Names of the steps, with a number appended to repeated names; a single empty name if no steps are marked."""
    breakdown: Breakdown
    """One row per step."""
    collectives: tuple[Collective, ...]
    """Collectives in chronological order."""


def read(recording: Recording) -> RankReading:
    """Read one rank's recording, which remains usable."""
    source: Literal["device", "cpu"] = "device" if len(recording.work) else "cpu"
    rows = Collectives(*recording.collectives.columns())
    tree = range_tree.of(recording)
    work = _Work(recording, tree.steps > 0)
    steps = _Steps(work, tree.step_start_ns, tree.step_end_ns)
    activity = _on_device(recording, work, rows) if source == "device" else _on_host(recording, rows)
    names = [recording.names[name] for name in tree.step_name.tolist()]
    # Steps with the same name get numbers: `step`, `step (2)`.
    numbers = [names[: at + 1].count(name) for at, name in enumerate(names)]
    start_ns, end_ns = steps.windows(activity.busy)
    # The limit keeps differences of times within 64 bits, whatever a file claims.
    clock_ns = max(min(recording.clock_ns + recording.origin_ns, 2**61), -(2**61))
    return RankReading(
        title=recording.title,
        rank=recording.rank,
        world_size=recording.world_size,
        host=recording.host,
        source=source,
        steps=tuple(name if number == 1 else f"{name} ({number})" for name, number in zip(names, numbers, strict=True))
        or ("",),
        breakdown=Breakdown.of(activity, start_ns, end_ns),
        collectives=tuple(_collectives(recording, rows, steps, clock_ns)),
    )


class _Work:
    """Columns of the device work that are needed: large recordings are not unpacked completely."""

    def __init__(self, recording: Recording, has_steps: bool) -> None:
        self.start_ns, duration_ns, self.name, self.kind, self.device, self.stream, correlation = (
            recording.work.column(column_index(DeviceWork, each))
            for each in ("start_ns", "duration_ns", "name", "kind", "device", "stream", "correlation")
        )
        self.end_ns = self.start_ns + duration_ns
        self._launches = LaunchIndex.of(recording.launches)
        launch = self._launches.launch_of(correlation)
        self.launched_ns = self._launches.launch_time_ns(launch, correlation, self.start_ns)
        backlog, rows = Backlog(self._launches), np.arange(len(launch), dtype=np.int64)
        backlog.add(rows, self.start_ns, self.device, self.stream, correlation)
        self.is_backlog = np.isin(rows, backlog.rows()) & has_steps
        """Whether each piece of work is left out of the steps; without steps, nothing is."""

    def launch_times_ns(self, correlation: Integers, own_start_ns: Integers) -> Integers:
        """Return the launch time of work with these correlation numbers."""
        return self._launches.launch_time_ns(self._launches.launch_of(correlation), correlation, own_start_ns)


class _Steps:
    """Steps of one rank. Device work belongs to the step in which it was launched, backlog to none."""

    def __init__(self, work: _Work, start_ns: Integers, end_ns: Integers) -> None:
        self._start_ns, self._end_ns, self._work = start_ns, end_ns, work
        self._backlog_ns = work.start_ns[work.is_backlog]

    def _numbers(self, at_ns: Integers) -> Integers:
        """Return the step number at each time: NONE outside all steps; always 0 if no steps are marked."""
        if not len(self._start_ns):
            return np.zeros(len(at_ns), np.int64)
        number = np.searchsorted(self._start_ns, at_ns, side="right") - 1
        return np.where((number >= 0) & (at_ns < self._end_ns[number]), number, NONE)

    def of_collectives(self, rows: Collectives) -> Integers:
        started = self._work.launch_times_ns(rows.correlation, rows.start_ns)
        on_device = rows.source == KERNEL_RAN
        step = self._numbers(np.where(on_device, started, rows.start_ns))
        # A row of the work and its row among the collectives have the same start.
        step[on_device & (started == rows.start_ns) & np.isin(rows.start_ns, self._backlog_ns)] = NONE
        return step

    def windows(self, busy: Intervals) -> tuple[Integers, Integers]:
        """Return the start and end of each step; if no steps are marked, of all activity.

        On a device, a step lasts from its first work, or until earlier work is done if that is later, until the next
        step starts. On a host, it lasts until the next one starts.
        """
        extent = np.array([busy.start_ns[:1].sum(), busy.end_ns[-1:].sum()], np.int64)
        if not len(self._start_ns):
            return extent[:1], extent[1:]
        work = self._work
        if not len(work.start_ns):
            return self._start_ns, np.concatenate([self._start_ns[1:], self._end_ns[-1:]])
        first = np.full(len(self._start_ns), np.iinfo(np.int64).max)
        step = np.where(work.is_backlog, NONE, self._numbers(work.launched_ns))
        counted = step != NONE
        np.minimum.at(first, step[counted], work.start_ns[counted])
        on_device = DeviceSteps(self._start_ns)
        on_device.add(work.launched_ns, work.start_ns, work.end_ns, work.device, work.stream, step, work.is_backlog)
        first = np.maximum(first, on_device.ready_ns())
        ends = work.end_ns[counted]
        last = int(ends.max()) if len(ends) else int(extent[1])
        # A step without work is empty: it starts where the next step does.
        start = np.minimum(np.minimum.accumulate(first[::-1])[::-1], last)
        return start, np.concatenate([start[1:], [last]])


def _on_device(recording: Recording, work: _Work, rows: Collectives) -> Activity:
    """Return when a device computes and communicates. Collectives on the host, such as gloo's, also count."""
    communicates = map_distinct(lambda name: classify(recording.names[name]) == "communication", work.name, bool)
    is_kernel = (work.kind == KERNEL) & ~work.is_backlog
    communicates, computes = is_kernel & communicates, is_kernel & ~communicates
    communication = _merge(union(work.start_ns[communicates], work.end_ns[communicates]), _host_intervals(rows))
    return Activity(
        compute=union(work.start_ns[computes], work.end_ns[computes]),
        communication=communication,
        busy=_merge(union(work.start_ns[~work.is_backlog], work.end_ns[~work.is_backlog]), communication),
    )


def _on_host(recording: Recording, rows: Collectives) -> Activity:
    """Return when a CPU computes and communicates.

    Computing means running an operator that matches `_COMPUTES`, except within a call that starts a collective or
    within a collective that the same thread runs.
    """
    operators = Operators(*recording.operators.columns())
    end_ns = operators.start_ns + operators.duration_ns
    names = recording.names
    computes = map_distinct(lambda name: _COMPUTES.fullmatch(names[name]) is not None, operators.name, bool)
    starts = map_distinct(lambda name: _starts_collective(names[name]), operators.name, bool)
    ranges = Ranges(*recording.ranges.columns())
    is_collective = np.isin(ranges.name, rows.name[rows.source == HOST_RAN])
    compute = []
    for thread in np.unique(operators.thread).tolist():
        on_thread, collectives_on_thread = operators.thread == thread, is_collective & (ranges.thread == thread)
        excluded = union(
            np.concatenate([operators.start_ns[on_thread & starts], ranges.start_ns[collectives_on_thread]]),
            np.concatenate([end_ns[on_thread & starts], (ranges.start_ns + ranges.duration_ns)[collectives_on_thread]]),
        )
        compute.append(
            _subtract(union(operators.start_ns[on_thread & computes], end_ns[on_thread & computes]), excluded)
        )
    computing = reduce(_merge, compute, union(end_ns[:0], end_ns[:0]))
    communication = _host_intervals(rows)
    return Activity(computing, communication, _merge(computing, communication))


def _starts_collective(operator: str) -> bool:
    return "c10d" in operator.partition("::")[0] or operator == "record_param_comms"


def _host_intervals(rows: Collectives) -> Intervals:
    here = rows.source == HOST_RAN
    return union(rows.start_ns[here], (rows.start_ns + rows.duration_ns)[here])


def _merge(one: Intervals, other: Intervals) -> Intervals:
    return union(np.concatenate([one.start_ns, other.start_ns]), np.concatenate([one.end_ns, other.end_ns]))


def _subtract(one: Intervals, other: Intervals) -> Intervals:
    edges = np.unique(np.concatenate([one.start_ns, one.end_ns, other.start_ns, other.end_ns]))
    start, end = edges[:-1], edges[1:]
    kept = (one.covered_before_ns(end) > one.covered_before_ns(start)) & (
        other.covered_before_ns(end) == other.covered_before_ns(start)
    )
    return union(start[kept], end[kept])


def _collectives(recording: Recording, rows: Collectives, steps: _Steps, clock_ns: int) -> list[Collective]:
    """Return the rank's collectives: communication kernels if there are any, otherwise collectives on the host."""
    ran = np.flatnonzero(rows.source == (KERNEL_RAN if (rows.source == KERNEL_RAN).any() else HOST_RAN))
    ran = ran[np.argsort(rows.start_ns[ran], kind="stable")]
    calls = _match_calls(recording, rows, ran)
    step = steps.of_collectives(rows)
    only_group = recording.groups[0] if len(recording.groups) == 1 else None
    collectives = []
    for row, call in zip(ran.tolist(), calls, strict=True):
        at = int(call) if rows.collective[row] == NONE and rows.collective[call] != NONE else row
        kind = kind_of(_text(recording, rows.collective[at]) or _text(recording, rows.name[call]))
        group = _group(recording, rows, at, only_group)
        size = (int(rows.in_elements[at]), int(rows.out_elements[at]))
        start_ns = clock_ns + int(rows.start_ns[row])
        collectives.append(
            Collective(
                kind=kind,
                start_ns=start_ns,
                end_ns=start_ns + int(rows.duration_ns[row]),
                step=int(step[row]),
                group=group,
                bytes=message_bytes(kind, size, _text(recording, rows.dtype[at]), group.size),
                sequence=int(rows.sequence[at]),
            )
        )
    return collectives


def _match_calls(recording: Recording, rows: Collectives, ran: Integers) -> Integers:
    """For each collective in `ran`, return the row of the call that started it; its own row if calls do not match.

    gloo executes a reduce-scatter as an all-reduce, and only the call shows this. Old NCCL traces record arguments only
    for the call.
    """

    def called_kind(row: int) -> Kind:
        return kind_of(_text(recording, rows.collective[row]) or _text(recording, rows.name[row]))

    calls = np.flatnonzero(rows.source == CALLED)
    calls = calls[np.argsort(rows.start_ns[calls], kind="stable")]
    calls = calls[np.array([called_kind(row) != "other" for row in calls.tolist()], bool)]
    executed = [kind_of(_text(recording, rows.name[row])) for row in ran.tolist()]
    for candidates in (calls[rows.collective[calls] != NONE], calls[rows.collective[calls] == NONE]):
        called = [called_kind(row) for row in candidates.tolist()]
        if len(called) == len(executed) and all(
            each[0] == each[1] or each in _EXECUTED_AS_ANOTHER for each in zip(executed, called, strict=True)
        ):
            return np.asarray(candidates, np.int64)
    return ran


def _group(recording: Recording, rows: Collectives, row: int, only_group: ProcessGroup | None) -> Group:
    """Return the process group in a collective's arguments; if there is none, the only group that the trace lists."""
    name, listed = _text(recording, rows.group[row]), _text(recording, rows.ranks[row])
    size = int(rows.group_size[row])
    if not name and size == NONE and only_group is not None:
        return Group(only_group.name, only_group.ranks, len(only_group.ranks))
    ranks = tuple(int(each) for each in re.findall(r"\d{1,9}", listed)) if "..." not in listed else ()
    known = next((group.ranks for group in recording.groups if group.name == name), None)
    members = ranks or known
    return Group(name, members, size if size != NONE else len(members) if members else None)


def _text(recording: Recording, name: int) -> str:
    return recording.names[name] if name != NONE else ""


@lru_cache(maxsize=256)
def element_bytes(dtype: str) -> int | None:
    """Return the size in bytes of one element of a type (`BFloat16`, `float`, `Long`); None for an unknown type."""
    return next((size for pattern, size in _BYTES if pattern.fullmatch(dtype)), None)


def message_bytes(kind: Kind, elements: tuple[int, int], dtype: str, group_size: int | None) -> int | None:
    """Return the message size as nccl-tests defines it: the larger of input and output; None if unknown.

    `elements` are the element counts of input and output, NONE if not recorded. If only the input is known, the output
    of an all-gather is the input times the group size.
    """
    item_bytes, input_elements, output_elements = element_bytes(dtype), *elements
    if kind in ("all_gather", "gather") and output_elements == NONE:
        output_elements = input_elements * group_size if group_size and input_elements != NONE else NONE
        input_elements = output_elements
    largest = max(input_elements, output_elements)
    return None if item_bytes is None or largest == NONE else largest * item_bytes
