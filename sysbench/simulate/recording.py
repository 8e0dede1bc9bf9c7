"""Recording of a cell on a device: all allocations and frees in order, and the category of each allocation.

A recording contains only requests to the allocator, so it is independent of memory capacity, and valid for every GPU
with the same kernels.
"""

from __future__ import annotations

import gc
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, islice, pairwise
from typing import TYPE_CHECKING, NamedTuple, Self

import torch
from torch import Tensor

from sysbench.errors import UnavailableError
from sysbench.garbage import gc_paused
from sysbench.lab.dispatch import Arguments, Operator, Options
from sysbench.lab.memory.accounting import tensors_in
from sysbench.lab.step import TrainingStep
from sysbench.lab.workload.imports import modules_of_simulations
from sysbench.lab.workload.workload import Workload, adapted_facts_of, facts_of, flops, has_flops
from sysbench.log.events import AdaptedModelBuilt, AdaptedModelFacts, OwnModelBuilt, OwnModelFacts, RecomputationCounted
from sysbench.log.outcomes import ATTENTION_TRIAL, BUILD
from sysbench.simulate.cuda.answers import answering_as_gpu
from sysbench.simulate.cuda.autocast import CUDA_RULES, AutocastRules, cuda_autocast
from sysbench.simulate.cuda.composites import Composites, composites_on, using_composites
from sysbench.simulate.cuda.kernels import COPIES, MATRIX_PRODUCTS, SCRATCH, is_outer_product, uses_cublas_lt
from sysbench.simulate.cuda.reductions import Held, Scratch, SplitReduction
from sysbench.simulate.gpu import UNKNOWN_CAPABILITY, Gpu, Multiprocessors, ScratchMemory, Workspaces
from sysbench.simulate.ordered import ordered_streams
from sysbench.simulate.origins import OUTSIDE, Origin, Origins, Stack
from sysbench.simulate.tensors import DEVICE, DeviceObserver, KnownValues, ObservedDevice, SimulatedDevice
from sysbench.simulate.without_compiler import without_compiler
from sysbench.snapshot import Category
from sysbench.spec.knobs import FP8
from sysbench.spec.model import ModelCell, Phase
from sysbench.spec.protocols import PROCEDURES, Protocol
from sysbench.spec.ranks import layout

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class RealDevice(ObservedDevice):
    """A dispatch mode that reports to an observer which storages are allocated and freed on a real device."""

    def __init__(self, observer: DeviceObserver, device: torch.device) -> None:
        super().__init__(observer)
        self._device = device

    def run(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        """Run the operator, and report the new storages among its results."""
        self._observer.begins(func, args)
        result = func(*args, **kwargs)
        self._arguments = args
        try:
            for tensor in tensors_in([result]):
                if tensor.device.type == self._device.type:
                    self._watch.track(tensor)
        finally:
            self._arguments = ()  # a longer-lived reference would keep the tensors alive
        self._observer.ends(func, args, kwargs, result)
        return result


MICRO_BATCH_PHASES: tuple[Phase, ...] = ("forward", "loss", "backward")
"""Phases that run once for each micro-batch."""

RECOMPUTED = "recomputed"
"""Stands for the phase of the FLOPs that activation checkpointing computes again in backward."""

_COMMUNICATION_NAMESPACES = ("c10d", "fsdp")
"""Namespaces of communication operators."""

_SETTLE_S = 0.005
"""Pause after each phase if there are several ranks: gloo's threads release tensors shortly after a collective ends."""

Device = SimulatedDevice | RealDevice


@dataclass(frozen=True)
class Platform:
    """Properties of a device that determine a program's memory requests, by operator.

    workspaces       those of cuBLAS; None if the device has no cuBLAS
    copies           copies that operators make of their arguments before they allocate results
    capability       compute capability that user code is told
    multiprocessors  those of the device; None if a recording is for any number of them (`Recording.with_scratch`)
    """

    composites: Composites
    autocast: AutocastRules
    scratch: Mapping[Operator, Callable[..., Scratch]]
    workspaces: Workspaces | None
    copies: Mapping[Operator, Callable[..., Sequence[int]]] = field(default_factory=dict)
    capability: tuple[int, int] = UNKNOWN_CAPABILITY
    multiprocessors: Multiprocessors | None = None

    @classmethod
    def of(cls, gpu: Gpu) -> Platform:
        """Create the platform of a CUDA GPU."""
        return replace(cls.of_generation(gpu), multiprocessors=gpu.multiprocessors)

    @classmethod
    def of_generation(cls, gpu: Gpu) -> Platform:
        """Create the platform of all GPUs with the kernels of `gpu`."""
        return cls(composites_on(gpu), CUDA_RULES, SCRATCH, gpu.workspaces, COPIES, gpu.attention_generation)


_REAL_PLATFORM = Platform({}, AutocastRules(frozenset(), frozenset(), frozenset()), {}, None)
"""The platform of a real device, for which nothing is replaced."""


class Allocation(NamedTuple):
    """One request to the allocator."""

    size_bytes: int
    """Requested size, not rounded."""
    category: Category
    module: str
    """Path of the module that the allocation belongs to; empty if none."""
    stack: int
    """Position in `Recording.stacks`."""
    operator: str = ""
    """Name of the operator that made it: `_softmax`; empty if origins are not recorded."""
    stream: int = 0
    """Number of the owning CUDA stream; 0 is the default stream. FSDP2 communicates on its own streams."""


class Span(NamedTuple):
    """Events of a phase of a step, or of the build before the first step."""

    step: int
    """Number of the step, from 0; -1 before the first."""
    name: str
    """A phase, `BUILD` or `ATTENTION_TRIAL`."""
    first: int
    """Position of the first event in `Recording.events`."""
    end: int
    """Position after the last event."""


@dataclass(frozen=True)
class Recording:
    """All requests of a run to the allocator.

    events       in order: n allocates number n, and ~n (which is negative) frees it
    allocations  by number
    spans        in order; events between steps free the outputs of the previous step
    stacks       Python stacks of the allocations
    workspaces   numbers of the allocations that are workspaces of cuBLAS, whose size depends on the GPU
    reductions   of a generation of GPUs: reductions by the number of the allocation for their partial results; the
                 next one is for their semaphores; both sizes depend on the GPU, and are 0 before `with_scratch`
    """

    events: tuple[int, ...]
    allocations: tuple[Allocation, ...]
    spans: tuple[Span, ...]
    stacks: tuple[Stack, ...]
    workspaces: frozenset[int]
    reductions: Mapping[int, SplitReduction]

    def with_scratch(self, wanted: ScratchMemory) -> Self:
        """Return a copy of this recording with the workspaces and the reductions' scratch memory of a GPU."""
        sizes = dict.fromkeys(self.workspaces, wanted.workspaces.product_bytes)
        for number, reduction in self.reductions.items():
            sizes[number], sizes[number + 1] = reduction.scratch_bytes(wanted.multiprocessors)
        allocations = list(self.allocations)
        for number, size_bytes in sizes.items():
            allocations[number] = allocations[number]._replace(size_bytes=size_bytes)
        resized = replace(self, allocations=tuple(allocations), reductions={})
        return resized._without({number for number, size_bytes in sizes.items() if not size_bytes})

    def without_build_temporaries(self) -> Self:
        """Return a copy of this recording without the temporary allocations of the build.

        A sharded model can be built on `meta`, without memory, so that it never exists as a whole on any rank. One with
        quantized weights is built on the host.
        """
        end = max(span.end for span in self.spans if span.step < 0)
        return self._without({~event for event in self.events[:end] if event < 0})

    def _without(self, left_out: Container[int]) -> Self:
        kept = [number for number in range(len(self.allocations)) if number not in left_out]
        renumbered = {old: new for new, old in enumerate(kept)}
        is_kept = [(event if event >= 0 else ~event) not in left_out for event in self.events]
        events = [
            renumbered[event] if event >= 0 else ~renumbered[~event]
            for event, stays in zip(self.events, is_kept, strict=True)
            if stays
        ]
        kept_before = [*accumulate(is_kept, initial=0)]
        return replace(
            self,
            events=tuple(events),
            allocations=tuple(self.allocations[number] for number in kept),
            spans=tuple(span._replace(first=kept_before[span.first], end=kept_before[span.end]) for span in self.spans),
            workspaces=frozenset(renumbered[number] for number in self.workspaces & renumbered.keys()),
            reductions={
                renumbered[number]: reduction for number, reduction in self.reductions.items() if number in renumbered
            },
        )

    @property
    def measured(self) -> tuple[Span, ...]:
        """Return the spans of the measured step, which is the last one."""
        return tuple(span for span in self.spans if span.step == self.spans[-1].step)

    def live_bytes(self, sizes: Sequence[int] | None = None) -> Iterator[int]:
        """Yield the bytes that are allocated after each event, with these block sizes, or else those requested."""
        if sizes is None:
            sizes = [allocation.size_bytes for allocation in self.allocations]
        yield from accumulate(sizes[event] if event >= 0 else -sizes[~event] for event in self.events)

    def live_at(self, position: int) -> list[int]:
        """Return the numbers of the allocations that are live just before event `position`."""
        live: dict[int, None] = {}
        for event in self.events[:position]:
            if event >= 0:
                live[event] = None
            else:
                del live[~event]
        return list(live)


@dataclass(frozen=True)
class StepRecording(Recording):
    """Allocator requests of the training steps of `cell` under `protocol`."""

    cell: ModelCell
    protocol: Protocol
    own_model: OwnModelFacts | None = None
    """Facts about a custom model; None for the built-in one."""
    adapted_model: AdaptedModelFacts | None = None
    """Facts about the built-in model, if it has adapters."""
    recomputed_flops: int = 0
    """FLOPs of one micro-batch that activation checkpointing computes again in backward."""

    def model_events(self, cell: str, *, with_flops: bool = True) -> Iterator[OwnModelBuilt | AdaptedModelBuilt]:
        """Yield the facts about a model without formulas as events of the cell with this key."""
        hidden = {} if with_flops else {"flops": None}
        if self.own_model is not None:
            yield OwnModelBuilt(at_s=time.time(), cell=cell, **self.own_model.model_dump() | hidden)
        if self.adapted_model is not None:
            yield AdaptedModelBuilt(at_s=time.time(), cell=cell, **self.adapted_model.model_dump() | hidden)

    def recomputation_events(self, cell: str) -> Iterator[RecomputationCounted]:
        """Yield the FLOPs that the step computes again in backward, if there are any."""
        if self.recomputed_flops:
            yield RecomputationCounted(at_s=time.time(), cell=cell, flops=self.recomputed_flops)


def _refuse_hidden_memory(cell: ModelCell) -> None:
    if cell.cross_entropy == "linear":
        raise UnavailableError(
            "--cross-entropy linear is one operator of torch, and what it allocates inside is not seen here: measure "
            "it on a GPU. Nearest that is seen: chunked"
        )


def record(
    cell: ModelCell,
    protocol: Protocol,
    platform: Platform,
    *,
    origins: bool = True,
    parts: bool = False,
    device: Callable[[DeviceObserver], Device] = SimulatedDevice,
) -> StepRecording:
    """Run the cell under the protocol, without data, and record its allocator requests.

    With `origins`, stacks and modules are recorded, which takes a fifth of the total time. With `parts`, the named
    parts of a module count as modules. `device` creates the device to run on, given the observer to report to. Raises
    UnavailableError for cells that cannot be simulated, and for attention that the platform does not support.
    """
    _refuse_hidden_memory(cell)
    if cell.is_compiled:
        raise UnavailableError("a compiled step cannot be simulated: its tensors are only known after a run")
    # FlexAttention is part of the compiler, user code may use any of it; tensor parallelism, peft, torchao use it too.
    compiling = cell.attention == "flex" or cell.own is not None or cell.strategy == "tp"
    compiling |= cell.lora > 0 or cell.precision in FP8
    with (
        _simulated_ranks_of(cell) as mesh,
        ordered_streams() if cell.offload == "optimizer" else nullcontext(),
        nullcontext() if compiling else without_compiler(),
        using_composites(platform.composites),
        cuda_autocast(platform.autocast),
        _serving_user_code(platform) if cell.own is not None else nullcontext(),
    ):
        tracker = Origins(_run_steps.__code__, parts=parts) if origins else None
        recorder = _StepRecorder(platform, device, tracker, cell)
        if isinstance(recorder.device, SimulatedDevice):
            recorder.device.values = KnownValues() if cell.own is not None else None
            recorder.device.offloads = cell.offload == "parameters"
        with _sharding_handled(mesh, recorder.device), recorder.device:
            for _ in _run_steps(recorder, cell, protocol, DEVICE, mesh=mesh):
                pass
    recording = recorder.step_recording(cell, protocol)
    is_whole = layout(cell.strategy, cell.ranks)[1] == 1 and cell.quantize is None
    return recording if is_whole else recording.without_build_temporaries()


@contextmanager
def _serving_user_code(platform: Platform) -> Iterator[None]:
    with answering_as_gpu(platform.capability), modules_of_simulations():
        yield


def _simulated_ranks_of(cell: ModelCell) -> AbstractContextManager[DeviceMesh | None]:
    if cell.strategy is None:
        return nullcontext()
    from sysbench.simulate.ranks import simulated_ranks  # which takes half a second to import

    return simulated_ranks(cell.strategy, cell.ranks)


def _sharding_handled(mesh: DeviceMesh | None, device: Device) -> AbstractContextManager[None]:
    if mesh is None:
        return nullcontext()
    from sysbench.simulate.ranks import sharding_on

    return sharding_on(device)


def record_real(
    cell: ModelCell, protocol: Protocol, device: torch.device, mesh: DeviceMesh | None = None
) -> Iterator[StepRecording]:
    """Run the cell under the protocol on a real device, and record its storages; with `mesh`, as one of several ranks.

    Yields the recording so far after the last occurrence of each phase in the measured step.
    """
    _refuse_hidden_memory(cell)
    recorder = _StepRecorder(
        _REAL_PLATFORM, lambda observer: RealDevice(observer, device), Origins(_run_steps.__code__), cell
    )
    last = PROCEDURES[protocol].earlier_steps
    with _sharding_handled(mesh, recorder.device), recorder.device:
        settle = (lambda: None) if mesh is None else (lambda: time.sleep(_SETTLE_S))
        for step in _run_steps(recorder, cell, protocol, device, gc.collect, settle, mesh=mesh):
            if step == last and recorder.occurrence == cell.occurrences(recorder.phase) - 1:
                yield recorder.step_recording(cell, protocol)


def _run_steps(
    recorder: _StepRecorder,
    cell: ModelCell,
    protocol: Protocol,
    device: torch.device,
    after_build: Callable[[], object] = lambda: None,
    after_phase: Callable[[], None] = lambda: None,
    mesh: DeviceMesh | None = None,
) -> Iterator[int]:
    """Build the model and run the steps; yield the number of the current step after each phase."""
    with gc_paused():
        with recorder.span(-1, BUILD):
            step = TrainingStep(
                cell.model_copy(update={"mode": PROCEDURES[protocol].mode}),
                device,
                mesh,
                trial=partial(recorder.span, -1, ATTENTION_TRIAL),
            )
            # In a new process, the trial run of the attention kernel leaves reference cycles that keep its tensors
            # alive.
            after_build()
        recorder.built(step)
        with recorder.tracking_modules(step):
            phases = phases_of(step, protocol)
            for number, phase, run in phases:
                with recorder.span(number, phase):
                    run()
                    after_phase()
                recorder.ended(phase, step)
                yield number
                if phase == "backward" and recorder.repeat_micro_batch(
                    times := cell.grad_accum - 2 - recorder.occurrence
                ):
                    deque(islice(phases, times * len(MICRO_BATCH_PHASES)), maxlen=0)
        recorder.device.stop()


def phases_of(step: TrainingStep, protocol: Protocol) -> Iterator[tuple[int, Phase, Callable[[], None]]]:
    """Yield (step number, phase, function that runs the phase) in order; the last step is the measured one.

    Outputs of the previous step are released before the first phase of the next step is yielded. If the caller resets
    the peaks at that point, they exclude those outputs.
    """
    procedure = PROCEDURES[protocol]
    for number in range(procedure.earlier_steps + 1):
        step.forget()
        for phase, run in step.phases:
            if phase in procedure.phases:
                yield number, phase, run


class Recorder(DeviceObserver):
    """An observer that builds a recording while operators run on a device.

    step        number of the current step; -1 before the first
    occurrence  number of earlier occurrences of the phase in the step
    """

    def __init__(self, platform: Platform, device: Callable[[DeviceObserver], Device], origins: Origins | None) -> None:
        self.device = device(self)
        self._platform = platform
        self._origins = origins
        self._origin = Origin(OUTSIDE, 0)
        self._events: list[int] = []
        self._sizes: list[int] = []
        self._streams: list[int] = []
        self._stream_numbers: dict[torch.Stream | torch.cpu.Stream, int] = {torch.cpu.current_stream(): 0}
        self._allocation_origins: list[Origin] = []
        self._categories: dict[int, Category] = {}
        self._spans: list[Span] = []
        self._open: Span | None = None
        """The innermost span that has begun and not ended; its end is unknown."""
        self.phase = BUILD
        self.step = -1
        self.occurrence = 0
        self._reductions: dict[int, SplitReduction] = {}
        self._copies: list[int] = []
        """Copies that the current operator has made of its arguments."""
        self._kept_workspaces: set[tuple[bool, bool]] = set()
        """(in backward, of cuBLASLt) for each workspace that is kept; autograd runs backward on a thread of its own."""

    @property
    def count(self) -> int:
        """Return the number of allocations so far, which is the number of the next allocation."""
        return len(self._sizes)

    @property
    def module(self) -> str:
        """Return the path of the module to which the current operator belongs; empty if origins are not recorded."""
        return self._origin.module

    @property
    def events_so_far(self) -> int:
        """Return the number of events so far, which is the position of the next event."""
        return len(self._events)

    def is_workspace(self, number: int) -> bool:
        """Return whether this allocation is a cuBLAS workspace."""
        return self._categories.get(number) == "workspace"

    # --- reports from the device

    def begins(self, func: Operator, arguments: Arguments) -> None:
        """Determine the operator's origin, which applies to all its allocations; record copies of its arguments."""
        if self._origins is not None:
            self._origin = self._origins.current()._replace(operator=func._opname)
        if (copies := self._platform.copies.get(func)) is not None:
            self._copies = [self._allocate(size_bytes, self._origin) for size_bytes in copies(*arguments)]

    def allocated(self, size_bytes: int, arguments: Arguments) -> int:
        """Record an allocation, and return its number."""
        origin = self._origin
        if not origin.module and self.phase in ("backward", "optimizer"):
            # Optimizer state and gradients belong to the module of their parameter, the operator's first tensor.
            first = arguments[0] if arguments else None
            if isinstance(first, list | tuple) and first:
                first = first[0]
            number = self.device.number_of(first) if isinstance(first, Tensor) else None
            source = self._allocation_origins[number] if number is not None else Origin(OUTSIDE, 0)
            origin = Origin(source.module, origin.stack or source.stack, origin.operator)
        return self._allocate(size_bytes, origin)

    def observes(self, func: Operator) -> bool:
        """Return whether the operator may need scratch memory, copies of arguments, or a workspace of cuBLAS."""
        return func in MATRIX_PRODUCTS or func in self._platform.scratch or func in self._platform.copies

    def ends(self, func: Operator, arguments: Arguments, options: Options, result: object) -> None:
        """Record the scratch memory of the operator's kernel, and the workspaces of a matrix product."""
        scratch, workspaces = self._platform.scratch.get(func), self._platform.workspaces
        groups = scratch(*arguments) if scratch is not None else ()
        product = workspaces if func in MATRIX_PRODUCTS and not is_outer_product(func, arguments) else None
        for group in groups or ([()] if product else ()):
            numbers: list[int] = []
            for each in group:
                freed_at_end = self._copies if isinstance(each, Held) else numbers
                freed_at_end += self._allocate_scratch(each)
            if product is not None:  # after the copies of its operands, which are its only group
                numbers += self._take_workspaces(product, uses_cublas_lt(func, arguments, options, result))
            for number in reversed(numbers):
                self.freed(number)
        while self._copies:
            self.freed(self._copies.pop())

    def freed(self, number: int) -> None:
        """Record that an allocation is freed."""
        self._events.append(~number)

    # --- progress of the run

    @contextmanager
    def span(self, step: int, name: str) -> Iterator[None]:
        """Context manager that records all events inside it as one span.

        A span within another divides the outer one into the span before it and the span after it, of the same name.
        """
        outer = self._open
        if outer is not None:
            self._spans.append(outer._replace(end=len(self._events)))
        self._open, self.phase = Span(step, name, len(self._events), len(self._events)), name
        self.occurrence = sum((span.step, span.name) == (step, name) for span in self._spans)
        if self._origins is not None and step != self.step:
            self._origins.forget_forward()
        self.step = step
        yield
        self._spans.append(self._open._replace(end=len(self._events)))
        self._open = outer._replace(first=len(self._events)) if outer is not None else None
        self.phase = outer.name if outer is not None else name

    def recording(self) -> Recording:
        """Return the recording so far."""
        categories = (self._categories.get(number, "temporaries") for number in range(len(self._sizes)))
        workspaces, found = self._platform.workspaces, filter(self.is_workspace, self._categories)
        return Recording(
            events=tuple(self._events),
            allocations=tuple(
                Allocation(size_bytes, category, *origin, stream)
                for size_bytes, category, origin, stream in zip(
                    self._sizes, categories, self._allocation_origins, self._streams, strict=True
                )
            ),
            spans=tuple(self._spans),
            stacks=tuple(self._origins.stacks) if self._origins is not None else ((),),
            workspaces=frozenset(
                number for number in found if workspaces and self._sizes[number] == workspaces.product_bytes
            ),
            reductions=dict(self._reductions),
        )

    def _allocate(self, size_bytes: int, origin: Origin) -> int:
        number = len(self._sizes)
        self._sizes.append(size_bytes)
        # torch's CPU streams do nothing, but its code enters them like CUDA's.
        self._streams.append(self._stream_numbers.setdefault(torch.cpu.current_stream(), len(self._stream_numbers)))
        self._allocation_origins.append(origin)
        self._events.append(number)
        return number

    def _allocate_scratch(self, wanted: int | SplitReduction) -> list[int]:
        sizes: Sequence[int]
        if isinstance(wanted, int):
            sizes = [int(wanted)]  # also of `Held`, which a snapshot must not contain
        elif self._platform.multiprocessors is not None:
            sizes = wanted.scratch_bytes(self._platform.multiprocessors)
        else:
            self._reductions[self.count] = wanted
            return [self._allocate(0, self._origin) for _ in ("partial results", "semaphores")]
        return [self._allocate(size_bytes, self._origin) for size_bytes in sizes if size_bytes]

    def _take_workspaces(self, workspaces: Workspaces, of_lt: bool) -> list[int]:
        """Record the workspaces that a product allocates; return the numbers of those that it frees at its end."""
        if not workspaces.are_kept:
            size_bytes = workspaces.lt_bytes if of_lt else workspaces.product_bytes
            # A measured history does not tell that of cuBLASLt from other scratch memory.
            allocate = self._allocate if of_lt else self._allocate_workspace
            return [allocate(size_bytes, self._origin)] if size_bytes else []
        is_backward = torch._C._current_autograd_node() is not None
        kept = {(is_backward, False): workspaces.product_bytes}
        if of_lt and workspaces.lt_bytes is not None:
            kept[is_backward, True] = workspaces.lt_bytes
        for key, size_bytes in kept.items():
            if size_bytes and key not in self._kept_workspaces:
                self._kept_workspaces.add(key)
                self._allocate_workspace(size_bytes, Origin(OUTSIDE, self._origin.stack))
        return []

    def _allocate_workspace(self, size_bytes: int, origin: Origin) -> int:
        number = self._allocate(size_bytes, origin)
        self._categories[number] = "workspace"
        return number


_Request = tuple[int, int, Origin, Category | None, SplitReduction | None]
_MicroBatch = tuple[list[int], list[_Request]]
"""Events, numbered from the first allocation of the micro-batch, and (size, stream, origin, category, reduction) of
each allocation."""


class _StepRecorder(Recorder):
    """A recorder that categorizes the allocations of training steps, and counts the FLOPs that have no formula."""

    def __init__(
        self, platform: Platform, device: Callable[[DeviceObserver], Device], origins: Origins | None, cell: ModelCell
    ) -> None:
        super().__init__(platform, device, origins)
        self._is_own = cell.own is not None
        self._counts_flops = cell.shape_with_formulas is None or cell.repeats_forward
        self._work: Workload | None = None
        self._flops: Counter[tuple[int, str]] = Counter()
        self._repeated_losses: dict[int, list[int]] = {}
        """By the loss of a micro-batch: losses of its repetitions, which were recorded but not run, latest first."""

    def observes(self, func: Operator) -> bool:
        counts = self._counts_flops and has_flops(func)
        return super().observes(func) or func.namespace in _COMMUNICATION_NAMESPACES or counts

    def ends(self, func: Operator, arguments: Arguments, options: Options, result: object) -> None:
        super().ends(func, arguments, options, result)
        if func.namespace in _COMMUNICATION_NAMESPACES:
            # An operator of FSDP2 writes parameters from a collective's buffer.
            for tensor in tensors_in([*arguments, *options.values()]):
                number = self.device.number_of(tensor)
                if number is not None and self._categories.get(number) not in ("parameters", "gradients"):
                    self._categories[number] = "communication"
        if self._work is not None and self._counts_flops and not self.occurrence:
            # Gradients are computed without a graph: operators in backward that record one repeat a part of forward.
            repeats = self.phase == "backward" and torch.is_grad_enabled()
            self._flops[self.step, RECOMPUTED if repeats else self.phase] += flops(func, arguments, options, result)

    def freed(self, number: int) -> None:
        """Record a free. Before the loss of a repeated micro-batch is freed, free the losses of its repetitions."""
        for loss in self._repeated_losses.pop(number, ()):
            super().freed(loss)
        super().freed(number)

    def repeat_micro_batch(self, times: int) -> bool:
        """Record the latest micro-batch `times` more times without running it; return whether this is possible.

        If a micro-batch did exactly the same as the previous one, and only its loss is still allocated, the next one
        would do the same. The last one of a step always runs, because it may exchange gradients, and its output is
        kept. None is skipped on a real device, whose memory is to be measured, or with user code, which may count its
        calls.
        """
        ends = [span.end for span in self._spans if (span.step, span.name) == (self.step, "backward")]
        if times < 1 or len(ends) < 3 or self._is_own or not isinstance(self.device, SimulatedDevice):
            return False
        previous, latest = (self._micro_batch(first, end) for first, end in pairwise(ends[-3:]))
        if previous != latest or not self.device.repeats():
            return False
        events = self._events[ends[-2] : ends[-1]]
        allocated, freed = {event for event in events if event >= 0}, {~event for event in events if event < 0}
        spans = self._spans[-len(MICRO_BATCH_PHASES) :]
        loss_events = self._events[spans[1].first : spans[1].end]
        if not freed < allocated or len(allocated - freed) != 1 or not allocated - freed < set(loss_events):
            return False
        (loss,) = allocated - freed
        self._repeated_losses[loss] = [loss + occurrence * len(allocated) for occurrence in range(times, 0, -1)]
        for occurrence in range(1, times + 1):
            offset = occurrence * len(events)
            self._spans += [span._replace(first=span.first + offset, end=span.end + offset) for span in spans]
            self._append(latest)
        self.device.repeat(times)
        return True

    def _micro_batch(self, first: int, end: int) -> _MicroBatch:
        events = self._events[first:end]
        numbers = [event for event in events if event >= 0]
        sizes, streams, origins = self._sizes, self._streams, self._allocation_origins
        requests = [
            (sizes[n], streams[n], origins[n], self._categories.get(n), self._reductions.get(n)) for n in numbers
        ]
        return [event - numbers[0] if event >= 0 else event + numbers[0] for event in events], requests

    def _append(self, repeated: _MicroBatch) -> None:
        start, (events, requests) = len(self._sizes), repeated
        self._events += [event + start if event >= 0 else event - start for event in events]
        for number, (size_bytes, stream, origin, category, reduction) in enumerate(requests, start):
            self._sizes.append(size_bytes)
            self._streams.append(stream)
            self._allocation_origins.append(origin)
            if category is not None:
                self._categories[number] = category
            if reduction is not None:
                self._reductions[number] = reduction

    @contextmanager
    def tracking_modules(self, step: TrainingStep) -> Iterator[None]:
        if self._origins is None:
            yield
            return
        with self._origins.tracking(step.work.model):
            yield

    def built(self, step: TrainingStep) -> None:
        self._work = step.work
        for name, parameter in step.work.model.named_parameters():
            self._assign("parameters", [parameter], name.rpartition(".")[0])
        for name, buffer in step.work.model.named_buffers():
            self._assign("inputs", [buffer], name.rpartition(".")[0])
        self._assign_rest("inputs", self._spans)

    def ended(self, phase: str, step: TrainingStep) -> None:
        spans = [span for span in self._spans if span.step == self._spans[-1].step]
        if phase in ("forward", "loss"):
            self._assign_rest("activations", spans)
        elif phase == "backward":
            self._assign("gradients", step.gradients())
            self._assign("optimizer state", step.loss_scale)
            self._assign_rest("gradients" if step.keeps_whole_gradients else "optimizer state", spans[-1:])
        elif phase == "optimizer":
            self._assign_rest("optimizer state", spans[-1:])

    def step_recording(self, cell: ModelCell, protocol: Protocol) -> StepRecording:
        recording = self.recording()
        own = adapted = None
        flops: dict[str, int] = {phase: self._flops[self.step, phase] for phase in PROCEDURES[protocol].phases}
        if self._work is not None and self._work.own is None and cell.lora:
            adapted = adapted_facts_of(self._work, flops)
        if self._work is not None and self._work.own is not None:
            values = self.device.values if isinstance(self.device, SimulatedDevice) else None
            own = facts_of(self._work, flops, assumed=values.assumed if values is not None else ())
        return StepRecording(
            **vars(recording),
            cell=cell,
            protocol=protocol,
            own_model=own,
            adapted_model=adapted,
            recomputed_flops=self._flops[self.step, RECOMPUTED],
        )

    def _assign(self, category: Category, tensors: Iterable[Tensor], module: str | None = None) -> None:
        for tensor in tensors:
            number = self.device.number_of(tensor)
            if number is None:
                continue
            self._categories[number] = category
            if module is not None:
                self._allocation_origins[number] = self._allocation_origins[number]._replace(module=module)

    def _assign_rest(self, category: Category, spans: Iterable[Span]) -> None:
        live: dict[int, None] = {}
        for span in spans:
            for event in self._events[span.first : span.end]:
                if event >= 0:
                    live[event] = None
                else:
                    live.pop(~event, None)
        for number in live:
            self._categories.setdefault(number, category)
