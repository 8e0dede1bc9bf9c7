"""The memory of a cell on a device of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sysbench.errors import UnavailableError
from sysbench.events import DeviceInfo, Event
from sysbench.specs.memory import MemoryCell


def run(cell: MemoryCell, device: DeviceInfo, artifact: Path | None) -> Iterator[Event]:
    """Measure."""
    raise UnavailableError("not yet")
    yield
