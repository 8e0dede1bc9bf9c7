"""Conversion of a cell's step, which runs without data, to a trace of its kernels."""

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
"""Host work of compiled code per kernel in addition to the launch: no operator is dispatched."""


class Tracer:
    """Writer of the trace of code that runs on a simulated device.

    One run gives both memory and trace, if a `Recorder(platform, tracer.device, …)` records it inside
    `telling(tracer.told)`. The recorder's spans become the phases of the trace.
    """

    def __init__(self, step: int, *, compiled: bool = False) -> None:
        """Trace step number `step`; earlier steps only create state, such as optimizer state.

        `compiled` fuses the kernels of forward and backward as torch.compile would.
        """
        self._writer = TraceWriter()
        self._step = step
        self._flows: dict[Stage, list[Flow]] | None = {} if compiled else None
        self._place: Recorder | None = None
        self._operators: dict[object, tuple[str, bool, str]] = {}
        self._asked: list[object] = []
        self._known: dict[object, tuple[tuple[HostWork, ...], tuple[Kernel, ...]]] = {}

    def device(self, observer: DeviceObserver) -> SimulatedDevice:
        """Return a simulated device whose operators are traced."""
        assert isinstance(observer, Recorder)
        self._place = observer
        return _TracedDevice(observer, self)

    def told(self, layout: str, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> None:
        """Add a kernel that has no ATen operator, such as `flex forward`."""
        place = self._place
        if place is not None and place.step == self._step:
            kernel = attention(layout.partition(" ")[0], layout, q, k, v, causal=causal)
            if not self._flowed(place, (kernel,), (q, k, v), ()):
                self._writer.operator(_stage(place), "operator", (kernel,), place.module, f"{kernel.name}_attention")

    def launched(self, place: Recorder, func: Any, args: Any, options: Mapping[str, Any], result: Any) -> None:
        """Add an operator that has just run."""
        if place.step != self._step:
            return
        kind = self._operators.get(func)
        if kind is None:
            kind = self._operators[func] = func.namespace, func.is_view, str(func._schema.name)
        namespace, is_view, name = kind
        if namespace == "profiler":
            return
        if is_view:  # half of all operators: nothing has to be computed for them
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
        """Return the host work and the kernels of an operator; cached, because layers repeat the same calls."""
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
            self._asked.append(asked)  # `id(asked)` is a valid key only while `asked` is alive
        return found

    def _flowed(
        self, place: Recorder, kernels: tuple[Kernel, ...], read: Iterable[Tensor], written: Iterable[Tensor]
    ) -> bool:
        """Note which storages an operator's kernels use, for the fusion of a compiled step.

        Return whether the kernels are to be written only after fusion.
        """
        if self._flows is None:
            return False
        if kernels:
            stage = _stage(place)
            self._writer.begin(stage)  # keeps the phases in order
            reads, writes = (
                {number: touched(each) for each in tensors if (number := place.device.number_of(each)) is not None}
                for tensors in (read, written)
            )
            self._flows.setdefault(stage, []).append(Flow(kernels, reads, writes, place.module))
        return place.phase in COMPILED_PHASES

    def repeats(self, place: Recorder) -> bool:
        """Return whether the latest micro-batch launched the same kernels as the previous one."""
        return all(
            self._writer.alike(now, before) and self._flowing(now) == self._flowing(before)
            for now, before in zip(_micro_batch(place.turn), _micro_batch(place.turn - 1), strict=True)
        )

    def _flowing(self, stage: Stage) -> list[tuple[object, ...]]:
        flows = (self._flows or {}).get(stage, ())
        return [(flow.kernels, flow.module, *flow.reads.values(), *flow.writes.values()) for flow in flows]

    def repeat(self, place: Recorder, times: int) -> None:
        """Write the latest micro-batch `times` more times."""
        if place.step == self._step:
            for turn in range(place.turn + 1, place.turn + 1 + times):
                for stage, like in zip(_micro_batch(turn), _micro_batch(place.turn), strict=True):
                    self._writer.repeat(stage, like)

    def trace(self) -> Trace:
        """Return the trace of the step."""
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
        result = super().run(func, args, kwargs)
        self._tracer.launched(self._place, func, args, kwargs, result)
        return result

    def repeats(self) -> bool:
        return self._tracer.repeats(self._place)

    def repeat(self, times: int) -> None:
        self._tracer.repeat(self._place, times)


def refuse_other_generations(cell: ModelCell, gpu: Gpu) -> None:
    """Raise UnavailableError if CUDA does not support the cell, or `gpu` does not support the cell's precision."""
    if (problem := cell.unavailable("cuda")) is not None:
        raise UnavailableError(problem)
    if cell.computed_in in ("bf16", "tf32") and gpu.compute_capability < _AMPERE:
        raise UnavailableError(f"{cell.computed_in} needs sm80 or newer; {gpu.title} is older. Use fp16 or fp32")


def trace(cell: ModelCell, gpu: Gpu, *, placed: bool = False) -> tuple[Trace, StepRecording]:
    """Trace a step of `cell` with the kernels of the GPU's generation, and record its allocator requests.

    With `placed`, the trace has the module of every operator, and the parts of materialised attention. The recording is
    that of the eager step; a compiled step requests less memory, and how much less is only known after a run. Both
    results are valid for every GPU of the same generation. Raises UnavailableError for features that the generation
    lacks.
    """
    refuse_other_generations(cell, gpu)
    tracer = Tracer(PROCEDURES[cell.mode].earlier_steps, compiled=cell.execution == "compiled")
    eager = cell.model_copy(update={"execution": "eager"})
    with telling(tracer.told):
        recording = record(eager, cell.mode, Platform.of(gpu), origins=placed, parts=placed, device=tracer.device)
    written = tracer.trace().only(cell.phases)
    return written.with_tf32() if cell.precision == "tf32" else written, recording
