"""The times of a recorded cell, ready to stand in a table.

Columns for those who ask, of tables with a row per cell: energy, MFU with its formula, and what they rest on.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from sysbench import units
from sysbench.commands.time.fold import SHORTEST_S, UPDATE_S
from sysbench.commands.time.record import TimeCellRecord
from sysbench.log.records import Samples
from sysbench.render.table import NOTHING, Cell, Column, Measure, Offer, Word

PHASES = ("zero_grad", "forward", "loss", "backward", "optimizer", "step")
"""In the order in which a step runs them; `step` is their sum."""

MEASURED = ("ok", "interrupted")
"""Outcomes whose samples are worth showing; those of a cell that crashed half-way are not."""


def samples(cell: TimeCellRecord, phase: str) -> Samples | None:
    """What was measured of a phase: by the host's clock, or by the device's where the host did not wait."""
    record = cell.phases.get(phase) if cell.outcome in MEASURED else None
    return (record.wall or record.device) if record else None


def phases_in(cells: Sequence[TimeCellRecord]) -> tuple[str, ...]:
    """The phases that any of these cells has a time for; `step` only beside more than one other."""
    found = tuple(phase for phase in PHASES if any(samples(cell, phase) for cell in cells))
    return found[:-1] if len(found) == 2 and found[-1] == "step" else found


def whole(phases: Sequence[str]) -> str:
    """The phase that stands for the whole step: `step`, or the only one there is."""
    return phases[-1] if phases else "step"


def mean(found: Samples | None) -> Cell:
    """Mean and standard deviation, or None."""
    return Measure(found.mean_s, found.std_s if len(found.samples_s) > 1 else None) if found else None


def summed(cell: TimeCellRecord, phases: Sequence[str]) -> list[float] | None:
    """Step by step, the sum of these phases in seconds; None when one that the cell's mode has was not measured."""
    parts = [found.samples_s for phase in phases if (found := samples(cell, phase))]
    if not parts or phases[0] not in cell.phases or len({len(part) for part in parts}) > 1:
        return None
    return [sum(step) for step in zip(*parts, strict=True)]


def mean_of(values_s: Sequence[float] | None) -> Cell:
    """Mean and sample standard deviation of raw samples, or None."""
    if not values_s:
        return None
    return Measure(statistics.fmean(values_s), statistics.stdev(values_s) if len(values_s) > 1 else None)


def outcome(cell: TimeCellRecord) -> Word:
    """A word for a cell without numbers."""
    return Word(cell.outcome, "quiet" if cell.outcome in ("skipped", "interrupted") else "bad")


def or_outcome(cell: TimeCellRecord, value: Cell, *, here: bool = True) -> Cell:
    """The value, or for a cell that has no numbers its outcome (`here`) and otherwise nothing."""
    if cell.outcome in MEASURED and cell.phases:
        return value
    return outcome(cell) if here else NOTHING


Value = Callable[[TimeCellRecord], float | None]

FORMULA = (
    "FLOPs of a step over (its median time × peak); of a forward pass B·[L(8Td² + 4T²d + 6T·d·d_ff) + 2TdV], of "
    "backward twice that, causality not subtracted, recomputation not counted"
)


def offers(cells: Sequence[TimeCellRecord], beside: Sequence[Column]) -> tuple[Offer, ...]:
    """For a table with one row for each of `cells`, in this order, what is not among its columns anyway."""
    there = {(column.title, column.unit) for column in beside}
    energy, rates = _energy_note(cells), _peak_note(cells)
    columns: list[tuple[Column, Value, str]] = [
        (Column("mfu", "MFU", "share", note=f"MFU: {FORMULA}; {rates}"), _rate("peak_share"), "peak"),
        (Column("flops_per_s", "achieved", "flops_per_s"), _rate("flops_per_s"), ""),
        (Column("tokens_per_s", "throughput", "tokens_per_s"), _rate("tokens_per_s"), ""),
        (Column("step_flops", "step FLOPs", "flops"), _rate("step_flops"), ""),
        (Column("median", "median step", "s"), _median, ""),
        (Column("energy_per_step", "per step", "joules", "energy", note=energy), _energy("step_j"), ""),
        (Column("energy_per_token", "per token", "joules_per_token", "energy", note=energy), _energy("token_j"), ""),
        (Column("power", "mean power", "watts", note=energy), _energy("power_w"), ""),
        (Column("parameters", "parameters", "count"), lambda cell: cell.model.parameters, ""),
    ]
    return tuple(
        Offer(column, tuple(or_outcome(cell, _measure(value(cell)), here=False) for cell in cells), instead_of)
        for column, value, instead_of in columns
        if (column.title, column.unit) not in there
    )


def _rate(name: str) -> Value:
    return lambda cell: getattr(cell.rates, name) if cell.rates else None


def _energy(name: str) -> Value:
    return lambda cell: getattr(cell.energy, name) if cell.energy else None


def _median(cell: TimeCellRecord) -> float | None:
    found = samples(cell, "step")
    return found.median_s if found else None


def _measure(value: float | None) -> Cell:
    return Measure(value) if value is not None else None


def _peak_note(cells: Sequence[TimeCellRecord]) -> str:
    peaks = {
        (cell.axes["precision"], cell.rates.peak_flops_per_s, cell.rates.peak_source): None
        for cell in cells
        if cell.rates and cell.rates.peak_flops_per_s is not None
    }
    if not peaks:
        return "peak: unknown for this device"
    return "peak: " + "; ".join(
        f"{units.flop_rate(rate)} in {precision}, {source}" for precision, rate, source in peaks
    )


def _energy_note(cells: Sequence[TimeCellRecord]) -> str:
    """What was counted, how well, and why some cells have no joules."""
    counted = [cell.energy for cell in cells if cell.energy]
    if not counted:
        return "energy: no counter was read; NVIDIA's driver has one for Volta and later"
    what = (
        "energy: of the whole GPU, its idle draw and other programs included, by NVML's counter during the measured "
        f"steps; it is updated every {0.02:g} to {UPDATE_S:g} s"
    )
    shares = [each.uncertainty_share for each in counted if each.uncertainty_share is not None]
    known = f", which leaves ± {units.share(max(shares))} open" if shares else ""
    withheld = [each for each in counted if each.withheld]
    if not withheld:
        return what + known
    needed = [each.steps_needed for each in withheld if each.steps_needed]
    remedy = f": --steps {max(needed)} would do" if needed else ""
    few = f"{len(withheld)} cell{'' if len(withheld) == 1 else 's'}"
    return f"{what}{known}; withheld for {few}, {withheld[0].withheld} (it takes {SHORTEST_S:g} s of readings){remedy}"
