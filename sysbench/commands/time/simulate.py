"""The time of a step on a GPU that need not be there: traced once without data, then predicted for each GPU."""

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
from sysbench.errors import DoesNotFitError, UnavailableError
from sysbench.log.events import Event, StageEntered
from sysbench.predict.rates import GpuRates, HostRates, host_of
from sysbench.predict.step import StepPrediction, predict
from sysbench.predict.trace import Trace
from sysbench.predict.tracing import refuse_precision, trace
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.recording import StepRecording
from sysbench.simulate.serving import Replay, Server
from sysbench.spec import hardware
from sysbench.spec.hardware import Hardware
from sysbench.spec.model import ModelCell

UNLIMITED_BYTES = 1 << 50
"""A trace asks for memory, and does not get any."""

KEPT = 4
"""Traces that are kept: the GPUs of one cell follow each other, and some share what their generation launches."""


def run(cell: TimeCell, slug: str) -> Iterator[Event]:
    """Predict the cell's step on that GPU.

    Raises UnavailableError for what cannot be predicted, and DoesNotFitError where memory would run out.
    """
    yield StageEntered(at_s=time.time(), cell=cell.key, stage="simulating")
    known = hardware.named(slug)
    rates, host = GpuRates.of(known), _host(cell, known)
    gpu = Gpu.of(known)
    refuse_precision(cell, gpu)
    step, launching = _step_of(cell), _launching(cell, gpu)
    traced, _ = _traced(step, launching)
    replay, verdict = _served(step, launching, gpu.workspace_bytes).on(gpu)
    yield _predicted(cell, known, predict(traced, rates, host), replay)
    if not verdict.fits:
        where = "while the model is built" if verdict.failed_phase == "build" else f"in {verdict.failed_phase}"
        if cell.execution == "compiled":
            raise UnavailableError(
                f"the eager step does not fit on {gpu.title}, by {units.size(-verdict.margin_bytes)}; "
                "how much of that compiling saves is known once it has run"
            )
        raise DoesNotFitError(
            f"does not fit on {gpu.title}: memory runs out {where}, "
            f"{units.size(-verdict.margin_bytes)} more would be needed"
        )


def _step_of(cell: TimeCell) -> ModelCell:
    """The step, whichever GPU it is for."""
    return ModelCell(**{name: getattr(cell, name) for name in ModelCell.model_fields} | {"device": "cuda"})


def _launching(cell: TimeCell, gpu: Gpu) -> Gpu:
    """A GPU that launches the same kernels: only fused attention depends on the generation."""
    return Gpu("", UNLIMITED_BYTES, gpu.compute_capability if cell.attention != "naive" else (8, 0))


@lru_cache(maxsize=KEPT)
def _traced(step: ModelCell, gpu: Gpu) -> tuple[Trace, StepRecording]:
    return trace(step, gpu)


@lru_cache(maxsize=KEPT)
def _served(step: ModelCell, gpu: Gpu, workspace_bytes: int) -> Server:
    """Who answers what the step asks of the allocator, on GPUs with cuBLAS's workspaces of this size."""
    _, recording = _traced(step, gpu)
    settings = AllocatorSettings.from_environment(os.environ)
    return Server(recording.with_workspaces_of(workspace_bytes), settings)


def _host(cell: TimeCell, known: Hardware) -> HostRates:
    """The host of the file that is named, the one that was calibrated with the GPU, or a typical one."""
    return HostRates.read(cell.host) if cell.host is not None else host_of(known)


def _doubts(known: Hardware) -> Iterator[str]:
    """What is wrong with a calibration: said, as it is used nevertheless."""
    calibration = known.calibration
    if calibration is None:
        return
    if calibration.torch.partition("+")[0] != torch.__version__.partition("+")[0]:
        yield f"{known.slug} was calibrated with torch {calibration.torch}, this is torch {torch.__version__}"


def _predicted(cell: TimeCell, known: Hardware, found: StepPrediction, replay: Replay) -> StepPredicted:
    withheld, peak = found.withheld, hardware.peak(known, cell.precision)
    peaks = replay.peaks_of_last_step()
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
        allocated_peak_bytes=max(each.allocated_bytes for each in peaks),
        reserved_peak_bytes=max(each.reserved_bytes for each in peaks),
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
