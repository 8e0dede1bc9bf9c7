"""Folds the event log of `sysbench time` into its record."""

from __future__ import annotations

import statistics as standard
from collections.abc import Iterable, Sequence

from sysbench import formulas, hardware, statistics
from sysbench.analysis import cautions, run_record
from sysbench.analysis.collect import CellEvents, Run, collect
from sysbench.analysis.energy import energy
from sysbench.events import Event, PhaseSample, Reading, StepMeasured
from sysbench.records import (
    CeilingRecord,
    PeakRecord,
    PhaseRecord,
    RateRecord,
    ReadingsRecord,
    Samples,
    TimeCellRecord,
    TimeRecord,
)
from sysbench.specs.time import TimeCell, TimeSpec

HIGHEST_SHARE = 1.1
"""Of the measured ceiling: the cuts between the sizes tried and ordinary noise allow for this much."""


def fold(events: Iterable[Event]) -> TimeRecord:
    """The record of a run, finished or not; raises LogError when the events hold no run."""
    run = collect(events)
    spec = TimeSpec.model_validate(run.started.spec)
    return TimeRecord(
        **run_record.of_run(run),
        ceilings=[CeilingRecord(**ceiling.model_dump(exclude={"event", "at_s"})) for ceiling in run.ceilings.values()],
        cells=[_cell(cell, run.cells.get(cell.key, CellEvents()), run) for cell in spec.cells()],
    )


def _cell(cell: TimeCell, seen: CellEvents, run: Run) -> TimeCellRecord:
    phases = _phases(cell, seen.steps)
    rates = _rates(cell, seen, phases, run)
    return TimeCellRecord(
        **run_record.of_model_cell(cell, seen),
        cautions=cautions.judge(cell, seen, rates, run.lost),
        build_s=seen.built.build_s if seen.built else None,
        compile_s=seen.compiled.compile_s if seen.compiled else None,
        graph_breaks=seen.compiled.graph_breaks if seen.compiled else None,
        attention_kernel=seen.checked.attention_kernel if seen.checked else None,
        loss=seen.checked.loss if seen.checked else None,
        phases=phases,
        warmup_samples_s=[step.step.wall_s for step in seen.warmup if step.step.wall_s is not None],
        memory=_memory(seen),
        rates=rates,
        readings=_readings(seen.measured_readings or seen.readings),
        energy=energy(cell, seen),
    )


def _phases(cell: TimeCell, steps: Sequence[StepMeasured]) -> dict[str, PhaseRecord]:
    if not steps:
        return {}
    samples: dict[str, list[PhaseSample]] = {
        phase: [step.phases[phase] for step in steps if phase in step.phases] for phase in cell.phases
    }
    samples["step"] = [step.step for step in steps]
    return {phase: _phase(of_phase) for phase, of_phase in samples.items() if of_phase}


def _phase(samples: Sequence[PhaseSample]) -> PhaseRecord:
    enqueue = [sample.enqueue_s for sample in samples if sample.enqueue_s is not None]
    return PhaseRecord(
        wall=samples_of([sample.wall_s for sample in samples if sample.wall_s is not None]),
        device=samples_of([sample.device_s for sample in samples if sample.device_s is not None]),
        enqueue_median_s=standard.median(enqueue) if enqueue else None,
    )


def samples_of(samples_s: Sequence[float]) -> Samples | None:
    """Raw samples with their summary, or None when there are none."""
    if not samples_s:
        return None
    summary = statistics.summarize(samples_s)
    return Samples(
        samples_s=list(samples_s),
        mean_s=summary.mean,
        std_s=summary.std,
        median_s=summary.median,
        min_s=summary.minimum,
        max_s=summary.maximum,
        p5_s=summary.p5,
        p25_s=summary.p25,
        p75_s=summary.p75,
        p95_s=summary.p95,
        mad_s=summary.mad,
        ci95_s=summary.ci95,
        lag1_autocorrelation=summary.lag1,
    )


def _rates(cell: TimeCell, seen: CellEvents, phases: dict[str, PhaseRecord], run: Run) -> RateRecord | None:
    step = phases.get("step")
    if step is None or step.wall is None or seen.started is None:
        return None
    device = seen.started.device
    step_flops = formulas.step_flops_of(cell)
    flops_per_s = step_flops / step.wall.median_s
    known = hardware.find(device.name, device.memory_bytes)
    peak = hardware.peak(known, cell.precision) if known else None
    ceiling = run.ceilings.get((device.torch_name, cell.precision))
    return RateRecord(
        step_flops=step_flops,
        flops_per_s=flops_per_s,
        tokens_per_s=cell.tokens / step.wall.median_s,
        peak_flops_per_s=peak.flops_per_s if peak else None,
        peak_source=peak.source if peak else None,
        peak_share=flops_per_s / peak.flops_per_s if peak else None,
        ceiling_flops_per_s=ceiling.matmul_flops_per_s if ceiling else None,
        ceiling_share=_believable(flops_per_s / ceiling.matmul_flops_per_s) if ceiling else None,
    )


def _believable(share: float) -> float | None:
    """A ceiling that a whole step exceeds by more than the noise of both was no ceiling."""
    return share if share <= HIGHEST_SHARE else None


def _memory(seen: CellEvents) -> PeakRecord:
    used = [reading.device_used_bytes for reading in seen.readings if reading.device_used_bytes is not None]
    resident = [reading.host_rss_bytes for reading in seen.readings if reading.host_rss_bytes is not None]
    return PeakRecord(
        allocated_peak_bytes=seen.memory.allocated_peak_bytes if seen.memory else None,
        reserved_peak_bytes=seen.memory.reserved_peak_bytes if seen.memory else None,
        device_used_peak_bytes=max(used, default=None),
        host_rss_peak_bytes=max(resident, default=None),
    )


def _readings(readings: Sequence[Reading]) -> ReadingsRecord | None:
    if not readings:
        return None

    def known(name: str) -> list[float]:
        return [value for reading in readings if (value := getattr(reading, name)) is not None]

    def median(name: str) -> float | None:
        values = known(name)
        return standard.median(values) if values else None

    joules = known("energy_j")
    reasons = {reason: None for reading in readings for reason in reading.throttle_reasons or ()}
    others = [reading.other_processes for reading in readings if reading.other_processes is not None]
    return ReadingsRecord(
        count=len(readings),
        sm_clock_hz=median("sm_clock_hz"),
        sm_clock_min_hz=min(known("sm_clock_hz"), default=None),
        power_w=median("power_w"),
        temperature_max_c=max(known("temperature_c"), default=None),
        device_utilisation=median("device_utilisation"),
        energy_j=joules[-1] - joules[0] if len(joules) > 1 else None,
        host_cpu_share=median("host_cpu_share"),
        throttle_reasons=list(reasons),
        other_processes=max(others, default=None),
    )
