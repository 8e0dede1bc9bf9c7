"""Prediction of a cell's step on a GPU that is not present.

The step is traced once without data, and then predicted for each GPU. The same run simulates the memory, so that a cell
that does not fit ends as out of memory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path

import torch

from sysbench import units
from sysbench.errors import DoesNotFitError, UnavailableError
from sysbench.log.events import Event, OwnModelBuilt, StageEntered
from sysbench.log.predictions import PredictedConstant, PredictedPhase, PredictedTime, StepPredicted
from sysbench.predict.rates import GpuRates, HostRates, host_of
from sysbench.predict.step import Constant, PhasePrediction, StepPrediction, predict
from sysbench.predict.trace import Trace
from sysbench.predict.tracing import refuse_other_generations, trace
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.recording import StepRecording
from sysbench.simulate.serving import Replay, Server, Verdict
from sysbench.spec import hardware
from sysbench.spec.hardware import Hardware
from sysbench.spec.model import ModelCell
from sysbench.spec.ranks import Interconnect

UNLIMITED_BYTES = 1 << 50
"""Memory of the GPU on which a step is traced: allocations never fail, and no real memory is used."""

KEPT = 4
"""Number of cached traces. The GPUs of one cell are predicted in sequence, and GPUs of one generation share a trace."""


@dataclass(frozen=True)
class SimulatedStep:
    """The predicted step of a cell on a GPU.

    slug    name of the GPU
    host    file with the rates of the host; None for the default of `host_for`
    placed  whether the trace records the module of every operator, which takes longer
    whole   whether the host waits for the device only at the end of the step; otherwise after each phase
    """

    cell: ModelCell
    slug: str
    host: Path | None = None
    placed: bool = False
    whole: bool = False
    interconnect: Interconnect | None = None
    """Network between nodes of several GPUs."""

    def events(self) -> Iterator[Event]:
        """Yield the events of the prediction.

        Raises UnavailableError for cells that cannot be predicted, and DoesNotFitError if memory runs out.
        """
        yield StageEntered(at_s=time.time(), cell=self.cell.key, stage="simulating")
        yield self._said()
        if (facts := self._traced[1].own_model) is not None:
            yield OwnModelBuilt(at_s=time.time(), cell=self.cell.key, **facts.model_dump())
        _, verdict = self._served
        if not verdict.fits and self.cell.execution == "compiled":
            raise UnavailableError(
                f"the eager step does not fit on {self._gpu.title}, by {units.size(-verdict.margin_bytes)}; "
                "the memory that compiling saves is only known after a run"
            )
        if not verdict.fits:
            where = "while building the model" if verdict.failed_phase == "build" else f"in {verdict.failed_phase}"
            raise DoesNotFitError(
                f"does not fit on {self._gpu.title}: memory runs out {where}, "
                f"{units.size(-verdict.margin_bytes)} more are needed"
            )

    @cached_property
    def found(self) -> StepPrediction:
        """Return the prediction of the step's time."""
        rates = replace(GpuRates.of(self._known), interconnect=self.interconnect)
        return predict(self._traced[0], rates, host_for(self._known, self.host), whole=self.whole)

    @cached_property
    def _known(self) -> Hardware:
        return hardware.named(self.slug)

    @property
    def _gpu(self) -> Gpu:
        return Gpu.of(self._known).among(self.cell.strategy, self.cell.ranks)

    @property
    def _step(self) -> tuple[ModelCell, Gpu, bool]:
        """Return the arguments of `_traced`: the cell, a GPU on which it launches the same kernels, and `placed`."""
        step = ModelCell(**{name: getattr(self.cell, name) for name in ModelCell.model_fields} | {"device": "cuda"})
        refuse_other_generations(step, self._gpu)
        return step, _launching(step, self._gpu), self.placed

    @property
    def _traced(self) -> tuple[Trace, StepRecording]:
        return _traced(*self._step)

    @cached_property
    def _served(self) -> tuple[Replay, Verdict]:
        return _server(*self._step, self._gpu.workspace_bytes).on(self._gpu)

    def _said(self) -> StepPredicted:
        found, known, (replay, _) = self.found, self._known, self._served
        peaks = replay.peaks_of_last_step()
        withheld, peak = found.withheld, hardware.peak(known, self.cell.computed_in)
        return StepPredicted(
            at_s=time.time(),
            cell=self.cell.key,
            gpu=known.title,
            host=found.host.title,
            step=None if withheld else PredictedTime(**asdict(found.time)),
            withheld=withheld,
            phases=[said_of(phase) for phase in found.phases],
            limited_by=found.limiting.name,
            limited_share=found.limiting.share,
            lower_bound_s=found.lower_bound_s,
            peak_flops_per_s=peak.flops_per_s if peak else None,
            allocated_peak_bytes=max(each.allocated_bytes for each in peaks),
            reserved_peak_bytes=max(each.reserved_bytes for each in peaks),
            unknown_operators=dict(found.unknown),
            unknown_share=found.unknown_share,
            less_certain=found.less_certain,
            constants=[constant(each) for each in found.constants],
            doubts=list(doubts(known)),
        )


def said_of(phase: PhasePrediction, *, of_device: bool = False) -> PredictedPhase:
    """Convert a phase to the format of logs, with the time that the host sees, or with the device time alone."""
    limiting = phase.device_limiting if of_device else phase.limiting
    return PredictedPhase(
        name=phase.name,
        **asdict(phase.device if of_device else phase.time),
        host_s=phase.host_s,
        device_s=phase.device_s,
        limited_by=limiting.name,
        limited_share=limiting.share,
        lower_bound_s=phase.lower_bound_s,
        launches=phase.launches,
        communication_s=phase.communication_s,
        exposed_s=phase.exposed_s,
    )


def constant(each: Constant) -> PredictedConstant:
    """Convert a constant to the format of logs."""
    rate = each.rate
    return PredictedConstant(name=each.name, value=rate.value, spread=rate.spread, basis=rate.basis, source=rate.source)


def host_for(known: Hardware, file: Path | None = None) -> HostRates:
    """Return the rates of the host in `file`; by default, of the host calibrated with the GPU or a typical one."""
    return HostRates.read(file) if file is not None else host_of(known)


def doubts(known: Hardware) -> Iterator[str]:
    """Yield a caution if the GPU was calibrated with another version of torch. The calibration is used nevertheless."""
    calibration = known.calibration
    if calibration is None:
        return
    if calibration.torch.partition("+")[0] != torch.__version__.partition("+")[0]:
        yield f"{known.slug} was calibrated with torch {calibration.torch}, but this is torch {torch.__version__}"


def _launching(step: ModelCell, gpu: Gpu) -> Gpu:
    """Return a GPU without a memory limit that launches the same kernels.

    Only fused attention depends on the GPU's generation.
    """
    return Gpu("", UNLIMITED_BYTES, gpu.compute_capability if step.attention != "naive" else (8, 0))


@lru_cache(maxsize=KEPT)
def _traced(step: ModelCell, gpu: Gpu, placed: bool) -> tuple[Trace, StepRecording]:
    return trace(step, gpu, placed=placed)


@lru_cache(maxsize=KEPT)
def _server(step: ModelCell, gpu: Gpu, placed: bool, workspace_bytes: int) -> Server:
    """Return a server that replays the step's memory on GPUs with cuBLAS workspaces of this size."""
    _, recording = _traced(step, gpu, placed)
    settings = AllocatorSettings.from_environment(os.environ)
    return Server(recording.with_workspaces_of(workspace_bytes), settings)
