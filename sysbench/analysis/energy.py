"""The energy of the measured steps, from a counter that is read beside them.

NVML counts joules of a whole GPU (nvmlDeviceGetTotalEnergyConsumption, Volta and later), and puts what it has counted
into the counter only every 20 to 100 ms (Yang, Adamek and Armour, "Part-time Power Measurements: nvidia-smi's Lack of
Attention", 2023, measure 20 to 100 ms between updates of power on a dozen GPUs). So energy is known over a stretch of
time between two readings, at either end to within one update, and not of a step by itself.
"""

from __future__ import annotations

import math

from sysbench.analysis.collect import CellEvents
from sysbench.events import Reading
from sysbench.records import EnergyRecord
from sysbench.specs.model import ModelCell

UPDATE_S = 0.1
"""The longest time between two updates of the counter."""

SHORTEST_S = 10 * UPDATE_S
"""Over less, the two ends make up more than a tenth of what was counted."""


def energy(cell: ModelCell, seen: CellEvents) -> EnergyRecord | None:
    """What the measured steps took; None where no counter was read at all.

    Only readings between the beginning of the first measured step and the end of the last are used: their difference
    over the time between them is the mean power, and that times the length of the whole window is its energy.
    """
    steps = [step for step in seen.steps if step.step.wall_s is not None]
    readings = [reading for reading in seen.readings if reading.energy_j is not None]
    if not steps or not readings:
        return None
    begin_s, end_s = steps[0].at_s - (steps[0].step.wall_s or 0.0), steps[-1].at_s
    window_s = end_s - begin_s
    inside = sorted((reading for reading in readings if begin_s <= reading.at_s <= end_s), key=lambda each: each.at_s)
    counted_s = inside[-1].at_s - inside[0].at_s if inside else 0.0
    if counted_s < SHORTEST_S:
        return _withheld(window_s, counted_s, f"measured for {window_s:.2f} s", _enough(len(steps), window_s))
    counted_j = _joules(inside[-1]) - _joules(inside[0])
    if counted_j <= 0:
        return _withheld(window_s, counted_s, "the counter did not grow, or began anew", None)
    power_w = counted_j / counted_s
    step_j = power_w * window_s / len(steps)
    return EnergyRecord(
        step_j=step_j,
        token_j=step_j / cell.tokens,
        power_w=power_w,
        window_s=window_s,
        counted_s=counted_s,
        uncertainty_share=UPDATE_S / counted_s,
        withheld=None,
        steps_needed=None,
    )


def _joules(reading: Reading) -> float:
    return reading.energy_j or 0.0


def _enough(steps: int, window_s: float) -> int | None:
    """As many steps as fill a window with room for the readings at its ends."""
    return math.ceil(2 * SHORTEST_S / (window_s / steps)) if window_s > 0 else None


def _withheld(window_s: float, counted_s: float, why: str, steps_needed: int | None) -> EnergyRecord:
    return EnergyRecord(
        step_j=None,
        token_j=None,
        power_w=None,
        window_s=window_s,
        counted_s=counted_s,
        uncertainty_share=None,
        withheld=why,
        steps_needed=steps_needed,
    )
