"""Fold the event log of `sysbench attention` into its record."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import get_args

from sysbench import formulas as attention_costs
from sysbench import statistics
from sysbench.commands.attention.record import (
    AttentionAccounted,
    AttentionCellRecord,
    AttentionChecked,
    AttentionImported,
    AttentionKernels,
    AttentionMemory,
    AttentionPeaks,
    AttentionPredicted,
    AttentionRates,
    AttentionRecord,
    AttentionTimed,
    RepeatsRecord,
    RepeatsReduced,
)
from sysbench.formulas import AttentionCostsPhase as Phase
from sysbench.log import cautions
from sysbench.log import collect as run_record
from sysbench.log.collect import CellEvents, Run, fold_cells, samples_of
from sysbench.log.events import Event, GpuSimulated, SimulatedGpuRecord
from sysbench.log.outcomes import Caution, caution
from sysbench.log.predictions import GpuPrediction
from sysbench.log.records import Samples
from sysbench.spec import hardware
from sysbench.spec.attention import AttentionCell
from sysbench.spec.hardware import Hardware

MAX_SHARE = 1.1
"""A rate above this share of the hardware's limit is not credible; caches and noise explain smaller excesses."""

PHASES: tuple[Phase, ...] = get_args(Phase)


def fold(events: Iterable[Event]) -> AttentionRecord:
    run, cells = fold_cells(events, _cell)
    return AttentionRecord(**run_record.run_fields(run), cells=cells)


def _cell(cell: AttentionCell, seen: CellEvents, run: Run) -> AttentionCellRecord:
    memory, accounted = seen.last(AttentionMemory), seen.last(AttentionAccounted)
    kernels, checked = seen.last(AttentionKernels), seen.last(AttentionChecked)
    timed = seen.all(AttentionTimed)
    signs = run_record.signs_of(cell, seen, run)
    times = {phase: samples_of(_seconds(timed, phase), signs) for phase in PHASES}
    device = seen.started.device if seen.started else None
    known = hardware.find(device.name, device.memory_bytes) if device and not cell.simulated else None
    rates = {phase: _rates(cell, phase, found.mean_s, known) for phase, found in times.items() if found}
    prediction = seen.record_of(AttentionPredicted, GpuPrediction)
    if prediction is not None and cell.simulated:
        sheet = hardware.by_slug(cell.simulated)
        rates = {
            phase: _rates(cell, phase, found.point_s, sheet) for phase in PHASES if (found := prediction.phase(phase))
        }
    needed_bytes = None
    if accounted:
        together_bytes = sum(tensor.size_bytes for tensor in accounted.tensors)
        needed_bytes = max(together_bytes, accounted.reserved_bytes or 0) or None
    return AttentionCellRecord(
        **run_record.cell_fields(cell, seen),
        **(memory.fields_of(AttentionPeaks) if memory else {}),
        cautions=cautions.causes(
            [
                *_cautions(seen, times, rates),
                *(cautions.emulation(cell.precision, seen) if timed else ()),
                *(cautions.environment_cautions(seen, run.lost, signs.load, *times.values()) if timed else ()),
                *(prediction.cautions() if prediction else ()),
            ]
        ),
        source="predicted" if prediction and rates else "simulated" if cell.simulated else "measured",
        gpu=seen.record_of(GpuSimulated, SimulatedGpuRecord),
        code=imported.file if (imported := seen.last(AttentionImported)) else None,
        kernel=kernels.forward if kernels else None,
        compile_s=seen.compiled.compile_s if seen.compiled else None,
        fell_back=seen.compiled.fell_back if seen.compiled else None,
        forward=times["forward"],
        backward=times["backward"],
        device_events=bool(timed) and all(call.sample.device_s is not None for call in timed),
        warmup_samples_s={phase: _seconds(timed, phase, warmup=True) for phase in PHASES},
        naive_saved_bytes=attention_costs.naive_saved_bytes(cell),
        fused_saved_bytes=attention_costs.fused_saved_bytes(cell),
        rates={**rates},
        errors=checked.errors if checked else {},
        tensors=accounted.tensors if accounted else [],
        needed_bytes=needed_bytes,
        available_bytes=accounted.available_bytes if accounted else None,
        prediction=prediction,
        reduced=seen.record_of(RepeatsReduced, RepeatsRecord),
    )


def taken_s(cell: AttentionCellRecord) -> float | None:
    """Return the seconds that measuring a predicted cell would take, with a forward call before each backward call."""
    if cell.outcome == "oom":
        return 0.0
    forward, backward = (cell.prediction.phase(phase) if cell.prediction else None for phase in PHASES)
    if forward is None or backward is None:
        return None
    pair_s, calls = forward.point_s + backward.point_s, cell.cell.warmup + cell.cell.repeats
    limit_s = cell.cell.limit_s or math.inf
    return min(calls * (forward.point_s + pair_s), limit_s) if pair_s <= limit_s else 0.0


def _seconds(timed: Sequence[AttentionTimed], phase: Phase, *, warmup: bool = False) -> list[float]:
    """Return the times measured by the device's clock if available, otherwise by the host's clock."""
    samples = [each.sample for each in timed if each.phase == phase and each.warmup == warmup]
    if all(sample.device_s is not None for sample in samples):
        return [sample.device_s for sample in samples if sample.device_s is not None]
    return [sample.wall_s for sample in samples if sample.wall_s is not None]


def _rates(cell: AttentionCell, phase: Phase, taken_s: float, known: Hardware | None) -> AttentionRates:
    flops, moved = attention_costs.flops(cell, phase), attention_costs.bytes_moved(cell, phase)
    peak_flops_per_s = known.peak_flops_per_s.get(cell.precision) if known else None
    bandwidth = known.memory_bandwidth_bytes_per_s if known else None
    compute_s = flops / peak_flops_per_s if peak_flops_per_s else None
    transfer_s = moved / bandwidth if bandwidth else None
    limit_s = max(compute_s, transfer_s) if compute_s is not None and transfer_s is not None else None
    return AttentionRates(
        flops=flops,
        flops_per_s=flops / taken_s,
        bytes_moved=moved,
        bytes_per_s=moved / taken_s,
        limit_s=limit_s,
        limit_share=limit_s / taken_s if limit_s is not None else None,
        limited_by=None if limit_s is None else "compute" if limit_s == compute_s else "bandwidth",
    )


def _cautions(
    seen: CellEvents, times: dict[Phase, Samples | None], rates: dict[Phase, AttentionRates]
) -> Iterator[Caution]:
    for phase, each in rates.items():
        # Faster than the hardware allows: something was not computed, or the clock did not wait for it.
        if each.limit_share is not None and each.limit_share > MAX_SHARE:
            yield caution(
                "below-lower-bound",
                "check that the implementation computes correct results",
                about=(phase,),
                limit_share=each.limit_share,
                step_flops=each.flops,
                moved_bytes=each.bytes_moved,
            )
    if (checked := seen.last(AttentionChecked)) and not checked.errors:
        yield caution("not-checked", "check the implementation with a shorter --seq or a smaller --batch")
    for phase, samples in times.items():
        if samples is None or seen.finished is None or seen.finished.outcome != "ok":
            continue
        if modes := statistics.two_modes(samples.samples_s):
            yield cautions.two_modes(phase, modes, "lock the clocks, or keep the machine idle during the run")
        if change := statistics.drift(samples.samples_s):
            yield cautions.drift(phase, change, "use more --warmup")
