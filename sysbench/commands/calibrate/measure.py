"""Times the work that determines rates; each cell is one part of a calibration."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from sysbench.commands.calibrate import bandwidth, host, launches, products
from sysbench.commands.calibrate.record import RatesKnown, WorkTimed
from sysbench.commands.calibrate.spec import CalibrateCell, Part
from sysbench.commands.calibrate.timing import Bench, Timed
from sysbench.errors import UnavailableError, UsageError
from sysbench.garbage import collection_paused
from sysbench.lab import allocator
from sysbench.lab.devices import torch_device
from sysbench.log import runs
from sysbench.log.events import DeviceInfo, Event, StageEntered
from sysbench.predict.fitting import TimedStep, fitted
from sysbench.predict.rates import GpuRates, host_of
from sysbench.predict.tracing import trace
from sysbench.simulate.gpu import Gpu
from sysbench.spec import hardware
from sysbench.spec.model import ModelCell

PARTS: Mapping[Part, Callable[[CalibrateCell, Bench], Iterator[Timed]]] = {
    "matmul": products.matmul,
    "attention": products.attention,
    "memory": bandwidth.memory,
    "launch": launches.launch,
    "host": host.host,
}


def run(cell: CalibrateCell, device: DeviceInfo, artifact: Path | None = None) -> Iterator[Event]:
    """Time what the part consists of; raises UnavailableError for what the device has not got."""
    if cell.timed is not None:
        yield from _of_steps(cell, cell.timed)
        return
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


def _of_steps(cell: CalibrateCell, path: Path) -> Iterator[Event]:
    """What the steps of a run of `sysbench time` show: eager ones of one device, measured to the end."""
    run = runs.load(path)
    timed = [each for each in run.cells if each.outcome == "ok" and each.phases and each.cell.execution == "eager"]
    devices = list(dict.fromkeys(each.device for each in timed))
    if len(devices) != 1:
        raise UnavailableError(
            f"{path} has measured steps of {len(devices)} devices: the rates of one can be read from it, and are not "
            "if nothing was measured or everything compiled"
        )
    device = devices[0]
    slug = hardware.slug_of(device.name, device.memory_bytes)
    known = hardware.named(slug)
    yield StageEntered(at_s=time.time(), cell=cell.key, stage="simulating")
    gpu = Gpu("", 1 << 50, Gpu.of(known).compute_capability)
    fields = ModelCell.model_fields
    steps = []
    for each in timed:
        step = ModelCell(**{name: getattr(each.cell, name) for name in fields} | {"device": "cuda"})
        of, _ = trace(step, gpu)
        known_phases = {phase.name for phase in of.phases}  # not all do anything: zero_grad only lets go of gradients
        phases_s = {name: phase.wall.median_s for name, phase in each.phases.items() if phase.wall}
        steps.append(TimedStep(of, {name: each_s for name, each_s in phases_s.items() if name in known_phases}))
    shown = fitted(steps, GpuRates.of(known), host_of(known))
    torch = run.environment.torch
    yield RatesKnown(
        at_s=time.time(), cell=cell.key, slug=slug, rates=dict(known.rates), device=device,
        torch=torch.torch if torch else None, read_from=path.name, unseen=dict(shown.unseen),
    )  # fmt: skip
    for found in shown.found:
        samples_s = list(found.samples_s)
        yield WorkTimed(
            at_s=time.time(), cell=cell.key, rate=found.rate, case=found.case, counts=True, work=found.work,
            samples_s=samples_s,
        )  # fmt: skip
