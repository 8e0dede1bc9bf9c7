"""Compare runs of the same step: timed vs. profiled, measured vs. simulated peaks, measured vs. predicted times."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from sysbench import units
from sysbench.command import command_of
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
        command = command_of(run.record.kind)
        yield from command.part("step_numbers")(run.record.cells) if command.step_numbers else ()


def _step_key(number: StepNumber) -> Hashable:
    axes = number.cell.axes
    return (number.hardware, number.mode, *(str(axes.get(axis)) for axis in _STEP_AXES))


def profile_agreement(runs: Runs) -> Iterator[Finding]:
    """Yield findings that compare timed forward and backward phases with their kernels in a profile."""
    for phase in ("forward", "backward"):
        if pairs := sorted(match(runs, phase, "profiled"), key=attrgetter("ratio")):
            yield Finding(f"{phase}: {_describe_kernel_shares(pairs)}.", _basis(runs, pairs))


def _describe_kernel_shares(pairs: Sequence[Pair]) -> str:
    name = namer([each.measured.cell for each in pairs])
    shares = range_text([(each.ratio, each.measured.cell) for each in pairs], name)
    text = f"profiled kernels account for {shares} of the time measured without a profiler"
    if len(pairs) == 1:
        (pair,) = pairs
        measured_time = f"the {units.seconds(pair.measured.value)} measured without a profiler"
        text = f"profiled kernels take {units.seconds(pair.other.value)}, {shares} of {measured_time}"
    idle = [each.measured.cell for each in pairs if each.ratio < MIN_KERNEL_SHARE]
    slower = [each.measured.cell for each in pairs if each.ratio > MAX_KERNEL_SHARE]
    if not idle and not slower:
        return f"{text}, so the two agree"
    parts = [f"the device was idle for the rest at {name_cells(idle, name)}"] if idle else []
    parts += [f"kernels ran slower in the profile at {name_cells(slower, name)}"] if slower else []
    return f"{text}; {', and '.join(parts)}" if len(pairs) > 1 else f"{text}; {parts[0].partition(' at ')[0]}"


def simulation_agreement(runs: Runs) -> Iterator[Finding]:
    """Yield a finding that compares measured and simulated peaks for the same GPU."""
    if pairs := match(runs, "peak", "simulated"):
        yield Finding(f"simulated vs. measured peaks: {_error_range(pairs)}.", _basis(runs, pairs), "mixed")


def prediction_agreement(runs: Runs) -> Iterator[Finding]:
    """Yield a finding that compares measured and predicted steps for the same device."""
    if pairs := match(runs, "step", "predicted"):
        inside_count = sum(each.in_interval for each in pairs)
        inside = f"{inside_count} of {len(pairs)} inside their 90 % intervals"
        if len(pairs) == 1:
            inside = f"{('outside', 'inside')[inside_count]} the 90 % interval"
        text = f"predicted vs. measured steps: {_error_range(pairs)}, {inside}"
        yield Finding(f"{text}.", _basis(runs, pairs), "predicted")


def _error_range(pairs: Sequence[Pair]) -> str:
    name = namer([each.measured.cell for each in pairs])
    low, high = (
        f"{_signed_share(each.ratio - 1)} ({name(each.measured.cell)})"
        for each in (min(pairs, key=attrgetter("ratio")), max(pairs, key=attrgetter("ratio")))
    )
    return low if len(pairs) == 1 else f"{low} to {high} over {len(pairs)} steps"


def _signed_share(share: float) -> str:
    return f"{'+' if share >= 0 else '−'}{units.share(abs(share))}"


def _basis(runs: Runs, pairs: Sequence[Pair]) -> tuple[Basis, ...]:
    cells = [number.cell for pair in pairs for number in (pair.measured, pair.other)]
    cells_by_run = [(run, [cell for cell in cells if any(cell is each for each in run.record.cells)]) for run in runs]
    return tuple(run.basis(run_cells) for run, run_cells in cells_by_run if run_cells)


CROSS_RUN_FINDINGS = (profile_agreement, simulation_agreement, prediction_agreement)
"""Functions that yield findings about several runs; each receives all runs of a report."""
