"""Worker side of `sysbench accum`: run one experiment per cell, which is a module with a function `run`."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from pathlib import Path

from sysbench.commands.accum.spec import AccumCell
from sysbench.log.events import DeviceInfo, Event, StageEntered


def run(cell: AccumCell, device: DeviceInfo, artifact: Path | None = None) -> Iterator[Event]:
    yield StageEntered(at_s=time.time(), cell=cell.key, stage="measuring")
    yield from importlib.import_module(f"sysbench.commands.accum.{cell.experiment}").run(cell, device)
