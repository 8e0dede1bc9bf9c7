"""A cell's step on a GPU that need not be there: traced once without data, then predicted for each GPU.

Its memory is simulated from the same run, so that a cell that does not fit ends as one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path

import torch

from sysbench import units
from sysbench.errors import DoesNotFitError
from sysbench.log.events import Event, StageEntered
from sysbench.log.predictions import PredictedConstant, PredictedPhase, PredictedTime, StepPredicted
from sysbench.predict.rates import GpuRates, HostRates, host_of
from sysbench.predict.step import Constant, PhasePrediction, StepPrediction, predict
from sysbench.predict.trace import Trace
from sysbench.predict.tracing import refuse_other_generations, trace
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.memory import SimulatedMemory, serve
from sysbench.simulate.recording import StepRecording
from sysbench.spec import hardware
from sysbench.spec.hardware import Hardware
from sysbench.spec.model import ModelCell

UNLIMITED_BYTES = 1 << 50
"""A trace asks for memory, and does not get any."""

KEPT = 4
"""Traces that are kept: the GPUs of one cell follow each other, and some share what their generation launches."""


@dataclass(frozen=True)
class SimulatedStep:
    """The step of a cell on the GPU called `slug`, issued by the host of a file, or else by the one it goes with.

    placed  whether the trace knows modules, for which every operator's origin is looked up
    whole   whether phases follow each other undisturbed; else the device is waited for after each
    """

    cell: ModelCell
    slug: str
    host: Path | None = None
    placed: bool = False
    whole: bool = False

    def events(self) -> Iterator[Event]:
        """Say what is predicted.

        Raises UnavailableError for what cannot be predicted, and DoesNotFitError where memory would run out.
        """
        yield StageEntered(at_s=time.time(), cell=self.cell.key, stage="simulating")
        yield self._said()
        verdict = self._memory.verdict
        if not verdict.fits:
            where = "while the model is built" if verdict.failed_phase == "build" else f"in {verdict.failed_phase}"
            raise DoesNotFitError(
                f"does not fit on {self._gpu.title}: memory runs out {where}, "
                f"{units.size(-verdict.margin_bytes)} more would be needed"
            )

    @cached_property
    def found(self) -> StepPrediction:
        """The prediction."""
        rates = GpuRates.of(self._known)
        return predict(self._traced[0], rates, host_for(self._known, self.host), whole=self.whole)

    @cached_property
    def _known(self) -> Hardware:
        return hardware.named(self.slug)

    @property
    def _gpu(self) -> Gpu:
        return Gpu.of(self._known)

    @property
    def _traced(self) -> tuple[Trace, StepRecording]:
        step = ModelCell(**{name: getattr(self.cell, name) for name in ModelCell.model_fields} | {"device": "cuda"})
        refuse_other_generations(step, self._gpu)  # it is traced for a relative
        return _traced(step, _launching(step, self._gpu), self.placed)

    @cached_property
    def _memory(self) -> SimulatedMemory:
        return serve(self._traced[1], self._gpu, AllocatorSettings.from_environment(os.environ))

    def _said(self) -> StepPredicted:
        found, known, memory = self.found, self._known, self._memory
        withheld, peak = found.withheld, hardware.peak(known, self.cell.precision)
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
            allocated_peak_bytes=memory.allocated_peak_bytes,
            reserved_peak_bytes=memory.reserved_peak_bytes,
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
    """A GPU that launches the same: fused attention depends on the generation, and all else on cuBLAS's workspace."""
    if step.attention != "naive":
        return Gpu("", UNLIMITED_BYTES, gpu.compute_capability)
    alike = (Gpu("", UNLIMITED_BYTES, capability) for capability in ((8, 0), (9, 0)))
    return next(each for each in alike if each.workspace_bytes == gpu.workspace_bytes)


@lru_cache(maxsize=KEPT)
def _traced(step: ModelCell, gpu: Gpu, placed: bool) -> tuple[Trace, StepRecording]:
    return trace(step, gpu, placed=placed)
