"""A step as a sequence of kernels and of what the host does to launch them. It knows no GPU.

A Transformer launches the same few kernels in every layer, so a trace holds each distinct kernel once, and for every
launch the position of its kernel. Kernels are timed once for each GPU and each draw of its rates; the rest is indexing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

Kind = Literal[
    "gemm", "attention", "map", "indexed", "transpose", "reduce", "softmax", "foreach", "optimizer", "embedding",
    "loss", "collective", "unknown",
]  # fmt: skip
"""gemm       a matrix product, batched or not
attention  a fused attention kernel, forward or backward
map        elementwise, all tensors of one layout: loads and stores are vectorized
indexed    elementwise over broadcast or strided tensors, and concatenation: each element has its offset worked out
transpose  a copy whose fastest dimensions differ
reduce     a sum, mean or maximum over some dimensions
softmax    a row-wise softmax or normalization, forward or backward
foreach    an elementwise operator on a list of tensors
optimizer  a fused optimizer's update
embedding  rows gathered from a table, or added up into one
loss       the negative log likelihood's own kernels
collective an exchange among ranks
unknown    an operator this model does not know: timed as if elementwise, counted and named
"""

Dtype = Literal["fp32", "tf32", "bf16", "fp16", "other"]
"""What a kernel computes in; tf32 is how fp32 products run where that is allowed."""

HostWork = Literal["operator", "view", "scalar"]
"""operator  an aten operator dispatched to the device
view      one that launches nothing: a view, an allocation, bookkeeping
scalar    a Python number worked out on the host, in an optimizer's loop
"""

HOST_WORK: tuple[HostWork, ...] = get_args(HostWork)

Positions = NDArray[np.intp]


class Stage(NamedTuple):
    """One occurrence of a phase in a step."""

    phase: str
    turn: int = 0
    """How many of the phase there were before in the step: the number of the micro-batch."""


class Kernel(NamedTuple):
    """One kernel, as far as its time depends on it."""

    kind: Kind
    name: str
    """The operator it belongs to, without namespace: `bmm`, `_softmax`, `embedding_dense_backward`."""
    dtype: Dtype
    bytes: int
    """Read and written at least once: broadcast dimensions count once, strided rows in full."""
    elements: int = 0
    """Of the result; of the input for a reduction."""
    flops: int = 0
    """Of matrix products, attention included; a causal half is not counted."""
    dims: tuple[int, ...] = ()
    """gemm: (batch, m, n, k). attention: (batch, heads, queries, keys, d_head). reduce, softmax: (rows, width).
    collective: (ranks, nodes)."""
    layout: str = ""
    """gemm: TN, NN, NT or TT, as cuBLAS names operands, weights first: a linear layer's forward is TN, the gradient of
    its input NN, of its weights NT. attention: `flash forward`, `efficient backward causal` and the like."""


@dataclass(frozen=True)
class PhaseTrace:
    """One phase: the operators that the host issues, in order, and the launches of each."""

    name: str
    host: Positions
    """(operators,) Positions in `HOST_WORK`."""
    launches: Positions
    """(operators,) How many kernels each launches."""
    kernels: Positions
    """(launches,) Positions in `Trace.kernels`, in order."""
    operators: Positions
    """(operators,) Positions in `Trace.operators`."""
    modules: Positions
    """(operators,) Positions in `Trace.modules`."""
    replayed: bool = False
    """The whole phase is one CUDA graph: the host launches once."""
    streams: Positions | None = None
    """(launches,) The stream of each launch; None if all are on one."""
    waits: tuple[tuple[int, int], ...] = ()
    """Launches with an earlier one on another stream that has to end before."""

    @cached_property
    def issuers(self) -> Positions:
        """(launches,) The operator that launches each kernel, by its position among the phase's."""
        return np.repeat(np.arange(len(self.launches)), self.launches)

    @cached_property
    def issued(self) -> NDArray[np.float64]:
        """(kinds of host work and launches, operators) How many there were by the end of each operator."""
        each = [self.host == work for work in range(len(HOST_WORK))]
        return np.cumsum([*each, self.launches], axis=1, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Trace:
    """A step: its distinct kernels, and its phases in order, one for each micro-batch under the same name.

    operators  names, such as `aten::bmm`
    modules    paths of modules, such as `layers.3.attention.q`; the empty one is the whole model
    compiled   what was fused as torch.compile would: less certain than what runs eagerly
    """

    kernels: tuple[Kernel, ...]
    operators: tuple[str, ...]
    modules: tuple[str, ...]
    phases: tuple[PhaseTrace, ...]
    compiled: bool = False

    @property
    def launches(self) -> int:
        """Kernels launched in the whole step."""
        return sum(len(phase.kernels) for phase in self.phases)

    @cached_property
    def counts(self) -> Mapping[str, NDArray[np.intp]]:
        """By phase: how often each kernel is launched."""
        none = np.zeros(len(self.kernels), dtype=np.intp)
        counts = dict.fromkeys((phase.name for phase in self.phases), none)
        for phase in self.phases:
            counts[phase.name] = counts[phase.name] + np.bincount(phase.kernels, minlength=len(self.kernels))
        return counts

    @property
    def flops(self) -> int:
        """Of matrix products in the whole step."""
        return sum(self.kernels[i].flops * int(n) for counts in self.counts.values() for i, n in enumerate(counts))

    def only(self, phases: Iterable[str]) -> Trace:
        """The trace of these phases."""
        wanted = set(phases)
        return replace(self, phases=tuple(each for each in self.phases if each.name in wanted))

    def with_tf32(self) -> Trace:
        """The trace where fp32 products may run on tensor cores: nothing else changes."""
        kernels = (each._replace(dtype="tf32") if _is_fp32_product(each) else each for each in self.kernels)
        return replace(self, kernels=tuple(kernels))


def _is_fp32_product(kernel: Kernel) -> bool:
    return kernel.kind == "gemm" and kernel.dtype == "fp32"


@dataclass
class TraceWriter:
    """Writes a trace, operator by operator."""

    kernels: dict[Kernel, int] = field(default_factory=dict)
    operators: dict[str, int] = field(default_factory=dict)
    modules: dict[str, int] = field(default_factory=dict)
    stages: dict[Stage, tuple[list[int], list[int], list[int], list[int], list[int]]] = field(default_factory=dict)
    streams: dict[Stage, list[int]] = field(default_factory=dict)
    waits: dict[Stage, list[tuple[int, int]]] = field(default_factory=dict)

    def begin(self, stage: Stage) -> tuple[list[int], list[int], list[int], list[int], list[int]]:
        """The columns of a stage, which comes after those that were begun before it."""
        columns = self.stages.get(stage)
        if columns is None:
            columns = self.stages[stage] = [], [], [], [], []
        return columns

    def operator(
        self, stage: Stage, work: HostWork, kernels: Iterable[Kernel] = (), module: str = "", name: str = ""
    ) -> None:
        """The host issues an operator, which launches these kernels; what has no name goes by the work that it is."""
        host, launches, launched, operators, modules = self.begin(stage)
        positions = [self.kernels.setdefault(kernel, len(self.kernels)) for kernel in kernels]
        host.append(HOST_WORK.index(work))
        launches.append(len(positions))
        launched += positions
        operators.append(self.operators.setdefault(name or work, len(self.operators)))
        modules.append(self.modules.setdefault(module, len(self.modules)))

    def on_stream(self, stage: Stage, stream: int, after: Iterable[int]) -> int:
        """The latest launches of a stage are on this stream, and begin after others; return the last one's position."""
        launched, streams = self.begin(stage)[2], self.streams.setdefault(stage, [])
        waits = self.waits.setdefault(stage, [])
        waits += ((len(streams), earlier) for earlier in after)
        streams += [stream] * (len(launched) - len(streams))
        return len(launched) - 1

    def alike(self, one: Stage, other: Stage) -> bool:
        """Whether the same was written for both stages."""
        return all(each.get(one) == each.get(other) for each in (self.stages, self.streams, self.waits))

    def repeat(self, stage: Stage, like: Stage) -> None:
        """Write for a new stage what is and will be written for another one."""
        self.stages[stage] = self.begin(like)
        self.streams[stage] = self.streams.get(like, [])
        self.waits[stage] = self.waits.get(like, [])

    def trace(self) -> Trace:
        """What was written; stages that repeat another one are the same object."""
        phases: dict[int, PhaseTrace] = {}
        for stage, columns in self.stages.items():
            if id(columns) in phases:
                continue
            name = stage.phase
            host, launches, kernels, operators, modules = (np.array(column, dtype=np.intp) for column in columns)
            on_several = len(set(self.streams.get(stage, ()))) > 1
            streams = np.array(self.streams[stage], dtype=np.intp) if on_several else None
            waits = tuple(self.waits.get(stage, ())) if streams is not None else ()
            phases[id(columns)] = PhaseTrace(
                name, host, launches, kernels, operators, modules, streams=streams, waits=waits
            )
        in_order = tuple(phases[id(columns)] for columns in self.stages.values())
        return Trace(tuple(self.kernels), tuple(self.operators), tuple(self.modules), in_order)
