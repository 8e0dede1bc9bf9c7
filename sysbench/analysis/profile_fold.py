"""Folds the event log of `sysbench profile` into its record."""

from __future__ import annotations

import statistics as standard
from collections.abc import Iterable, Sequence

from sysbench.analysis import profile_cautions, run_record
from sysbench.analysis.collect import CellEvents, Run, collect
from sysbench.analysis.timing import samples_of
from sysbench.events import Event, ProfileRead, StepMeasured, TraceWritten
from sysbench.profile_summary import ProfileSummary
from sysbench.records import ProfileCellRecord, ProfileRecord
from sysbench.specs.profile import ProfileCell, ProfileSpec


def fold(events: Iterable[Event]) -> ProfileRecord:
    """The record of a run, finished or not; raises LogError when the events hold no run."""
    run = collect(events)
    spec = ProfileSpec.model_validate(run.started.spec)
    return ProfileRecord(**run_record.of_run(run), cells=[_cell(cell, run) for cell in spec.cells()])


def _cell(cell: ProfileCell, run: Run) -> ProfileCellRecord:
    seen = run.cells.get(cell.key, CellEvents())
    first = cell.timed_first
    timed = run.cells.get(first.key, CellEvents()) if first is not None else CellEvents()
    read, written = seen.last(ProfileRead), seen.last(TraceWritten)
    summary = read.summary if read is not None else None
    unprofiled_s, profiled_s = _walls(timed.steps), _walls(seen.steps)
    by_device_s = [step.step.device_s for step in timed.steps if step.step.device_s is not None]
    record = ProfileCellRecord(
        **run_record.of_cell(cell, seen),
        cautions=[],
        profiler=cell.profiler,
        build_s=seen.built.build_s if seen.built else None,
        compile_s=seen.compiled.compile_s if seen.compiled else None,
        attention_kernel=seen.checked.attention_kernel if seen.checked else None,
        unprofiled=samples_of(unprofiled_s),
        unprofiled_device=samples_of(by_device_s),
        profiled_s=profiled_s,
        cost_share=standard.median(profiled_s) / standard.median(unprofiled_s) - 1
        if profiled_s and unprofiled_s
        else None,
        coverage=_coverage(summary, by_device_s or unprofiled_s),
        trace=written.path if written is not None else None,
        trace_bytes=written.size_bytes if written is not None else None,
        summary=summary,
    )
    return record.model_copy(update={"cautions": profile_cautions.judge(cell, record, seen, timed, run.lost)})


def _walls(steps: Sequence[StepMeasured]) -> list[float]:
    return [step.step.wall_s for step in steps if step.step.wall_s is not None]


def _coverage(summary: ProfileSummary | None, step_s: Sequence[float]) -> float | None:
    """Of steps timed without a profiler, by the device's own clock where it has one, what the profiled kernels cover.

    None on a CPU: the profiler slows the operators themselves, and they would cover more than there was.
    """
    if summary is None or summary.source == "cpu" or not step_s:
        return None
    return summary.busy_ns / summary.steps / 1e9 / standard.median(step_s)
