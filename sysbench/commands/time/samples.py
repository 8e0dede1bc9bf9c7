"""What was measured of a timed cell, and whether it may be believed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sysbench.commands.time.record import TimeCellRecord
from sysbench.log.records import CellRecord, Samples
from sysbench.render.findings import doubts

FORWARD_BACKWARD: Final = ("forward", "loss", "backward")
"""What is called forward and backward everywhere: the loss is in it, the optimizer and zeroing gradients are not."""


def believable(cells: Iterable[TimeCellRecord], *, alone: bool = True) -> list[TimeCellRecord]:
    """The cells that were measured to the end without such doubts."""
    return [cell for cell in cells if cell.outcome == "ok" and cell.phases and not doubts(cell, alone=alone)]


def samples(cell: TimeCellRecord, phase: str) -> Samples | None:
    """What was measured of a phase: by the host's clock, or by the device's where the host did not wait."""
    record = cell.phases.get(phase)
    return (record.wall or record.device) if record else None


def summed(cell: TimeCellRecord, phases: Sequence[str]) -> list[float] | None:
    """Step by step, the sum of those of these phases that were measured, in seconds; None without the first one."""
    parts = [found.samples_s for phase in phases if (found := samples(cell, phase))]
    if not parts or phases[0] not in cell.phases or len({len(part) for part in parts}) > 1:
        return None
    return [sum(step) for step in zip(*parts, strict=True)]


def launch_bound(cell: CellRecord) -> bool:
    """Whether the host was seen to set the pace."""
    return any(caution.code == "launch-bound" for caution in cell.cautions)
