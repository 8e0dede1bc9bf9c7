"""The memory of a cell on a device of this machine that has no allocator of CUDA's: the CPU, or MPS."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from sysbench.commands.memory import measure_cuda as cuda_memory
from sysbench.commands.memory.allocations import details, fullest, phases, write
from sysbench.commands.memory.record import PeakMeasured
from sysbench.commands.memory.spec import MemoryCell
from sysbench.errors import UnavailableError
from sysbench.lab import allocator
from sysbench.lab.devices import torch_device
from sysbench.lab.precision import matmul_precision
from sysbench.log.events import DeviceInfo, Event, StageEntered
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.memory import serve
from sysbench.simulate.recording import record_real

_EXACT = AllocatorSettings(expandable_segments=True)
"""With these every block is what was asked for, in whole units of 512 bytes: adding up is all that is left to do."""


def run(cell: MemoryCell, device: DeviceInfo, artifact: Path | None) -> Iterator[Event]:
    """Measure the cell; see `sysbench.commands.memory.measure.run`."""
    if device.type == "cuda":
        yield from cuda_memory.run(cell, device, artifact)
        return
    if cell.execution == "compiled":
        raise UnavailableError(f"tensors inside a compiled step cannot be followed on {device.torch_name}")
    target, boundless = torch_device(device), Gpu(device.name, 2**50, context_bytes=0)
    yield StageEntered(at_s=time.time(), cell=cell.key, stage="measuring")
    with matmul_precision(cell.precision):
        for recording in record_real(cell.step, cell.mode, target):
            result = serve(recording, boundless, _EXACT)
            yield from list(phases(cell, result, "measured"))[-1:]
    peaks = allocator.peaks(target)
    yield PeakMeasured(
        at_s=time.time(),
        cell=cell.key,
        source="measured",
        phase=fullest(result),
        allocated_peak_bytes=result.allocated_peak_bytes,
        reserved_peak_bytes=peaks.reserved_bytes,
        host_rss_peak_bytes=peaks.host_rss_bytes,
        outside_bytes=None,
        alloc_retries=None,
        by_category=dict(result.by_category),
    )
    yield from details(cell, result, "measured")
    if artifact is not None:
        yield write(artifact, result.snapshot("measured"), cell.key)
