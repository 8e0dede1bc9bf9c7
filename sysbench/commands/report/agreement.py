"""Compare runs of the same step: timed vs. profiled, measured vs. simulated peaks, measured vs. predicted times."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from sysbench import units
from sysbench.commands.memory.findings import cells_with_peak, peak_bytes
from sysbench.commands.memory.record import MemoryCellRecord
from sysbench.commands.profile.findings import complete_profiles
from sysbench.commands.profile.record import ProfileCellRecord
from sysbench.commands.report.document import Basis, Finding, ReportedRun
from sysbench.commands.time.findings import reliable_cells
from sysbench.commands.time.record import TimeCellRecord
from sysbench.log.records import CellRecord
from sysbench.render.findings import name_cells, namer, reliable, share_range
from sysbench.spec import hardware
from sysbench.spec.model import STEP_AXES

_STEP_AXES: Final = ("model", *STEP_AXES)
"""Axes that identify a step across commands, besides its mode or phase."""

MIN_KERNEL_SHARE: Final = 0.9
"""If kernels take a smaller share of a phase than this, the device was idle for the rest."""

MAX_KERNEL_SHARE: Final = 1.1
"""If kernels take a larger share of a phase than this, profile and timing ran under different conditions."""

Runs = Sequence[ReportedRun[Any]]


def _step_key(cell: CellRecord) -> Hashable:
    return tuple(str(cell.axes.get(axis)) for axis in _STEP_AXES)


@dataclass(frozen=True)
class TimedAndProfiled:
    """A phase timed without a profiler, and the kernels of the same phase in a profile."""

    timed: TimeCellRecord
    profiled: ProfileCellRecord
    timed_s: float
    kernels_s: float

    @property
    def kernel_share(self) -> float:
        """Share of the timed phase that the kernels fill."""
        return self.kernels_s / self.timed_s


def match_timed_and_profiled(
    timed: Iterable[TimeCellRecord], profiled: Iterable[ProfileCellRecord], phase: str
) -> Iterator[TimedAndProfiled]:
    """Yield one pair for every step that was both timed and profiled on devices with the same name."""
    by_step: dict[Hashable, ProfileCellRecord] = {}
    for cell in complete_profiles(profiled):
        if cell.device is not None and cell.summary is not None and cell.summary.source == "device":
            by_step.setdefault((cell.device.name, _step_key(cell)), cell)
    for each in reliable_cells(timed):
        key = (each.device.name, _step_key(each)) if each.device is not None else None
        profile_cell, samples = by_step.pop(key, None), each.samples(phase)
        kernels_s = _kernels_s(profile_cell, phase) if profile_cell is not None else 0.0
        if profile_cell is not None and samples is not None and kernels_s:
            yield TimedAndProfiled(each, profile_cell, samples.median_s, kernels_s)


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
    relative_error: float
    """Relative error of the simulated peak, or of the predicted step."""
    in_interval: bool = False
    """Whether the measured step lies in the interval of the predicted one."""


def match_measured_and_simulated(cells: Iterable[MemoryCellRecord]) -> Iterator[MeasuredAndModelled]:
    """Yield one pair for every step whose peak was both measured and simulated for the same GPU and mode."""
    by_step: dict[Hashable, MemoryCellRecord] = {}
    known = cells_with_peak(reliable(cells, "memory"))
    for cell in known:
        if cell.source == "measured" and cell.device is not None and cell.device.type == "cuda":
            slug = hardware.slug_of(cell.device.name, cell.device.memory_bytes)
            by_step.setdefault((slug, cell.cell.mode, _step_key(cell)), cell)
    for cell in known:
        measured_cell = by_step.pop((cell.cell.simulated, cell.cell.mode, _step_key(cell)), None)
        if measured_cell is not None:
            yield MeasuredAndModelled(measured_cell, cell, peak_bytes(cell) / peak_bytes(measured_cell) - 1)


def match_measured_and_predicted(cells: Sequence[TimeCellRecord]) -> Iterator[MeasuredAndModelled]:
    """Yield one pair for every measured step that was also predicted for the same device."""
    by_step: dict[Hashable, tuple[TimeCellRecord, float]] = {}
    for cell in reliable_cells(cells):
        if cell.device is not None and (samples := cell.samples("step")) is not None:
            slug = hardware.slug_of(cell.device.name, cell.device.memory_bytes)
            by_step.setdefault((slug, cell.cell.mode, _step_key(cell)), (cell, samples.median_s))
    for cell in reliable(cells):
        step = cell.prediction.step if cell.prediction else None
        if step is not None and (match := by_step.pop((cell.cell.simulated, cell.cell.mode, _step_key(cell)), None)):
            measured, measured_s = match
            in_interval = step.low_s <= measured_s <= step.high_s
            yield MeasuredAndModelled(measured, cell, step.point_s / measured_s - 1, in_interval)


def profile_agreement(runs: Runs) -> Iterator[Finding]:
    """Yield findings that compare timed forward and backward phases with their kernels in a profile."""
    timed, profiled = _cells(runs, "time"), _cells(runs, "profile")
    for phase in ("forward", "backward"):
        pairs = sorted(match_timed_and_profiled(timed, profiled, phase), key=lambda each: each.kernel_share)
        if pairs:
            basis = _basis(runs, [cell for each in pairs for cell in (each.timed, each.profiled)])
            yield Finding(f"{phase}: {_describe_kernel_shares(pairs)}.", basis)


def _describe_kernel_shares(pairs: Sequence[TimedAndProfiled]) -> str:
    name = namer([each.timed for each in pairs])
    shares = share_range([(each.kernel_share, each.timed) for each in pairs], name)
    text = f"profiled kernels account for {shares} of the time measured without a profiler"
    if len(pairs) == 1:
        (pair,) = pairs
        measured_time = f"the {units.seconds(pair.timed_s)} measured without a profiler"
        text = f"profiled kernels take {units.seconds(pair.kernels_s)}, {shares} of {measured_time}"
    idle = [each.timed for each in pairs if each.kernel_share < MIN_KERNEL_SHARE]
    slower = [each.timed for each in pairs if each.kernel_share > MAX_KERNEL_SHARE]
    if not idle and not slower:
        return f"{text}, so the two agree"
    parts = [f"the device was idle for the rest at {name_cells(idle, name)}"] if idle else []
    parts += [f"kernels ran slower in the profile at {name_cells(slower, name)}"] if slower else []
    return f"{text}; {', and '.join(parts)}" if len(pairs) > 1 else f"{text}; {parts[0].partition(' at ')[0]}"


def simulation_agreement(runs: Runs) -> Iterator[Finding]:
    """Yield a finding that compares measured and simulated peaks for the same GPU."""
    if pairs := list(match_measured_and_simulated(_cells(runs, "memory"))):
        yield Finding(f"simulated vs. measured peaks: {_error_range(pairs)}.", _basis_of_pairs(runs, pairs), "mixed")


def prediction_agreement(runs: Runs) -> Iterator[Finding]:
    """Yield a finding that compares measured and predicted steps for the same device."""
    if pairs := list(match_measured_and_predicted(_cells(runs, "time"))):
        inside_count = sum(each.in_interval for each in pairs)
        inside = f"{inside_count} of {len(pairs)} inside their 90 % intervals"
        if len(pairs) == 1:
            inside = f"{('outside', 'inside')[inside_count]} the 90 % interval"
        text = f"predicted vs. measured steps: {_error_range(pairs)}, {inside}"
        yield Finding(f"{text}.", _basis_of_pairs(runs, pairs), "predicted")


def _error_range(pairs: Sequence[MeasuredAndModelled]) -> str:
    """Return the lowest and the highest error: `−1.0 % (ctx 128) to +0.3 % (ctx 512), over 3 steps`."""
    name = namer([each.measured for each in pairs])
    low, high = min(pairs, key=attrgetter("relative_error")), max(pairs, key=attrgetter("relative_error"))
    if len(pairs) == 1:
        return f"{_signed_share(low.relative_error)} ({name(low.measured)})"
    return (
        f"{_signed_share(low.relative_error)} ({name(low.measured)}) to "
        f"{_signed_share(high.relative_error)} ({name(high.measured)}) over {len(pairs)} steps"
    )


def _basis_of_pairs(runs: Runs, pairs: Sequence[MeasuredAndModelled]) -> tuple[Basis, ...]:
    return _basis(runs, [cell for each in pairs for cell in (each.measured, each.modelled)])


def _signed_share(share: float) -> str:
    return f"{'+' if share >= 0 else '−'}{units.share(abs(share))}"


def _cells(runs: Runs, kind: str) -> list[Any]:
    return [cell for run in runs if run.record.kind == kind for cell in run.record.cells]


def _basis(runs: Runs, cells: Sequence[CellRecord]) -> tuple[Basis, ...]:
    """Return the cells as the basis of a finding, grouped by run."""
    cells_by_run = [(run, [cell for cell in cells if any(cell is each for each in run.record.cells)]) for run in runs]
    return tuple(run.basis(run_cells) for run, run_cells in cells_by_run if run_cells)


CROSS_RUN_FINDINGS = (profile_agreement, simulation_agreement, prediction_agreement)
"""Functions that yield findings about several runs; each receives all runs of a report."""
