"""Attribution of device work to the module, phase and step that caused it.

Device work is linked to the call that launched it by its correlation number, and from the time of that call to the
enclosing operator and ranges on the launching thread. Work that runs long after its range has ended is therefore
counted where it belongs. Work launched by autograd's thread is further linked to the forward operator whose gradient it
computes (both have the same sequence number), and to the module in which that operator ran.

In a trace without device work, the operators themselves are the work, each with the time not spent in other operators.
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
    """Work and its causes, in columns with one row for each piece of work."""

    source: ProfileSource
    work: Launched
    """Device work; in a CPU-only trace the operators, each as if it had launched itself."""
    operators: Nesting
    operator: Integers
    """Innermost operator around the launch; NONE if there is none."""
    step: Integers
    phase: Integers
    """Position in `range_tree.PHASES`; NONE if unknown."""
    module: Integers
    """Position in `RangeTree.modules` of the innermost module."""


def attribute(part: Slice, ranges: RangeTree, names: Sequence[str]) -> Attribution:
    """Attribute every piece of work in a slice."""
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
    # The phase comes from the most reliable evidence: autograd's engine, ranges on the thread, ranges on other threads,
    # a recorded graph.
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
    """Return the column's value at each index; NONE where the index is NONE."""
    if not len(column):
        return np.full(len(index), NONE, np.int64)
    return np.where(index == NONE, NONE, column[index])


class _Gradients:
    """Backward operators, and the modules whose gradients they compute."""

    def __init__(self, part: Slice, nesting: Nesting, names: Sequence[str], ranges: RangeTree) -> None:
        operators = part.operators
        backward = is_backward(operators.name, names)
        self._start_ns = operators.start_ns
        self._range_start_ns = ranges.start_ns
        self._module = part.gradient_of
        self._parents = nesting.parents
        self._backward = _nearest(backward, self._parents)
        """Innermost backward operator around each operator, itself included; NONE if there is none."""
        self._linked = _nearest(part.gradient_of != NONE, self._parents)
        self._recorded = (operators.sequence != NONE) & ~backward

    def of(self, operator: Integers, around: Integers) -> tuple[NDArray[np.bool_], Integers]:
        """Return whether each piece of work belongs to backward, and the module whose gradient it computes, or NONE.

        A range that was entered after the backward operator began takes precedence: a forward pass that is recomputed
        within backward has its own module ranges.
        """
        in_backward = _looked_up(self._backward, operator) != NONE
        linked = _looked_up(self._linked, operator)
        entered_since = (around != NONE) & (
            _looked_up(self._range_start_ns, around) >= _looked_up(self._start_ns, linked)
        )
        return in_backward, np.where(entered_since, NONE, _looked_up(self._module, linked))

    def recording(self, operator: Integers) -> NDArray[np.bool_]:
        """Return whether each piece of work belongs to an operator that autograd recorded."""
        taken = _nearest(self._recorded, self._parents)
        return np.asarray(_looked_up(taken, operator) != NONE)


def _nearest(wanted: NDArray[np.bool_], parents: Integers) -> Integers:
    """For each operator, the innermost `wanted` operator around it, itself included; NONE if there is none."""
    found = np.where(wanted, np.arange(len(parents)), parents)
    looking = np.flatnonzero((found != NONE) & ~wanted)
    while len(looking):
        looking = looking[(found[looking] != NONE) & ~wanted[found[looking]]]
        found[looking] = found[found[looking]]
        looking = looking[found[looking] != NONE]
    return found
