"""A cell's step on a GPU that need not be there: traced once without data, then predicted for each GPU.

Its memory is simulated from the same run, so that a cell that does not fit ends as one.
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
"""Memory of the GPU that a step is traced on: no allocation fails, and none takes memory."""

KEPT = 4
"""Number of traces to keep: the GPUs of one cell follow each other, and those of a generation share a trace."""


@dataclass(frozen=True)
class SimulatedStep:
    """The step of a cell on the GPU called `slug`, issued by the host in a file, or by the GPU's usual host.

    placed  whether the trace records the module of every operator, which takes longer
    whole   whether phases follow each other without synchronization; otherwise each ends with one
    """

    cell: ModelCell
    slug: str
    host: Path | None = None
    placed: bool = False
    whole: bool = False
    interconnect: Interconnect | None = None
    """What links nodes of several GPUs."""

    def events(self) -> Iterator[Event]:
        """Say what is predicted.

        Raises UnavailableError for what cannot be predicted, and DoesNotFitError where memory would run out.
        """
        yield StageEntered(at_s=time.time(), cell=self.cell.key, stage="simulating")
        yield self._said()
        if (facts := self._traced[1].own_model) is not None:
            yield OwnModelBuilt(at_s=time.time(), cell=self.cell.key, **facts.model_dump())
        _, verdict = self._served
        if not verdict.fits and self.cell.execution == "compiled":
            raise UnavailableError(
                f"the eager step does not fit on {self._gpu.title}, by {units.size(-verdict.margin_bytes)}; "
                "how much of that compiling saves is known once it has run"
            )
        if not verdict.fits:
            where = "while the model is built" if verdict.failed_phase == "build" else f"in {verdict.failed_phase}"
            raise DoesNotFitError(
                f"does not fit on {self._gpu.title}: memory runs out {where}, "
                f"{units.size(-verdict.margin_bytes)} more would be needed"
            )

    @cached_property
    def found(self) -> StepPrediction:
        """The prediction."""
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
        """What to trace, and for which GPU: a relative that launches the same."""
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
    """A phase as logs have it, with the time that the host sees or the device's alone."""
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
    """A constant as logs have it."""
    rate = each.rate
    return PredictedConstant(name=each.name, value=rate.value, spread=rate.spread, basis=rate.basis, source=rate.source)


def host_for(known: Hardware, file: Path | None = None) -> HostRates:
    """The host of the file that is named, the one that was calibrated with the GPU, or a typical one."""
    return HostRates.read(file) if file is not None else host_of(known)


def doubts(known: Hardware) -> Iterator[str]:
    """What is wrong with a calibration: said, as it is used nevertheless."""
    calibration = known.calibration
    if calibration is None:
        return
    if calibration.torch.partition("+")[0] != torch.__version__.partition("+")[0]:
        yield f"{known.slug} was calibrated with torch {calibration.torch}, this is torch {torch.__version__}"


def _launching(step: ModelCell, gpu: Gpu) -> Gpu:
    """A GPU that launches the same kernels: only fused attention depends on the generation."""
    return Gpu("", UNLIMITED_BYTES, gpu.compute_capability if step.attention != "naive" else (8, 0))


@lru_cache(maxsize=KEPT)
def _traced(step: ModelCell, gpu: Gpu, placed: bool) -> tuple[Trace, StepRecording]:
    return trace(step, gpu, placed=placed)


@lru_cache(maxsize=KEPT)
def _server(step: ModelCell, gpu: Gpu, placed: bool, workspace_bytes: int) -> Server:
    """Who answers what the step asks of the allocator, on GPUs with cuBLAS's workspaces of this size."""
    _, recording = _traced(step, gpu, placed)
    settings = AllocatorSettings.from_environment(os.environ)
    return Server(recording.with_workspaces_of(workspace_bytes), settings)
