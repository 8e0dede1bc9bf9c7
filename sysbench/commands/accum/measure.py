"""Worker side of `sysbench accum`: run one experiment per cell."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from pathlib import Path

from sysbench.commands.accum.spec import AccumCell, Experiment
from sysbench.log.events import DeviceInfo, Event, StageEntered

MODULES: dict[Experiment, str] = {
    "sums": "running_sums",
    "autocast": "autocast_types",
    "norm": "norm_range",
    "scaling": "loss_scaling",
    "matmul": "product_errors",
}
"""Modules of the experiments, each with a function `run`; a module is imported when it is used."""


def run(cell: AccumCell, device: DeviceInfo, artifact: Path | None = None) -> Iterator[Event]:
    yield StageEntered(at_s=time.time(), cell=cell.key, stage="measuring")
    yield from importlib.import_module(f"sysbench.commands.accum.{MODULES[cell.experiment]}").run(cell, device)
