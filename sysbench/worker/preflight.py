"""A check, before a cell starts, of whether it will fit in the device's memory."""

from __future__ import annotations

import os
import time

from sysbench.errors import UnavailableError
from sysbench.log.events import DeviceInfo, MemoryForeseen
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.memory import simulate
from sysbench.spec.cell import RunCell


def foresee(cell: RunCell, device: DeviceInfo, free_bytes: int) -> MemoryForeseen:
    """Simulate the cell's steps on a GPU like `device` with `free_bytes` free before the CUDA context is created.

    A mode of `time` has a protocol of the same name in `memory`; that of `forward` also computes a loss, which needs
    slightly more memory. Raises UnavailableError if the cell cannot be simulated.
    """
    settings = AllocatorSettings.from_environment(os.environ)
    step = cell.step
    if step is None:
        raise UnavailableError("what is not a training step is not simulated beforehand")
    result = simulate(step, step.mode, Gpu.like(device, free_bytes), settings, origins=False)
    verdict = result.verdict
    where = "while the model is built" if verdict.failed_phase == "build" else f"in {verdict.failed_phase}"
    return MemoryForeseen(
        at_s=time.time(),
        cell=cell.key,
        free_bytes=free_bytes,
        fits=verdict.fits,
        lacking_bytes=None if verdict.fits else -verdict.margin_bytes,
        detail=None if verdict.fits else f"memory would run out {where}",
    )
