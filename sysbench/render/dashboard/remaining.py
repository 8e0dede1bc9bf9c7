"""The remaining time of a run, estimated from its finished cells."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from sysbench import units
from sysbench.render.dashboard.run_state import CellState, RunState


def round_remaining(value_s: float) -> float:
    """Round a remaining time, so that the display does not change with every step."""
    return value_s if value_s < 20 else round(value_s / 10) * 10


def remaining_text(value_s: float) -> str:
    """Format a remaining time: `3 min 20 s left`."""
    return f"{units.duration(value_s)} left" if value_s >= 1 else "under 1 s left"


@dataclass(frozen=True)
class Experience:
    """What the cells of a run have taken so far.

    A cell takes as long for each unit of its work as the last finished cell with the same choices, otherwise as the
    median of all, and as long outside its work, to start and to build a model, as finished cells on average. Until a
    cell has finished, the current one counts.
    """

    paces_s: Mapping[tuple[object, ...], float]
    """Seconds for a unit of work, by the choices of the cells."""
    outside_s: float
    limit_s: float

    def expected_s(self, cell: CellState) -> float:
        """Return the seconds that a cell is expected to take."""
        typical_s = statistics.median(self.paces_s.values())
        return min(self.outside_s + cell.expected_s(self.paces_s.get(cell.choices, typical_s)), self.limit_s)


def experience(state: RunState) -> Experience | None:
    """Return what is known of a run's cells; None if nothing is."""
    finished = [cell for cell in state.ended.values() if cell.pace_s is not None]
    now = [state.current_cell] if state.current_cell is not None and state.current_cell.pace_s is not None else []
    if not (known := finished or now):
        return None
    return Experience(
        {cell.choices: cell.pace_s for cell in known if cell.pace_s is not None},
        statistics.fmean(cell.outside_s for cell in finished) if finished else 0.0,
        max((cell.limit_s for cell in known if cell.limit_s is not None), default=math.inf),
    )


def waiting_s(state: RunState) -> float | None:
    """Return the expected seconds of all cells that wait; None if they cannot be estimated."""
    waiting = [cell for key, cell in state.planned.items() if key not in state.ended and key != state.running]
    known = experience(state)
    if known is None or not waiting:
        return None if waiting else 0.0
    return math.fsum(map(known.expected_s, waiting))
