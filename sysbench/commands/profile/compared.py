"""What other commands compare of a profiled step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sysbench.commands.profile.findings import complete_profiles
from sysbench.commands.profile.record import ProfileCellRecord
from sysbench.log.measures import Measures, StepNumber


def measures(cell: ProfileCellRecord) -> Measures:
    return Measures({"step": cell.unprofiled} if cell.unprofiled else {}, prediction=cell.prediction)


def step_numbers(cells: Sequence[ProfileCellRecord]) -> Iterator[StepNumber]:
    """Yield the time of all kernels of forward, and of backward."""
    for cell in complete_profiles(cells):
        summary = cell.summary
        if cell.device is None or summary is None or summary.source != "device":
            continue
        for phase in ("forward", "backward"):
            if kernels_ns := sum(time.total_ns for time in summary.times() if time.phase == phase):
                yield StepNumber(cell, phase, "profiled", kernels_ns * 1e-9 / summary.steps, cell.device.name)
