"""Fold the event log of `sysbench time` into its record.

The energy of the measured steps comes from NVML's counter for the whole GPU (nvmlDeviceGetTotalEnergyConsumption, Volta
and later), which is updated every 20 to 100 ms (Yang, Adamek and Armour, "Part-time Power Measurements: nvidia-smi's
Lack of Attention", 2023, measured on a dozen GPUs). Energy is therefore known between two readings, to within one
update at either end, but it is unknown for a single step.
"""

from __future__ import annotations

import math
import statistics as standard
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sysbench import formulas, statistics
from sysbench.commands.time.record import (
    CeilingRecord,
    EnergyRecord,
    RankRecord,
    RateRecord,
    ReadingsRecord,
    TimeCellRecord,
    TimeRecord,
    compared_devices,
)
from sysbench.commands.time.spec import TimeCell
from sysbench.log import cautions
from sysbench.log import collect as run_record
from sysbench.log.collect import CellEvents, Run, fold_cells
from sysbench.log.events import (
    ChosenEffort,
    EffortChosen,
    Event,
    OwnModelBuilt,
    ProcessPeaks,
    Reading,
    StepEstimated,
)
from sysbench.log.outcomes import MEASURED, Caution, caution
from sysbench.log.predictions import Training, of_prediction, of_samples, prediction_of, training
from sysbench.log.records import PhaseRecord
from sysbench.spec import hardware
from sysbench.spec.knobs import FP8, FP8_SPEEDUP
from sysbench.spec.model import ModelCell

COUNTER_UPDATE_S = 0.1
"""Longest time between two updates of the counter."""

MIN_COUNTED_S = 10 * COUNTER_UPDATE_S
"""Shortest time between the first and the last reading at which the relative uncertainty is at most 10%."""


def energy(cell: ModelCell, seen: CellEvents) -> EnergyRecord | None:
    """Return the energy of the measured steps; None if there are no counter readings, or several ranks.

    The mean power is the difference between the first and the last reading within the measured steps, divided by the
    time between them. The energy is this power times the duration of all steps.
    """
    readings = [reading for reading in seen.readings if reading.energy_j is not None]
    steps = [step for step in seen.steps if step.step.wall_s is not None] if readings else []
    if not steps or cell.ranks > 1:  # the counter covers only the first rank's GPU
        return None
    begin_s, end_s = steps[0].at_s - (steps[0].step.wall_s or 0.0), steps[-1].at_s
    window_s = end_s - begin_s
    inside = sorted((reading for reading in readings if begin_s <= reading.at_s <= end_s), key=lambda each: each.at_s)
    counted_s = inside[-1].at_s - inside[0].at_s if inside else 0.0
    counted_j = (inside[-1].energy_j or 0.0) - (inside[0].energy_j or 0.0) if inside else 0.0
    withheld, steps_needed = None, None
    if counted_s < MIN_COUNTED_S:
        withheld = f"measured for {window_s:.2f} s"
        # Twice the shortest time, because readings rarely coincide with the first and the last step.
        steps_needed = math.ceil(2 * MIN_COUNTED_S / (window_s / len(steps))) if window_s > 0 else None
    elif counted_j <= 0:
        withheld = "the counter did not increase, or was reset"
    power_w = counted_j / counted_s if withheld is None else None
    tokens = run_record.step_tokens(cell, seen)
    step_j = power_w * window_s / len(steps) if power_w is not None else None
    return EnergyRecord(
        step_j=step_j,
        token_j=step_j / tokens if step_j is not None and tokens is not None else None,
        power_w=power_w,
        window_s=window_s,
        counted_s=counted_s,
        uncertainty_share=COUNTER_UPDATE_S / counted_s if withheld is None else None,
        withheld=withheld,
        steps_needed=steps_needed,
    )


def fold(events: Iterable[Event]) -> TimeRecord:
    run, cells = fold_cells(events, _cell)
    return TimeRecord(
        **run_record.run_fields(run),
        ceilings=[
            ceiling.as_record(
                CeilingRecord, seen_at=None if ceiling.seen_at_s is None else run_record.iso(ceiling.seen_at_s)
            )
            for ceiling in run.ceilings.values()
        ],
        cells=cells,
    )


def _cell(cell: TimeCell, seen: CellEvents, run: Run) -> TimeCellRecord:
    ranks = _ranks(cell, seen)
    seen, left_out_s = run_record.without_suspensions(run_record.merge_ranks(seen))
    signs = replace(run_record.signs_of(cell, seen, run), on_fewer_threads=cautions.on_fewer_threads_s(seen))
    phases = run_record.phases_of(cell.phases, seen.steps, signs, seen.warmup)
    rss_bytes = [reading.host_rss_bytes for reading in seen.readings if reading.host_rss_bytes is not None]
    rates = _rates(cell, seen, phases, run)
    prediction = prediction_of(cell, seen, run.started.spec.get("price", {}).get(cell.simulate))
    record = TimeCellRecord(
        **run_record.model_cell_fields(cell, seen),
        cautions=[
            *cautions.suspensions(left_out_s),
            *_measured_cautions(cell, seen, phases, rates, signs.load, run),
            *(prediction.cautions() if prediction else ()),
            *cautions.assumptions(cell, seen),
        ],
        build_s=seen.built.build_s if seen.built else None,
        compile_s=seen.compiled.compile_s if seen.compiled else None,
        graph_breaks=seen.compiled.graph_breaks if seen.compiled else None,
        attention_kernel=seen.checked.attention_kernel if seen.checked else None,
        loss=seen.checked.loss if seen.checked else None,
        phases=phases,
        warmup_samples_s=seen.warmup_s,
        memory=run_record.peak_record(seen, host_rss_peak_bytes=max(rss_bytes, default=None)),
        rates=rates,
        readings=_readings(seen.measured_readings or seen.readings),
        energy=None if left_out_s else energy(cell, seen),  # readings tell nothing of the time in between
        prediction=prediction,
        ranks=ranks,
        estimated_step_s=estimated.step_s if (estimated := seen.last(StepEstimated)) else None,
        effort=seen.record_of(EffortChosen, ChosenEffort),
        attempts=seen.attempts,
    )
    return record.model_copy(update={"training": _training(cell, seen, run, record)})


def _training(cell: TimeCell, seen: CellEvents, run: Run, record: TimeCellRecord) -> Training | None:
    """Return the training on the tokens of the run; None without tokens, or if the step has no time."""
    tokens, tokens_of_step = run.started.spec.get("tokens"), run_record.step_tokens(cell, seen)
    if tokens is None or not tokens_of_step or record.outcome not in MEASURED:
        return None
    if (prediction := record.prediction) is not None:
        if prediction.step is None:
            return None
        step_s = of_prediction(prediction.step)
        return training(step_s, tokens, tokens_of_step, cell.ranks, prediction.price_per_hour)
    samples = record.samples("step")
    return training(of_samples(samples.median_s, samples.ci95_s), tokens, tokens_of_step) if samples else None


def _ranks(cell: TimeCell, seen: CellEvents) -> list[RankRecord]:
    if not seen.ranks:
        return []
    return [
        RankRecord(
            rank=rank,
            phases=run_record.phases_of(cell.phases, each.steps),
            loss=each.checked.loss if each.checked else None,
            **(each.memory.fields_of(ProcessPeaks) if each.memory else {}),
        )
        for rank, each in sorted({0: seen, **seen.ranks}.items())
    ]


def _rates(cell: TimeCell, seen: CellEvents, phases: dict[str, PhaseRecord], run: Run) -> RateRecord | None:
    step = phases.get("step")
    if step is None or step.wall is None or seen.started is None:
        return None
    device = seen.started.device
    step_flops, tokens = run_record.step_flops(cell, seen), run_record.step_tokens(cell, seen)
    flops_per_s = None if step_flops is None else step_flops / step.wall.mean_s
    known = hardware.find(device.name, device.memory_bytes)
    of_one = known.peak_flops_per_s.get(cell.compute_precision) if known else None
    devices = compared_devices(cell, device.torch_name)
    peak_flops_per_s = devices * of_one if of_one else None
    precision = cell.ceiling_precision
    ceiling = run.ceilings.get((device.torch_name, precision, cell.threads)) if precision else None
    rates = RateRecord(
        step_flops=step_flops,
        flops_per_s=flops_per_s,
        tokens_per_s=None if tokens is None else tokens / step.wall.mean_s,
        peak_flops_per_s=peak_flops_per_s,
        peak_source=known.source if known and of_one else None,
        peak_share=flops_per_s / peak_flops_per_s if peak_flops_per_s and flops_per_s is not None else None,
        ceiling_flops_per_s=None,
        ceiling_share=None,
        recomputed_flops=run_record.recomputed_flops(cell, seen),
    )
    return rates.with_ceiling(devices * ceiling.matmul_flops_per_s if ceiling and not ceiling.disturbed else None)


def _readings(readings: Sequence[Reading]) -> ReadingsRecord | None:
    if not readings:
        return None

    def known(name: str) -> list[Any]:
        return [value for reading in readings if (value := getattr(reading, name)) is not None]

    def median(name: str) -> float | None:
        return standard.median(values) if (values := known(name)) else None

    joules = known("energy_j")
    return ReadingsRecord(
        count=len(readings),
        sm_clock_hz=median("sm_clock_hz"),
        sm_clock_min_hz=min(known("sm_clock_hz"), default=None),
        power_w=median("power_w"),
        temperature_max_c=max(known("temperature_c"), default=None),
        device_utilisation=median("device_utilisation"),
        energy_j=joules[-1] - joules[0] if len(joules) > 1 else None,
        host_cpu_share=median("host_cpu_share"),
        throttle_reasons=list(
            dict.fromkeys(reason for reading in readings for reason in reading.throttle_reasons or ())
        ),
        other_processes=max(known("other_processes"), default=None),
    )


# --- cautions


def _measured_cautions(
    cell: TimeCell,
    seen: CellEvents,
    phases: Mapping[str, PhaseRecord],
    rates: RateRecord | None,
    load: statistics.Load | None,
    run: Run,
) -> list[Caution]:
    """Return the cautions about measured steps, the most serious first; none without such steps."""
    step = phases["step"].wall if phases else None
    if step is None or seen.started is None:
        return []
    return cautions.causes(
        [
            *_correctness(seen),
            *_lower_bound(cell, step.estimate.samples, rates),
            *cautions.thread_contention(seen),
            *cautions.environment_cautions(seen, run.lost, load, step),
            *cautions.stability(seen.warmup_s, step),
            *cautions.precision_of_the_median(step, cell.until, cell.max_steps, _limit_s(seen)),
            *cautions.shared_cores(cell, seen, run),
            *cautions.launch_bound(seen, cell.execution),
            *cautions.emulation(cell.precision if cell.precision in FP8 else cell.compute_precision, seen),
            *cautions.precision_overridden(cell.precision, seen),
            *cautions.compilation(seen),
            *cautions.phases_not_measured(cell.sync, seen),
        ]
    )


def _limit_s(seen: CellEvents) -> float | None:
    """Return the time limit that ended the measurement; None if something else did."""
    chosen = seen.last(EffortChosen)
    return chosen.max_time_s if chosen and chosen.steps_end == "time" else None


def _correctness(seen: CellEvents) -> Iterator[Caution]:
    checked = seen.checked
    if checked is None:
        return
    if checked.loss is not None and not math.isfinite(checked.loss):
        yield caution(
            "loss-not-finite",
            "timing is usually unaffected, but the model is not training: check the initialisation, the "
            "inputs and --precision",
            about=(str(checked.loss),),
        )
    if checked.gradients_present is False:
        yield caution(
            "gradients-missing",
            "report this as a bug, and attach the log"
            if seen.last(OwnModelBuilt) is None
            else "find the parameters that forward does not use, or that are detached",
        )
    if checked.parameters_changed is False:
        yield caution("parameters-unchanged", "report this as a bug, and attach the log")


def _lower_bound(cell: TimeCell, wall: statistics.Series, rates: RateRecord | None) -> Iterator[Caution]:
    """Warn if the step is faster than the measured ceiling or the data-sheet peak allows."""
    if rates is None:
        return
    if rates.ceiling_flops_per_s and rates.ceiling_share is None and rates.step_flops is not None:
        yield caution(
            "ceiling-doubtful",
            "the share of the ceiling is omitted; close programs that may have slowed the ceiling "
            "measurement down, and measure again",
            ceiling_flops_per_s=rates.ceiling_flops_per_s,
        )
    if rates.peak_flops_per_s is None or rates.step_flops is None or (shape := cell.shape_with_formulas) is None:
        return
    skippable = formulas.attention_forward_flops(shape, cell.ctx, cell.batch) / 2
    passes = rates.step_flops / formulas.forward_flops(shape, cell.ctx, cell.batch)
    bound_s = (rates.step_flops - passes * skippable) / rates.peak_flops_per_s
    if cell.precision in FP8:
        bound_s /= FP8_SPEEDUP
    if wall.median < bound_s:
        yield caution(
            "below-lower-bound",
            "do not use this number; look for a missing synchronization or a phase that was skipped",
            bound_s=bound_s,
            median_s=wall.median,
        )
