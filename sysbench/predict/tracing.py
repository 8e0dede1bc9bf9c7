"""A cell's step, run without data, as a trace of its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sysbench.errors import UnavailableError
from sysbench.predict.operators import Call
from sysbench.predict.trace import Trace, TraceWriter
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.recording import Platform, Recorder, StepRecording, record
from sysbench.simulate.tensors import DeviceObserver, SimulatedDevice
from sysbench.spec.model import ModelCell


class Tracer:
    """Writes a trace while something runs on a simulated device.

    `Recorder(platform, tracer.device, …)` makes one run give both, memory and trace; the phases are the recorder's
    spans, and only those of its latest step are kept.
    """

    def __init__(self) -> None:
        self._writer = TraceWriter()
        self._step = -1

    def device(self, observer: DeviceObserver) -> SimulatedDevice:
        """A simulated device that is traced."""
        assert isinstance(observer, Recorder)
        return _TracedDevice(observer, self)

    def launched(self, place: Recorder, func: Any, args: Any, options: Mapping[str, Any], result: Any) -> None:
        """An operator has run."""
        if place.step != self._step:
            self._writer.clear()
            self._step = place.step
        if func.namespace == "profiler" or place.step < 0:
            return
        call = Call(func, args, options, result)
        first, *rest = call.host
        self._writer.operator(place.phase, first, call.kernels, place.module)
        for work in rest:
            self._writer.operator(place.phase, work)

    def trace(self) -> Trace:
        """The latest step."""
        return self._writer.trace()


class _TracedDevice(SimulatedDevice):
    def __init__(self, observer: Recorder, tracer: Tracer) -> None:
        super().__init__(observer)
        self._place, self._tracer = observer, tracer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let the operator run, and write down what it launches."""
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self._tracer.launched(self._place, func, args, kwargs or {}, result)
        return result


def trace(cell: ModelCell, gpu: Gpu) -> tuple[Trace, StepRecording]:
    """A step of `cell` by the kernels of that GPU's generation, and what it asks of the allocator.

    Both hold for every GPU of the same `generation`. Raises UnavailableError for what that generation has not got.
    """
    if (problem := cell.unavailable("cuda")) is not None:
        raise UnavailableError(problem)
    tracer = Tracer()
    recording = record(cell, cell.mode, Platform.of(gpu), origins=False, device=tracer.device)
    written = tracer.trace().only(cell.phases)
    return written.with_tf32() if cell.precision == "tf32" else written, recording
