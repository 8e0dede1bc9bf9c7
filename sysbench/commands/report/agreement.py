"""Compare runs of the same step: timed vs. profiled, measured vs. simulated peaks, measured vs. predicted times."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sysbench import units
from sysbench.commands.kinds import command_of
from sysbench.commands.report.document import Basis, Finding, ReportedRun
from sysbench.log.measures import StepNumber
from sysbench.render.findings import name_cells, namer, range_text
from sysbench.spec.model import STEP_AXES

_STEP_AXES: Final = ("model", *STEP_AXES)
"""Axes that identify a step across commands, besides its mode or phase."""

MIN_KERNEL_SHARE: Final = 0.9
"""If kernels take a smaller share of a phase than this, the device was idle for the rest."""

MAX_KERNEL_SHARE: Final = 1.1
"""If kernels take a larger share of a phase than this, profile and timing ran under different conditions."""

Runs = Sequence[ReportedRun]


@dataclass(frozen=True)
class Pair:
    """A number of a step as measured, and the same number from another source."""

    measured: StepNumber
    other: StepNumber

    @property
    def ratio(self) -> float:
        return self.other.value / self.measured.value

    @property
    def in_interval(self) -> bool:
        interval = self.other.interval
        return interval is not None and interval.low_s <= self.measured.value <= interval.high_s


def match(runs: Runs, quantity: str, source: str) -> list[Pair]:
    """Return one pair for every step that has this quantity both measured and from `source`, on the same hardware."""
    numbers = [number for number in _step_numbers(runs) if number.quantity == quantity]
    measured: dict[Hashable, StepNumber] = {}
    for number in numbers:
        if number.source == "measured":
            measured.setdefault(_step_key(number), number)
    others = [number for number in numbers if number.source == source]
    return [Pair(known, number) for number in others if (known := measured.pop(_step_key(number), None))]


def _step_numbers(runs: Runs) -> Iterator[StepNumber]:
    for run in runs:
        yield from command_of(run.record.kind).results().step_numbers(run.record.cells)


def _step_key(number: StepNumber) -> Hashable:
    axes = number.cell.axes
    return (number.hardware, number.mode, *(str(axes.get(axis)) for axis in _STEP_AXES))


def profile_agreement(runs: Runs) -> Iterator[Finding]:
    """Yield findings that compare timed forward and backward phases with their kernels in a profile."""
    for phase in ("forward", "backward"):
        pairs = match(runs, phase, "profiled")
        if not pairs:
            continue
        name = namer([pair.measured.cell for pair in pairs])
        shares = range_text([(pair.ratio, pair.measured.cell) for pair in pairs], name)
        text = f"{phase}: profiled kernels account for {shares} of the time measured without a profiler"
        if idle := [pair.measured.cell for pair in pairs if pair.ratio < MIN_KERNEL_SHARE]:
            text += f"; the device was idle for the rest at {name_cells(idle, name)}"
        if slower := [pair.measured.cell for pair in pairs if pair.ratio > MAX_KERNEL_SHARE]:
            text += f"; kernels ran slower in the profile at {name_cells(slower, name)}"
        yield Finding(text if idle or slower else f"{text}, so the two agree", _basis(runs, pairs))


def simulation_agreement(runs: Runs) -> Iterator[Finding]:
    if pairs := match(runs, "peak", "simulated"):
        yield Finding(f"simulated vs. measured peaks: {_error_range(pairs)}", _basis(runs, pairs), "mixed")


def prediction_agreement(runs: Runs) -> Iterator[Finding]:
    if pairs := match(runs, "step", "predicted"):
        inside = f"{sum(pair.in_interval for pair in pairs)} of {len(pairs)} inside their 90% intervals"
        text = f"predicted vs. measured steps: {_error_range(pairs)}, {inside}"
        yield Finding(text, _basis(runs, pairs), "predicted")


def _error_range(pairs: Sequence[Pair]) -> str:
    name = namer([pair.measured.cell for pair in pairs])
    errors = [(pair.ratio - 1, pair.measured.cell) for pair in pairs]
    return range_text(errors, name, lambda share: f"{'+' if share >= 0 else '−'}{units.share(abs(share))}")


def _basis(runs: Runs, pairs: Sequence[Pair]) -> tuple[Basis, ...]:
    cells = [number.cell for pair in pairs for number in (pair.measured, pair.other)]
    cells_by_run = [(run, [cell for cell in cells if any(cell is each for each in run.record.cells)]) for run in runs]
    return tuple(run.basis(run_cells) for run, run_cells in cells_by_run if run_cells)


CROSS_RUN_FINDINGS = (profile_agreement, simulation_agreement, prediction_agreement)
"""Functions that yield findings about several runs; each receives all runs of a report."""
