"""What runs of different commands say of the same step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from sysbench import units
from sysbench.commands.report.agreement import ClockAndKernels, clock_and_kernels, measured_and_simulated
from sysbench.commands.report.document import Basis, Finding, ReportedRun
from sysbench.log.records import CellRecord
from sysbench.render.findings import named, namer, share_range

Runs = Sequence[ReportedRun[Any]]

FILLED: Final = 0.9
"""A phase of which kernels fill less than this share was waiting for something else for the rest of it."""

SLOWER: Final = 1.1
"""Kernels that take longer than this share of the timed phase did not run under the same conditions."""


def clocks(runs: Runs) -> Iterator[Finding]:
    """Phases as they were timed, against the kernels of the same phase in a profile."""
    timed, profiled = _cells(runs, "time"), _cells(runs, "profile")
    for phase in ("forward", "backward"):
        found = sorted(clock_and_kernels(timed, profiled, phase), key=lambda each: each.covered)
        if found:
            basis = _basis(runs, [cell for each in found for cell in (each.timed, each.profiled)])
            yield Finding(f"{phase}: {_clocks(found)}.", basis)


def _clocks(found: Sequence[ClockAndKernels]) -> str:
    name = namer([each.timed for each in found])
    filled = share_range([(each.covered, each.timed) for each in found], name)
    if len(found) == 1:
        (only,) = found
        filled = f"{units.seconds(only.kernels_s)} of the {units.seconds(only.timed_s)}, {filled},"
    text = f"kernels, as profiled, fill {filled} of what was timed without a profiler"
    waits = [each.timed for each in found if each.covered < FILLED]
    slower = [each.timed for each in found if each.covered > SLOWER]
    if not waits and not slower:
        return f"{text}: the two agree"
    parts = [f"the device waited for the rest at {named(waits, name)}"] if waits else []
    parts += [f"kernels ran slower in the profile at {named(slower, name)}"] if slower else []
    return f"{text}; {', and '.join(parts)}" if len(found) > 1 else f"{text}; {parts[0].partition(' at ')[0]}"


def simulations(runs: Runs) -> Iterator[Finding]:
    """Peaks as they were measured, against those simulated for the same GPU."""
    found = list(measured_and_simulated(_cells(runs, "memory")))
    if not found:
        return
    name = namer([each.measured for each in found])
    ordered = sorted(found, key=lambda each: each.share)
    low, high = ordered[0], ordered[-1]
    ends = f"{_off(low.share)} ({name(low.measured)})"
    if len(found) > 1:
        ends += f" to {_off(high.share)} ({name(high.measured)})"
    basis = _basis(runs, [cell for each in found for cell in (each.measured, each.simulated)])
    many = f", over {len(found)} steps" if len(found) > 1 else ""
    yield Finding(f"simulated peaks against measured ones: {ends}{many}.", basis, "mixed")


def _off(share: float) -> str:
    return f"{'+' if share >= 0 else '−'}{units.share(abs(share))}"


def _cells(runs: Runs, kind: str) -> list[Any]:
    return [cell for run in runs if run.record.kind == kind for cell in run.record.cells]


def _basis(runs: Runs, cells: Sequence[CellRecord]) -> tuple[Basis, ...]:
    """Of each run those of the cells that are its own."""
    own = [(run, [cell for cell in cells if any(cell is each for each in run.record.cells)]) for run in runs]
    return tuple(run.basis(found) for run, found in own if found)
