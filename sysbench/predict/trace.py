"""A step as a sequence of kernels and of the host work that launches them, independent of any GPU.

A Transformer launches the same few kernels in every layer. A trace therefore stores each distinct kernel once, and for
every launch the position of its kernel. Kernels are timed once for each GPU and each draw of its rates; the rest is
indexing.
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
indexed    elementwise over broadcast or strided tensors, and concatenation: an offset is computed for each element
transpose  a copy whose fastest dimensions differ
reduce     a sum, mean or maximum over some dimensions
softmax    a row-wise softmax or normalization, forward or backward
foreach    an elementwise operator on a list of tensors
optimizer  a fused optimizer's update
embedding  rows gathered from a table, or added up into one
loss       the negative log likelihood's own kernels
collective a collective among ranks
unknown    an operator unknown to this model: timed as if elementwise, counted and named
"""

Dtype = Literal["fp32", "tf32", "bf16", "fp16", "other"]
"""Type in which a kernel computes; tf32 stands for fp32 products if tf32 is allowed."""

HostWork = Literal["operator", "view", "scalar"]
"""operator  an aten operator dispatched to the device
view      an operator that launches nothing: a view, an allocation, bookkeeping
scalar    a Python number computed on the host, in an optimizer's loop
"""

HOST_WORK: tuple[HostWork, ...] = get_args(HostWork)

Positions = NDArray[np.intp]


class Stage(NamedTuple):
    """One occurrence of a phase in a step."""

    phase: str
    turn: int = 0
    """Number of earlier occurrences of the phase in the step: the number of the micro-batch."""


class Kernel(NamedTuple):
    """Properties of one kernel that determine its time."""

    kind: Kind
    name: str
    """Name of the kernel's operator, without namespace: `bmm`, `_softmax`, `embedding_dense_backward`."""
    dtype: Dtype
    bytes: int
    """Minimum number of bytes read and written: broadcast dimensions count once, strided rows in full."""
    elements: int = 0
    """Number of elements of the result; of the input for a reduction."""
    flops: int = 0
    """FLOPs of matrix products, attention included; the hidden half of a causal mask is not counted."""
    dims: tuple[int, ...] = ()
    """gemm: (batch, m, n, k). attention: (batch, heads, queries, keys, d_head). reduce, softmax: (rows, width).
    collective: (ranks, nodes)."""
    layout: str = ""
    """gemm: TN, NN, NT or TT, as cuBLAS names operands, weights first: TN for a linear layer's forward, NN for the
    gradient of its input, NT for the gradient of its weights. attention: `flash forward`, `efficient backward causal`
    and the like."""


@dataclass(frozen=True)
class PhaseTrace:
    """One phase: the operators that the host issues, in order, and the launches of each."""

    name: str
    host: Positions
    """(operators,) Positions in `HOST_WORK`."""
    launches: Positions
    """(operators,) Number of kernels that each launches."""
    kernels: Positions
    """(launches,) Positions in `Trace.kernels`, in order."""
    operators: Positions
    """(operators,) Positions in `Trace.operators`."""
    modules: Positions
    """(operators,) Positions in `Trace.modules`."""
    replayed: bool = False
    """Whether the whole phase is one CUDA graph, so that the host launches once."""
    streams: Positions | None = None
    """(launches,) The stream of each launch; None if all are on the same stream."""
    waits: tuple[tuple[int, int], ...] = ()
    """Launches that wait for the end of an earlier one on another stream."""

    @cached_property
    def issuers(self) -> Positions:
        """Return (launches,): for each kernel, the position in the phase of the operator that launches it."""
        return np.repeat(np.arange(len(self.launches)), self.launches)

    @cached_property
    def issued(self) -> NDArray[np.float64]:
        """Return the cumulative counts at the end of each operator: (kinds of host work and launches, operators)."""
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
        """Return the number of kernels launched in the whole step."""
        return sum(len(phase.kernels) for phase in self.phases)

    @cached_property
    def counts(self) -> Mapping[str, NDArray[np.intp]]:
        """Return for each phase how often each kernel is launched."""
        none = np.zeros(len(self.kernels), dtype=np.intp)
        counts = dict.fromkeys((phase.name for phase in self.phases), none)
        for phase in self.phases:
            counts[phase.name] = counts[phase.name] + np.bincount(phase.kernels, minlength=len(self.kernels))
        return counts

    @property
    def flops(self) -> int:
        """Return the FLOPs of matrix products in the whole step."""
        return sum(self.kernels[i].flops * int(n) for counts in self.counts.values() for i, n in enumerate(counts))

    def only(self, phases: Iterable[str]) -> Trace:
        """Return the trace of these phases."""
        wanted = set(phases)
        return replace(self, phases=tuple(each for each in self.phases if each.name in wanted))

    def with_tf32(self) -> Trace:
        """Return the trace with fp32 products that may run on tensor cores; nothing else changes."""
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
        """Begin a stage, which follows all stages begun before it; return its columns."""
        columns = self.stages.get(stage)
        if columns is None:
            columns = self.stages[stage] = [], [], [], [], []
        return columns

    def operator(
        self, stage: Stage, work: HostWork, kernels: Iterable[Kernel] = (), module: str = "", name: str = ""
    ) -> None:
        """Add an operator that launches these kernels; an operator without a name is named after its host work."""
        host, launches, launched, operators, modules = self.begin(stage)
        positions = [self.kernels.setdefault(kernel, len(self.kernels)) for kernel in kernels]
        host.append(HOST_WORK.index(work))
        launches.append(len(positions))
        launched += positions
        operators.append(self.operators.setdefault(name or work, len(self.operators)))
        modules.append(self.modules.setdefault(module, len(self.modules)))

    def on_stream(self, stage: Stage, stream: int, after: Iterable[int]) -> int:
        """Put the latest launches of a stage on this stream, after the given ones; return the position of the last."""
        launched, streams = self.begin(stage)[2], self.streams.setdefault(stage, [])
        waits = self.waits.setdefault(stage, [])
        waits += ((len(streams), earlier) for earlier in after)
        streams += [stream] * (len(launched) - len(streams))
        return len(launched) - 1

    def alike(self, one: Stage, other: Stage) -> bool:
        """Return whether the same operators and launches were written for both stages."""
        return all(each.get(one) == each.get(other) for each in (self.stages, self.streams, self.waits))

    def repeat(self, stage: Stage, like: Stage) -> None:
        """Let a new stage share everything that is written for stage `like`, now and later."""
        self.stages[stage] = self.begin(like)
        self.streams[stage] = self.streams.get(like, [])
        self.waits[stage] = self.waits.get(like, [])

    def trace(self) -> Trace:
        """Return the trace; stages that repeat another one are the same object."""
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
