"""Believable event streams of `sysbench attention`, without a GPU, without torch and without waiting.

Times follow `floor + a·N²·(d + 16)` with noise from a seed, memory the formulas, and memory runs out where it would.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sysbench import formulas as attention_costs
from sysbench.commands.attention.fold import fold
from sysbench.commands.attention.record import (
    AttentionAccounted,
    AttentionChecked,
    AttentionError,
    AttentionKernels,
    AttentionMemory,
    AttentionRecord,
    AttentionTensor,
    AttentionTimed,
)
from sysbench.commands.attention.spec import AttentionSpec
from sysbench.log.events import (
    CellFinished,
    CellStarted,
    Compiled,
    Event,
    GpuSimulated,
    PhaseSample,
    RunFinished,
    StageEntered,
    WorkerReady,
)
from sysbench.spec import hardware
from sysbench.spec.attention import AttentionCell
from tests.fixtures_timing import A100, STARTED_AT_S, TWO_CORES, Machine
from tests.hosts import run_started

__all__ = ["TWO_CORES", "events", "record"]

GIB = 2**30


@dataclass(frozen=True)
class Kind:
    """How fast an implementation is, and what it keeps."""

    floor_s: float
    slope_s: float
    """Of forward, for each of R·N²·(d + 16)."""
    fused: bool = False
    backward: float = 2.0


KINDS: Mapping[str, Kind] = {
    "naive": Kind(40e-6, 8.0e-13),
    "compiled": Kind(60e-6, 4.4e-13),
    "sdpa-math": Kind(50e-6, 8.8e-13),
    "sdpa-efficient": Kind(30e-6, 2.6e-13, fused=True, backward=2.6),
    "sdpa-flash": Kind(90e-6, 2.0e-13, fused=True, backward=2.4),
}


def events(
    spec: AttentionSpec, machine: Machine = A100, seed: int = 0, noise: float = 0.01, memory_bytes: int = 40 * GIB
) -> list[Event]:
    """Everything that a run of `spec` says, from its start to its end."""
    return list(_events(spec, machine, random.Random(seed), noise, memory_bytes))


def record(spec: AttentionSpec, **options: object) -> AttentionRecord:
    """The record of such a run."""
    return fold(events(spec, **options))  # type: ignore[arg-type]


def _events(
    spec: AttentionSpec, machine: Machine, dice: random.Random, noise: float, memory_bytes: int
) -> Iterator[Event]:
    now_s = STARTED_AT_S
    cells = list(spec.cells())
    yield run_started(spec, at_s=now_s, host=machine.host, driver=machine.driver)
    yield WorkerReady(at_s=now_s + 2.6, pid=4711, torch=machine.torch, devices=list(machine.devices))
    now_s += 2.6
    too_large: list[AttentionCell] = []
    for index, cell in enumerate(cells):
        if cell.implementation == "flash-attn":
            yield CellFinished(at_s=now_s, cell=cell.key, outcome="invalid", detail="flash-attn is not installed")
            continue
        larger = next((other for other in too_large if _at_least(cell, other)), None)
        if larger is not None:
            detail = f"at least as large as {larger.title}, which ran out of memory. --force starts it anyway"
            yield CellFinished(at_s=now_s, cell=cell.key, outcome="skipped", detail=detail, reason="larger-than-failed")
            continue
        for event in _cell(cell, index, machine, dice, noise, memory_bytes, now_s):
            now_s = event.at_s
            yield event
            if isinstance(event, CellFinished) and event.outcome == "oom" and not cell.simulated:
                too_large.append(cell)
    yield RunFinished(at_s=now_s, status="complete")


def _cell(
    cell: AttentionCell,
    index: int,
    machine: Machine,
    dice: random.Random,
    noise: float,
    memory_bytes: int,
    now_s: float,
) -> Iterator[Event]:
    device = machine.devices[-1] if cell.simulated else machine.device
    kind = KINDS.get(cell.implementation, KINDS["naive"])
    yield CellStarted(at_s=now_s, cell=cell.key, index=index, axes=cell.model_dump(mode="json"), device=device)
    if cell.simulate is not None:
        gpu = hardware.by_name(cell.simulate)
        memory_bytes = gpu.memory_bytes
        yield GpuSimulated(
            at_s=now_s, cell=cell.key, title=gpu.title, memory_bytes=gpu.memory_bytes,
            context_bytes=GIB // 2, other_bytes=0, settings="",
        )  # fmt: skip
    saved = attention_costs.fused_saved_bytes(cell) if kind.fused else attention_costs.naive_saved_bytes(cell)
    inputs = attention_costs.bytes_moved(cell, "forward")
    need = inputs + int(1.5 * saved if not kind.fused else saved)
    if need > memory_bytes:
        yield AttentionAccounted(at_s=now_s + 0.01, cell=cell.key, tensors=_tensors(cell), available_bytes=memory_bytes)
        yield CellFinished(at_s=now_s + 0.02, cell=cell.key, outcome="oom", detail="CUDA out of memory")
        return
    if not cell.simulated:
        yield from _timed(cell, kind, machine, dice, noise, now_s)
        now_s += 0.001 * (cell.repeats + cell.warmup)
        yield AttentionKernels(at_s=now_s, cell=cell.key, forward=f"aten::{cell.implementation}")
        error = AttentionError(max_abs=3e-7, relative=2.1e-7)
        names = ("output", "q", "k", "v")
        yield AttentionChecked(at_s=now_s, cell=cell.key, errors=dict.fromkeys(names, error), sample="1 of 8 sequences")
    yield AttentionMemory(
        at_s=now_s,
        cell=cell.key,
        source="simulated" if cell.simulated else "measured",
        before_backward_bytes=inputs + saved,
        saved_bytes=saved,
        peak_allocated_bytes=need,
    )
    yield CellFinished(at_s=now_s, cell=cell.key, outcome="ok")


def _timed(
    cell: AttentionCell, kind: Kind, machine: Machine, dice: random.Random, noise: float, now_s: float
) -> Iterator[Event]:
    if cell.implementation == "compiled":
        yield StageEntered(at_s=now_s, cell=cell.key, stage="compiling")
        yield Compiled(at_s=now_s, cell=cell.key, compile_s=3.4, graphs=1, graph_breaks=0, fell_back=False)
    forward_s = kind.floor_s + kind.slope_s * cell.rows * cell.seq**2 * (cell.dim + 16)
    level = math.exp(dice.gauss(0, noise))
    for warmup, count in ((True, cell.warmup), (False, cell.repeats)):
        yield StageEntered(at_s=now_s, cell=cell.key, stage="warming-up" if warmup else "measuring")
        for phase, typical_s in (("forward", forward_s), ("backward", kind.backward * forward_s)):
            for number in range(count):
                seconds = typical_s * level * math.exp(dice.gauss(0, 0.01))
                now_s += 0.0005
                yield AttentionTimed(
                    at_s=now_s,
                    cell=cell.key,
                    index=number,
                    warmup=warmup,
                    phase=phase,  # type: ignore[arg-type]
                    sample=PhaseSample(wall_s=seconds, device_s=None if machine.device.type == "cpu" else seconds),
                )


def _tensors(cell: AttentionCell) -> list[AttentionTensor]:
    size = attention_costs.ELEMENT_BYTES[cell.precision]
    square, flat = [cell.rows, cell.seq, cell.seq], [cell.rows, cell.seq, cell.dim]
    dtype = "float32"
    return [
        AttentionTensor(
            name="q, k, v", shape=[3, *flat], dtype=dtype, phase="inputs", size_bytes=3 * math.prod(flat) * size
        ),
        *(
            AttentionTensor(name=name, shape=square, dtype=dtype, phase="forward", size_bytes=math.prod(square) * size)
            for name in ("scores", "scaled scores", "probabilities")
        ),
    ]


def _at_least(cell: AttentionCell, other: AttentionCell) -> bool:
    alike = cell.comparability_key == other.comparability_key
    return alike and all(a >= b for a, b in zip(cell.memory_dimensions, other.memory_dimensions, strict=True))
