"""Runs experiments on rounding in this process, and folds what they say as a run would."""

from __future__ import annotations

import time
from typing import Any

from sysbench.commands.accum import measure as accumulation
from sysbench.commands.accum.fold import fold
from sysbench.commands.accum.record import AccumCellRecord, AccumRecord
from sysbench.commands.accum.spec import AccumSpec
from sysbench.log.events import CellFinished, CellStarted, DeviceInfo, Event, RunFinished
from tests.hosts import run_started

CPU = DeviceInfo(name="Made-up CPU", type="cpu")


def record(*experiments: str, **options: Any) -> AccumRecord:
    """The record of a run of these experiments on the CPU."""
    spec = AccumSpec(experiment=experiments, device="cpu", **options)  # type: ignore[arg-type]
    log: list[Event] = [run_started(spec, at_s=time.time())]
    for index, cell in enumerate(spec.cells()):
        axes = cell.model_dump(mode="json")
        log.append(CellStarted(at_s=time.time(), cell=cell.key, index=index, axes=axes, device=CPU))
        log += list(accumulation.run(cell, CPU))
        log.append(CellFinished(at_s=time.time(), cell=cell.key, outcome="ok"))
    return fold([*log, RunFinished(at_s=time.time(), status="complete")])


def cell(experiment: str, **options: Any) -> AccumCellRecord:
    """The record of one experiment on the CPU."""
    (found,) = record(experiment, **options).cells
    return found
