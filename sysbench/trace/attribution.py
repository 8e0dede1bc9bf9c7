"""Which part of the model caused a piece of work, in which phase of which step.

Device work is led back to the call that launched it, by correlation number, and through the moment of that call to the
operator and the ranges around it on the launching thread. Work that runs long after its range was left is thereby
counted where it belongs. What autograd's thread launches is led on to the forward operator whose gradient it computes
(the sequence number that both carry) and to the module that this one ran in.

On a trace without device work the operators themselves are the work, each by the time that it spent in no other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sysbench.trace.gradients import is_backward
from sysbench.trace.intervals import Nesting, self_time_ns
from sysbench.trace.range_tree import BACKWARD, FORWARD, RangeTree
from sysbench.trace.recording import KERNEL, NONE, Integers, Operators
from sysbench.trace.slices import Launched, Slice
from sysbench.trace.summary import ProfileSource


@dataclass(frozen=True)
class Attribution:
    """Work with what caused it. Columns have a row for each piece of work."""

    source: ProfileSource
    work: Launched
    """On a CPU-only trace the operators, each as if it had launched itself."""
    operators: Nesting
    operator: Integers
    """The innermost operator around the launch; NONE where there is none."""
    step: Integers
    phase: Integers
    """Position in `range_tree.PHASES`; NONE where nothing tells."""
    module: Integers
    """Position in `RangeTree.modules`: the innermost one."""


def attribute(part: Slice, ranges: RangeTree, names: Sequence[str]) -> Attribution:
    """Lead every piece of work in a slice back to what caused it."""
    operators = Nesting.of(part.operators.thread, part.operators.start_ns, part.operators.duration_ns)
    if part.work is None:
        work = _host_work(part.operators, operators)
        operator = np.arange(len(work.name), dtype=np.int64)
    else:
        work = part.work
        operator = np.full(len(work.name), NONE, np.int64)
    launched = work.thread != NONE
    if part.work is not None:
        operator[launched] = operators.innermost(work.thread[launched], work.at_ns[launched])
    around = np.full(len(work.name), NONE, np.int64)
    around[launched] = ranges.at(work.thread[launched], work.at_ns[launched])
    gradients = _Gradients(part, operators, names, ranges)
    step, phase = _looked_up(ranges.step, around), _looked_up(ranges.phase, around)
    module = np.maximum(_looked_up(ranges.module, around), 0)
    elsewhere = ranges.milestone_at(work.at_ns)
    step = np.where(step == NONE, _looked_up(ranges.step, elsewhere), step)
    in_backward, inherited = gradients.of(operator, around)
    # The phase by the surest evidence: autograd's engine, ranges on the thread, ranges elsewhere, a recorded graph.
    phase = np.where(phase == NONE, _looked_up(ranges.phase, elsewhere), phase)
    phase = np.where(in_backward, BACKWARD, phase)
    phase = np.where((phase == NONE) & gradients.recording(operator) & launched, FORWARD, phase)
    return Attribution(
        source="cpu" if part.work is None else "device",
        work=work,
        operators=operators,
        operator=operator,
        step=step,
        phase=phase,
        module=np.where(inherited == NONE, module, inherited),
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


def _looked_up(column: Integers, index: Integers) -> Integers:
    """The column's value at each index; NONE where that is NONE."""
    if not len(column):
        return np.full(len(index), NONE, np.int64)
    return np.where(index == NONE, NONE, column[index])


class _Gradients:
    """The modules whose gradients backward operators compute."""

    def __init__(self, part: Slice, nesting: Nesting, names: Sequence[str], ranges: RangeTree) -> None:
        operators = part.operators
        backward = is_backward(operators.name, names)
        self._start_ns = operators.start_ns
        self._range_start_ns = ranges.start_ns
        self._module = part.gradient_of
        self._parents = nesting.parents
        self._backward = _nearest(backward, self._parents)
        """The innermost backward operator around each operator, itself included; NONE where there is none."""
        self._linked = _nearest(part.gradient_of != NONE, self._parents)
        self._recorded = (operators.sequence != NONE) & ~backward

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


def _nearest(wanted: NDArray[np.bool_], parents: Integers) -> Integers:
    """For each operator, the innermost one around it that is wanted, itself included; NONE where there is none."""
    found = np.where(wanted, np.arange(len(parents)), parents)
    looking = np.flatnonzero((found != NONE) & ~wanted)
    while len(looking):
        looking = looking[(found[looking] != NONE) & ~wanted[found[looking]]]
        found[looking] = found[found[looking]]
        looking = looking[found[looking] != NONE]
    return found
