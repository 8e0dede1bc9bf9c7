"""A step as a sequence of kernels and of the host work that launches them, independent of any GPU.

A Transformer launches the same few kernels in every layer. A trace therefore stores each distinct kernel once, and for
every launch the position of its kernel. A prediction times each distinct kernel only once per draw of the GPU's rates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

Kind = Literal[
    "gemm", "attention", "map", "indexed", "transpose", "reduce", "softmax", "foreach", "optimizer", "embedding",
    "loss", "collective", "copy", "unknown",
]  # fmt: skip
"""gemm       a matrix product, batched or not
attention  a fused attention kernel, forward or backward
map        elementwise, all tensors of one layout: loads and stores are vectorized
indexed    elementwise over broadcast or strided tensors, and concatenation: an offset is computed for each element
transpose  a copy between tensors with different fastest dimensions
reduce     a sum, mean or maximum over some dimensions
softmax    a row-wise softmax or normalization, forward or backward
foreach    an elementwise operator on a list of tensors
optimizer  a fused optimizer's update
embedding  rows gathered from a table, or added up into one
loss       a kernel of the negative log likelihood
collective a collective among ranks
copy       a copy between the device and pinned memory of the host; its name is the rate of the link
unknown    an operator unknown to this model: timed as if elementwise, counted and named
"""

Dtype = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "other"]
"""Type in which a kernel computes; `tf32` is an fp32 product that may use tf32."""

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
    occurrence: int = 0
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
    """FLOPs of matrix products, including attention; masked scores also count."""
    dims: tuple[int, ...] = ()
    """gemm: (batch, m, n, k). attention: (batch, heads, queries, keys, d_head). reduce, softmax: (rows, width).
    collective: (ranks, nodes)."""
    layout: str = ""
    """gemm: TN, NN, NT or TT, as cuBLAS names operands, weights first: TN for a linear layer's forward, NN for the
    gradient of its input, NT for the gradient of its weights. attention: `flash forward`, `efficient backward causal`
    and the like."""


@dataclass(frozen=True)
class PhaseTrace:
    """One occurrence of a phase: the operators that the host issues, in order, and the launches of each operator."""

    name: str
    host: Positions
    """(operators,) Positions in `HOST_WORK`."""
    launches: Positions
    """(operators,) Number of kernels that each operator launches."""
    kernels: Positions
    """(launches,) Positions in `Trace.kernels`, in order."""
    operators: Positions
    """(operators,) Positions in `Trace.operators`."""
    modules: Positions
    """(operators,) Positions in `Trace.modules`."""
    replayed: bool = False
    """Whether the whole phase is one CUDA graph, for which the host issues one operator and one launch."""
    streams: Positions | None = None
    """(launches,) The stream of each launch; None if all are on the same stream."""
    waits: tuple[tuple[int, int], ...] = ()
    """(later, earlier) positions of launches: the later one waits for the end of the earlier one on another stream."""
    host_bytes: Positions | None = None
    """(operators,) Bytes that the host moves itself in each operator, such as an update; None if it moves none."""

    def with_shared_host(self, ranks: int) -> PhaseTrace:
        """Return a copy of the phase for which the host moves as many bytes for each of the other ranks."""
        return self if self.host_bytes is None else replace(self, host_bytes=self.host_bytes * ranks)

    @cached_property
    def issuers(self) -> Positions:
        """Return the position of each launch's operator in the phase, of shape (launches,)."""
        return np.repeat(np.arange(len(self.launches)), self.launches)

    @cached_property
    def issued(self) -> NDArray[np.float64]:
        """Return the cumulative counts of each kind of host work, then of launches, after each operator."""
        if self.replayed:
            graph = [float(work in ("operator", "launch")) for work in (*HOST_WORK, "launch")]
            return np.repeat(np.array(graph)[:, None], len(self.host), axis=1)
        each = [self.host == work for work in range(len(HOST_WORK))]
        return np.cumsum([*each, self.launches], axis=1, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Trace:
    """A step: its distinct kernels, and its phases in order. Each micro-batch has its own phases, with the same names.

    operators  names, such as `aten::bmm`
    modules    paths of modules, such as `layers.3.attention.q`; the empty path is the whole model
    compiled   whether torch.compile has generated kernels of the step
    """

    kernels: tuple[Kernel, ...]
    operators: tuple[str, ...]
    modules: tuple[str, ...]
    phases: tuple[PhaseTrace, ...]
    compiled: bool = False
    untimed: str = ""
    """Work of the step that has no kernels here; the time of the step is then withheld."""

    @property
    def launches(self) -> int:
        """Return the number of kernels launched in the whole step."""
        return sum(len(phase.kernels) for phase in self.phases)

    @cached_property
    def counts(self) -> Mapping[str, NDArray[np.intp]]:
        """Return, for each phase, the number of launches of each kernel, of shape (kernels,)."""
        none = np.zeros(len(self.kernels), dtype=np.intp)
        counts = dict.fromkeys((phase.name for phase in self.phases), none)
        for phase in self.phases:
            counts[phase.name] = counts[phase.name] + np.bincount(phase.kernels, minlength=len(self.kernels))
        return counts

    @property
    def has_copies(self) -> bool:
        """Return whether the step copies between device and host."""
        return any(kernel.kind == "copy" for kernel in self.kernels)

    @property
    def copies_updates(self) -> bool:
        """Return whether parameters that the host has updated are copied to the device in the optimizer's phase."""
        launched = self.counts.get("optimizer", ())
        return any(count and kernel.kind == "copy" for kernel, count in zip(self.kernels, launched, strict=False))

    @property
    def nodes(self) -> int:
        """Return the number of nodes among which the step communicates."""
        return max((kernel.dims[1] for kernel in self.kernels if kernel.kind == "collective"), default=1)

    @property
    def flops(self) -> int:
        """Return the FLOPs of matrix products in the whole step."""
        return sum(self.kernels[i].flops * int(n) for counts in self.counts.values() for i, n in enumerate(counts))

    @cached_property
    def digest(self) -> str:
        """Return a hash of the kernels that each phase launches: equal for equal steps, in every process."""
        launched = {name: counts.tolist() for name, counts in self.counts.items()}
        return hashlib.sha256(repr((self.kernels, launched)).encode()).hexdigest()[:16]

    def with_phases(self, phases: Iterable[str]) -> Trace:
        """Return a trace with only these phases."""
        wanted = set(phases)
        return replace(self, phases=tuple(phase for phase in self.phases if phase.name in wanted))

    def with_shared_host(self, ranks: int) -> Trace:
        """Return a copy of the trace in which this many ranks share the memory of one host."""
        return replace(self, phases=tuple(phase.with_shared_host(ranks) for phase in self.phases))

    def with_graphs(self, phases: Iterable[str]) -> Trace:
        """Return a copy of the trace in which each of these phases is one CUDA graph."""
        graphs = set(phases)
        return replace(
            self,
            phases=tuple(replace(phase, replayed=True) if phase.name in graphs else phase for phase in self.phases),
        )

    def with_tf32(self) -> Trace:
        """Return a copy of the trace in which fp32 matrix products may use tf32."""
        kernels = (
            kernel._replace(dtype="tf32") if (kernel.kind, kernel.dtype) == ("gemm", "fp32") else kernel
            for kernel in self.kernels
        )
        return replace(self, kernels=tuple(kernels))


@dataclass
class _Columns:
    """What the host does in a stage, operator by operator, and what it launches."""

    host: list[int] = field(default_factory=list)
    launches: list[int] = field(default_factory=list)
    kernels: list[int] = field(default_factory=list)
    operators: list[int] = field(default_factory=list)
    modules: list[int] = field(default_factory=list)
    streams: list[int] = field(default_factory=list)
    waits: list[tuple[int, int]] = field(default_factory=list)
    host_bytes: dict[int, int] = field(default_factory=dict)

    def phase(self, name: str) -> PhaseTrace:
        columns = (self.host, self.launches, self.kernels, self.operators, self.modules)
        host, launches, kernels, operators, modules = (np.array(column, dtype=np.intp) for column in columns)
        host_bytes = np.zeros(len(self.host), dtype=np.intp)
        host_bytes[list(self.host_bytes)] = list(self.host_bytes.values())
        has_streams = len(set(self.streams)) > 1
        return PhaseTrace(
            name,
            host,
            launches,
            kernels,
            operators,
            modules,
            streams=np.array(self.streams, dtype=np.intp) if has_streams else None,
            waits=tuple(self.waits) if has_streams else (),
            host_bytes=host_bytes if self.host_bytes else None,
        )


@dataclass
class TraceWriter:
    """Writer that builds a trace operator by operator."""

    kernels: dict[Kernel, int] = field(default_factory=dict)
    operators: dict[str, int] = field(default_factory=dict)
    modules: dict[str, int] = field(default_factory=dict)
    stages: dict[Stage, _Columns] = field(default_factory=dict)

    def columns_of(self, stage: Stage) -> _Columns:
        """Return the columns of a stage; a new stage is added after all earlier ones."""
        if stage not in self.stages:
            self.stages[stage] = _Columns()
        return self.stages[stage]

    def add_operator(
        self, stage: Stage, work: HostWork, kernels: Iterable[Kernel] = (), module: str = "", name: str = ""
    ) -> None:
        """Add an operator that launches these kernels; the name defaults to the kind of host work."""
        columns = self.columns_of(stage)
        positions = [self.kernels.setdefault(kernel, len(self.kernels)) for kernel in kernels]
        columns.host.append(HOST_WORK.index(work))
        columns.launches.append(len(positions))
        columns.kernels += positions
        columns.operators.append(self.operators.setdefault(name or work, len(self.operators)))
        columns.modules.append(self.modules.setdefault(module, len(self.modules)))

    def assign_stream(self, stage: Stage, stream: int, after: Iterable[int]) -> int:
        """Assign the latest launches to a stream, the first to wait for those `after`; return the last's position."""
        columns = self.columns_of(stage)
        columns.waits += ((len(columns.streams), earlier) for earlier in after)
        columns.streams += [stream] * (len(columns.kernels) - len(columns.streams))
        return len(columns.kernels) - 1

    def add_host_bytes(self, stage: Stage, moved_bytes: int) -> None:
        """Let the host move bytes itself in the latest operator of a stage."""
        columns = self.columns_of(stage)
        columns.host_bytes[len(columns.host) - 1] = moved_bytes

    def equal_stages(self, one: Stage, other: Stage) -> bool:
        """Return whether both stages have the same operators, launches, streams and waits."""
        return self.stages.get(one) == self.stages.get(other)

    def repeat(self, stage: Stage, like: Stage) -> None:
        """Add `stage` as a repetition of `like`: both use the same columns, even if these grow later."""
        self.stages[stage] = self.columns_of(like)

    def equals(self, other: TraceWriter, stage: Stage) -> bool:
        """Return whether the stage has the same operators, launches, streams and waits in both traces."""
        return self._named(stage) == other._named(stage)

    def copy(self, other: TraceWriter, stages: Iterable[Stage]) -> None:
        """Add stages of another trace; what is one stage repeated there is so here."""
        copies: dict[int, _Columns] = {}
        for stage in stages:
            found = other.columns_of(stage)
            if id(found) not in copies:
                columns, kernels, operators, modules = other._named(stage)
                copies[id(found)] = replace(
                    columns,
                    kernels=[self.kernels.setdefault(each, len(self.kernels)) for each in kernels],
                    operators=[self.operators.setdefault(each, len(self.operators)) for each in operators],
                    modules=[self.modules.setdefault(each, len(self.modules)) for each in modules],
                )
            self.stages[stage] = copies[id(found)]

    def _named(self, stage: Stage) -> tuple[_Columns, list[Kernel], list[str], list[str]]:
        """Return a stage without the positions of its kernels, operators and modules, and what they stand for."""
        found = self.columns_of(stage)
        kernels, operators, modules = list(self.kernels), list(self.operators), list(self.modules)
        return (
            replace(found, kernels=[], operators=[], modules=[]),
            [kernels[position] for position in found.kernels],
            [operators[position] for position in found.operators],
            [modules[position] for position in found.modules],
        )

    def trace(self) -> Trace:
        """Return the trace; all repetitions of a stage are the same object."""
        phases = {id(columns): columns.phase(stage.phase) for stage, columns in self.stages.items()}
        in_order = tuple(phases[id(columns)] for columns in self.stages.values())
        return Trace(tuple(self.kernels), tuple(self.operators), tuple(self.modules), in_order)
