"""Worker side of `sysbench fit --verify`: a few steps of a suggestion, measured on the GPU itself."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext

import torch

from sysbench.commands.fit.record import StepVerified, Trial
from sysbench.commands.fit.spec import FitCell
from sysbench.commands.fit.suggestions import best_trial
from sysbench.errors import SysbenchError
from sysbench.interpreter import gc_paused
from sysbench.lab.clocks import clock_for
from sysbench.lab.compilation import stage_entered
from sysbench.lab.devices import available_devices, synchronize, torch_device
from sysbench.lab.memory import allocator
from sysbench.lab.precision import matmul_precision
from sysbench.lab.step import TrainingStep
from sysbench.log.events import Event
from sysbench.spec import hardware
from sysbench.spec.knobs import allocator_options
from sysbench.spec.model import ModelCell

WARMUP_STEPS = 2
MEASURED_STEPS = 3


def run(cell: FitCell, trials: Sequence[Trial]) -> Iterator[Event]:
    """Measure the first suggestion, or the step as asked if there is none, on each GPU of the question that is here."""
    here = _devices_by_gpu()
    for gpu in (gpu for gpu in cell.on if gpu in here):
        yield stage_entered(cell.key, "measuring")
        asked = next(trial for trial in trials if trial.gpu == gpu and not trial.changes)
        trial = best_trial(trials, gpu, faster=cell.faster) or asked
        yield _verified(cell, trial, here[gpu])


def _devices_by_gpu() -> dict[str, torch.device]:
    found: dict[str, torch.device] = {}
    for info in available_devices():
        if info.type == "cuda" and (known := hardware.find(info.name, info.memory_bytes)):
            found.setdefault(known.slug, torch_device(info))
    return found


def _verified(cell: FitCell, trial: Trial, device: torch.device) -> StepVerified:
    step = cell.model_copy(update=trial.changes).step
    steps_s: list[float] = []
    failure = None
    if step.ranks > 1:
        failure = f"needs {step.ranks} GPUs"
    else:
        try:
            steps_s = _measure(step, device)
        except SysbenchError as error:
            failure = str(error)
        except Exception as error:
            if not allocator.is_out_of_memory(error):
                raise
            failure = "out of memory"
    peaks = allocator.peaks(device)
    allocator.release(device)
    return StepVerified(
        at_s=time.time(),
        cell=cell.key,
        gpu=trial.gpu,
        changes=trial.changes,
        steps_s=steps_s,
        allocated_peak_bytes=peaks.allocated_bytes if steps_s else None,
        reserved_peak_bytes=peaks.reserved_bytes if steps_s else None,
        failure=failure,
    )


def _measure(cell: ModelCell, device: torch.device) -> list[float]:
    options = allocator_options(cell.allocator)
    clock = clock_for(device)
    torch.cuda.set_device(device)
    with (
        nullcontext() if options is None else allocator.using_options(options, device),
        matmul_precision(cell.precision),
    ):
        allocator.release(device)
        step = TrainingStep(cell.model_copy(update={"device": str(device)}), device)
        for _ in range(WARMUP_STEPS):
            clock.measure(step.phases, "phase")
            step.forget()
        synchronize(device)
        allocator.reset_peaks(device)
        found = []
        with gc_paused(collect_first=True):
            for _ in range(MEASURED_STEPS):
                found.append(clock.measure(step.phases, "phase").wall_s)
                step.forget()
        return found
