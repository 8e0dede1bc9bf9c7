"""Samples of a timed cell, and whether they are believable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sysbench.commands.time.record import TimeCellRecord
from sysbench.log.records import CellRecord, Samples
from sysbench.render.findings import doubts

FORWARD_BACKWARD: Final = ("forward", "loss", "backward")
"""Phases of "forward and backward": with the loss, without the optimizer and zeroing gradients."""


def believable(cells: Iterable[TimeCellRecord], *, alone: bool = True) -> list[TimeCellRecord]:
    """Return the cells that were measured fully and without serious cautions (`sysbench.render.findings.doubts`)."""
    return [cell for cell in cells if cell.outcome == "ok" and cell.phases and not doubts(cell, alone=alone)]


def samples(cell: TimeCellRecord, phase: str) -> Samples | None:
    """Return the samples of a phase by the host's clock, or by the device's if the host did not wait."""
    record = cell.phases.get(phase)
    return record.times if record else None


def summed(cell: TimeCellRecord, phases: Sequence[str]) -> list[float] | None:
    """Return the sum of the measured ones of these phases for each step, in seconds; None without the first one."""
    parts = [found.samples_s for phase in phases if (found := samples(cell, phase))]
    if not parts or phases[0] not in cell.phases or len({len(part) for part in parts}) > 1:
        return None
    return [sum(step) for step in zip(*parts, strict=True)]


def launch_bound(cell: CellRecord) -> bool:
    """Whether the launching of kernels was observed to limit the speed."""
    return any(caution.code == "launch-bound" for caution in cell.cautions)
