"""One run of a cell on a simulated device: every allocation and free in order, and what each of them is for.

A recording knows no capacity. It is what the program asks of an allocator, on whichever GPU its kernels are those of.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from sysbench.commands.memory.spec import PROCEDURES, Protocol
from sysbench.errors import UnavailableError
from sysbench.garbage import collection_paused
from sysbench.lab.step import TrainingStep
from sysbench.simulate.autocast import CUDA_RULES, AutocastRules, cuda_autocast
from sysbench.simulate.composites import Composites, composed_of, composites_on
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.kernels import MATRIX_PRODUCTS, SCRATCH, Scratch
from sysbench.simulate.origins import OUTSIDE, Origin, Origins, Stack
from sysbench.simulate.real import RealDevice
from sysbench.simulate.tensors import DEVICE, Arguments, DeviceObserver, Operator, SimulatedDevice
from sysbench.spec.model import ModelCell, Phase

Category = Literal["parameters", "gradients", "optimizer state", "activations", "inputs", "temporaries", "workspace"]
"""parameters       what is learnt
inputs           what is given: token ids, those to be predicted, and the model's constants (rotary angles, masks)
gradients        of parameters
optimizer state  made by the optimizer, or for it, and there from one step to the next
activations      made by forward or loss, and there when these are over: what backward needs, and what is put out
temporaries      everything that is gone sooner
workspace        of cuBLAS
"""

CATEGORIES: tuple[Category, ...] = get_args(Category)

BUILD = "build"
"""The span before the first step: the model, the batch, and a trial of the attention kernel."""


Device = SimulatedDevice | RealDevice


@dataclass(frozen=True)
class Platform:
    """What a program's requests for memory depend on, beside the program.

    composites       what operators come apart into, where that depends on the device
    autocast         which operators autocast converts
    scratch          what kernels take beside their results
    workspace_bytes  what a thread's first matrix product takes, for good
    """

    composites: Composites
    autocast: AutocastRules
    scratch: Mapping[Operator, Callable[..., Scratch]]
    workspace_bytes: int

    @classmethod
    def of(cls, gpu: Gpu) -> Platform:
        """CUDA, on a GPU of this kind."""
        return cls(composites_on(gpu), CUDA_RULES, SCRATCH, gpu.workspace_bytes)


_AS_IT_IS = Platform({}, AutocastRules(frozenset(), frozenset(), frozenset()), {}, 0)
"""Nothing is put in the place of anything: the device is really there."""


class Allocation(NamedTuple):
    """One request to the allocator."""

    size_bytes: int
    """As requested: no rounding."""
    category: Category
    module: str
    """The path of the module that it belongs to; empty for what belongs to none."""
    stack: int
    """Position in `Recording.stacks`."""


class Span(NamedTuple):
    """A phase of a step, or the time before the first one."""

    step: int
    """From 0; -1 before the first."""
    name: str
    """A phase, or `BUILD`."""
    first: int
    """Position in `Recording.events` of its first event."""
    end: int
    """Position after its last."""


@dataclass(frozen=True)
class Recording:
    """What a run asks of an allocator.

    events       in order: n is allocation n, and ~n (which is negative) its end
    allocations  by number
    spans        in order; between steps lie the ends of what the step before had put out
    stacks       where allocations come from
    """

    events: tuple[int, ...]
    allocations: tuple[Allocation, ...]
    spans: tuple[Span, ...]
    stacks: tuple[Stack, ...]

    @property
    def measured(self) -> tuple[Span, ...]:
        """The phases of the step that counts: the last one."""
        return tuple(span for span in self.spans if span.step == self.spans[-1].step)

    def live_at(self, position: int) -> list[int]:
        """Numbers of the allocations that are there just before event `position`."""
        live: dict[int, None] = {}
        for event in self.events[:position]:
            if event >= 0:
                live[event] = None
            else:
                del live[~event]
        return list(live)


@dataclass(frozen=True)
class StepRecording(Recording):
    """What training steps ask of an allocator: those of `cell`, by `protocol`."""

    cell: ModelCell
    protocol: Protocol


def record(
    cell: ModelCell,
    protocol: Protocol,
    platform: Platform,
    *,
    origins: bool = True,
    device: Callable[[DeviceObserver], Device] = SimulatedDevice,
) -> StepRecording:
    """Run the cell by the protocol, without data.

    `origins` is whether stacks and modules are recorded, which takes a fifth of the time; `device` makes what it runs
    on, around what is to be told. Raises UnavailableError for what cannot be simulated, and for attention that the
    platform has not got.
    """
    if cell.execution == "compiled":
        raise UnavailableError("a compiled step cannot be simulated: what the compiler keeps is known once it has run")
    recorder = _StepRecorder(platform, device, Origins(_carry_out.__code__) if origins else None)
    with (
        composed_of(platform.composites),
        cuda_autocast(platform.autocast) as autocast,
        recorder.device,
    ):
        for _ in _carry_out(recorder, cell, protocol, DEVICE, autocast.clear):
            pass
    return recorder.step_recording(cell, protocol)


def record_real(cell: ModelCell, protocol: Protocol, device: torch.device) -> Iterator[StepRecording]:
    """Run the cell by the protocol on a device that is there, and follow its tensors.

    After each phase of the step that counts, yields what is recorded so far; the last of these is the whole. What
    operators allocate and free again before they return is not seen.
    """
    recorder = _StepRecorder(_AS_IT_IS, lambda observer: RealDevice(observer, device), Origins(_carry_out.__code__))
    last = PROCEDURES[protocol].earlier_steps
    with recorder.device:
        for step in _carry_out(recorder, cell, protocol, device, lambda: None, after_build=gc.collect):
            if step == last:
                yield recorder.step_recording(cell, protocol)


def _carry_out(
    recorder: _StepRecorder,
    cell: ModelCell,
    protocol: Protocol,
    device: torch.device,
    after_phase: Callable[[], None],
    after_build: Callable[[], object] = lambda: None,
) -> Iterator[int]:
    """Yields the number of its step after each phase."""
    with collection_paused():
        with recorder.span(-1, BUILD):
            step = TrainingStep(cell.model_copy(update={"mode": PROCEDURES[protocol].mode}), device)
            # The trial of the attention kernel, when it is a process's first, leaves cycles that hold its tensors.
            after_build()
        recorder.built(step)
        with recorder.following(step):
            for number, phase, run in phases_of(step, protocol):
                with recorder.span(number, phase):
                    run()
                    after_phase()
                recorder.ended(phase, step)
                yield number
        recorder.device.stop()


def phases_of(step: TrainingStep, protocol: Protocol) -> Iterator[tuple[int, Phase, Callable[[], None]]]:
    """The phases to be run, in order, each with the number of its step; the last step is the one that counts.

    Whatever the step before has put out is released before the first phase of the next one is given: peaks that are
    reset then are without it.
    """
    procedure = PROCEDURES[protocol]
    for number in range(procedure.earlier_steps + 1):
        step.forget()
        implementations = step.phases
        for phase in procedure.phases:
            yield number, phase, implementations[phase]


class Recorder:
    """Writes a recording while something runs on a device.

    phase, step  the span that is being recorded
    """

    def __init__(self, platform: Platform, device: Callable[[DeviceObserver], Device], origins: Origins | None) -> None:
        self.device = device(self)
        self._platform = platform
        self._origins = origins
        self._origin = Origin(OUTSIDE, 0)
        self._events: list[int] = []
        self._sizes: list[int] = []
        self._found: list[Origin] = []
        self._categories: dict[int, Category] = {}
        self._spans: list[Span] = []
        self.phase = BUILD
        self.step = -1
        self._threads_with_workspace: set[bool] = set()

    @property
    def count(self) -> int:
        """Allocations so far; the next one gets this number."""
        return len(self._sizes)

    @property
    def module(self) -> str:
        """The path of the module that the current operator belongs to; empty without origins."""
        return self._origin.module

    @property
    def events_so_far(self) -> int:
        """The next event will have this position."""
        return len(self._events)

    def is_workspace(self, number: int) -> bool:
        """Whether this allocation is one of cuBLAS's."""
        return self._categories.get(number) == "workspace"

    # --- what the device reports

    def begins(self, func: Operator) -> None:
        """Find out where the operator comes from: all that it allocates does."""
        if self._origins is not None:
            self._origin = self._origins.here()

    def allocated(self, size_bytes: int, arguments: Arguments) -> int:
        """Write it down."""
        origin = self._origin
        if not origin.module and self.phase in ("backward", "optimizer"):
            source = self._origin_of(arguments)
            origin = Origin(source.module, origin.stack or source.stack)
        return self._allocate(size_bytes, origin)

    def ends(self, func: Operator, arguments: Arguments) -> None:
        """Add what its kernel takes beside its results."""
        if func in MATRIX_PRODUCTS:
            self._take_workspace()
        scratch = self._platform.scratch.get(func)
        if scratch is None:
            return
        for group in scratch(*arguments):
            numbers = [self._allocate(size_bytes, self._origin) for size_bytes in group if size_bytes]
            for number in reversed(numbers):
                self.freed(number)

    def freed(self, number: int) -> None:
        """Write it down."""
        self._events.append(~number)

    # --- what the run is doing

    @contextmanager
    def span(self, step: int, name: str) -> Iterator[None]:
        """What happens inside belongs to this phase."""
        first, self.phase = len(self._events), name
        if self._origins is not None and step != self.step:
            self._origins.forget_forward()
        self.step = step
        yield
        self._spans.append(Span(step, name, first, len(self._events)))

    def recording(self) -> Recording:
        """Everything, once the run is over."""
        categories = (self._categories.get(number, "temporaries") for number in range(len(self._sizes)))
        return Recording(
            events=tuple(self._events),
            allocations=tuple(
                Allocation(size_bytes, category, *origin)
                for size_bytes, category, origin in zip(self._sizes, categories, self._found, strict=True)
            ),
            spans=tuple(self._spans),
            stacks=tuple(self._origins.stacks) if self._origins is not None else ((),),
        )

    def _allocate(self, size_bytes: int, origin: Origin) -> int:
        number = len(self._sizes)
        self._sizes.append(size_bytes)
        self._found.append(origin)
        self._events.append(number)
        return number

    def _take_workspace(self) -> None:
        """cuBLAS gets its workspace with a thread's first matrix product, and keeps it (setWorkspaceForHandle)."""
        is_backward = torch._C._current_autograd_node() is not None
        if self._platform.workspace_bytes and is_backward not in self._threads_with_workspace:
            self._threads_with_workspace.add(is_backward)
            number = self._allocate(self._platform.workspace_bytes, Origin(OUTSIDE, self._origin.stack))
            self._categories[number] = "workspace"

    def _origin_of(self, arguments: Arguments) -> Origin:
        """Where an operator's first tensor is from: what an optimizer makes belongs to the module of the parameter that
        it makes it for, and so does a gradient."""
        first: Any = arguments[0] if arguments else None
        if isinstance(first, list | tuple) and first:
            first = first[0]
        number = self.device.number_of(first) if isinstance(first, Tensor) else None
        return self._found[number] if number is not None else Origin(OUTSIDE, 0)


class _StepRecorder(Recorder):
    """Tells apart what training steps allocate."""

    @contextmanager
    def following(self, step: TrainingStep) -> Iterator[None]:
        """Know which module is being called."""
        if self._origins is None:
            yield
            return
        with self._origins.inside(step.model):
            yield

    def built(self, step: TrainingStep) -> None:
        """Tell what was built apart."""
        for name, parameter in step.model.named_parameters():
            self._assign("parameters", [parameter], name.rpartition(".")[0])
        for name, buffer in step.model.named_buffers():
            self._assign("inputs", [buffer], name.rpartition(".")[0])
        self._assign_rest("inputs", self._spans)

    def ended(self, phase: str, step: TrainingStep) -> None:
        """Tell apart what the phase has left behind."""
        spans = [span for span in self._spans if span.step == self._spans[-1].step]
        if phase in ("forward", "loss"):
            self._assign_rest("activations", spans)
        elif phase == "backward":
            for parameter in step.model.parameters():
                if parameter.grad is not None:
                    self._assign("gradients", [parameter.grad])
            self._assign_rest("optimizer state", spans[-1:])  # the scale of fp16's loss
        elif phase == "optimizer":
            self._assign_rest("optimizer state", spans[-1:])

    def step_recording(self, cell: ModelCell, protocol: Protocol) -> StepRecording:
        """Everything, once the run is over."""
        of_any = self.recording()
        return StepRecording(of_any.events, of_any.allocations, of_any.spans, of_any.stacks, cell, protocol)

    def _assign(self, category: Category, tensors: Iterable[Tensor], module: str | None = None) -> None:
        for tensor in tensors:
            number = self.device.number_of(tensor)
            if number is None:
                continue
            self._categories[number] = category
            if module is not None:
                self._found[number] = self._found[number]._replace(module=module)

    def _assign_rest(self, category: Category, spans: Iterable[Span]) -> None:
        """To what was made in these spans, is still there, and is nothing else."""
        left: dict[int, None] = {}
        for span in spans:
            for event in self._events[span.first : span.end]:
                if event >= 0:
                    left[event] = None
                else:
                    left.pop(~event, None)
        for number in left:
            self._categories.setdefault(number, category)
