"""Times the work that determines rates; each cell is one part of a calibration."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from sysbench.commands.calibrate import bandwidth, host, launches, products
from sysbench.commands.calibrate.record import RatesKnown, WorkTimed
from sysbench.commands.calibrate.spec import CalibrateCell, Part
from sysbench.commands.calibrate.timing import Bench, Timed
from sysbench.errors import UsageError
from sysbench.garbage import collection_paused
from sysbench.lab import allocator
from sysbench.lab.devices import torch_device
from sysbench.log.events import DeviceInfo, Event, StageEntered
from sysbench.spec import hardware

PARTS: Mapping[Part, Callable[[CalibrateCell, Bench], Iterator[Timed]]] = {
    "matmul": products.matmul,
    "attention": products.attention,
    "memory": bandwidth.memory,
    "launch": launches.launch,
    "host": host.host,
}


def run(cell: CalibrateCell, device: DeviceInfo, artifact: Path | None = None) -> Iterator[Event]:
    """Time what the part consists of; raises UnavailableError for what the device has not got."""
    target = torch_device(device)
    yield StageEntered(at_s=time.time(), cell=cell.key, stage="measuring")
    slug = hardware.slug_of(device.name, device.memory_bytes)
    try:
        before = hardware.named(slug).rates
    except UsageError:
        before = {}
    yield RatesKnown(at_s=time.time(), cell=cell.key, slug=slug, rates=dict(before))
    try:
        with collection_paused(collected=True):
            for timed in PARTS[cell.part](cell, Bench(device, target, cell.budget_s)):
                yield WorkTimed(at_s=time.time(), cell=cell.key, **timed._asdict())
    finally:
        allocator.release(target)
