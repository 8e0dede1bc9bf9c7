"""A cell's step, run without data, as a trace of its kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sysbench.commands.memory.spec import PROCEDURES
from sysbench.errors import UnavailableError
from sysbench.predict.fusing import COMPILED_PHASES, Flow, fused
from sysbench.predict.operators import Call, attention, touched
from sysbench.predict.trace import HostWork, Kernel, Stage, Trace, TraceWriter
from sysbench.simulate.attention import telling
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.ordered import OrderedStream
from sysbench.simulate.recording import MICRO_BATCH_PHASES, Device, Platform, Recorder, StepRecording, record
from sysbench.simulate.tensors import DeviceObserver, SimulatedDevice, describe
from sysbench.spec.model import ModelCell

_AMPERE = (8, 0)

COMPILED_HOST_WORK: HostWork = "view"
"""What compiled code takes on the host for each kernel beside launching it: no operator is dispatched."""


class Tracer:
    """Writes a trace while something runs on a simulated device.

    One run gives both memory and trace: `Recorder(platform, tracer.device, …)`, inside `telling(tracer.told)`. Phases
    are the recorder's spans.
    """

    def __init__(self, step: int, *, compiled: bool = False) -> None:
        """Trace the step of this number: earlier ones make what it finds, such as an optimizer's state.

        `compiled` writes what torch.compile would make of forward and backward.
        """
        self._writer = TraceWriter()
        self._step = step
        self._flows: dict[Stage, list[Flow]] | None = {} if compiled else None
        self._place: Recorder | None = None
        self._operators: dict[object, tuple[str, bool, str]] = {}
        self._asked: list[object] = []
        self._known: dict[object, tuple[tuple[HostWork, ...], tuple[Kernel, ...]]] = {}

    def device(self, observer: DeviceObserver) -> SimulatedDevice:
        """A simulated device that is traced."""
        assert isinstance(observer, Recorder)
        self._place = observer
        return _TracedDevice(observer, self)

    def told(self, layout: str, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> None:
        """Of a kernel that no operator of aten stands for: `flex forward`."""
        place = self._place
        if place is not None and place.step == self._step:
            kernel = attention(layout.partition(" ")[0], layout, q, k, v, causal=causal)
            if not self._flowed(place, (kernel,), (q, k, v), ()):
                self._writer.operator(_stage(place), "operator", (kernel,), place.module, f"{kernel.name}_attention")

    def launched(self, place: Recorder, func: Any, args: Any, options: Mapping[str, Any], result: Any) -> None:
        """An operator has run."""
        if place.step != self._step:
            return
        kind = self._operators.get(func)
        if kind is None:
            kind = self._operators[func] = func.namespace, func.is_view, str(func._schema.name)
        namespace, is_view, name = kind
        if namespace == "profiler":
            return
        if is_view:  # half of all operators: nothing has to be worked out for them
            if self._flows is None or place.phase not in COMPILED_PHASES:
                self._writer.operator(_stage(place), "view", (), place.module, name)
            return
        (first, *rest), kernels = self._worked_out(place.device, func, args, options, result)
        if self._flows is not None:
            call = Call(func, args, options, result)
            if self._flowed(place, kernels, call.tensors, call.results):
                return
        stage = _stage(place)
        self._writer.operator(stage, first, kernels, place.module, name)
        if kernels and isinstance(stream := torch.cpu.current_stream(), OrderedStream):
            after = stream.take_waits(stage)
            stream.last = stage, self._writer.on_stream(stage, stream.number, after)
        for work in rest:
            self._writer.operator(stage, work)

    def _worked_out(
        self, device: Device, func: Any, args: Any, options: Mapping[str, Any], result: Any
    ) -> tuple[tuple[HostWork, ...], tuple[Kernel, ...]]:
        """What the host does for an operator and what it launches: layers ask the same over and over."""
        asked = device.asked if isinstance(device, SimulatedDevice) else None
        question: object = id(asked)
        if asked is None:
            described: list[object] = [func, *options]
            describe([*args, *options.values()], described)
            question = tuple(described)
        found = self._known.get(question)
        if found is None:
            call = Call(func, args, options, result)
            found = self._known[question] = call.host, call.kernels
            self._asked.append(asked)  # its identity stands for the question as long as it lives
        return found

    def _flowed(
        self, place: Recorder, kernels: tuple[Kernel, ...], read: Iterable[Tensor], written: Iterable[Tensor]
    ) -> bool:
        """Write down which storages a kernel uses; whether that is all there is to do for now."""
        if self._flows is None:
            return False
        if kernels:
            stage = _stage(place)
            self._writer.begin(stage)  # phases keep their order
            reads, writes = (
                {number: touched(each) for each in tensors if (number := place.device.number_of(each)) is not None}
                for tensors in (read, written)
            )
            self._flows.setdefault(stage, []).append(Flow(kernels, reads, writes, place.module))
        return place.phase in COMPILED_PHASES

    def repeats(self, place: Recorder) -> bool:
        """Whether the latest micro-batch has launched what the one before it has."""
        return all(
            self._writer.alike(now, before) and self._flowing(now) == self._flowing(before)
            for now, before in zip(_micro_batch(place.turn), _micro_batch(place.turn - 1), strict=True)
        )

    def _flowing(self, stage: Stage) -> list[tuple[object, ...]]:
        flows = (self._flows or {}).get(stage, ())
        return [(flow.kernels, flow.module, *flow.reads.values(), *flow.writes.values()) for flow in flows]

    def repeat(self, place: Recorder, times: int) -> None:
        """Write the latest micro-batch `times` more."""
        if place.step == self._step:
            for turn in range(place.turn + 1, place.turn + 1 + times):
                for stage, like in zip(_micro_batch(turn), _micro_batch(place.turn), strict=True):
                    self._writer.repeat(stage, like)

    def trace(self) -> Trace:
        """The step."""
        if self._flows is None:
            return self._writer.trace()
        for stage, module, kernels in fused(self._flows):
            self._writer.operator(stage, COMPILED_HOST_WORK, kernels, module, kernels[0].name)
        return replace(self._writer.trace(), compiled=True)


def _micro_batch(turn: int) -> list[Stage]:
    return [Stage(phase, turn) for phase in MICRO_BATCH_PHASES]


def _stage(place: Recorder) -> Stage:
    return Stage(place.phase, place.turn)


class _TracedDevice(SimulatedDevice):
    def __init__(self, observer: Recorder, tracer: Tracer) -> None:
        super().__init__(observer)
        self._place, self._tracer = observer, tracer

    def run(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Let the operator run, and write down what it launches."""
        result = super().run(func, args, kwargs)
        self._tracer.launched(self._place, func, args, kwargs, result)
        return result

    def repeats(self) -> bool:
        """Whether the latest two micro-batches have launched the same."""
        return self._tracer.repeats(self._place)

    def repeat(self, times: int) -> None:
        """Write down what the latest micro-batch launched for the next ones too."""
        self._tracer.repeat(self._place, times)


def refuse_other_generations(cell: ModelCell, gpu: Gpu) -> None:
    """Raise UnavailableError for a combination that does not exist on CUDA, and for a format without units on `gpu`."""
    if (problem := cell.unavailable("cuda")) is not None:
        raise UnavailableError(problem)
    if cell.computed_in in ("bf16", "tf32") and gpu.compute_capability < _AMPERE:
        raise UnavailableError(f"{cell.computed_in} needs sm80 or newer; {gpu.title} is older: use fp16 or fp32")


def trace(cell: ModelCell, gpu: Gpu, *, placed: bool = False) -> tuple[Trace, StepRecording]:
    """A step of `cell` by the kernels of that GPU's generation, and what it asks of the allocator.

    With `placed` the trace knows the module of every operator, and the parts of attention that is written out. A
    compiled step asks for less than what is said: how much less is known once it has run. Both hold for every GPU of
    the same `generation`. Raises UnavailableError for what that generation has not got.
    """
    refuse_other_generations(cell, gpu)
    tracer = Tracer(PROCEDURES[cell.mode].earlier_steps, compiled=cell.execution == "compiled")
    eager = cell.model_copy(update={"execution": "eager"})
    with telling(tracer.told):
        recording = record(eager, cell.mode, Platform.of(gpu), origins=placed, parts=placed, device=tracer.device)
    written = tracer.trace().only(cell.phases)
    return written.with_tf32() if cell.precision == "tf32" else written, recording
