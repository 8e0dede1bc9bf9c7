"""Where the memory of a step goes: measured on this machine, or simulated for a GPU that need not be here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sysbench.commands.memory import measure_host as measured_memory
from sysbench.commands.memory import simulate as simulated_memory
from sysbench.commands.memory.spec import MemoryCell
from sysbench.log.events import DeviceInfo, Event


def run(cell: MemoryCell, device: DeviceInfo, artifact: Path | None = None) -> Iterator[Event]:
    """Carry out the cell's protocol; every allocation is left at `artifact` as a snapshot, if that is wanted.

    Raises UnavailableError for what does not exist or cannot be simulated, and DoesNotFitError or torch's own error
    when memory runs out, after everything that is known by then has been yielded.
    """
    if cell.simulate is not None:
        yield from simulated_memory.run(cell, cell.simulate, artifact)
    else:
        yield from measured_memory.run(cell, device, artifact)
