"""Fold the event log of `sysbench profile` into its record, with cautions about incomplete or distorted profiles."""

from __future__ import annotations

import statistics as standard
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from sysbench.commands.profile.record import (
    Link,
    LinkMeasured,
    ProfileCellRecord,
    ProfileRead,
    ProfileRecord,
    RanksRead,
    TraceWritten,
)
from sysbench.commands.profile.spec import ProfileCell, ProfileSpec
from sysbench.log import collect as run_record
from sysbench.log.cautions import (
    assumptions,
    causes,
    compilation,
    emulation,
    environment_cautions,
    more_work_a_launch,
    precision_overridden,
    shared_cores,
    thread_contention,
)
from sysbench.log.collect import CellEvents, Run, collect, samples_of, signs_of
from sysbench.log.events import Event, StepMeasured
from sysbench.log.outcomes import Caution, caution
from sysbench.log.predictions import prediction_of
from sysbench.spec.knobs import FP8
from sysbench.trace.summary import ProfileSummary

HIGH_OVERHEAD_SHARE = 0.5
"""A caution is issued above this relative slowdown by the profiler."""

SLOWED_KERNEL_SHARE = 0.1
"""Kernels count as slowed if their total time exceeds the unprofiled step by more than this share."""

UNLINKED_SHARE = 0.01
"""A caution is issued above this share of kernel time without a known launch."""

OTHER_PRECISION_SHARE = 0.02
"""A caution is issued above this share of matrix product time in a precision other than the cell's."""


def cell_cautions(
    cell: ProfileCell, record: ProfileCellRecord, seen: CellEvents, timed: CellEvents, run: Run
) -> list[Caution]:
    summary = record.summary
    if summary is None:
        return []
    rules: tuple[Iterable[Caution], ...] = (
        record.prediction.cautions() if record.prediction else (),
        assumptions(cell, seen),
        _incompleteness_cautions(record, summary),
        _precision_cautions(cell, summary),
        _overhead_cautions(record, summary),
        () if cell.simulate else emulation(cell.precision if cell.precision in FP8 else cell.compute_precision, seen),
        precision_overridden(cell.precision, seen),
        thread_contention(timed),
        environment_cautions(timed, run.lost, signs_of(cell, timed, run).load, record.unprofiled),
        shared_cores(cell, seen, run),
        compilation(seen),
    )
    return causes(caution for rule in rules for caution in rule)


def _incompleteness_cautions(record: ProfileCellRecord, summary: ProfileSummary) -> Iterator[Caution]:
    for remark in summary.remarks:
        yield caution("trace-damaged", "repeat the profile if anything is missing", about=(remark,))
    if record.device is not None and record.device.type != "cpu" and summary.source == "cpu":
        yield caution(
            "kernels-missing", "stop other profilers, and check that this user may read the GPU's performance counters"
        )
    work_ns = summary.device.work_ns if summary.device else 0
    if work_ns and summary.unlinked_ns > UNLINKED_SHARE * work_ns:
        yield caution(
            "kernels-unlinked",
            "compare tables of single ranges with the table of the whole step",
            unlinked_share=summary.unlinked_ns / work_ns,
        )
    for check in summary.checks:
        if check.found != check.expected:
            yield caution(
                "check-failed",
                "do not use the counts of this profile; report this as a bug, with the log",
                about=(check.name,),
                found=check.found,
                expected=check.expected,
            )


def _precision_cautions(cell: ProfileCell, summary: ProfileSummary) -> Iterator[Caution]:
    whole_ns = sum(summary.precisions.values())
    # The optimizer and the loss stay in fp32 under autocast, but they contain no matrix products.
    expected = {"unknown", cell.compute_precision, *(["fp8"] if cell.precision in FP8 else [])}
    for name, total_ns in summary.precisions.items():
        if name not in expected and total_ns > OTHER_PRECISION_SHARE * whole_ns:
            yield caution(
                "precision-differs",
                f"use --precision {name} if that is intended; otherwise find out what enables {name}",
                about=(name, cell.compute_precision),
                matmul_share=total_ns / whole_ns,
            )


def _overhead_cautions(record: ProfileCellRecord, summary: ProfileSummary) -> Iterator[Caution]:
    if record.coverage is not None and record.coverage > 1 + SLOWED_KERNEL_SHARE:
        yield caution(
            "kernels-slower",
            "check whether the clocks were lower or the GPU was shared; use more --warmup steps",
            step_share=record.coverage,
        )
    if record.cost_share is not None and record.unprofiled is not None and record.cost_share > HIGH_OVERHEAD_SHARE:
        yield caution(
            "profiler-costly",
            "use sysbench time for step times, and this profile for shares",
            about=("kernels" if summary.source == "device" else "operators",),
            excess_share=record.cost_share,
            profiled_s=standard.fmean(record.profiled_s),
            unprofiled_s=record.unprofiled.mean_s,
        )
    use = summary.device
    if use is not None and use.launch_bound:
        yield caution(
            "launch-bound",
            more_work_a_launch(record.cell.execution)
            + ("" if summary.predicted else "; the profiler adds to the waiting"),
            about=("predicted" if summary.predicted else "profiled",),
            waiting_share=use.waiting_ns / use.window_ns,
        )


def fold(events: Iterable[Event]) -> ProfileRecord:
    run = collect(events)
    spec = ProfileSpec.model_validate(run.started.spec)
    return ProfileRecord(**run_record.run_fields(run), cells=[_cell_record(cell, run) for cell in spec.cells()])


def _cell_record(cell: ProfileCell, run: Run) -> ProfileCellRecord:
    seen = run.cells.get(cell.key, CellEvents())
    timing_cell = cell.reference_time_cell
    timed = run.cells.get(timing_cell.key, CellEvents()) if timing_cell is not None else CellEvents()
    profile_read, ranks_read, trace_written = seen.last(ProfileRead), seen.last(RanksRead), seen.last(TraceWritten)
    summary = profile_read.summary if profile_read is not None else None
    timed, seen = run_record.merge_ranks(timed), run_record.merge_ranks(seen)
    unprofiled_s, profiled_s = _wall_times_s(timed.steps), _wall_times_s(seen.steps)
    device_times_s = [step.step.device_s for step in timed.steps if step.step.device_s is not None]
    signs = signs_of(cell, timed, run)
    coverage = None
    if summary is not None and summary.source != "cpu" and (step_s := device_times_s or unprofiled_s):
        # On a CPU the profiler slows down the operators themselves, so coverage would exceed 1.
        coverage = summary.busy_ns / summary.steps / 1e9 / standard.fmean(step_s)
    record = ProfileCellRecord(
        **(run_record.cell_fields(cell, seen) | _outcome_fields(seen, timed, run)),
        cautions=[],
        profiler=cell.profiler,
        build_s=seen.built.build_s if seen.built else None,
        compile_s=seen.compiled.compile_s if seen.compiled else None,
        attention_kernel=seen.checked.attention_kernel if seen.checked else None,
        unprofiled=samples_of(unprofiled_s, signs),
        unprofiled_device=samples_of(device_times_s, replace(signs, load=None)),
        profiled_s=profiled_s,
        cost_share=standard.fmean(profiled_s) / standard.fmean(unprofiled_s) - 1
        if profiled_s and unprofiled_s
        else None,
        coverage=coverage,
        trace=trace_written.path if trace_written is not None else None,
        trace_bytes=trace_written.size_bytes if trace_written is not None else None,
        summary=summary,
        link=seen.record_of(LinkMeasured, Link),
        ranks=ranks_read.summary if ranks_read is not None else None,
        prediction=prediction_of(cell, seen),
    )
    return record.model_copy(update={"cautions": cell_cautions(cell, record, seen, timed, run)})


def _outcome_fields(seen: CellEvents, timed: CellEvents, run: Run) -> dict[str, object]:
    """Return the outcome of a cell with its reason; the run that times the cell without a profiler belongs to it."""
    fields = run_record.outcome_fields(seen)
    if fields["outcome"] != "not run" or timed.started is None:
        return fields
    if timed.finished is None or timed.finished.outcome != "ok":
        return run_record.outcome_fields(timed)
    if run.finished is not None:
        return {"outcome": "interrupted", "detail": None, "reason": "stopped"}
    return run_record.outcome_fields(replace(timed, finished=None))


def estimated_duration_s(cell: ProfileCellRecord) -> float | None:
    """Return the seconds that profiling a predicted cell would take on its GPU, including warm-up and unprofiled steps.

    0 if the cell runs out of memory; None if unknown.
    """
    step = cell.prediction.step if cell.prediction else None
    if cell.outcome == "oom":
        return 0.0
    spec = cell.cell
    timed = spec.warmup + spec.steps if spec.steps else 0
    return (timed + spec.warmup + spec.active) * step.point_s if step else None


def _wall_times_s(steps: Sequence[StepMeasured]) -> list[float]:
    return [step.step.wall_s for step in steps if step.step.wall_s is not None]
