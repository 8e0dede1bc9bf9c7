"""Simulate attention on a GPU that need not be present: saved bytes, peak, tensors, and predicted times.

Like measurements, results describe the second call, because the first call also allocates cuBLAS's workspaces and the
allocator's segments.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from sysbench.commands.attention.measure_memory import CreationPhase, described, result_name
from sysbench.commands.attention.record import AttentionPredicted, AttentionTensor
from sysbench.errors import UnavailableError
from sysbench.interpreter import gc_paused
from sysbench.lab.attention import unsupported_as_unavailable
from sysbench.lab.attention_functions import (
    Attention,
    AttentionCall,
    flash_attn,
    flex,
    function_for,
    gradient_for,
    inputs_for,
)
from sysbench.lab.dispatch import Arguments, DispatchMode, Operator, Options
from sysbench.log.outcomes import BUILD
from sysbench.predict.rates import GpuRates, host_of
from sysbench.predict.simulated_step import constants, doubts, predicted_phase
from sysbench.predict.step import predict
from sysbench.predict.trace import Trace
from sysbench.predict.tracing import Tracer
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.simulate.compiler.without_compiler import without_compiler
from sysbench.simulate.cuda.attention import flash_attn_on, flex_attention, reporting_launches
from sysbench.simulate.cuda.composites import using_composites
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.platform import Platform
from sysbench.simulate.recorder import Recorder
from sysbench.simulate.recording import Recording
from sysbench.simulate.replay import Replay, Verdict, available_bytes, replay_unlimited, verdict_of
from sysbench.simulate.tensors import DEVICE, SimulatedDevice
from sysbench.spec.attention import IMPLEMENTATIONS, AttentionCell
from sysbench.spec.hardware import Hardware

_AMPERE = (8, 0)


class SimulatedAttention(NamedTuple):
    """Memory of one forward and one backward call on a GPU, in blocks as CUDA's allocator counts them."""

    before_backward_bytes: int
    saved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    available_bytes: int
    """Memory that the allocator could reserve."""
    at_peak: list[AttentionTensor]
    verdict: Verdict
    """Whether the cell fits; if not, the other numbers are for a GPU with enough memory."""
    trace: Trace
    """Kernels of these two calls."""


def simulate(cell: AttentionCell, gpu: Gpu, settings: AllocatorSettings | None = None) -> SimulatedAttention:
    """Simulate the memory of `cell` on `gpu`; raises UnavailableError if this is not supported."""
    settings = settings or AllocatorSettings()
    # The compiler takes as long to import as fifty cells to simulate. FlexAttention is part of it, and own code may be.
    compiling = cell.implementation in ("flex", "compiled") or cell.implementation not in IMPLEMENTATIONS
    with nullcontext() if compiling else without_compiler():
        run = _Run(cell, gpu)
        recording = run.recorded()
    replay = Replay(recording, gpu, settings)
    verdict = verdict_of(replay, recording, gpu, settings)
    if not verdict.fits:
        replay = replay_unlimited(recording, gpu, settings)
    peaks = replay.peaks_of_last_step()
    largest = max(peaks, key=lambda peak: peak.allocated_bytes)
    (forward,) = (span for span in recording.measured if span.name == "forward")
    before_bytes, after_bytes = (
        sum(replay.sizes[number] for number in recording.live_at(position)) for position in (forward.first, forward.end)
    )
    return SimulatedAttention(
        before_backward_bytes=run.held_bytes(replay, recording) + after_bytes - before_bytes,
        saved_bytes=max(0, after_bytes - before_bytes - run.output_bytes),
        peak_allocated_bytes=largest.allocated_bytes,
        peak_reserved_bytes=max(peak.reserved_bytes for peak in replay.peaks),
        available_bytes=available_bytes(gpu, settings),
        at_peak=[run.labels.describe(number, replay.sizes[number]) for number in recording.live_at(largest.position)],
        verdict=verdict,
        trace=run.trace,
    )


def predicted(cell: AttentionCell, gpu: Hardware, trace: Trace) -> AttentionPredicted:
    """Predict the times of forward and backward on a GPU; raises UnavailableError if its rates are unknown."""
    rates = GpuRates.of(gpu)
    prediction = predict(trace, rates, host_of(gpu))
    return AttentionPredicted(
        at_s=time.time(),
        cell=cell.key,
        gpu=gpu.title,
        withheld=prediction.withheld,
        phases=[predicted_phase(phase, of_device=True) for phase in prediction.phases],
        unknown_operators=dict(prediction.unknown),
        unknown_share=prediction.unknown_share,
        constants=list(constants({name: rate for name, rate in prediction.constants.items() if name in rates.rates})),
        doubts=list(doubts(gpu)),
    )


class _Run:
    def __init__(self, cell: AttentionCell, gpu: Gpu) -> None:
        self.output_bytes = 0
        self._cell, self._gpu = cell, gpu
        self._platform = Platform.of(gpu)
        self._tracer = Tracer(step=1)
        self._recorder = Recorder(self._platform, self._tracer.device, None)
        self.labels = _Labels(self._recorder)
        self._held_events = 0

    def recorded(self) -> Recording:
        """Record all allocations made while building the cell and calling it twice."""
        if self._cell.precision in ("bf16", "tf32") and self._gpu.compute_capability < _AMPERE:
            raise UnavailableError(
                f"{self._cell.precision} needs sm80 or newer; {self._gpu.title} is older: use fp16 or fp32"
            )
        recorder = self._recorder
        with (
            gc_paused(),
            using_composites(self._platform.composites),
            reporting_launches(self._tracer.add_kernel),
            recorder.device,
            self._compiling_or_labels(),
        ):
            with recorder.span(-1, BUILD):
                call = self._build()
            for step in range(2):
                self.labels.phase = "forward"
                with recorder.span(step, "forward"):
                    self._attend(call, first=step == 0)
                self.labels.phase = "backward"
                with recorder.span(step, "backward"):
                    call.differentiate()
                call.forget()
            recorder.device.stop()
        return recorder.recording()

    def _compiling_or_labels(self) -> AbstractContextManager[object]:
        """Return what compiles for the device, which must then be the topmost mode; else what names allocations."""
        if self._cell.implementation != "compiled":
            return self.labels
        from sysbench.simulate.compiler.compiled import compiling_on  # whose imports take seconds

        assert isinstance(self._recorder.device, SimulatedDevice)
        return compiling_on(self._recorder.device, self._platform)

    @property
    def trace(self) -> Trace:
        written = self._tracer.trace()
        return written.with_tf32() if self._cell.precision == "tf32" else written

    def held_bytes(self, replay: Replay, recording: Recording) -> int:
        return sum(replay.sizes[number] for number in recording.live_at(self._held_events))

    def _build(self) -> AttentionCall:
        inputs = inputs_for(self._cell, DEVICE)
        for name, tensor in zip("qkv", inputs, strict=True):
            self.labels.note(tensor, name)
        cell = self._cell
        makers: dict[str, Callable[[], Attention]] = {
            "flex": lambda: flex(cell, DEVICE, flex_attention),
            "flash-attn": lambda: flash_attn(cell, flash_attn_on(self._gpu)),
        }
        function = makers.get(cell.implementation, lambda: function_for(cell, DEVICE))()
        self._held_events = self._recorder.events_so_far
        gradient = gradient_for(inputs[0])
        self.labels.note(gradient, "gradient of the output")
        return AttentionCall(function, inputs, gradient)

    def _attend(self, call: AttentionCall, *, first: bool) -> None:
        with unsupported_as_unavailable():
            call.attend()
        output = call.output
        if not isinstance(output, Tensor) or output.shape != call.inputs[0].shape or not output.requires_grad:
            raise UnavailableError(f"{self._cell.implementation} did not return attention of q, k and v")
        self.output_bytes = output.untyped_storage().nbytes()
        if first:
            torch.isfinite(output).all()  # a measurement also checks for finite values, which allocates


_BUFFER = AttentionTensor(name="buffer of compiled code", shape=[], dtype="", size_bytes=0, phase="forward")


class _Labels(DispatchMode):
    """Dispatch mode that names allocations; it wraps the simulated device in order to see the results of operators."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self.phase: CreationPhase = "inputs"
        self._recorder = recorder
        self._found: dict[int, AttentionTensor] = {}

    def run(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        first = self._recorder.count
        result = func(*args, **kwargs)
        for tensor in result if isinstance(result, list | tuple) else (result,):
            if isinstance(tensor, Tensor):
                self.note(tensor, result_name(func), first)
        for number in range(first, self._recorder.count):
            if number not in self._found:
                name = f"scratch of {result_name(func)}"
                self._found[number] = AttentionTensor(name=name, shape=[], dtype="", size_bytes=0, phase=self.phase)
        return result

    def describe(self, number: int, size_bytes: int) -> AttentionTensor:
        name = {"name": "workspace of cuBLAS"} if self._recorder.is_workspace(number) else {}
        return self._found.get(number, _BUFFER).model_copy(update={"size_bytes": size_bytes, **name})

    def note(self, tensor: Tensor, name: str, first: int = 0) -> None:
        """Name a tensor, unless its memory was allocated before allocation `first`."""
        number = self._recorder.device.number_of(tensor)
        if number is not None and number >= first:
            self._found[number] = described(name, tensor, 0, self.phase)
