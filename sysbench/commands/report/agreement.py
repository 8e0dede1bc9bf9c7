"""Compare runs of the same step: timed vs. profiled, measured vs. simulated peaks, measured vs. predicted times."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from sysbench import units
from sysbench.cells import CHOICES
from sysbench.commands.memory.findings import known, peak
from sysbench.commands.memory.record import MemoryCellRecord
from sysbench.commands.profile.findings import complete
from sysbench.commands.profile.record import ProfileCellRecord
from sysbench.commands.report.document import Basis, Finding, ReportedRun
from sysbench.commands.time.findings import believable
from sysbench.commands.time.record import TimeCellRecord
from sysbench.log.records import CellRecord
from sysbench.render.findings import name_cells, namer, share_range
from sysbench.spec import hardware

_STEP: Final = ("size", "model", "ctx", "batch", "grad_accum", "ranks", *CHOICES)
"""Axes that identify a step across commands, besides its mode or phase."""

FILLED: Final = 0.9
"""If kernels take a smaller share of a phase than this, the device was idle for the rest."""

SLOWER: Final = 1.1
"""If kernels take a larger share of a phase than this, profile and timing ran under different conditions."""

Runs = Sequence[ReportedRun[Any]]


def _step(cell: CellRecord) -> Hashable:
    return tuple(str(cell.axes.get(axis)) for axis in _STEP)


@dataclass(frozen=True)
class ClockAndKernels:
    """A phase timed without a profiler, and the kernels of the same phase in a profile."""

    timed: TimeCellRecord
    profiled: ProfileCellRecord
    timed_s: float
    kernels_s: float

    @property
    def covered(self) -> float:
        """Share of the timed phase that the kernels fill."""
        return self.kernels_s / self.timed_s


def clock_and_kernels(
    timed: Iterable[TimeCellRecord], profiled: Iterable[ProfileCellRecord], phase: str
) -> Iterator[ClockAndKernels]:
    """Yield one pair for every step that was both timed and profiled on devices with the same name."""
    by_step: dict[Hashable, ProfileCellRecord] = {}
    for cell in complete(profiled):
        if cell.device is not None and cell.summary is not None and cell.summary.source == "device":
            by_step.setdefault((cell.device.name, _step(cell)), cell)
    for each in believable(timed, alone=False):
        place = (each.device.name, _step(each)) if each.device is not None else None
        found, taken = by_step.pop(place, None), each.samples(phase)
        kernels_s = _kernels_s(found, phase) if found is not None else 0.0
        if found is not None and taken is not None and kernels_s:
            yield ClockAndKernels(each, found, taken.median_s, kernels_s)


def _kernels_s(cell: ProfileCellRecord, phase: str) -> float:
    summary = cell.summary
    if summary is None or phase not in summary.phases:
        return 0.0
    position = summary.phases.index(phase)
    rows = zip(summary.spent.phase, summary.spent.total_ns, strict=True)
    return sum(total_ns for each, total_ns in rows if each == position) * 1e-9 / summary.steps


@dataclass(frozen=True)
class MeasuredAndModelled:
    """A measured cell, and the same cell simulated or predicted for the same device."""

    measured: CellRecord
    modelled: CellRecord
    share: float
    """Relative error of the simulated peak, or of the predicted step."""
    inside: bool = False
    """Whether the measured step lies in the interval of the predicted one."""


def measured_and_simulated(cells: Iterable[MemoryCellRecord]) -> Iterator[MeasuredAndModelled]:
    """Yield one pair for every step whose peak was both measured and simulated for the same GPU and mode."""
    by_step: dict[Hashable, MemoryCellRecord] = {}
    for cell in known(cells):
        if cell.source == "measured" and cell.device is not None and cell.device.type == "cuda":
            slug = hardware.slug_of(cell.device.name, cell.device.memory_bytes)
            by_step.setdefault((slug, cell.cell.mode, _step(cell)), cell)
    for cell in known(cells):
        found = by_step.pop((cell.cell.simulated, cell.cell.mode, _step(cell)), None)
        if found is not None:
            yield MeasuredAndModelled(found, cell, peak(cell) / peak(found) - 1)


def measured_and_predicted(cells: Sequence[TimeCellRecord]) -> Iterator[MeasuredAndModelled]:
    """Yield one pair for every measured step that was also predicted for the same device."""
    by_step: dict[Hashable, tuple[TimeCellRecord, float]] = {}
    for cell in believable(cells, alone=False):
        if cell.device is not None and (taken := cell.samples("step")) is not None:
            slug = hardware.slug_of(cell.device.name, cell.device.memory_bytes)
            by_step.setdefault((slug, cell.cell.mode, _step(cell)), (cell, taken.median_s))
    for cell in cells:
        step = cell.prediction.step if cell.prediction else None
        if step is not None and (found := by_step.pop((cell.cell.simulated, cell.cell.mode, _step(cell)), None)):
            measured, taken_s = found
            inside = step.low_s <= taken_s <= step.high_s
            yield MeasuredAndModelled(measured, cell, step.point_s / taken_s - 1, inside)


def clocks(runs: Runs) -> Iterator[Finding]:
    """Yield findings that compare timed forward and backward phases with their kernels in a profile."""
    timed, profiled = _cells(runs, "time"), _cells(runs, "profile")
    for phase in ("forward", "backward"):
        found = sorted(clock_and_kernels(timed, profiled, phase), key=lambda each: each.covered)
        if found:
            basis = _basis(runs, [cell for each in found for cell in (each.timed, each.profiled)])
            yield Finding(f"{phase}: {_clocks(found)}.", basis)


def _clocks(found: Sequence[ClockAndKernels]) -> str:
    name = namer([each.timed for each in found])
    filled = share_range([(each.covered, each.timed) for each in found], name)
    text = f"profiled kernels account for {filled} of the time measured without a profiler"
    if len(found) == 1:
        (only,) = found
        whole = f"the {units.seconds(only.timed_s)} measured without a profiler"
        text = f"profiled kernels take {units.seconds(only.kernels_s)}, {filled} of {whole}"
    waits = [each.timed for each in found if each.covered < FILLED]
    slower = [each.timed for each in found if each.covered > SLOWER]
    if not waits and not slower:
        return f"{text}, so the two agree"
    parts = [f"the device was idle for the rest at {name_cells(waits, name)}"] if waits else []
    parts += [f"kernels ran slower in the profile at {name_cells(slower, name)}"] if slower else []
    return f"{text}; {', and '.join(parts)}" if len(found) > 1 else f"{text}; {parts[0].partition(' at ')[0]}"


def simulations(runs: Runs) -> Iterator[Finding]:
    """Yield a finding that compares measured and simulated peaks for the same GPU."""
    if found := list(measured_and_simulated(_cells(runs, "memory"))):
        yield Finding(f"simulated vs. measured peaks: {_errors(found)}.", _basis_of(runs, found), "mixed")


def predictions(runs: Runs) -> Iterator[Finding]:
    """Yield a finding that compares measured and predicted steps for the same device."""
    if found := list(measured_and_predicted(_cells(runs, "time"))):
        held = sum(each.inside for each in found)
        inside = f"{held} of {len(found)} inside their 90 % intervals"
        if len(found) == 1:
            inside = f"{('outside', 'inside')[held]} the 90 % interval"
        text = f"predicted vs. measured steps: {_errors(found)}, {inside}"
        yield Finding(f"{text}.", _basis_of(runs, found), "predicted")


def _errors(found: Sequence[MeasuredAndModelled]) -> str:
    """Return the lowest and the highest error: `−1.0 % (ctx 128) to +0.3 % (ctx 512), over 3 steps`."""
    name = namer([each.measured for each in found])
    low, high = min(found, key=attrgetter("share")), max(found, key=attrgetter("share"))
    if len(found) == 1:
        return f"{_off(low.share)} ({name(low.measured)})"
    return (
        f"{_off(low.share)} ({name(low.measured)}) to {_off(high.share)} ({name(high.measured)}) "
        f"over {len(found)} steps"
    )


def _basis_of(runs: Runs, found: Sequence[MeasuredAndModelled]) -> tuple[Basis, ...]:
    return _basis(runs, [cell for each in found for cell in (each.measured, each.modelled)])


def _off(share: float) -> str:
    return f"{'+' if share >= 0 else '−'}{units.share(abs(share))}"


def _cells(runs: Runs, kind: str) -> list[Any]:
    return [cell for run in runs if run.record.kind == kind for cell in run.record.cells]


def _basis(runs: Runs, cells: Sequence[CellRecord]) -> tuple[Basis, ...]:
    """Return the cells as the basis of a finding, grouped by run."""
    own = [(run, [cell for cell in cells if any(cell is each for each in run.record.cells)]) for run in runs]
    return tuple(run.basis(found) for run, found in own if found)


ACROSS = (clocks, simulations, predictions)
"""Functions that yield findings about several runs; each receives all runs of a report."""
