"""Conversion of a cell's step, which runs without data, to a trace of its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sysbench.errors import UnavailableError
from sysbench.lab.dispatch import Arguments, Operator, Options
from sysbench.predict import deep_steps
from sysbench.predict.deep_steps import COMPILED_PHASES
from sysbench.predict.operators import Call, attention, generated
from sysbench.predict.trace import HostWork, Kernel, Stage, Trace, TraceWriter
from sysbench.simulate.compiler.deep_steps import continued, in_two_depths
from sysbench.simulate.compiler.generated import GeneratedKernel
from sysbench.simulate.cuda.attention import reporting_launches
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.ordered import OrderedStream
from sysbench.simulate.platform import Platform
from sysbench.simulate.recorder import Device, Recorder
from sysbench.simulate.recording import StepRecording
from sysbench.simulate.step_recorder import MICRO_BATCH_PHASES
from sysbench.simulate.steps import record
from sysbench.simulate.tensors import DeviceObserver, SimulatedDevice, extend_call_key
from sysbench.spec.knobs import NONE
from sysbench.spec.model import ModelCell
from sysbench.spec.ranks import NODE_RANKS
from sysbench.spec.steps import PROCEDURES

_AMPERE = (8, 0)

GENERATED_WORK: HostWork = "operator"
"""Host work of generated code for each kernel, in addition to the launch. Compiling saves launches, views and
allocations, but a launch is not cheaper. The processor time of a Transformer's step, by the difference between two
depths, was 9.5 us for each launch of generated code in forward and 6.3 in backward, and 11.8 and 9.7 for each operator
of eager code, its views included (PyTorch 2.15 on the fake GPU of tests/fake_gpu, 2 cores of an EPYC)."""


_Work = tuple[tuple[HostWork, ...], tuple[Kernel, ...], int]
"""What the host does for an operator, the kernels that it launches, and the bytes that the host moves itself."""


_WORK: dict[object, _Work] = {}
"""The work of all operator calls so far, by the identity of a `SimulatedDevice.call_key`, or by all arguments."""


class Tracer:
    """Writer of the trace of code that runs on a simulated device, which is also recorded.

    Use its `device` for a `Recorder`, inside `reporting_launches(tracer.add_kernel)`; spans become phases.
    """

    def __init__(self, step: int, *, before: bool = False) -> None:
        """Trace step number `step`; earlier steps only create state, such as optimizer state.

        With `before`, the step before is traced too, so that its micro-batches can be repeated.
        """
        self._writer = TraceWriter()
        self._before = TraceWriter() if before else None
        self._step = step
        self._is_compiled = False
        self._recorder: Recorder | None = None
        self._operators: dict[object, tuple[str, bool, str]] = {}

    def device(self, observer: DeviceObserver) -> SimulatedDevice:
        """Return a simulated device whose operators are traced."""
        assert isinstance(observer, Recorder)
        self._recorder = observer
        return _TracedDevice(observer, self)

    def add_kernel(self, layout: str, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> None:
        """Add a kernel that has no ATen operator, such as `flex forward`."""
        recorder = self._recorder
        if recorder is not None and (writer := self._writer_of(recorder)) is not None:
            kernel = attention(layout.partition(" ")[0], layout, q, k, v, causal=causal)
            writer.add_operator(_stage(recorder), "operator", (kernel,), recorder.module, f"{kernel.name}_attention")

    def add_generated(self, recorder: Recorder, kernel: GeneratedKernel, arguments: Sequence[object]) -> None:
        """Add the launch of a kernel that the compiler has generated, by its name."""
        self._is_compiled = True
        if (writer := self._writer_of(recorder)) is not None:
            launched = generated(kernel.launch(arguments))
            writer.add_operator(_stage(recorder), GENERATED_WORK, (launched,), recorder.module, kernel.name)

    def add_operator(
        self, recorder: Recorder, func: Operator, args: Arguments, options: Options, result: object
    ) -> None:
        """Add an operator that has just run."""
        writer = self._writer_of(recorder)
        if writer is None:
            return
        kind = self._operators.get(func)
        if kind is None:
            kind = self._operators[func] = func.namespace, func.is_view, str(func._schema.name)
        namespace, is_view, name = kind
        if namespace == "profiler":
            return
        is_generated = isinstance(recorder.device, SimulatedDevice) and recorder.device.runs_generated_code
        if is_view:  # half of all operators: nothing has to be computed for them
            if not is_generated:
                writer.add_operator(_stage(recorder), "view", (), recorder.module, name)
            return
        work = self._work_of(recorder.device, func, args, options, result)
        if work[1] or not is_generated:  # generated code allocates without the dispatcher
            self._write(writer, recorder, name, work)

    def _writer_of(self, recorder: Recorder) -> TraceWriter | None:
        """Return the writer of the step that runs; None if it is not traced."""
        if recorder.step == self._step:
            return self._writer
        return self._before if recorder.step == self._step - 1 else None

    def _write(self, writer: TraceWriter, recorder: Recorder, name: str, work: _Work) -> None:
        (first, *rest), kernels, host_bytes = work
        stage = _stage(recorder)
        writer.add_operator(stage, first, kernels, recorder.module, name)
        if host_bytes:
            writer.add_host_bytes(stage, host_bytes)
        if kernels and isinstance(stream := torch.cpu.current_stream(), OrderedStream):
            after = stream.take_waits(stage)
            stream.last = stage, writer.assign_stream(stage, stream.number, after)
        for each in rest:
            writer.add_operator(stage, each)

    def _work_of(self, device: Device, func: Operator, args: Arguments, options: Options, result: object) -> _Work:
        """Return the work of an operator; cached, because layers repeat the same calls."""
        call_key = device.call_key if isinstance(device, SimulatedDevice) else None
        key: object = id(call_key)
        if call_key is None:
            key_parts: list[object] = [func, *options]
            extend_call_key([*args, *options.values()], key_parts)
            key = tuple(key_parts)
        cached = _WORK.get(key)
        if cached is None:
            call = Call(func, args, options, result)
            cached = _WORK[key] = call.host, call.kernels, call.host_bytes
        return cached

    def repeats(self, recorder: Recorder) -> bool:
        """Return whether the latest micro-batch launched the same kernels as the previous one."""
        latest, previous = (_micro_batch(recorder.occurrence - back) for back in (0, 1))
        return all(self._writer.equal_stages(one, other) for one, other in zip(latest, previous, strict=True))

    def repeat(self, recorder: Recorder, times: int) -> None:
        """Write the latest micro-batch `times` more times."""
        if (writer := self._writer_of(recorder)) is not None:
            for occurrence in range(recorder.occurrence + 1, recorder.occurrence + 1 + times):
                for stage, like in zip(_micro_batch(occurrence), _micro_batch(recorder.occurrence), strict=True):
                    writer.repeat(stage, like)

    def repeats_step(self) -> bool:
        """Return whether the first micro-batch launched the same kernels as that of the step before."""
        return self._before is not None and all(self._writer.equals(self._before, stage) for stage in _micro_batch(0))

    def repeat_step(self, times: int) -> None:
        """Write the `times` micro-batches of the step before that come after its first one."""
        if self._before is not None:
            stages = [stage for occurrence in range(1, times + 1) for stage in _micro_batch(occurrence)]
            self._writer.copy(self._before, stages)

    def trace(self) -> Trace:
        """Return the trace of the step."""
        return replace(self._writer.trace(), compiled=self._is_compiled)


def _micro_batch(occurrence: int) -> list[Stage]:
    return [Stage(phase, occurrence) for phase in MICRO_BATCH_PHASES]


def _stage(recorder: Recorder) -> Stage:
    return Stage(recorder.phase, recorder.occurrence)


class _TracedDevice(SimulatedDevice):
    def __init__(self, observer: Recorder, tracer: Tracer) -> None:
        super().__init__(observer)
        self._recorder, self._tracer = observer, tracer

    def run(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        result = super().run(func, args, kwargs)
        self._tracer.add_operator(self._recorder, func, args, kwargs, result)
        return result

    def launch(self, kernel: GeneratedKernel, arguments: Sequence[object]) -> None:
        self._tracer.add_generated(self._recorder, kernel, arguments)

    def repeats(self) -> bool:
        return self._tracer.repeats(self._recorder)

    def repeat(self, times: int) -> None:
        self._tracer.repeat(self._recorder, times)

    def repeats_step(self) -> bool:
        return self._tracer.repeats_step()

    def repeat_step(self, times: int) -> None:
        self._tracer.repeat_step(times)


def refuse_unsupported(cell: ModelCell, gpu: Gpu) -> None:
    """Raise UnavailableError if CUDA or a prediction does not support the cell, or `gpu` not its precision."""
    if (problem := cell.unavailable("cuda")) is not None:
        raise UnavailableError(problem)
    if cell.compute_precision in ("bf16", "tf32") and gpu.compute_capability < _AMPERE:
        raise UnavailableError(f"{cell.compute_precision} needs sm80 or newer; {gpu.title} is older. Use fp16 or fp32")
    if cell.uses_cuda_graphs and cell.optimizer_in_backward == "on":
        raise UnavailableError(
            "CUDA graphs with --optimizer-in-backward cannot be predicted, only measured: updates run between the "
            "graphs. Nearest: --execution compiled"
        )


def trace(cell: ModelCell, gpu: Gpu, *, with_modules: bool = False) -> tuple[Trace, StepRecording]:
    """Trace a step of `cell` with the kernels of the GPU's generation, and record its allocator requests.

    With `with_modules`, the trace has the module of every operator, and the parts of materialised attention. Both
    results are valid for every GPU of the generation; those of a compiled step for this GPU alone, for whose number of
    multiprocessors reductions are divided.
    """
    refuse_unsupported(cell, gpu)
    platform = Platform.of(gpu) if cell.is_compiled else Platform.of_generation(gpu)
    written, recording = _continued(cell, platform, with_modules) or _traced(cell, platform, with_modules)
    if cell.uses_cuda_graphs:
        written = written.with_graphs(COMPILED_PHASES)
    if cell.offload != NONE and cell.is_compiled:
        written = replace(written, untimed="an update on the host after compiled code")
    if cell.offload == "parameters":
        written = written.with_shared_host(min(cell.ranks, NODE_RANKS))
    return written.with_tf32() if cell.precision == "tf32" else written, recording


def _continued(cell: ModelCell, platform: Platform, with_modules: bool) -> tuple[Trace, StepRecording] | None:
    found = in_two_depths(cell, lambda each: _traced(each, platform, with_modules))
    if found is None:
        return None
    small, large, depths = found
    eager, built = _traced(cell.step_with(execution="eager"), platform, with_modules)
    written = deep_steps.continued(small[0], large[0], depths.steps, eager)
    recording = continued(cell, small[1], large[1], depths, built)
    return (written, recording) if written is not None and recording is not None else None


def _traced(cell: ModelCell, platform: Platform, with_modules: bool) -> tuple[Trace, StepRecording]:
    before = cell.grad_accum > 1 and cell.offload == NONE and cell.strategy is None
    tracer = Tracer(PROCEDURES[cell.mode].earlier_steps, before=before)
    with reporting_launches(tracer.add_kernel):
        recording = record(cell, cell.mode, platform, origins=with_modules, parts=with_modules, device=tracer.device)
    return tracer.trace().with_phases(cell.phases), recording
