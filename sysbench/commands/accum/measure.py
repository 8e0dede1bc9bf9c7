"""What rounding does: one experiment a cell."""

from __future__ import annotations

import importlib
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
"""By experiment, the module here whose `run` it is. It is imported when it is wanted: the sums need little of torch."""


def run(cell: AccumCell, device: DeviceInfo, artifact: Path | None = None) -> Iterator[Event]:
    """Carry the cell's experiment out; raises UnavailableError for what the device has not got."""
    import time

    yield StageEntered(at_s=time.time(), cell=cell.key, stage="measuring")
    yield from importlib.import_module(f"sysbench.commands.accum.{MODULES[cell.experiment]}").run(cell, device)
