"""Traces of deep compiled steps, continued from those of two shallow ones, as recordings are.

Only the model is compiled: the other phases are those of the whole eager step, which costs seconds to trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sysbench.predict.trace import HOST_WORK, HostWork, Kernel, PhaseTrace, Stage, Trace, TraceWriter
from sysbench.simulate.compiler.growth import NUMBER, grown, loops

COMPILED_PHASES = ("forward", "backward")
"""Compiled phases: only the model is compiled; loss, optimizer and zero_grad run eagerly."""


class _Issued(NamedTuple):
    """An operator that the host issues, as arguments of `TraceWriter.add_operator`."""

    work: HostWork
    kernels: tuple[Kernel, ...]
    module: str
    name: str


def continued(small: Trace, large: Trace, more: int, eager: Trace) -> Trace | None:
    """Return the trace that is `more` steps of depth deeper than `small`; None if what is found does not repeat.

    `large` is one step deeper than `small`, and `eager` that of the whole step without the compiler.
    """
    if any(phase.streams is not None or phase.host_bytes is not None for phase in (*large.phases, *eager.phases)):
        return None
    writer = TraceWriter()
    occurrences = Counter[str]()
    written: dict[tuple[int, int], Stage] = {}
    for one, other, whole in zip(small.phases, large.phases, eager.phases, strict=True):
        stage = Stage(whole.name, occurrences[whole.name])
        occurrences[whole.name] += 1
        first = written.setdefault((id(one), id(other)), stage)
        if first != stage:
            writer.repeat(stage, first)
            continue
        issued = list(_issued(eager, whole))
        if whole.name in COMPILED_PHASES:
            found = _grown(list(_issued(small, one)), list(_issued(large, other)), more)
            if found is None:
                return None
            issued = found
        writer.columns_of(stage)
        for each in issued:
            writer.add_operator(stage, *each)
    return replace(writer.trace(), compiled=large.compiled)


def _grown(small: list[_Issued], large: list[_Issued], more: int) -> list[_Issued] | None:
    found = loops(
        *([each._replace(module=NUMBER.sub("#", each.module)) for each in issued] for issued in (small, large))
    )
    if found is None:
        return None
    return [
        large[each.next]._replace(
            module=each.name(small[each.small].module, large[each.large].module, large[each.next].module, more)
        )
        for each in grown(found, len(small), more)
    ]


def _issued(trace: Trace, phase: PhaseTrace) -> Iterator[_Issued]:
    launched = pairwise([0, *np.cumsum(phase.launches)])
    columns = zip(phase.host, launched, phase.modules, phase.operators, strict=True)
    for work, (first, end), module, operator in columns:
        kernels = tuple(trace.kernels[kernel] for kernel in phase.kernels[first:end])
        yield _Issued(HOST_WORK[work], kernels, trace.modules[module], trace.operators[operator])
