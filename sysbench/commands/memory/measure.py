"""Measure the memory of a step on this machine, or simulate it for a GPU that need not be present."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sysbench.commands.memory import measure_cuda, simulate
from sysbench.commands.memory.breakdown import phase_event, write_snapshot
from sysbench.commands.memory.spec import MemoryCell
from sysbench.errors import UnavailableError
from sysbench.lab.compilation import stage_entered
from sysbench.lab.devices import torch_device
from sysbench.lab.memory import allocator
from sysbench.lab.precision import matmul_precision
from sysbench.lab.strategies import max_over_ranks, mesh_of
from sysbench.log.events import DeviceInfo, Event
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.memory import simulate_recording
from sysbench.simulate.steps import record_real
from sysbench.spec.knobs import LOW_BIT

_EXACT_SIZES = AllocatorSettings(expandable_segments=True)
"""With these settings each block has the requested size rounded up to 512 bytes, so the allocator merely sums sizes."""


def run(cell: MemoryCell, device: DeviceInfo, artifact: Path | None = None) -> Iterator[Event]:
    """Run the cell's protocol. If `artifact` is given, write all allocations to this path as a snapshot.

    Raises UnavailableError if the cell cannot run or be simulated. When memory runs out, yields all results so far,
    then raises DoesNotFitError in a simulation, and otherwise torch's own error.
    """
    if cell.simulate is not None:
        yield from simulate.run(cell, cell.simulate, artifact)
    elif device.type == "cuda":
        yield from measure_cuda.run(cell, device, artifact)
    else:
        yield from _measure_by_tracking_tensors(cell, device, artifact)


def _measure_by_tracking_tensors(cell: MemoryCell, device: DeviceInfo, artifact: Path | None) -> Iterator[Event]:
    if cell.is_compiled:
        raise UnavailableError(f"tensors inside a compiled step cannot be tracked on {device.torch_name}")
    if cell.optimizer in LOW_BIT and "optimizer" in cell.phases:
        raise UnavailableError(
            f"--optimizer {cell.optimizer} is compiled, and its tensors cannot be tracked on {device.torch_name}: "
            "measure on a GPU, or --simulate one"
        )
    target, unlimited_gpu = torch_device(device), Gpu(device.name, 2**50, context_bytes=0)
    mesh = mesh_of(cell.strategy, cell.ranks, target.type) if cell.strategy else None
    yield stage_entered(cell.key, "measuring")
    with matmul_precision(cell.precision):
        for recording in record_real(cell.step, cell.mode, target, mesh):
            result = simulate_recording(recording, unlimited_gpu, _EXACT_SIZES)
            latest, peak = list(simulate.phase_peaks(result, "measured").items())[-1]
            yield phase_event(cell.key, "measured", latest, peak)
    max_over_ranks()  # if a rank left the group early, the last collective of the others would fail
    yield from recording.model_events(cell.key, with_flops=False)
    peaks = allocator.peaks(target)
    yield from simulate.recorded_events(
        cell, "measured", result, reserved_peak_bytes=peaks.reserved_bytes, host_rss_peak_bytes=peaks.host_rss_bytes
    )
    if artifact is not None:
        yield write_snapshot(artifact, result.snapshot("measured"), cell.key)
