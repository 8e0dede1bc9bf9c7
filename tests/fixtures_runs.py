"""A believable event stream of every command, without torch, a GPU or waiting: what reports are made of.

`stream(kind)` is what a small run of that command says, `record(kind)` what it comes down to. With `name`, everything
that others name (machines, devices, operators, files, errors) is called that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sysbench.command import Kind
from sysbench.commands.accum.record import SumMeasured
from sysbench.commands.accum.spec import AccumSpec
from sysbench.commands.attention.spec import AttentionSpec
from sysbench.commands.calibrate.record import RatesKnown, WorkTimed
from sysbench.commands.calibrate.spec import CalibrateSpec
from sysbench.commands.fit.record import Cause, CombinationTried, PeakExplained
from sysbench.commands.fit.spec import FitSpec
from sysbench.commands.loop.record import LoopTraced
from sysbench.commands.loop.spec import LoopSpec
from sysbench.commands.memory.record import (
    AllocationGroup,
    CodeLine,
    LargestAllocations,
    ModuleMemory,
    ModulesMeasured,
    PeakMeasured,
    PhaseMemoryMeasured,
    VerdictReached,
)
from sysbench.commands.memory.spec import MemoryCell, MemorySpec
from sysbench.commands.profile.record import ProfileRead, TraceWritten
from sysbench.commands.profile.spec import ProfileSpec
from sysbench.commands.time.spec import TimeSpec
from sysbench.log.events import (
    CellFinished,
    CellStarted,
    Event,
    GpuSimulated,
    MemoryMeasured,
    PhaseSample,
    RunFinished,
    RunStarted,
    StepMeasured,
    WorkerReady,
    encode,
)
from sysbench.log.kinds import command_of
from sysbench.log.predictions import PredictedTime
from sysbench.log.records import RunRecord
from sysbench.spec.cell import RunSpec
from sysbench.trace.summarise import summarise
from tests import fixtures_attention, fixtures_timing
from tests.fixtures_timing import A100, STARTED_AT_S, Machine
from tests.hosts import run_started
from tests.trace.synthetic_traces import recording, training

GIB = 2**30

KINDS: tuple[Kind, ...] = ("time", "profile", "memory", "attention", "accum", "calibrate", "loop", "fit")


def stream(kind: Kind, name: str = "", machine: Machine = A100) -> list[Event]:
    """Everything that a small run of this command says, from its start to its end."""
    events = list(_STREAMS[kind](name, machine))
    return [_called(event, name) for event in events] if name else events


def record(kind: Kind, name: str = "", machine: Machine = A100) -> RunRecord[Any]:
    """What it comes down to."""
    return command_of(kind).records().fold(stream(kind, name, machine))


def write_log(path: Path, events: list[Event]) -> Path:
    """A log as a run leaves it."""
    path.write_bytes(b"".join(encode(event) + b"\n" for event in events))
    return path


def write_record(path: Path, found: RunRecord[Any]) -> Path:
    """A record as a run leaves it."""
    path.write_text(found.model_dump_json(indent=1) + "\n")
    return path


def _called(event: Event, name: str) -> Event:
    """The same event on a machine with such a name, with such a device; cells that fail do so for such a reason."""
    match event:
        case RunStarted():
            host = event.host.model_copy(update={"hostname": name, "cpu": name, "platform": name})
            return event.model_copy(update={"host": host, "driver": name})
        case WorkerReady():
            devices = [device.model_copy(update={"name": name}) for device in event.devices]
            torch = event.torch.model_copy(update={"torch": name, "allocator": name})
            return event.model_copy(update={"devices": devices, "torch": torch})
        case CellStarted():
            return event.model_copy(update={"device": event.device.model_copy(update={"name": name})})
        case CellFinished(detail=str()):
            return event.model_copy(update={"detail": name})
        case GpuSimulated():
            return event.model_copy(update={"title": name, "settings": name})
    return event


def _time(name: str, machine: Machine) -> Iterator[Event]:
    spec = TimeSpec(size=("small", "xl"), ctx=(128, 1024), precision=("fp32", "bf16"), steps=(8,), warmup=(2,))
    yield from fixtures_timing.events(spec, machine)


def _attention(name: str, machine: Machine) -> Iterator[Event]:
    spec = AttentionSpec(impl=("naive", "compiled"), dim=(16, 64), seq=(256, 1024, 4096, 16384), repeats=10)
    yield from fixtures_attention.events(spec, machine, memory_bytes=12 * GIB)


def _begin(spec: RunSpec, machine: Machine) -> Iterator[Event]:
    yield run_started(spec, at_s=STARTED_AT_S, host=machine.host, driver=machine.driver)
    yield WorkerReady(at_s=STARTED_AT_S + 3, pid=4242, torch=machine.torch, devices=list(machine.devices))


def _profile(name: str, machine: Machine) -> Iterator[Event]:
    spec = ProfileSpec(size=("small",), ctx=(128, 256), mode=("train",), steps=(0,))
    cells = list(spec.cells())
    yield from _begin(spec, machine)
    kernels = {"gemm": name} if name else {}
    for index, cell in enumerate(cells):
        at_s = STARTED_AT_S + 5 + 10 * index
        axes = cell.model_dump(mode="json")
        yield CellStarted(at_s=at_s, cell=cell.key, index=index, axes=axes, device=machine.device)
        yield TraceWritten(at_s=at_s + 4, cell=cell.key, path=name or None, size_bytes=1000)
        trace = training(1, 2, kernel_ns=1000 * (index + 1), **kernels).trace(devices=(name or machine.device.name,))
        yield ProfileRead(at_s=at_s + 5, cell=cell.key, summary=summarise(recording(trace)))
        yield CellFinished(at_s=at_s + 6, cell=cell.key, outcome="ok")
    yield RunFinished(at_s=STARTED_AT_S + 40, status="complete")


def _memory(name: str, machine: Machine) -> Iterator[Event]:
    spec = MemorySpec(size=("small", "2.7b"), ctx=(128,), mode=("forward", "train"), simulate=("a100-80gb",))
    cells = list(spec.cells())
    yield from _begin(spec, machine)
    for index, cell in enumerate(cells):
        axes, at_s = cell.model_dump(mode="json"), STARTED_AT_S + 5 + index
        yield CellStarted(at_s=at_s, cell=cell.key, index=index, axes=axes, device=machine.devices[-1])
        yield GpuSimulated(
            at_s=at_s,
            cell=cell.key,
            title="NVIDIA A100-SXM4-80GB",
            memory_bytes=79 * GIB,
            context_bytes=GIB // 2,
            other_bytes=0,
            settings="",
        )
        yield from _peaks(cell, at_s, name)
        yield CellFinished(at_s=at_s + 0.5, cell=cell.key, outcome="ok")
    yield RunFinished(at_s=STARTED_AT_S + 40, status="complete")


def _peaks(cell: MemoryCell, at_s: float, name: str) -> Iterator[Event]:
    weights = cell.model.layers * cell.model.d_model * GIB // 10_000
    parts = {"parameters": weights, "activations": weights // 2}
    peak = sum(parts.values())
    about: dict[str, Any] = {"at_s": at_s, "cell": cell.key, "source": "simulated"}
    for phase in cell.phases:
        yield PhaseMemoryMeasured(
            **about, phase=phase, allocated_peak_bytes=peak, reserved_peak_bytes=peak + 1000, by_category=parts
        )
    yield PeakMeasured(
        **about,
        phase=cell.phases[-1],
        allocated_peak_bytes=peak,
        reserved_peak_bytes=peak + 1000,
        host_rss_peak_bytes=None,
        outside_bytes=GIB // 2,
        alloc_retries=0,
        by_category=parts,
    )
    line = CodeLine(filename=name or "model.py", line=7, name=name or "forward")
    group = AllocationGroup(
        count=2, size_bytes=weights // 4, category="activations", modules=[name or "layers.0"], phase=None, stack=[line]
    )
    yield LargestAllocations(**about, groups=[group])
    module = ModuleMemory(path=name or "layers.0", total_bytes=peak, own_bytes=peak, by_category=parts)
    yield ModulesMeasured(**about, modules=[module])
    yield VerdictReached(
        **about, fits=True, failed_phase=None, failed_step=None, margin_bytes=79 * GIB - peak, detail=None
    )


def _accum(name: str, machine: Machine) -> Iterator[Event]:
    spec = AccumSpec(experiment=("sums",), device="cpu")
    (cell,) = spec.cells()
    yield from _begin(spec, machine)
    axes = cell.model_dump(mode="json")
    yield CellStarted(at_s=STARTED_AT_S + 4, cell=cell.key, index=0, axes=axes, device=machine.devices[-1])
    sums = [
        ("fp32", "fp32", False, 0.009999999776482582, 10.000133514404297),
        ("fp16", "fp16", False, 0.01000213623046875, 9.953125),
        ("fp32", "fp16", False, 0.01000213623046875, 10.00213623046875),
        ("fp32", "fp16", True, 0.01000213623046875, 10.00213623046875),
    ]
    for accumulator, addend, upcast, rounded, result in sums:
        yield SumMeasured(
            at_s=STARTED_AT_S + 5,
            cell=cell.key,
            accumulator=accumulator,  # type: ignore[arg-type]
            addend=addend,  # type: ignore[arg-type]
            upcast=upcast,
            order="sequential",
            source="device",
            rounded_addend=rounded,
            result=result,
        )
    yield CellFinished(at_s=STARTED_AT_S + 6, cell=cell.key, outcome="ok")
    yield RunFinished(at_s=STARTED_AT_S + 7, status="complete")


def _calibrate(name: str, machine: Machine) -> Iterator[Event]:
    spec = CalibrateSpec(part=("memory",))
    yield from _begin(spec, machine)
    (cell,) = spec.cells()
    at_s = STARTED_AT_S + 5
    yield CellStarted(at_s=at_s, cell=cell.key, index=0, axes=cell.model_dump(mode="json"), device=machine.device)
    yield RatesKnown(at_s=at_s, cell=cell.key, slug="a100-80gb", rates={})
    yield WorkTimed(
        at_s=at_s + 1,
        cell=cell.key,
        rate="stream",
        case=name or "copy of 256 MiB",
        work=2**29,
        samples_s=[3.1e-4, 3.0e-4, 3.2e-4],
    )
    yield CellFinished(at_s=at_s + 2, cell=cell.key, outcome="ok")
    yield RunFinished(at_s=at_s + 3, status="complete")


def _loop(name: str, machine: Machine) -> Iterator[Event]:
    spec = LoopSpec(
        name="".join(filter(str.isprintable, name))[:100].strip() or "mine",
        by="record", device="cuda", phases=(), tokens=4096, warmup=1, steps=None, until=None, max_steps=1000,
        sync="phase",
    )  # fmt: skip
    yield from _begin(spec, machine)
    (cell,) = spec.cells()
    at_s = STARTED_AT_S + 5
    yield CellStarted(at_s=at_s, cell=cell.key, index=0, axes=cell.model_dump(mode="json"), device=machine.device)
    for number in range(-1, 12):
        phases = {name or "forward": 0.010 + 1e-5 * (number % 3), "backward": 0.021 + 1e-5 * (number % 4)}
        yield StepMeasured(
            at_s=at_s + 0.04 * number, cell=cell.key, index=max(0, number), warmup=number < 0,
            phases={phase: PhaseSample(wall_s=each_s, device_s=each_s) for phase, each_s in phases.items()},
            step=PhaseSample(wall_s=sum(phases.values()) + 0.004),
        )  # fmt: skip
    yield MemoryMeasured(
        at_s=at_s + 1, cell=cell.key, allocated_peak_bytes=3 * GIB, reserved_peak_bytes=4 * GIB,
        host_rss_peak_bytes=2 * GIB,
    )  # fmt: skip
    yield LoopTraced(at_s=at_s + 1, cell=cell.key, path=name or "trace.json.gz", steps=3)
    yield CellFinished(at_s=at_s + 2, cell=cell.key, outcome="ok")
    yield RunFinished(at_s=at_s + 3, status="complete")


def _fit(name: str, machine: Machine) -> Iterator[Event]:
    spec = FitSpec(size="small", ctx="1024", batch="8", gpus="rtx-4090")
    yield from _begin(spec, machine)
    (cell,) = spec.cells()
    at_s = STARTED_AT_S + 5
    yield CellStarted(at_s=at_s, cell=cell.key, index=0, axes=cell.model_dump(mode="json"), device=machine.device)
    yield PeakExplained(
        at_s=at_s + 1,
        cell=cell.key,
        phase="backward",
        allocated_peak_bytes=30 * GIB,
        causes=[Cause(kind="activations" if name else "attention scores", module=name, size_bytes=20 * GIB)],
        reference="a100-80gb",
    )
    trials: tuple[tuple[dict[str, Any], bool, int, float], ...] = (
        ({}, False, 31, 0.5),
        ({"attention": "sdpa", "checkpoint": "full"}, False, 12, 0.6),
        ({"precision": "bf16"}, True, 20, 0.3),
    )
    for number, (changes, relearns, needed_gib, step_s) in enumerate(trials):
        yield CombinationTried(
            at_s=at_s + 2 + number,
            cell=cell.key,
            gpu="rtx-4090",
            gpu_bytes=24 * GIB,
            changes=changes,
            relearns=relearns,
            ranks=1,
            fits=needed_gib < 24,
            phase="backward",
            margin_bytes=(24 - needed_gib) * GIB,
            allocated_peak_bytes=(needed_gib - 1) * GIB,
            by_category={"activations": (needed_gib - 1) * GIB},
            state_bytes=2 * GIB,
            step=PredictedTime(point_s=step_s, low_s=0.9 * step_s, high_s=1.2 * step_s),
            relative_s=step_s,
            tokens=8192,
            uncertainty_bytes=GIB // 2,
            recomputed_flops=10**13 if "checkpoint" in changes else 0,
        )
    yield CellFinished(at_s=at_s + 9, cell=cell.key, outcome="ok")
    yield RunFinished(at_s=at_s + 10, status="complete")


_STREAMS: Mapping[Kind, Callable[[str, Machine], Iterator[Event]]] = {
    "time": _time,
    "profile": _profile,
    "memory": _memory,
    "attention": _attention,
    "accum": _accum,
    "calibrate": _calibrate,
    "loop": _loop,
    "fit": _fit,
}
