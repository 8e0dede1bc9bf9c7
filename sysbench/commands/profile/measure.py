"""Profiling of a few steps. The unprofiled step is timed in another process."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import perf_counter  # by name: a model's code may replace time.perf_counter

import torch

from sysbench.commands.building import built_step
from sysbench.commands.own_models import counted_work
from sysbench.commands.profile.record import LinkMeasured
from sysbench.commands.profile.spec import ProfileCell
from sysbench.errors import SysbenchError
from sysbench.interpreter import gc_paused
from sysbench.lab.ceiling import fastest_all_reduce
from sysbench.lab.compilation import fresh_compiler, stage_entered
from sysbench.lab.devices import synchronize, torch_device
from sysbench.lab.precision import matmul_precision
from sysbench.lab.ranges import named, visible_to
from sysbench.lab.recorder import Recorder, recorder_for
from sysbench.lab.step import TrainingStep
from sysbench.lab.strategies import max_over_ranks
from sysbench.log.events import DeviceInfo, Event, PhaseSample, StageEntered, StepChecked, StepMeasured
from sysbench.log.storage import cannot_write


def run(cell: ProfileCell, device: DeviceInfo, artifact: Path | None = None) -> Iterator[Event]:
    """Build the cell on `device`, warm it up, and write a trace of its steps to `artifact`.

    With --simulate, write the trace of a predicted step instead. Raises UnavailableError if the cell cannot run on the
    device; exceptions raised by a step propagate.
    """
    if artifact is None:
        raise SysbenchError("a profile needs a path for its trace")
    if cell.simulate is not None:
        yield from _write_predicted_trace(cell, cell.simulate, artifact)
        return
    target = torch_device(device)
    with ExitStack() as settings:
        settings.enter_context(matmul_precision(cell.precision))
        if cell.is_compiled or cell.attention == "flex":
            settings.enter_context(fresh_compiler())
        yield from _run_stages(cell, target, artifact)


def _run_stages(cell: ProfileCell, device: torch.device, artifact: Path) -> Iterator[Event]:
    step = yield from built_step(cell, device, lambda step: _time_step(step, device))
    if cell.warmup:
        yield stage_entered(cell.key, "warming-up")
    for index in range(cell.warmup):
        yield _step_event(cell, index, _time_step(step, device), warmup=True)

    yield stage_entered(cell.key, "profiling")
    # gloo's collectives have sizes only if operator shapes are recorded; NCCL's always have them.
    recorder = recorder_for(cell.profiler, device, shapes=cell.shapes or (cell.ranks > 1 and device.type == "cpu"))
    for index, step_s in enumerate(_profile_steps(cell, step, device, recorder)):
        yield _step_event(cell, index, step_s, warmup=False)
    yield StepChecked(
        at_s=time.time(),
        cell=cell.key,
        gradients_present=step.gradients_present,
        parameters_changed=None,
        loss=step.loss,
        attention_kernel=step.work.attention_kernel,
    )

    yield from counted_work(cell, step)
    yield stage_entered(cell.key, "writing")
    recorder.write(artifact)
    if cell.ranks > 1:
        message_bytes, rate = fastest_all_reduce(device)
        yield LinkMeasured(at_s=time.time(), cell=cell.key, message_bytes=message_bytes, bus_bytes_per_s=rate)


def _write_predicted_trace(cell: ProfileCell, slug: str, artifact: Path) -> Iterator[Event]:
    """Predict a step of the cell on the GPU `slug`, and write its trace to `artifact`."""
    # Imported late: few runs predict, and these modules take a while to import.
    from sysbench.predict.recording import recording
    from sysbench.predict.simulated_step import SimulatedStep
    from sysbench.trace import window

    step = SimulatedStep(cell, slug, cell.host, with_modules=True, sync_per_step=True)
    yield from step.events()
    yield StageEntered(at_s=time.time(), cell=cell.key, stage="writing")
    step_recording = recording(step.prediction, artifact.name)
    try:
        window.write(
            artifact,
            window.extract_slice(step_recording, window.find_window(step_recording, None), sys.maxsize),
            sys.maxsize,
        )
    except OSError as error:
        raise cannot_write(artifact, error) from error


def _profile_steps(cell: ProfileCell, step: TrainingStep, device: torch.device, recorder: Recorder) -> list[float]:
    """Record all steps, and return the duration of each in seconds. No event is sent until all steps are finished.

    One step runs before them, which pays for setting up the profiler. The ranks are synchronized only before the first
    recorded step; later steps follow one another as in training.
    """
    # Compiled models have no module ranges: the ranges would be compiled with the model or cause graph breaks.
    model = step.work.model if not cell.is_compiled else None
    warm_up = partial(_time_step, step, device)
    with gc_paused(collect_first=True), recorder.recording(warm_up), visible_to(recorder.ranges, model):
        max_over_ranks()
        return [_time_step(step, device) for _ in range(cell.active)]


def _time_step(step: TrainingStep, device: torch.device) -> float:
    """Run one step and return its duration in seconds. The device is synchronized only before and after the step."""
    step.forget()
    synchronize(device)
    start_s = perf_counter()
    with named("step"):
        for _, run_phase in step.phases:
            run_phase()
        synchronize(device)
    return perf_counter() - start_s


def _step_event(cell: ProfileCell, index: int, step_s: float, *, warmup: bool) -> StepMeasured:
    return StepMeasured(
        at_s=time.time(), cell=cell.key, index=index, warmup=warmup, phases={}, step=PhaseSample(wall_s=step_s)
    )
