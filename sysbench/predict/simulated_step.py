"""Prediction of a cell's step on a GPU that is not present.

The step is traced once without data, and then predicted for each GPU. The same run also simulates the memory, so a cell
that does not fit is reported as out of memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import torch

from sysbench import units
from sysbench.errors import DoesNotFitError
from sysbench.log.events import Event, Stage, StageEntered
from sysbench.log.outcomes import stage_phrase
from sysbench.log.predictions import PredictedConstant, PredictedPhase, PredictedTime, StepPredicted
from sysbench.predict.deep_steps import COMPILED_PHASES
from sysbench.predict.rates import GpuRates, HostRates, host_of
from sysbench.predict.step import PhasePrediction, StepPrediction, predict
from sysbench.predict.trace import Trace
from sysbench.predict.tracing import refuse_unsupported, trace
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.simulate.cuda.attention import MAX_PLAIN_HEAD
from sysbench.simulate.gpu import Gpu, ScratchMemory, refuse_fp8
from sysbench.simulate.recording import StepRecording
from sysbench.simulate.replay import Replay, ReplayCache, Verdict
from sysbench.spec import hardware
from sysbench.spec.hardware import Hardware, Rate
from sysbench.spec.model import ModelCell
from sysbench.spec.ranks import Interconnect, Strategy

UNLIMITED_BYTES = 1 << 50
"""Memory of the GPU on which a step is traced: allocations never fail, and no real memory is used."""

HOST_TIME_WITHOUT: Mapping[Strategy, str] = {"fsdp2": "FSDP2 and DTensor", "hsdp": "FSDP2 and DTensor", "tp": "DTensor"}
"""By strategy: libraries whose own Python code the trace does not contain. It contains only the operators that they
call on this rank's shards; DDP's reducer is written in C++."""

_AMPERE = (8, 0)

CACHED_TRACES = 4
"""Number of cached traces. The GPUs of one cell are predicted in sequence, and GPUs of one generation share a trace."""


@dataclass(frozen=True)
class SimulatedStep:
    """The predicted step of a cell on a GPU.

    host           file with the rates of the host; None for the one calibrated with the GPU, else a typical one
    sync_per_step  whether the host waits for the device only at the end of the step; otherwise after each phase
    """

    cell: ModelCell
    slug: str
    host: Path | None = None
    with_modules: bool = False
    sync_per_step: bool = False
    interconnect: Interconnect | None = None
    """Network between nodes of several GPUs."""
    host_link: float | None = None
    """Bytes per second of a copy between GPU and host, in place of a calibrated rate."""
    memory_bytes: int | None = None
    """Memory that the step may use, in place of that of the GPU."""

    def events(self) -> Iterator[Event]:
        """Yield the events of the prediction."""
        stage: Stage = "compiling" if self.cell.is_compiled else "simulating"
        yield StageEntered(at_s=time.time(), cell=self.cell.key, stage=stage)
        yield self._step_predicted()
        yield from self.recording.compiled_events(self.cell.key)
        # The compiler computes again in backward what checkpoints leave out, and what else it finds cheap.
        counts_flops = not (self.cell.is_compiled and self.cell.repeats_forward)
        yield from self.recording.model_events(self.cell.key, with_flops=counts_flops)
        yield from self.recording.recomputation_events(self.cell.key)
        _, verdict = self.memory
        if not verdict.fits:
            raise DoesNotFitError(
                f"does not fit on {self._gpu.title}: memory runs out {stage_phrase(verdict.failed_phase)}, "
                f"{units.size(-verdict.margin_bytes)} more are needed"
            )

    @property
    def recording(self) -> StepRecording:
        """Return the allocator's requests in the step, for every GPU that launches the same kernels."""
        return self._traced[1]

    @cached_property
    def prediction(self) -> StepPrediction:
        """Return the prediction of the step's time."""
        rates = replace(GpuRates.of(self._hardware), interconnect=self.interconnect)
        if self.host_link is not None:
            rates = rates.with_link(self.host_link)
        host = host_of(self._hardware) if self.host is None else HostRates.read(self.host)
        return predict(self._traced[0], rates, host, sync_per_step=self.sync_per_step)

    @cached_property
    def _hardware(self) -> Hardware:
        known = hardware.by_name(self.slug)
        return known if self.memory_bytes is None else known.model_copy(update={"memory_bytes": self.memory_bytes})

    @property
    def _gpu(self) -> Gpu:
        return Gpu.of(self._hardware).with_nccl_memory(self.cell.strategy, self.cell.ranks)

    @property
    def kernels(self) -> Gpu:
        """Return a GPU without a memory limit that launches the same kernels: GPUs that share it share a trace."""
        return self._step[1]

    @property
    def _step(self) -> tuple[ModelCell, Gpu, bool]:
        """Return the arguments of `_traced`: the cell, a GPU that launches the same kernels, and `with_modules`.

        The allocator's options change no request, so steps that differ only in them share a trace.
        """
        step = self.cell.step_with(device="cuda", allocator="default")
        refuse_unsupported(step, self._gpu)
        refuse_fp8(step.precision, self._gpu)
        return step, _unlimited_gpu(step, self._gpu), self.with_modules

    @property
    def _traced(self) -> tuple[Trace, StepRecording]:
        return _traced(*self._step)

    @cached_property
    def memory(self) -> tuple[Replay, Verdict]:
        """Return the allocator's replay of the step, and whether the step fits."""
        cached = _replay_cache(*self._step, self._gpu.scratch, self.cell.allocator)
        return cached.replay_on(self._gpu)

    def _step_predicted(self) -> StepPredicted:
        prediction, gpu, (replay, verdict) = self.prediction, self._hardware, self.memory
        peaks = replay.peaks_of_last_step()
        withheld = prediction.withheld
        return StepPredicted(
            at_s=time.time(),
            cell=self.cell.key,
            gpu=gpu.title,
            host=prediction.host.title,
            step=None if withheld else PredictedTime(**asdict(prediction.time)),
            withheld=withheld,
            step_draws_s=[] if withheld else [float(f"{each_s:.6g}") for each_s in prediction.draws_s],
            phases=[predicted_phase(phase) for phase in prediction.phases],
            limited_by=prediction.bottleneck.name,
            limited_share=prediction.bottleneck.share,
            limits_s={name: each_s for name, each_s in prediction.limits_s.items() if each_s},
            lower_bound_s=prediction.lower_bound_s,
            peak_flops_per_s=gpu.peak_flops_per_s.get(self.cell.compute_precision),
            allocated_peak_bytes=max(peak.allocated_bytes for peak in peaks),
            reserved_peak_bytes=max(peak.reserved_bytes for peak in peaks),
            memory_bytes=gpu.memory_bytes,
            margin_bytes=verdict.margin_bytes,
            alloc_retries=replay.allocator.statistics.alloc_retries,
            unknown_operators=dict(prediction.unknown),
            unknown_share=prediction.unknown_share,
            host_time_without=HOST_TIME_WITHOUT.get(self.cell.strategy, "") if self.cell.strategy else "",
            constants=list(constants(prediction.constants)),
            doubts=list(doubts(gpu)),
        )


def predicted_phase(phase: PhasePrediction, *, of_device: bool = False) -> PredictedPhase:
    """Convert a phase to the log format, with its total time or, with `of_device`, the device time alone."""
    bottleneck = phase.device_bottleneck if of_device else phase.bottleneck
    return PredictedPhase(
        name=phase.name,
        **asdict(phase.device if of_device else phase.time),
        host_s=phase.host_s,
        device_s=phase.device_s,
        limited_by=bottleneck.name,
        limited_share=bottleneck.share,
        lower_bound_s=phase.lower_bound_s,
        launches=phase.launches,
        communication_s=phase.communication_s,
        exposed_s=phase.exposed_s,
    )


def constants(rates: Mapping[str, Rate]) -> Iterator[PredictedConstant]:
    """Convert rates to the log format."""
    for name, rate in rates.items():
        yield PredictedConstant(name=name, **rate.model_dump(include={"value", "spread", "basis", "source"}))


def doubts(gpu: Hardware) -> Iterator[str]:
    """Yield a caution if the GPU was calibrated with another version of torch. The calibration is used nevertheless."""
    calibration = gpu.calibration
    if calibration is None:
        return
    if calibration.torch.partition("+")[0] != torch.__version__.partition("+")[0]:
        yield f"{gpu.slug} was calibrated with torch {calibration.torch}, but this is torch {torch.__version__}"


def _unlimited_gpu(step: ModelCell, gpu: Gpu) -> Gpu:
    """Return a GPU without a memory limit that launches the same kernels.

    In eager steps, only fused attention depends on the GPU's generation, and several generations have the same
    kernels. Those of 8.6 and 8.0 differ only in flash attention's backward of wide heads (`simulate.cuda.attention`).
    """
    if step.is_compiled:  # the compiler divides reductions for the number of multiprocessors
        return Gpu("", UNLIMITED_BYTES, gpu.compute_capability, sms=gpu.sms)
    generation = gpu.attention_generation if step.attention != "naive" else _AMPERE
    if generation == (8, 6) and step.shape is not None and step.shape.d_head <= MAX_PLAIN_HEAD:
        generation = _AMPERE
    return Gpu("", UNLIMITED_BYTES, generation)


@lru_cache(maxsize=CACHED_TRACES)
def _traced(step: ModelCell, gpu: Gpu, with_modules: bool) -> tuple[Trace, StepRecording]:
    if step.uses_cuda_graphs:  # which replay what is compiled without them, and compiling takes a minute
        compiled, recording = _traced(step.model_copy(update={"execution": "compiled"}), gpu, with_modules)
        return compiled.with_graphs(COMPILED_PHASES), recording
    return trace(step, gpu, with_modules=with_modules)


@lru_cache(maxsize=CACHED_TRACES)
def _replay_cache(step: ModelCell, gpu: Gpu, with_modules: bool, scratch: ScratchMemory, allocator: str) -> ReplayCache:
    _, recording = _traced(step, gpu, with_modules)
    return ReplayCache(recording.with_scratch(scratch), AllocatorSettings.of(allocator))
