"""What other commands compare of a timed step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sysbench.commands.time.findings import reliable_cells
from sysbench.commands.time.record import TimeCellRecord
from sysbench.log.measures import PROCESSOR_TIME, Amount, Measures, StepNumber, peaks, phase_times
from sysbench.render.sentences.findings import reliable
from sysbench.spec.hardware import slug_of


def measures(cell: TimeCellRecord) -> Measures:
    step = cell.phases.get("step")
    amounts = peaks(cell.memory)
    if step is not None and step.processor_median_s is not None:
        amounts[PROCESSOR_TIME] = Amount(step.processor_median_s, "s", exact=False)
    return Measures(phase_times(cell.phases), amounts, cell.prediction)


def step_numbers(cells: Sequence[TimeCellRecord]) -> Iterator[StepNumber]:
    """Yield the measured medians of forward, backward and step, and the predicted steps."""
    for cell in reliable_cells(cells):
        device = cell.device
        if device is None:
            continue
        for phase in ("forward", "backward"):
            if samples := cell.samples(phase):
                yield StepNumber(cell, phase, "measured", samples.median_s, device.name)
        if samples := cell.samples("step"):
            slug = slug_of(device.name, device.memory_bytes)
            yield StepNumber(cell, "step", "measured", samples.median_s, slug, cell.cell.mode)
    for cell in reliable(cells):
        step = cell.prediction.step if cell.prediction else None
        if step is not None and cell.cell.simulated is not None:
            yield StepNumber(cell, "step", "predicted", step.point_s, cell.cell.simulated, cell.cell.mode, step)
