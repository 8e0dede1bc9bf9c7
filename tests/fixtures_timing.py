"""Believable event streams of `sysbench time`, without a GPU, without torch and without waiting.

`events(spec, machine, seed)` is what a run of the spec on the machine would have said, with its own clock and a seeded
noise model: phases take what their FLOPs or their launches cost, the first steps are slow, memory runs out where it
would. `record(...)` is the record that the stream folds into.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from sysbench import formulas
from sysbench.commands.time.fold import fold
from sysbench.commands.time.record import TimeRecord
from sysbench.commands.time.spec import TimeCell, TimeSpec
from sysbench.log.events import (
    CeilingMeasured,
    CellFinished,
    CellStarted,
    Compiled,
    DeviceInfo,
    Event,
    HostInfo,
    MemoryMeasured,
    ModelBuilt,
    PhaseSample,
    Reading,
    RunFinished,
    StageEntered,
    StepChecked,
    StepMeasured,
    TorchInfo,
    WorkerExited,
    WorkerReady,
)
from tests.hosts import BENCH, run_started

GIB = 2**30
STARTED_AT_S = 1_795_182_600.0
"""2026-11-20, some time in the afternoon."""


@dataclass(frozen=True)
class Machine:
    """What a machine says of itself, and how fast it is."""

    devices: tuple[DeviceInfo, ...]
    host: HostInfo
    torch: TorchInfo
    flops_per_s: dict[str, float]
    """Reached in a training step, by precision."""
    launch_s: float
    """Host time per layer and pass, below which no phase of a GPU can go."""
    optimizer_bytes_per_s: float
    first_step_s: float = 1.0
    """What the first step takes on top: loading kernels, growing pools."""
    noise: float = 0.002
    driver: str | None = None

    @property
    def device(self) -> DeviceInfo:
        """What `auto` stands for."""
        return self.devices[0]


_TORCH = TorchInfo(
    torch="2.13.0+cu130", cuda="13.0", cudnn="9.12", triton="3.5", threads=64, allocator=None, import_s=2.6
)

_CPU = DeviceInfo(name="AMD EPYC 7763 64-Core Processor", type="cpu", memory_bytes=512 * GIB)

A100 = Machine(
    devices=(
        DeviceInfo(
            name="NVIDIA A100-SXM4-80GB",
            type="cuda",
            uuid="GPU-5d1e7a3c-0b6f-4c5e-9a39-2f1f6c1f9a10",
            memory_bytes=80 * GIB,
            compute_capability="8.0",
            multiprocessors=108,
        ),
        _CPU,
    ),
    host=BENCH,
    torch=_TORCH,
    flops_per_s={"fp32": 15.2e12, "tf32": 71e12, "bf16": 112e12, "fp16": 115e12},
    launch_s=0.0018,
    optimizer_bytes_per_s=1.25e12,
    driver="580.95.05",
)

TWO_CORES = Machine(
    devices=(DeviceInfo(name="Intel Xeon @ 2.20GHz", type="cpu", memory_bytes=16 * GIB),),
    host=BENCH.model_copy(
        update={
            "cpu": "Intel Xeon @ 2.20GHz",
            "physical_cores": 2,
            "logical_cores": 2,
            "memory_bytes": 16 * GIB,
        }
    ),
    torch=_TORCH.model_copy(update={"torch": "2.13.0+cpu", "cuda": None, "cudnn": None, "triton": None, "threads": 2}),
    flops_per_s={"fp32": 0.11e12, "bf16": 0.07e12},
    launch_s=0.0,
    optimizer_bytes_per_s=9e9,
    first_step_s=0.4,
    noise=0.012,
)

_SPEED_UP = {"compiled": 1.22, "sdpa": 1.15, "flash": 1.31, "fused": 1.9, "for-loop": 0.35}


@dataclass
class _Run:
    """The clock and the dice of one stream."""

    machine: Machine
    dice: random.Random
    now_s: float = STARTED_AT_S
    last_reading_s: float = field(default=STARTED_AT_S)
    used_bytes: float = 0.0

    def after(self, seconds: float) -> float:
        self.now_s += seconds
        return self.now_s

    def noisy(self, seconds: float) -> float:
        return seconds * math.exp(self.dice.gauss(0, self.machine.noise))


def events(spec: TimeSpec, machine: Machine = A100, seed: int = 0) -> list[Event]:
    """Everything that a run of `spec` on `machine` says, from its start to its end."""
    return list(_events(spec, machine, seed))


def record(spec: TimeSpec, machine: Machine = A100, seed: int = 0) -> TimeRecord:
    """The record of such a run."""
    return fold(events(spec, machine, seed))


def until_measuring(stream: list[Event], cell: int, step: int) -> list[Event]:
    """The stream up to measured step `step` of cell `cell`, both counted from 0: what a run has said half-way."""
    started = [number for number, event in enumerate(stream) if isinstance(event, CellStarted)][cell]
    for number, event in enumerate(stream[started:], started):
        if isinstance(event, StepMeasured) and not event.warmup and event.index == step:
            return stream[: number + 1]
    raise ValueError(f"cell {cell} has no measured step {step}")


def _events(spec: TimeSpec, machine: Machine, seed: int) -> Iterator[Event]:
    run = _Run(machine, random.Random(seed))
    cells = list(spec.cells())
    yield run_started(spec, at_s=run.now_s, host=machine.host, driver=machine.driver)
    yield from _worker(run)
    for precision in spec.precision:
        yield CeilingMeasured(
            at_s=run.after(0.3),
            device=machine.device.torch_name,
            precision=precision,
            matmul_flops_per_s=machine.flops_per_s[precision] * 1.25,
            matmul_size=8192,
        )
    too_large: list[TimeCell] = []
    for index, cell in enumerate(cells):
        larger = next((other for other in too_large if _at_least(cell, other)), None)
        if larger is not None:
            detail = f"larger than {larger.size} ctx {larger.ctx}, which ran out of memory"
            yield CellFinished(at_s=run.now_s, cell=cell.key, outcome="skipped", detail=detail)
            continue
        yield from _cell(run, cell, index)
        if _need_bytes(cell) > (_device(run, cell).memory_bytes or math.inf):
            too_large.append(cell)
            yield WorkerExited(at_s=run.after(0.1), pid=4242, exit_code=0, signal=None)
            yield from _worker(run)
    yield RunFinished(at_s=run.after(0.05), status="complete")


def _worker(run: _Run) -> Iterator[Event]:
    machine = run.machine
    yield WorkerReady(at_s=run.after(2.9), pid=4242, torch=machine.torch, devices=list(machine.devices))


def _cell(run: _Run, cell: TimeCell, index: int) -> Iterator[Event]:
    device = _device(run, cell)
    if device.type == "cpu" and run.machine.device.type != "cpu":
        run = replace(run, machine=replace(TWO_CORES, devices=run.machine.devices, flops_per_s={"fp32": 1.6e12}))
    started_s = run.now_s
    yield CellStarted(at_s=started_s, cell=cell.key, index=index, axes=cell.model_dump(mode="json"), device=device)
    yield StageEntered(at_s=run.now_s, cell=cell.key, stage="building")
    need = _need_bytes(cell)
    if need > (device.memory_bytes or math.inf):
        detail = (
            f"CUDA out of memory. Tried to allocate {need / GIB / 40:.2f} GiB. GPU 0 has a total capacity of 79.15 GiB"
        )
        yield CellFinished(at_s=run.after(0.9), cell=cell.key, outcome="oom", detail=detail)
        return
    parameters = formulas.parameters(cell.model)
    yield ModelBuilt(
        at_s=run.after(0.2 + parameters / 1e9),
        cell=cell.key,
        parameters=parameters,
        parameters_without_lm_head=formulas.parameters_without_lm_head(cell.model),
        build_s=0.2 + parameters / 1e9,
    )
    run.used_bytes = need * 0.8
    yield from _readings(run)
    if cell.is_compiled:
        yield StageEntered(at_s=run.now_s, cell=cell.key, stage="compiling")
        yield Compiled(
            at_s=run.after(21.0), cell=cell.key, compile_s=21.0, graphs=1, graph_breaks=0, fell_back=False, detail=None
        )
    run.used_bytes = need * 1.06
    yield from _steps(run, cell, warmup=True)
    yield from _steps(run, cell, warmup=False)
    on_gpu = device.type == "cuda"
    yield MemoryMeasured(
        at_s=run.now_s,
        cell=cell.key,
        allocated_peak_bytes=int(need) if on_gpu else None,
        reserved_peak_bytes=int(need * 1.04) if on_gpu else None,
        host_rss_peak_bytes=int(1.2 * GIB if on_gpu else need),
    )
    yield StepChecked(
        at_s=run.now_s,
        cell=cell.key,
        gradients_present=True if "backward" in cell.phases else None,
        parameters_changed=True if "optimizer" in cell.phases else None,
        loss=9.21,
        attention_kernel=None,
    )
    yield CellFinished(at_s=run.after(0.02), cell=cell.key, outcome="ok")


def _steps(run: _Run, cell: TimeCell, *, warmup: bool) -> Iterator[Event]:
    count = cell.warmup if warmup else cell.steps if cell.until is None else 3 * cell.steps
    if count:
        stage = "warming-up" if warmup else "measuring"
        yield StageEntered(at_s=run.now_s, cell=cell.key, stage=stage)
    on_gpu = _device(run, cell).type == "cuda"
    for index in range(count):
        first = index == 0 and (warmup or cell.warmup == 0)
        phases = {}
        for phase in cell.phases:
            ideal_s, launch_s = _costs(run.machine, cell, phase)
            wall_s = run.noisy(max(ideal_s, launch_s))
            if first and phase in ("forward", "backward"):
                wall_s += run.noisy(run.machine.first_step_s)
            phases[phase] = PhaseSample(
                wall_s=wall_s,
                enqueue_s=min(wall_s * 0.99, run.noisy(launch_s)) if on_gpu else None,
                device_s=min(wall_s, run.noisy(ideal_s)) if on_gpu else None,
            )
        step = PhaseSample(
            wall_s=sum(sample.wall_s or 0 for sample in phases.values()),
            enqueue_s=sum(sample.enqueue_s or 0 for sample in phases.values()) if on_gpu else None,
            device_s=sum(sample.device_s or 0 for sample in phases.values()) if on_gpu else None,
        )
        run.after(step.wall_s or 0)
        yield StepMeasured(at_s=run.now_s, cell=cell.key, index=index, warmup=warmup, phases=phases, step=step)
        yield from _readings(run)


def _readings(run: _Run) -> Iterator[Event]:
    if run.now_s - run.last_reading_s < 0.5:
        return
    run.last_reading_s = run.now_s
    if run.machine.device.type == "cuda":
        yield Reading(
            at_s=run.now_s,
            host_rss_bytes=int(1.2 * GIB),
            host_available_bytes=480 * GIB,
            host_cpu_share=0.01,
            device_used_bytes=int(run.used_bytes + 0.5 * GIB),
            device_utilisation=0.99,
            sm_clock_hz=1.41e9,
            power_w=run.noisy(312.0),
            temperature_c=61.0,
            energy_j=(run.now_s - STARTED_AT_S) * 300,
            throttle_reasons=[],
            other_processes=0,
        )
    else:
        resident = int(0.4 * GIB + run.used_bytes)
        yield Reading(
            at_s=run.now_s,
            host_rss_bytes=resident,
            host_available_bytes=max(0, run.machine.host.memory_bytes - resident - 2 * GIB),
            host_cpu_share=0.02,
        )


def _device(run: _Run, cell: TimeCell) -> DeviceInfo:
    devices = run.machine.devices
    return next((each for each in devices if cell.device in (each.type, each.torch_name)), devices[0])


def _costs(machine: Machine, cell: TimeCell, phase: str) -> tuple[float, float]:
    """Seconds that the device needs for a phase, and that the host needs to launch it."""
    speed = machine.flops_per_s[cell.precision]
    for choice in (cell.execution, cell.attention):
        speed *= _SPEED_UP.get(choice, 1.0)
    flops = formulas.phase_flops(cell.model, cell.ctx, cell.batch).get(phase)
    passes = {"forward": 1.0, "backward": 1.3}.get(phase, 0.0)
    if flops is not None:
        launch_s = passes * cell.model.layers * machine.launch_s
        return flops / speed, launch_s * (0.3 if cell.execution == "compiled" else 1.0)
    if phase == "optimizer":
        moved = 28 * formulas.parameters(cell.model)
        return moved / machine.optimizer_bytes_per_s / _SPEED_UP.get(cell.optimizer, 1.0), 0.0
    return (8e-5 if phase == "zero_grad" else 4e-4), 0.0


def _need_bytes(cell: TimeCell) -> float:
    """A rough guess that runs out where such models do: weights, gradients, state, and activations."""
    model, tokens = cell.model, cell.batch * cell.ctx
    width = 0.6 if cell.precision in ("bf16", "fp16") else 1.0
    per_layer = tokens * (12 * model.d_model + 5 * model.d_ff) + 4 * cell.batch * model.heads * cell.ctx**2
    activations = 4 * width * (model.layers * per_layer + 3 * tokens * model.vocab)
    return (16 if cell.mode == "train" else 8) * formulas.parameters(model) + activations


def _at_least(cell: TimeCell, other: TimeCell) -> bool:
    return (
        cell.precision == other.precision
        and cell.ctx >= other.ctx
        and cell.batch >= other.batch
        and formulas.parameters(cell.model) >= formulas.parameters(other.model)
    )
