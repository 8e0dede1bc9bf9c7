"""Attribution as it is defined, slowly: one event at a time, every other event looked at for each."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sysbench.trace.recording import NONE, Trace

PHASES = {"zero_grad": 0, "forward": 1, "loss": 2, "backward": 3, "optimizer": 4}


@dataclass(frozen=True)
class Stretch:
    """A range or an operator; `index` is its place in the trace."""

    index: int
    thread: int
    start: int
    end: int
    name: str

    @property
    def rank(self) -> tuple[int, int, int]:
        """Later in this order is further in."""
        return self.start, -(self.end - self.start), self.index


def innermost(stretches: list[Stretch], thread: int | None, at: int) -> Stretch | None:
    """The last to start of those that are open; on any thread if none is given."""
    open_then = [each for each in stretches if thread in (None, each.thread) and each.start <= at < each.end]
    return max(open_then, key=lambda each: each.rank, default=None)


def parent(stretches: list[Stretch], inner: Stretch) -> Stretch | None:
    """The last to start of those before it that enclose all of it."""
    around = [
        each
        for each in stretches
        if each.thread == inner.thread and each.rank < inner.rank and each.end >= inner.end and each.end > inner.start
    ]
    return max(around, key=lambda each: each.rank, default=None)


def ancestry(stretches: list[Stretch], inner: Stretch | None) -> list[Stretch]:
    """It, and what encloses it, from the inside out."""
    found = []
    while inner is not None:
        found.append(inner)
        inner = parent(stretches, inner)
    return found


@dataclass(frozen=True)
class Meaning:
    step: int
    phase: int
    module: str


def meaning(ranges: list[Stretch], steps: list[int], inner: Stretch | None) -> Meaning:
    """What the ranges around a moment say together, from the outside in. Knows only names that the tests use."""
    step, phase, module = NONE, NONE, ""
    for each in reversed(ancestry(ranges, inner)):
        if each.index in steps:
            step, phase, module = steps.index(each.index), NONE, ""
        elif each.name in PHASES and phase == NONE:
            phase, module = PHASES[each.name], ""
        elif each.name in ("optimizer", "zero_grad"):
            pass
        else:
            name = each.name if re.fullmatch(r"\w+(\.\w+)*", each.name) else each.name.replace(".", "․")
            module = name if not module or name.startswith(module + ".") else f"{module}.{name}"
    return Meaning(step, phase, module)


def is_backward(name: str) -> bool:
    return name.startswith("autograd::engine::evaluate_function: ") or re.fullmatch(r".*Backward\d*", name) is not None


class Reference:
    """A whole trace, asked one piece of work at a time."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.ranges = _stretches(trace, "ranges")
        self.operators = _stretches(trace, "operators")
        # A step in a step is none.
        marks = [
            each
            for each in self.ranges
            if each.name == "step" and all(around.name != "step" for around in ancestry(self.ranges, each)[1:])
        ]
        self.steps = [each.index for each in sorted(marks, key=lambda each: (each.start, each.index))]
        self.milestones = [each for each in self.ranges if each.name in PHASES or each in marks]

    def forward_of(self, backward: Stretch) -> Stretch | None:
        """The last operator of the same number, on the thread that is named or any, that started no later."""
        columns = self.trace.operators
        number, thread = columns.sequence[backward.index], columns.forward_thread[backward.index]
        makers = [
            each
            for each in self.operators
            if columns.sequence[each.index] == number
            and not is_backward(each.name)
            and thread in (NONE, each.thread)
            and each.start <= backward.start
        ]
        return max(makers, key=lambda each: (each.start, each.index), default=None)

    def of(self, thread: int | None, at: int, operator: Stretch | None) -> Meaning:
        """Step, phase and module of work that was launched on a thread then; on none, if it is not known."""
        around = innermost(self.ranges, thread, at) if thread is not None else None
        own = meaning(self.ranges, self.steps, around)
        elsewhere = meaning(self.ranges, self.steps, innermost(self.milestones, None, at))
        step = own.step if own.step != NONE else elsewhere.step
        phase = own.phase if own.phase != NONE else elsewhere.phase
        module = own.module
        calls = ancestry(self.operators, operator)
        if any(is_backward(each.name) for each in calls):
            phase = PHASES["backward"]
        for each in calls:
            linked = is_backward(each.name) and self.trace.operators.sequence[each.index] != NONE
            forward = self.forward_of(each) if linked else None
            if forward is not None:
                if around is None or around.start < each.start:
                    module = meaning(
                        self.ranges, self.steps, innermost(self.ranges, forward.thread, forward.start)
                    ).module
                break
        recorded = any(
            self.trace.operators.sequence[each.index] != NONE and not is_backward(each.name) for each in calls
        )
        if phase == NONE and recorded and thread is not None:
            phase = PHASES["forward"]
        return Meaning(step, phase, module)

    def of_kernel(self, index: int) -> Meaning:
        """Of one piece of device work."""
        correlation, launches = self.trace.work.correlation[index], self.trace.launches
        for place in range(len(launches.start_ns)):
            if correlation != NONE and launches.correlation[place] == correlation:
                thread, at = int(launches.thread[place]), int(launches.start_ns[place])
                return self.of(thread, at, innermost(self.operators, thread, at))
        return self.of(None, int(self.trace.work.start_ns[index]), None)


def _stretches(trace: Trace, kind: str) -> list[Stretch]:
    columns = getattr(trace, kind)
    return [
        Stretch(
            index,
            int(columns.thread[index]),
            int(columns.start_ns[index]),
            int(columns.start_ns[index] + columns.duration_ns[index]),
            trace.names[columns.name[index]],
        )
        for index in range(len(columns.name))
    ]
