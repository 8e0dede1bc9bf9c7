"""Which part of the model caused a piece of work, in which phase of which step.

Device work is led back to the call that launched it, by correlation number, and through the moment of that call to the
operator and the ranges around it on the launching thread. Work that runs long after its range was left is thereby
counted where it belongs. What autograd's thread launches is led on to the forward operator whose gradient it computes
(the sequence number that both carry) and to the module that this one ran in.

On a trace without device work the operators themselves are the work, each by the time that it spent in no other one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sysbench.analysis import range_tree
from sysbench.analysis.grouping import grouped
from sysbench.analysis.intervals import Nesting, self_time_ns
from sysbench.analysis.range_tree import BACKWARD, FORWARD, RangeTree
from sysbench.analysis.trace import KERNEL, NONE, Integers, Operators, Trace
from sysbench.profile_summary import ProfileSource

_ENGINE: Final = "autograd::engine::evaluate_function: "
_BACKWARD_OPERATOR: Final = re.compile(r"autograd::engine::evaluate_function: .*|.*Backward\d*(, .*)?", re.DOTALL)


@dataclass(frozen=True)
class Work:
    """What took time: kernels, copies and sets of a device, or on a CPU-only trace operators. Columns of one length."""

    source: ProfileSource
    start_ns: Integers
    duration_ns: Integers
    name: Integers
    kind: Integers
    device: Integers
    stream: Integers
    launch_shape: Integers
    bytes: Integers
    launch: Integers
    """Index into the trace's launches; NONE where it was not recorded, and on the CPU."""
    thread: Integers
    """That launched it, or that ran it; NONE where that was not recorded."""
    at_ns: Integers
    """When it was launched; without a launch, when it started."""


@dataclass(frozen=True)
class Attribution:
    """Work with what caused it. Columns have a row for each piece of work."""

    work: Work
    operators: Nesting
    operator: Integers
    """The innermost operator around the launch; NONE where there is none."""
    step: Integers
    phase: Integers
    """Position in `range_tree.PHASES`; NONE where nothing tells."""
    module: Integers
    """Position in `ranges.modules`: the innermost one."""
    ranges: RangeTree


def attribute(trace: Trace) -> Attribution:
    """Lead every piece of work back to what caused it."""
    ranges = range_tree.read(trace.ranges, trace.names)
    operators = Nesting.of(trace.operators.thread, trace.operators.start_ns, trace.operators.duration_ns)
    work = _device_work(trace) if len(trace.work.start_ns) else _host_work(trace, operators)
    launched = work.thread != NONE
    operator = _innermost_operator(work, operators)
    around = np.full(len(work.name), NONE, np.int64)
    around[launched] = ranges.at(work.thread[launched], work.at_ns[launched])
    gradients = _Gradients(trace, operators, ranges)
    step, phase, module = _of_ranges(ranges, around)
    elsewhere = ranges.milestone_at(work.at_ns)
    step = np.where(step == NONE, _looked_up(ranges.step, elsewhere), step)
    in_backward, inherited = gradients.of(operator, around)
    return Attribution(
        work=work,
        operators=operators,
        operator=operator,
        step=step,
        phase=_phases(phase, _looked_up(ranges.phase, elsewhere), in_backward, gradients.recording(operator), launched),
        module=np.where(inherited == NONE, module, inherited),
        ranges=ranges,
    )


def _device_work(trace: Trace) -> Work:
    device, launches = trace.work, trace.launches
    launch = _launch_of(device.correlation, launches.correlation)
    return Work(
        source="device",
        start_ns=device.start_ns,
        duration_ns=device.duration_ns,
        name=device.name,
        kind=device.kind,
        device=device.device,
        stream=device.stream,
        launch_shape=device.launch_shape,
        bytes=device.bytes,
        launch=launch,
        thread=_looked_up(launches.thread, launch),
        at_ns=np.where(launch == NONE, device.start_ns, _looked_up(launches.start_ns, launch)),
    )


def _launch_of(wanted: Integers, correlation: Integers) -> Integers:
    """The first launch of each correlation number; NONE for numbers that no launch has."""
    known = np.flatnonzero(correlation != NONE)
    order = known[np.argsort(correlation[known], kind="stable")]
    if not len(order):
        return np.full(len(wanted), NONE, np.int64)
    place = np.minimum(np.searchsorted(correlation[order], wanted), len(order) - 1)
    return np.where((wanted != NONE) & (correlation[order[place]] == wanted), order[place], NONE)


def _host_work(trace: Trace, nesting: Nesting) -> Work:
    operators = trace.operators
    count = len(operators.name)
    unknown = np.full(count, NONE, np.int64)
    return Work(
        source="cpu",
        start_ns=operators.start_ns,
        duration_ns=self_time_ns(nesting, operators.duration_ns),
        name=operators.name,
        kind=np.full(count, KERNEL, np.int64),
        device=np.zeros(count, np.int64),
        stream=unknown,
        launch_shape=unknown,
        bytes=unknown,
        launch=unknown,
        thread=operators.thread,
        at_ns=operators.start_ns,
    )


def _innermost_operator(work: Work, operators: Nesting) -> Integers:
    if work.source == "cpu":
        return np.arange(len(work.name), dtype=np.int64)
    launched = work.thread != NONE
    found = np.full(len(work.name), NONE, np.int64)
    found[launched] = operators.innermost(work.thread[launched], work.at_ns[launched])
    return found


def _of_ranges(ranges: RangeTree, around: Integers) -> tuple[Integers, Integers, Integers]:
    module = np.maximum(_looked_up(ranges.module, around), 0)
    return _looked_up(ranges.step, around), _looked_up(ranges.phase, around), module


def _looked_up(column: Integers, index: Integers) -> Integers:
    """The column's value at each index; NONE where that is NONE."""
    if not len(column):
        return np.full(len(index), NONE, np.int64)
    return np.where(index == NONE, NONE, column[index])


def _phases(
    own: Integers, elsewhere: Integers, in_backward: NDArray[np.bool_], recording: NDArray[np.bool_], launched: object
) -> Integers:
    """By what is surest: autograd's engine, ranges on the thread, ranges elsewhere, and that a graph is recorded."""
    phase = np.where(own == NONE, elsewhere, own)
    phase = np.where(in_backward, BACKWARD, phase)
    return np.where((phase == NONE) & recording & launched, FORWARD, phase)


class _Gradients:
    """The forward operators whose gradients backward operators compute."""

    def __init__(self, trace: Trace, nesting: Nesting, ranges: RangeTree) -> None:
        operators = trace.operators
        self._start_ns = operators.start_ns
        self._range_start_ns = ranges.start_ns
        parents = nesting.parents()
        is_backward = _is_backward(operators, trace.names)
        forward = _forward_of(operators, is_backward)
        linked = forward != NONE
        self._backward = _nearest(is_backward, parents)
        """The innermost backward operator around each operator, itself included; NONE where there is none."""
        self._linked = _nearest(linked, parents)
        self._recorded = (operators.sequence != NONE) & ~is_backward
        self._module = np.full(len(operators.name), NONE, np.int64)
        found = ranges.at(operators.thread[forward[linked]], operators.start_ns[forward[linked]])
        self._module[linked] = np.maximum(_looked_up(ranges.module, found), 0)
        self._parents = parents

    def of(self, operator: Integers, around: Integers) -> tuple[NDArray[np.bool_], Integers]:
        """Whether each piece of work belongs to backward, and the module whose gradient it computes, or NONE.

        A range that was entered since the backward operator began is nearer: a forward pass that is computed anew
        within backward has its modules around itself.
        """
        in_backward = _looked_up(self._backward, operator) != NONE
        linked = _looked_up(self._linked, operator)
        entered_since = (around != NONE) & (
            _looked_up(self._range_start_ns, around) >= _looked_up(self._start_ns, linked)
        )
        return in_backward, np.where(entered_since, NONE, _looked_up(self._module, linked))

    def recording(self, operator: Integers) -> NDArray[np.bool_]:
        """Whether each piece of work belongs to an operator that autograd took note of."""
        taken = _nearest(self._recorded, self._parents)
        return np.asarray(_looked_up(taken, operator) != NONE)


def _is_backward(operators: Operators, names: tuple[str, ...]) -> NDArray[np.bool_]:
    different, which = grouped(operators.name)
    known = np.array([_BACKWARD_OPERATOR.fullmatch(names[name]) is not None for name in different.tolist()], bool)
    return known[which] if len(known) else np.zeros(0, bool)


def _nearest(wanted: NDArray[np.bool_], parents: Integers) -> Integers:
    """For each operator, the innermost one around it that is wanted, itself included; NONE where there is none."""
    found = np.where(wanted, np.arange(len(parents)), parents)
    looking = np.flatnonzero((found != NONE) & ~wanted)
    while len(looking):
        looking = looking[(found[looking] != NONE) & ~wanted[found[looking]]]
        found[looking] = found[found[looking]]
        looking = looking[found[looking] != NONE]
    return found


def _forward_of(operators: Operators, is_backward: NDArray[np.bool_]) -> Integers:
    """For each backward operator, the forward operator of the same sequence number; NONE for all others.

    Operators that call others carry the number that the next node of the graph will get, and so does whatever comes
    before that node: the one that made it is the last of them (torch/csrc/autograd/function.h, `sequence_number`).
    Numbers count up in every thread for itself.
    """
    forward = np.full(len(operators.name), NONE, np.int64)
    backward = np.flatnonzero(is_backward & (operators.sequence != NONE))
    makers = np.flatnonzero(~is_backward & (operators.sequence != NONE))
    by_thread = operators.forward_thread[backward] != NONE
    for asked, threads in ((backward[by_thread], True), (backward[~by_thread], False)):
        forward[asked] = _last_maker(operators, makers, asked, threads)
    return forward


def _last_maker(operators: Operators, makers: Integers, asked: Integers, threads: bool) -> Integers:
    """The last maker of the same number that started before, in the forward thread or in any."""
    none = np.zeros(len(makers), np.int64)
    thread = operators.thread[makers] if threads else none
    sequence, start = operators.sequence[makers], operators.start_ns[makers]
    wanted_thread = operators.forward_thread[asked] if threads else np.zeros(len(asked), np.int64)
    # Makers and those that ask for them are put in one order; each then looks back to the last maker before it.
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
    return np.where(same, makers[np.maximum(found, 0)] if len(makers) else NONE, NONE)
