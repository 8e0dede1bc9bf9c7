"""What other commands compare of a program's own loop."""

from __future__ import annotations

from sysbench.commands.loop.record import LoopCellRecord
from sysbench.log.measures import Measures, peaks, phase_times


def measures(cell: LoopCellRecord) -> Measures:
    return Measures(phase_times(cell.phases), peaks(cell.memory))
