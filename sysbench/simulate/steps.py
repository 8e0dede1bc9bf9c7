"""The steps of a cell under a protocol, run without data or on a real device while a recorder observes them."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import torch

from sysbench.errors import UnavailableError
from sysbench.interpreter import gc_paused
from sysbench.lab.compilation import compiled_event
from sysbench.lab.step import TrainingStep
from sysbench.lab.workload.imports import modules_behind, modules_of_simulations
from sysbench.log.outcomes import ATTENTION_TRIAL, BUILD
from sysbench.simulate.compiler.own_compiling import CompiledParts, compiling_nothing
from sysbench.simulate.compiler.without_compiler import without_compiler
from sysbench.simulate.cuda.answers import answering_as_gpu
from sysbench.simulate.cuda.autocast import cuda_autocast
from sysbench.simulate.cuda.composites import using_composites
from sysbench.simulate.ordered import ordered_streams
from sysbench.simulate.origins import Origins
from sysbench.simulate.platform import REAL_PLATFORM, Platform
from sysbench.simulate.recorder import Device, RealDevice
from sysbench.simulate.recording import StepRecording
from sysbench.simulate.step_recorder import MICRO_BATCH_PHASES, StepRecorder
from sysbench.simulate.tensors import DEVICE, DeviceObserver, KnownValues, SimulatedDevice
from sysbench.spec.knobs import FP8
from sysbench.spec.model import ModelCell
from sysbench.spec.ranks import ZERO, layout
from sysbench.spec.steps import PROCEDURES, Phase, Protocol

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_SETTLE_S = 0.005
"""Pause after each phase if there are several ranks: gloo's threads release tensors shortly after a collective ends."""


def _refuse_hidden_memory(cell: ModelCell) -> None:
    if cell.cross_entropy == "linear":
        raise UnavailableError(
            "--cross-entropy linear is one operator of torch, and what it allocates inside is not seen here: measure "
            "it on a GPU. Nearest that is seen: chunked"
        )


def record(
    cell: ModelCell,
    protocol: Protocol,
    platform: Platform,
    *,
    origins: bool = True,
    parts: bool = False,
    steps: bool = True,
    device: Callable[[DeviceObserver], Device] = SimulatedDevice,
) -> StepRecording:
    """Run the cell under the protocol, without data, and record its allocator requests.

    With `origins`, stacks and modules are recorded, which takes a fifth of the total time. With `parts`, the named
    parts of a module count as modules, and no stacks of Python code are recorded. Without `steps`, the model is only
    built. `device` creates the device to run on, given the observer to report to. Raises UnavailableError for cells
    that cannot be simulated, and for attention that the platform does not support.
    """
    _refuse_hidden_memory(cell)
    if cell.is_compiled and cell.strategy == "tp":
        raise UnavailableError("compiled steps of tensor parallelism cannot be simulated, only measured")
    # FlexAttention is part of the compiler, user code may use any of it; tensor parallelism, peft, torchao use it too.
    compiling = cell.attention == "flex" or cell.own is not None or cell.strategy == "tp"
    compiling |= cell.lora > 0 or cell.precision in FP8 or cell.is_compiled
    with (
        _simulated_ranks_of(cell) as mesh,
        ordered_streams() if cell.offload == "optimizer" else nullcontext(),
        nullcontext() if compiling else without_compiler(),
        using_composites(platform.composites),
        cuda_autocast(platform.autocast),
        _serving_user_code(cell, platform) as run_eagerly,
    ):
        tracker = Origins(None if parts else _run_steps.__code__, parts=parts) if origins else None
        recorder = StepRecorder(platform, device, tracker, cell)
        if isinstance(recorder.device, SimulatedDevice):
            recorder.device.values = KnownValues() if cell.own is not None else None
            recorder.device.offloads = cell.offload == "parameters"
        with (
            _sharding_handled(mesh, recorder.device),
            recorder.device,
            _compiling_for(cell, protocol, recorder.device, platform) as breaks,
        ):
            for number in _run_steps(recorder, cell, protocol, DEVICE, mesh=mesh):
                if number < 0 and not steps:
                    break
            compiled = compiled_event(cell.key, None, breaks) if cell.is_compiled else None
        recording = replace(recorder.step_recording(cell, protocol), compiled=compiled)
        if (own := recording.own_model) is not None and run_eagerly is not None:
            places = run_eagerly.places(modules_behind(own.files))
            recording = replace(recording, own_model=own.model_copy(update={"run_eagerly": places}))
    is_whole = layout(cell.strategy, cell.ranks)[1] == 1 and cell.quantize is None and cell.strategy not in ZERO
    return recording if is_whole else recording.without_build_temporaries()


@contextmanager
def _serving_user_code(cell: ModelCell, platform: Platform) -> Iterator[CompiledParts | None]:
    """Context manager for user code, if there is any; yields the parts that run eagerly although they are compiled."""
    if cell.own is None:
        yield None
        return
    if cell.is_compiled:
        import torch._dynamo.variables  # noqa: F401  It keeps torch's functions as it finds them: not a GPU's answers.
    compiling = nullcontext() if cell.is_compiled else compiling_nothing()
    with answering_as_gpu(platform.capability), modules_of_simulations(), compiling as parts:
        yield parts


def _compiling_for(
    cell: ModelCell, protocol: Protocol, device: Device, platform: Platform
) -> AbstractContextManager[Collection[str]]:
    if not cell.is_compiled or not isinstance(device, SimulatedDevice):
        return nullcontext(())
    from sysbench.simulate.compiler.compiled import compiling_on  # whose imports take seconds

    return compiling_on(device, platform, cell, has_backward="backward" in PROCEDURES[protocol].phases)


def _simulated_ranks_of(cell: ModelCell) -> AbstractContextManager[DeviceMesh | None]:
    if cell.strategy is None:
        return nullcontext()
    from sysbench.simulate.ranks import simulated_ranks  # which takes half a second to import

    return simulated_ranks(cell.strategy, cell.ranks)


def _sharding_handled(mesh: DeviceMesh | None, device: Device) -> AbstractContextManager[None]:
    if mesh is None:
        return nullcontext()
    from sysbench.simulate.ranks import sharding_on

    return sharding_on(device)


def record_real(
    cell: ModelCell, protocol: Protocol, device: torch.device, mesh: DeviceMesh | None = None
) -> Iterator[StepRecording]:
    """Run the cell under the protocol on a real device, and record its storages; with `mesh`, as one of several ranks.

    Yields the recording so far after the last occurrence of each phase in the measured step.
    """
    _refuse_hidden_memory(cell)
    recorder = StepRecorder(
        REAL_PLATFORM, lambda observer: RealDevice(observer, device), Origins(_run_steps.__code__), cell
    )
    last = PROCEDURES[protocol].earlier_steps
    with _sharding_handled(mesh, recorder.device), recorder.device:
        settle = (lambda: None) if mesh is None else (lambda: time.sleep(_SETTLE_S))
        for step in _run_steps(recorder, cell, protocol, device, gc.collect, settle, mesh=mesh):
            if step == last and recorder.occurrence == cell.occurrences(recorder.phase) - 1:
                yield recorder.step_recording(cell, protocol)


def _run_steps(
    recorder: StepRecorder,
    cell: ModelCell,
    protocol: Protocol,
    device: torch.device,
    after_build: Callable[[], object] = lambda: None,
    after_phase: Callable[[], None] = lambda: None,
    mesh: DeviceMesh | None = None,
) -> Iterator[int]:
    """Build the model and run the steps; yield -1 after the build, and the number of the step after each phase."""
    with gc_paused():
        with recorder.span(-1, BUILD):
            step = TrainingStep(
                cell.model_copy(update={"mode": PROCEDURES[protocol].mode}),
                device,
                mesh,
                trial=partial(recorder.span, -1, ATTENTION_TRIAL),
            )
            # In a new process, the trial run of the attention kernel leaves reference cycles that keep its tensors
            # alive.
            after_build()
        recorder.built(step)
        yield -1
        with recorder.tracking_modules(step):
            phases = phases_of(step, protocol)
            for number, phase, run in phases:
                with recorder.span(number, phase):
                    run()
                    after_phase()
                recorder.ended(phase, step)
                yield number
                if phase == "backward":
                    left = cell.grad_accum - 1 - recorder.occurrence
                    is_last_step = number > 0 and number == PROCEDURES[protocol].earlier_steps
                    repeated = recorder.repeat_micro_batches(left, is_last_step=is_last_step)
                    deque(islice(phases, repeated * len(MICRO_BATCH_PHASES)), maxlen=0)
        recorder.device.stop()


def phases_of(step: TrainingStep, protocol: Protocol) -> Iterator[tuple[int, Phase, Callable[[], None]]]:
    """Yield (step number, phase, function that runs the phase) in order; the last step is the measured one.

    Outputs of the previous step are released before the first phase of the next step is yielded. If the caller resets
    the peaks at that point, they exclude those outputs.
    """
    procedure = PROCEDURES[protocol]
    for number in range(procedure.earlier_steps + 1):
        step.forget()
        for phase, run in step.phases:
            if phase in procedure.phases:
                yield number, phase, run
