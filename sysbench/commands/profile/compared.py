"""What other commands compare of a profiled step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sysbench.commands.profile.findings import complete_profiles
from sysbench.commands.profile.record import ProfileCellRecord
from sysbench.log.measures import Measures, StepNumber


def measures(cell: ProfileCellRecord) -> Measures:
    """Return the time of the step without a profiler, and the prediction."""
    return Measures({"step": cell.unprofiled} if cell.unprofiled else {}, prediction=cell.prediction)


def step_numbers(cells: Sequence[ProfileCellRecord]) -> Iterator[StepNumber]:
    """Yield the time of all kernels of forward, and of backward."""
    for cell in complete_profiles(cells):
        summary = cell.summary
        if cell.device is None or summary is None or summary.source != "device":
            continue
        spent = list(zip(summary.spent.phase, summary.spent.total_ns, strict=True))
        for phase in ("forward", "backward"):
            number = summary.phases.index(phase) if phase in summary.phases else None
            if kernels_ns := sum(total_ns for each, total_ns in spent if each == number):
                yield StepNumber(cell, phase, "profiled", kernels_ns * 1e-9 / summary.steps, cell.device.name)
