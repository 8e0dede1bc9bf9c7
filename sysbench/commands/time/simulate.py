"""Predicts the time of a step on a GPU that need not be here: traced once without data, then timed for each GPU."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import lru_cache

import torch

from sysbench import units
from sysbench.commands.time.record import PredictedConstant, PredictedPhase, PredictedTime, StepPredicted
from sysbench.commands.time.spec import TimeCell
from sysbench.errors import DoesNotFitError
from sysbench.log.events import Event, StageEntered
from sysbench.predict.rates import GpuRates, HostRates, host_of
from sysbench.predict.step import StepPrediction, predict
from sysbench.predict.trace import Trace
from sysbench.predict.tracing import trace
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.memory import SimulatedMemory, serve
from sysbench.simulate.recording import StepRecording
from sysbench.spec import hardware
from sysbench.spec.hardware import Hardware
from sysbench.spec.model import ModelCell

UNLIMITED_BYTES = 1 << 50
"""Memory of the GPU for tracing, which allocates nothing."""

KEPT = 4
"""Number of cached traces: the GPUs of a cell follow each other, and those of a generation launch the same."""


def run(cell: TimeCell, slug: str) -> Iterator[Event]:
    """Predict the cell's step on that GPU.

    Raises UnavailableError if it cannot be predicted, and DoesNotFitError if memory would run out.
    """
    yield StageEntered(at_s=time.time(), cell=cell.key, stage="simulating")
    known = hardware.named(slug)
    rates, gpu = GpuRates.of(known), Gpu.of(known)
    # The host of the named file, the one that was calibrated with the GPU, or a typical one.
    host = HostRates.read(cell.host) if cell.host is not None else host_of(known)
    step = ModelCell(**{name: getattr(cell, name) for name in ModelCell.model_fields} | {"device": "cuda"})
    traced, recording = _traced(step, _launching(cell, gpu))
    memory = serve(recording, gpu, AllocatorSettings.from_environment(os.environ))
    yield _predicted(cell, known, predict(traced, rates, host), memory)
    verdict = memory.verdict
    if not verdict.fits:
        where = "while the model is built" if verdict.failed_phase == "build" else f"in {verdict.failed_phase}"
        raise DoesNotFitError(
            f"does not fit on {gpu.title}: memory runs out {where}, "
            f"{units.size(-verdict.margin_bytes)} more would be needed"
        )


def _launching(cell: TimeCell, gpu: Gpu) -> Gpu:
    """Return a GPU that launches the same kernels, which depend on the generation only for fused attention.

    Otherwise they depend on the size of cuBLAS's workspace alone.
    """
    if cell.attention != "naive":
        return Gpu("", UNLIMITED_BYTES, gpu.compute_capability)
    alike = (Gpu("", UNLIMITED_BYTES, capability) for capability in ((8, 0), (9, 0)))
    return next(each for each in alike if each.workspace_bytes == gpu.workspace_bytes)


@lru_cache(maxsize=KEPT)
def _traced(step: ModelCell, gpu: Gpu) -> tuple[Trace, StepRecording]:
    return trace(step, gpu)


def _doubts(known: Hardware) -> Iterator[str]:
    """Yield reasons to doubt the calibration, which is used nevertheless."""
    calibration = known.calibration
    if calibration is None:
        return
    if calibration.torch.partition("+")[0] != torch.__version__.partition("+")[0]:
        yield f"{known.slug} was calibrated with torch {calibration.torch}, this is torch {torch.__version__}"


def _predicted(cell: TimeCell, known: Hardware, found: StepPrediction, memory: SimulatedMemory) -> StepPredicted:
    withheld, peak = found.withheld, hardware.peak(known, cell.precision)
    return StepPredicted(
        at_s=time.time(),
        cell=cell.key,
        gpu=known.title,
        host=found.host.title,
        step=None if withheld else PredictedTime(**asdict(found.time)),
        withheld=withheld,
        phases=[
            PredictedPhase(
                name=phase.name,
                **asdict(phase.time),
                host_s=phase.host_s,
                device_s=phase.device_s,
                limited_by=phase.limiting.name,
                limited_share=phase.limiting.share,
                lower_bound_s=phase.lower_bound_s,
                launches=phase.launches,
            )
            for phase in found.phases
        ],
        limited_by=found.limiting.name,
        limited_share=found.limiting.share,
        lower_bound_s=found.lower_bound_s,
        peak_flops_per_s=peak.flops_per_s if peak else None,
        allocated_peak_bytes=memory.allocated_peak_bytes,
        reserved_peak_bytes=memory.reserved_peak_bytes,
        unknown_operators=dict(found.unknown),
        unknown_share=found.unknown_share,
        less_certain=found.less_certain,
        constants=[
            PredictedConstant(
                name=each.name,
                value=each.rate.value,
                spread=each.rate.spread,
                basis=each.rate.basis,
                source=each.rate.source,
            )
            for each in found.constants
        ],
        doubts=list(_doubts(known)),
    )
