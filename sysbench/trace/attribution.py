"""Attribution of device work to the module, phase and step that launched it.

A correlation number links device work to the call that launched it. The time of that call gives the enclosing operator
and ranges on the launching thread. Work that runs long after its range has ended is therefore counted in the right
range. In a trace without device work, the operators themselves are the work, each with its self time.

Work launched by autograd's thread is also linked to the forward operator whose gradient it computes, and to the module
in which that operator ran: autograd gives every node of its graph a sequence number, which is recorded with both the
forward and the backward operator. Every thread has its own sequence numbers. Kineto records a `Fwd thread id` for every
backward operator, but this id counts torch's threads and matches no thread id of the trace; 0 means none
(torch/csrc/autograd/profiler_kineto.cpp). The forward thread is therefore the thread whose sequence numbers fit best.

The recording is processed in slices. A slice ends where no operator is open on any thread. Device work belongs to the
slice in which it was launched, however late it runs. Links that cross slices are resolved beforehand for the whole
recording: the ranges, which are few; the call that launched each piece of work; and the module whose gradient a
backward operator computes. A recording in which some operator is always open is one slice.
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
from sysbench.trace.columns import Nesting, distinct, grouped, looked_up, self_time_ns
from sysbench.trace.range_tree import BACKWARD, FORWARD, RangeTree
from sysbench.trace.recording import (
    DURATION,
    KERNEL,
    NONE,
    START,
    DeviceWork,
    Integers,
    Launches,
    Operators,
    Ranges,
    Recording,
    Table,
    place,
)
from sysbench.trace.summary import ProfileSource

ROWS: Final = 400_000
"""Minimum number of operators and pieces of work in a slice. They take tens of megabytes."""
_CANDIDATES: Final = 8192
"""Approximate number of points in time, per table, that are considered as ends of slices."""
_ALWAYS: Final = (-(2**63), 2**63 - 1)

_BACKWARD_OPERATOR: Final = re.compile(r"autograd::engine::evaluate_function: .*|.*Backward\d*(, .*)?", re.DOTALL)
_SEQUENCE: Final = place(Operators, "sequence")
AT_A_TIME: Final = 400_000
"""Number of operators that are processed together."""
_THREAD, _FORWARD_THREAD = place(Operators, "thread"), place(Operators, "forward_thread")


# --- slices


@dataclass(frozen=True)
class Launched(DeviceWork):
    """Device work with its launch."""

    launch: Integers
    """Index into the recording's launches; NONE if not recorded."""
    thread: Integers
    """Thread that launched it; NONE if not recorded."""
    at_ns: Integers
    """Time of the launch; the start time of the work if the launch was not recorded."""
    launch_ns: Integers
    """Duration of the launching call; 0 if the launch was not recorded."""


@dataclass(frozen=True)
class Slice:
    """Part of a recording between two times at which no operator is open."""

    work: Launched | None
    """Device work of the slice; None if the whole recording has no device work."""
    operators: Operators
    gradient_of: Integers
    """For each operator, position in `RangeTree.modules` of the module whose gradient it computes; or NONE."""


_AT: Final = place(Launched, "at_ns")


@dataclass(frozen=True)
class Slices:
    """A recording as a sequence of slices."""

    recording: Recording
    cuts: Sequence[int]
    on_device: bool

    def __len__(self) -> int:
        """Return the number of slices."""
        return len(self.cuts) + 1

    def __iter__(self) -> Iterator[Slice]:
        """Yield slices in order of time."""
        first, beyond = _ALWAYS
        for begin, end in pairwise([first, *self.cuts, beyond]):
            _, (*operators, gradient_of) = self.recording.operators.between(START, begin, end)
            work = Launched(*self.recording.work.between(_AT, begin, end)[1]) if self.on_device else None
            yield Slice(work, Operators(*operators), gradient_of)


def sliced(recording: Recording) -> tuple[RangeTree, Slices]:
    """Return the range tree and the slices of a recording. The recording itself cannot be used afterwards."""
    ranges = range_tree.read(Ranges(*recording.ranges.columns()), recording.names)
    add_modules(recording.operators, recording.names, ranges)
    on_device = len(recording.work) > 0
    if on_device:
        _lead_back(recording.work, recording.launches)
        recording.launches.clear()
    return ranges, Slices(recording, _cuts(recording.operators, recording.work), on_device)


def _lead_back(work: Table, launches: Table) -> None:
    """Append to each piece of work its launch: the first launch with the same correlation number."""
    correlation = launches.column(place(Launches, "correlation"))
    order = np.argsort(correlation, kind="stable").astype(np.int32)
    correlation = correlation[order]
    start_ns, duration_ns = launches.column(START), launches.column(DURATION)
    thread = launches.column(place(Launches, "thread")).astype(np.int32)

    def launched(_: Integers, own_start_ns: Integers, wanted: Integers) -> Sequence[Integers]:
        if not len(order):
            none = np.full(len(wanted), NONE, np.int64)
            return none, none, own_start_ns, np.zeros(len(wanted), np.int64)
        place = np.minimum(np.searchsorted(correlation, wanted), len(order) - 1)
        unknown = (wanted == NONE) | (correlation[place] != wanted)
        launch = order[place].astype(np.int64)
        return (
            np.where(unknown, NONE, launch),
            np.where(unknown, NONE, thread[launch]),
            np.where(unknown, own_start_ns, start_ns[launch]),
            np.where(unknown, 0, duration_ns[launch]),
        )

    work.append(4, launched, START, place(DeviceWork, "correlation"))


def _cuts(operators: Table, work: Table) -> list[int]:
    """Return a small set of times at which no operator is open, with at least ROWS rows between any two."""
    tables = [(operators, START), *([(work, _AT)] if len(work) else [])]
    if sum(len(table) for table, _ in tables) <= ROWS:
        return []
    sample = []
    for table, at in tables:
        step = max(1, len(table) // _CANDIDATES)
        sample += [column[:: min(step, len(column))] for (column,) in table.stretches(at)]
    candidates = distinct(np.concatenate(sample))
    rows, open_ = np.zeros((2, len(candidates) + 1), np.int64)
    for table, at in tables:
        for (begin,) in table.stretches(at):
            rows += np.bincount(np.searchsorted(candidates, begin, side="right"), minlength=len(rows))
    for begin, lasting in operators.stretches(START, DURATION):
        first = np.searchsorted(candidates, begin, side="right")
        # An operator of zero duration ends at its start, not before.
        over = np.maximum(np.searchsorted(candidates, begin + lasting, side="left"), first)
        open_ += np.bincount(first, minlength=len(open_)) - np.bincount(over, minlength=len(open_))
    # For every candidate, both counts now cover the time since the previous candidate.
    possible = np.flatnonzero(np.cumsum(open_)[:-1] == 0)
    moments, rows_before = candidates[possible], np.cumsum(rows)[possible]
    chosen, done = [], 0
    while (next_ := int(np.searchsorted(rows_before, done + ROWS))) < len(moments):
        chosen.append(int(moments[next_]))
        done = int(rows_before[next_])
    return chosen


# --- from backward operators to their forward operators


def is_backward(name: Integers, names: Sequence[str]) -> NDArray[np.bool_]:
    """Return whether each operator is run by autograd's engine, judging by the operator's name."""
    different, which = grouped(name)
    known = np.array([_BACKWARD_OPERATOR.fullmatch(names[each]) is not None for each in different.tolist()], bool)
    return known[which] if len(known) else np.zeros(0, bool)


def add_modules(operators: Table, names: Sequence[str], ranges: RangeTree) -> None:
    """Append a column to a table of operators: the module whose gradient each operator computes, or NONE."""
    module = np.full(len(operators), NONE, np.int32)
    first, last = operators.bounds(_SEQUENCE) or (NONE, NONE)
    step = (last - first) // -(-len(operators) // AT_A_TIME) + 1 if last != NONE else 1
    for number in range(first, last + 1, step) if last != NONE else ():
        rows, columns = operators.between(_SEQUENCE, number, number + step)
        found = Operators(*columns)
        forward = _forward_of(found, is_backward(found.name, names))
        linked = np.flatnonzero(forward != NONE)
        made = forward[linked]
        module[rows[linked]] = ranges.module_at(found.thread[made], found.start_ns[made])
    operators.append(1, lambda rows: [module[rows].astype(np.int64)])


def _forward_of(operators: Operators, backward_: NDArray[np.bool_]) -> Integers:
    """For each backward operator, return the forward operator with the same sequence number; NONE for all others.

    torch records with each operator the sequence number of the next graph node to be created on the operator's thread.
    All operators before that node's creation therefore have the same number, and the last of them creates the node
    (torch/csrc/autograd/function.h, `sequence_number`).
    """
    forward = np.full(len(operators.name), NONE, np.int64)
    backward = np.flatnonzero(backward_ & (operators.sequence != NONE))
    makers = np.flatnonzero(~backward_ & (operators.sequence != NONE))
    by_thread = operators.forward_thread[backward] != NONE
    for asked, threads in ((backward[by_thread], True), (backward[~by_thread], False)):
        forward[asked] = _last_maker(operators, makers, asked, threads)
    return forward


def _last_maker(operators: Operators, makers: Integers, asked: Integers, threads: bool) -> Integers:
    """For each operator in `asked`, return the last earlier operator in `makers` with the same number, or NONE.

    With `threads`, only makers on the forward thread are considered; otherwise makers on any thread.
    """
    if not len(makers) or not len(asked):
        return np.full(len(asked), NONE, np.int64)
    none = np.zeros(len(makers), np.int64)
    thread = operators.thread[makers] if threads else none
    sequence, start = operators.sequence[makers], operators.start_ns[makers]
    wanted_thread = operators.forward_thread[asked] if threads else np.zeros(len(asked), np.int64)
    # Creators and backward operators are sorted together; each backward operator then looks back to the last creator.
    order = np.lexsort(
        (
            np.concatenate([start, operators.start_ns[asked]]),
            np.concatenate([sequence, operators.sequence[asked]]),
            np.concatenate([thread, wanted_thread]),
        )
    )
    is_maker = order < len(makers)
    last = np.maximum.accumulate(np.where(is_maker, np.arange(len(order)), NONE))
    candidate = np.where(last == NONE, NONE, order[np.maximum(last, 0)])
    found = np.full(len(asked), NONE, np.int64)
    found[order[~is_maker] - len(makers)] = candidate[~is_maker]
    known = found != NONE
    same = np.zeros(len(asked), bool)
    same[known] = (sequence[found[known]] == operators.sequence[asked[known]]) & (
        thread[found[known]] == wanted_thread[known]
    )
    return np.where(same, makers[np.maximum(found, 0)], NONE)


def resolve_forward_threads(operators: Table) -> None:
    """Replace torch's forward thread ids (0 or less means none) by the trace's thread indices.

    The index is NONE if there is no forward thread, if no thread of the trace has any of its sequence numbers, or if
    two threads fit equally well.
    """
    made: dict[int, list[Integers]] = defaultdict(list)
    asked: dict[int, list[Integers]] = defaultdict(list)
    for thread, sequence, counted in operators.stretches(_THREAD, _SEQUENCE, _FORWARD_THREAD):
        numbered, backward = sequence != NONE, counted > 0
        for each in distinct(thread[~backward]).tolist():
            made[each].append(distinct(sequence[numbered & ~backward & (thread == each)]))
        for each in distinct(counted[backward]).tolist():
            asked[each].append(distinct(sequence[numbered & (counted == each)]))
    by_thread = {thread: distinct(np.concatenate(parts)) for thread, parts in made.items()}
    forward = {count: _best_fit(distinct(np.concatenate(parts)), by_thread) for count, parts in asked.items()}
    counts = np.array([*sorted(forward)], np.int64)
    threads = np.array([forward[each] for each in counts.tolist()], np.int64)

    def replaced(counted: Integers) -> Integers:
        found = np.full(len(counted), NONE, np.int64)
        backward = counted > 0
        found[backward] = threads[np.searchsorted(counts, counted[backward])]
        return found

    operators.replace(_FORWARD_THREAD, replaced, _FORWARD_THREAD)


def _best_fit(asked: Integers, made: dict[int, Integers]) -> int:
    """Return the thread whose sequence numbers have the largest Jaccard similarity with `asked`.

    NONE if the similarity is 0, or if two threads tie.
    """
    fits = []
    for thread, numbers in made.items():
        common = len(np.intersect1d(asked, numbers, assume_unique=True))
        fits.append((common / (len(asked) + len(numbers) - common) if common else 0.0, thread))
    fits.sort(reverse=True)
    if not fits or fits[0][0] == 0 or (len(fits) > 1 and fits[0][0] == fits[1][0]):
        return NONE
    return fits[0][1]


# --- attribution of one slice


@dataclass(frozen=True)
class Attribution:
    """Pieces of work with the operator, step, phase and module that caused each; one row per piece of work."""

    source: ProfileSource
    work: Launched
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
    called = part.operators
    operators = Nesting.of(called.thread, called.start_ns, called.duration_ns)
    work = part.work if part.work is not None else _host_work(called, operators)
    launched = work.thread != NONE
    operator, around = np.full((2, len(work.name)), NONE, np.int64)
    if part.work is None:
        operator = np.arange(len(work.name), dtype=np.int64)
    else:
        operator[launched] = operators.innermost(work.thread[launched], work.at_ns[launched])
    around[launched] = ranges.at(work.thread[launched], work.at_ns[launched])
    elsewhere = ranges.milestone_at(work.at_ns)
    step = looked_up(ranges.step, around)

    # Find, around each piece of work, an operator of autograd's engine and one that autograd recorded, and the
    # innermost operator that computes the gradient of a module.
    backward = is_backward(called.name, names)
    in_backward = looked_up(_nearest(backward, operators.parents), operator) != NONE
    recorded = looked_up(_nearest((called.sequence != NONE) & ~backward, operators.parents), operator) != NONE
    linked = looked_up(_nearest(part.gradient_of != NONE, operators.parents), operator)

    # The phase comes from the most reliable evidence: autograd's engine, ranges on the thread, ranges on other threads,
    # a recorded graph.
    phase = looked_up(ranges.phase, around)
    phase = np.where(phase == NONE, looked_up(ranges.phase, elsewhere), phase)
    phase = np.where(in_backward, BACKWARD, phase)
    phase = np.where((phase == NONE) & recorded & launched, FORWARD, phase)

    # A gradient belongs to its module. A range that was entered after the backward operator began takes precedence: a
    # forward pass that is recomputed within backward has module ranges of its own.
    entered_since = looked_up(ranges.start_ns, around) >= looked_up(called.start_ns, linked)
    module = np.where((around != NONE) & entered_since, NONE, looked_up(part.gradient_of, linked))
    return Attribution(
        source="cpu" if part.work is None else "device",
        work=work,
        operators=operators,
        operator=operator,
        step=np.where(step == NONE, looked_up(ranges.step, elsewhere), step),
        phase=phase,
        module=np.where(module == NONE, np.maximum(looked_up(ranges.module, around), 0), module),
    )


def _host_work(operators: Operators, nesting: Nesting) -> Launched:
    count = len(operators.name)
    unknown = np.full(count, NONE, np.int64)
    return Launched(
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
    )


def _nearest(wanted: NDArray[np.bool_], parents: Integers) -> Integers:
    """For each operator, return the nearest `wanted` operator among itself and its ancestors, or NONE."""
    found = np.where(wanted, np.arange(len(parents)), parents)
    looking = np.flatnonzero((found != NONE) & ~wanted)
    while len(looking):
        looking = looking[(found[looking] != NONE) & ~wanted[found[looking]]]
        found[looking] = found[found[looking]]
        looking = looking[found[looking] != NONE]
    return found
