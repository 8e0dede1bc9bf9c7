"""Columns for those who ask, of tables with a row per cell: energy, MFU with its formula, and what they rest on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sysbench import units
from sysbench.analysis.energy import SHORTEST_S, UPDATE_S
from sysbench.records import TimeCellRecord
from sysbench.views.table import Cell, Column, Measure, Offer
from sysbench.views.tables import times

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
        Offer(column, tuple(times.or_outcome(cell, _measure(value(cell)), here=False) for cell in cells), instead_of)
        for column, value, instead_of in columns
        if (column.title, column.unit) not in there
    )


def _rate(name: str) -> Value:
    return lambda cell: getattr(cell.rates, name) if cell.rates else None


def _energy(name: str) -> Value:
    return lambda cell: getattr(cell.energy, name) if cell.energy else None


def _median(cell: TimeCellRecord) -> float | None:
    found = times.samples(cell, "step")
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
