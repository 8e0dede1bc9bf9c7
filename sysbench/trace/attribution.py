"""Attribution of device work to the module, phase and step that launched it.

A correlation number links device work to the call that launched it. The time of that call determines the enclosing
operator and ranges on the launching thread. Work that runs long after its range has ended is therefore counted in the
right range. In a trace without device work, the operators themselves are the work, each with its self time.

Work launched by autograd's thread is also linked to the forward operator whose gradient it computes, and to the module
in which that operator ran: autograd records a sequence number with both the forward and the backward operator. Every
thread has its own sequence numbers. Kineto's `Fwd thread id` is torch's own thread number and matches no thread id in
the trace (torch/csrc/autograd/profiler_kineto.cpp), so the thread whose sequence numbers fit best is taken.

The recording is processed in slices, which end where no operator is open on any thread. Device work belongs to the
slice in which it was launched. What can cross slices is resolved beforehand: the ranges, the call that launched each
piece of work, and the module whose gradient a backward operator computes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sysbench.trace import range_tree
from sysbench.trace.columns import Nesting, distinct, map_distinct, self_time_ns, take_or_none
from sysbench.trace.launches import Backlog, LaunchIndex
from sysbench.trace.range_tree import BACKWARD, FORWARD, RangeTree
from sysbench.trace.recording import (
    DURATION,
    KERNEL,
    NONE,
    START,
    DeviceWork,
    Integers,
    Operators,
    Recording,
    Table,
    column_index,
)
from sysbench.trace.summary import ProfileSource

MIN_SLICE_ROWS: Final = 400_000
"""Minimum number of rows (operators and pieces of work) in a slice, which then takes tens of megabytes."""
_CANDIDATES_PER_TABLE: Final = 8192
"""Approximate number of points in time, per table, that are considered as ends of slices."""
_ALL_TIME: Final = (-(2**63), 2**63 - 1)

_BACKWARD_OPERATOR: Final = re.compile(r"autograd::engine::evaluate_function: .*|.*Backward\d*(, .*)?", re.DOTALL)
_SEQUENCE: Final = column_index(Operators, "sequence")
BATCH_OPERATORS: Final = 400_000
"""Number of operators that are processed together."""
_THREAD, _FORWARD_THREAD = column_index(Operators, "thread"), column_index(Operators, "forward_thread")


# --- slices


@dataclass(frozen=True)
class LaunchedWork(DeviceWork):
    """Device work with the launch of each piece of work."""

    launch: Integers
    """Index into the recording's launches; NONE if not recorded."""
    thread: Integers
    """Thread that launched the work; NONE if not recorded."""
    at_ns: Integers
    """Time of the launch; an estimate or the start time of the work if the launch was not recorded."""
    launch_ns: Integers
    """Duration of the launching call; 0 if the launch was not recorded."""
    is_backlog: Integers
    """1 if the work was launched before the recording began, otherwise 0."""


@dataclass(frozen=True)
class Slice:
    """Part of a recording between two times at which no operator is open."""

    work: LaunchedWork | None
    """Device work of the slice; None if the whole recording has no device work."""
    operators: Operators
    gradient_of: Integers
    """For each operator, position in `RangeTree.modules` of the module whose gradient it computes; or NONE."""


_LAUNCH_TIME: Final = column_index(LaunchedWork, "at_ns")


@dataclass(frozen=True)
class Slices:
    """A recording as a sequence of slices."""

    recording: Recording
    boundaries: Sequence[int]
    on_device: bool

    def __len__(self) -> int:
        """Return the number of slices."""
        return len(self.boundaries) + 1

    def __iter__(self) -> Iterator[Slice]:
        """Yield the slices in chronological order."""
        first, beyond = _ALL_TIME
        for begin, end in pairwise([first, *self.boundaries, beyond]):
            _, (*operators, gradient_of) = self.recording.operators.rows_between(START, begin, end)
            work = (
                LaunchedWork(*self.recording.work.rows_between(_LAUNCH_TIME, begin, end)[1]) if self.on_device else None
            )
            yield Slice(work, Operators(*operators), gradient_of)


def slice_recording(recording: Recording) -> tuple[RangeTree, Slices]:
    """Return the range tree and the slices of a recording. The recording itself cannot be used afterwards."""
    ranges = range_tree.of(recording)
    add_modules(recording.operators, recording.names, ranges)
    on_device = len(recording.work) > 0
    if on_device:
        _append_launches(recording.work, recording.launches)
        recording.launches.clear()
    return ranges, Slices(recording, _slice_boundaries(recording.operators, recording.work), on_device)


def _append_launches(work: Table, launches: Table) -> None:
    """Append the columns of `LaunchedWork`."""
    index = LaunchIndex.of(launches)
    backlog = Backlog(index)
    device, stream = column_index(DeviceWork, "device"), column_index(DeviceWork, "stream")

    def launched(
        rows: Integers, start_ns: Integers, device: Integers, stream: Integers, correlation: Integers
    ) -> Sequence[Integers]:
        launch = index.launch_of(correlation)
        backlog.add(rows, start_ns, device, stream, correlation)
        return (
            launch,
            take_or_none(index.thread, launch),
            index.launch_time_ns(launch, correlation, start_ns),
            np.where(launch == NONE, 0, take_or_none(index.duration_ns, launch)),
        )

    work.append_columns(4, launched, START, device, stream, column_index(DeviceWork, "correlation"))
    queued = backlog.rows()
    work.append_columns(1, lambda rows: [np.isin(rows, queued).astype(np.int64)])


def _slice_boundaries(operators: Table, work: Table) -> list[int]:
    """Return a small set of times at which no operator is open, with at least MIN_SLICE_ROWS rows between any two."""
    tables = [(operators, START), *([(work, _LAUNCH_TIME)] if len(work) else [])]
    if sum(len(table) for table, _ in tables) <= MIN_SLICE_ROWS:
        return []
    sample = []
    for table, at in tables:
        step = max(1, len(table) // _CANDIDATES_PER_TABLE)
        sample += [column[:: min(step, len(column))] for (column,) in table.chunks(at)]
    candidates = distinct(np.concatenate(sample))
    rows, open_operators = np.zeros((2, len(candidates) + 1), np.int64)
    for table, at in tables:
        for (begin,) in table.chunks(at):
            rows += np.bincount(np.searchsorted(candidates, begin, side="right"), minlength=len(rows))
    for begin, duration in operators.chunks(START, DURATION):
        first = np.searchsorted(candidates, begin, side="right")
        # An operator of zero duration ends at its start, not before.
        ended = np.maximum(np.searchsorted(candidates, begin + duration, side="left"), first)
        open_operators += np.bincount(first, minlength=len(open_operators)) - np.bincount(
            ended, minlength=len(open_operators)
        )
    # For every candidate, both counts now cover the time since the previous candidate.
    without_open_operator = np.flatnonzero(np.cumsum(open_operators)[:-1] == 0)
    candidate_times, rows_before = candidates[without_open_operator], np.cumsum(rows)[without_open_operator]
    chosen, rows_used = [], 0
    while (next_ := int(np.searchsorted(rows_before, rows_used + MIN_SLICE_ROWS))) < len(candidate_times):
        chosen.append(int(candidate_times[next_]))
        rows_used = int(rows_before[next_])
    return chosen


# --- from backward operators to their forward operators


def is_backward(name: Integers, names: Sequence[str]) -> NDArray[np.bool_]:
    """Return whether each operator is run by autograd's engine, judging by the operator's name."""
    return map_distinct(lambda name: _BACKWARD_OPERATOR.fullmatch(names[name]) is not None, name, bool)


def add_modules(operators: Table, names: Sequence[str], ranges: RangeTree) -> None:
    """Append a column to a table of operators: the module whose gradient each operator computes, or NONE."""
    module = np.full(len(operators), NONE, np.int32)
    first, last = operators.bounds(_SEQUENCE) or (NONE, NONE)
    step = (last - first) // -(-len(operators) // BATCH_OPERATORS) + 1 if last != NONE else 1
    for number in range(first, last + 1, step) if last != NONE else ():
        rows, columns = operators.rows_between(_SEQUENCE, number, number + step)
        found = Operators(*columns)
        forward = _forward_operators(found, is_backward(found.name, names))
        linked = np.flatnonzero(forward != NONE)
        forward_linked = forward[linked]
        module[rows[linked]] = ranges.module_at(found.thread[forward_linked], found.start_ns[forward_linked])
    operators.append_columns(1, lambda rows: [module[rows].astype(np.int64)])


def _forward_operators(operators: Operators, backward_: NDArray[np.bool_]) -> Integers:
    """For each backward operator, return the forward operator with the same sequence number; NONE for all others.

    torch records with each operator the sequence number of the next graph node to be created on the operator's thread.
    All operators between the creation of two nodes therefore have the same number, and the last of them creates the
    second node (torch/csrc/autograd/function.h, `sequence_number`).
    """
    forward = np.full(len(operators.name), NONE, np.int64)
    backward = np.flatnonzero(backward_ & (operators.sequence != NONE))
    candidates = np.flatnonzero(~backward_ & (operators.sequence != NONE))
    has_thread = operators.forward_thread[backward] != NONE
    for group, same_thread in ((backward[has_thread], True), (backward[~has_thread], False)):
        forward[group] = _last_matching_forward(operators, candidates, group, same_thread)
    return forward


def _last_matching_forward(operators: Operators, forward: Integers, backward: Integers, same_thread: bool) -> Integers:
    """For each operator in `backward`, return the last earlier one in `forward` with its sequence number, or NONE."""
    if not len(forward) or not len(backward):
        return np.full(len(backward), NONE, np.int64)
    none = np.zeros(len(forward), np.int64)
    thread = operators.thread[forward] if same_thread else none
    sequence, start = operators.sequence[forward], operators.start_ns[forward]
    wanted_thread = operators.forward_thread[backward] if same_thread else np.zeros(len(backward), np.int64)
    # Forward and backward operators are sorted together; the last forward operator before each backward one is found.
    order = np.lexsort(
        (
            np.concatenate([start, operators.start_ns[backward]]),
            np.concatenate([sequence, operators.sequence[backward]]),
            np.concatenate([thread, wanted_thread]),
        )
    )
    is_forward = order < len(forward)
    last = np.maximum.accumulate(np.where(is_forward, np.arange(len(order)), NONE))
    candidate = np.where(last == NONE, NONE, order[np.maximum(last, 0)])
    found = np.full(len(backward), NONE, np.int64)
    found[order[~is_forward] - len(forward)] = candidate[~is_forward]
    known = found != NONE
    is_match = np.zeros(len(backward), bool)
    is_match[known] = (sequence[found[known]] == operators.sequence[backward[known]]) & (
        thread[found[known]] == wanted_thread[known]
    )
    return np.where(is_match, forward[np.maximum(found, 0)], NONE)


def resolve_forward_threads(operators: Table) -> None:
    """Replace torch's forward thread ids (0 or less means none) with the trace's thread indices; NONE if unclear."""
    forward_numbers: dict[int, list[Integers]] = defaultdict(list)
    backward_numbers: dict[int, list[Integers]] = defaultdict(list)
    for thread, sequence, torch_thread in operators.chunks(_THREAD, _SEQUENCE, _FORWARD_THREAD):
        has_number, backward = sequence != NONE, torch_thread > 0
        for number in distinct(thread[~backward]).tolist():
            forward_numbers[number].append(distinct(sequence[has_number & ~backward & (thread == number)]))
        for number in distinct(torch_thread[backward]).tolist():
            backward_numbers[number].append(distinct(sequence[has_number & (torch_thread == number)]))
    numbers_by_thread = {thread: distinct(np.concatenate(parts)) for thread, parts in forward_numbers.items()}
    thread_of = {
        count: _best_matching_thread(distinct(np.concatenate(parts)), numbers_by_thread)
        for count, parts in backward_numbers.items()
    }
    torch_threads = np.array([*sorted(thread_of)], np.int64)
    threads = np.array([thread_of[number] for number in torch_threads.tolist()], np.int64)

    def resolve(torch_thread: Integers) -> Integers:
        found = np.full(len(torch_thread), NONE, np.int64)
        backward = torch_thread > 0
        found[backward] = threads[np.searchsorted(torch_threads, torch_thread[backward])]
        return found

    operators.replace(_FORWARD_THREAD, resolve, _FORWARD_THREAD)


def _best_matching_thread(backward_numbers: Integers, forward_numbers: dict[int, Integers]) -> int:
    """Return the thread whose sequence numbers have the largest Jaccard similarity with `backward_numbers`."""
    similarities = []
    for thread, numbers in forward_numbers.items():
        common = len(np.intersect1d(backward_numbers, numbers, assume_unique=True))
        similarities.append((common / (len(backward_numbers) + len(numbers) - common) if common else 0.0, thread))
    similarities.sort(reverse=True)
    if (
        not similarities
        or similarities[0][0] == 0
        or (len(similarities) > 1 and similarities[0][0] == similarities[1][0])
    ):
        return NONE
    return similarities[0][1]


# --- attribution of one slice


@dataclass(frozen=True)
class Attribution:
    """Pieces of work, each attributed to an operator, step, phase and module; one row per piece of work."""

    source: ProfileSource
    work: LaunchedWork
    """Device work; in a CPU-only trace, the operators, each as its own launch."""
    operators: Nesting
    operator: Integers
    """Innermost operator around the launch; NONE if there is none."""
    step: Integers
    phase: Integers
    """Position in `summary.PHASES`; NONE if unknown."""
    module: Integers
    """Position in `RangeTree.modules` of the innermost module."""


def attribute(part: Slice, ranges: RangeTree, names: Sequence[str]) -> Attribution:
    """Attribute every piece of work in a slice."""
    calls = part.operators
    operators = Nesting.of(calls.thread, calls.start_ns, calls.duration_ns)
    work = part.work if part.work is not None else _host_work(calls, operators)
    launched = work.thread != NONE
    operator, range_index = np.full((2, len(work.name)), NONE, np.int64)
    if part.work is None:
        operator = np.arange(len(work.name), dtype=np.int64)
    else:
        operator[launched] = operators.innermost(work.thread[launched], work.at_ns[launched])
    range_index[launched] = ranges.at(work.thread[launched], work.at_ns[launched])
    milestone = ranges.milestone_at(work.at_ns)
    step = take_or_none(ranges.step, range_index)

    # Find, around each piece of work, an operator of autograd's engine and one that autograd recorded, and the
    # innermost operator that computes the gradient of a module.
    backward = is_backward(calls.name, names)
    in_backward = take_or_none(_nearest_ancestor(backward, operators.parents), operator) != NONE
    recorded = (
        take_or_none(_nearest_ancestor((calls.sequence != NONE) & ~backward, operators.parents), operator) != NONE
    )
    gradient_operator = take_or_none(_nearest_ancestor(part.gradient_of != NONE, operators.parents), operator)

    # The phase comes from the most reliable evidence: autograd's engine, ranges on the thread, ranges on other threads,
    # a recorded graph.
    phase = take_or_none(ranges.phase, range_index)
    phase = np.where(phase == NONE, take_or_none(ranges.phase, milestone), phase)
    phase = np.where(in_backward, BACKWARD, phase)
    phase = np.where((phase == NONE) & recorded & launched, FORWARD, phase)

    # A gradient belongs to its module. A range that was entered after the backward operator began takes precedence: a
    # forward pass that is recomputed within backward has module ranges of its own.
    entered_since = take_or_none(ranges.start_ns, range_index) >= take_or_none(calls.start_ns, gradient_operator)
    module = np.where((range_index != NONE) & entered_since, NONE, take_or_none(part.gradient_of, gradient_operator))
    return Attribution(
        source="cpu" if part.work is None else "device",
        work=work,
        operators=operators,
        operator=operator,
        step=np.where(step == NONE, take_or_none(ranges.step, milestone), step),
        phase=phase,
        module=np.where(module == NONE, np.maximum(take_or_none(ranges.module, range_index), 0), module),
    )


def _host_work(operators: Operators, nesting: Nesting) -> LaunchedWork:
    count = len(operators.name)
    unknown = np.full(count, NONE, np.int64)
    return LaunchedWork(
        start_ns=operators.start_ns,
        duration_ns=self_time_ns(nesting, operators.duration_ns),
        name=operators.name,
        kind=np.full(count, KERNEL, np.int64),
        device=np.zeros(count, np.int64),
        stream=unknown,
        correlation=unknown,
        launch_shape=unknown,
        bytes=unknown,
        launch=unknown,
        thread=operators.thread,
        at_ns=operators.start_ns,
        launch_ns=np.zeros(count, np.int64),
        is_backlog=np.zeros(count, np.int64),
    )


def _nearest_ancestor(wanted: NDArray[np.bool_], parents: Integers) -> Integers:
    """For each operator, return the nearest `wanted` operator among itself and its ancestors, or NONE."""
    found = np.where(wanted, np.arange(len(parents)), parents)
    active = np.flatnonzero((found != NONE) & ~wanted)
    while len(active):
        active = active[(found[active] != NONE) & ~wanted[found[active]]]
        found[active] = found[found[active]]
        active = active[found[active] != NONE]
    return found
