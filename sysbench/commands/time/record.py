"""Record of `sysbench time`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field

from sysbench.commands.time.spec import TimeCell
from sysbench.log.events import Ceiling, ChosenEffort, ProcessPeaks
from sysbench.log.predictions import PredictionRecord, Training, hardware_share
from sysbench.log.records import ModelCellRecord, PeakRecord, PhaseRecord, RunRecord, Samples
from sysbench.spec.frozen import Frozen
from sysbench.spec.quantities import (
    Amount,
    Count,
    Finite,
    Flops,
    Moment,
    PerSecond,
    PositiveSeconds,
    Seconds,
    Unbounded,
    stored_unless,
)
from sysbench.spec.steps import Phase

MAX_CEILING_SHARE = 1.1
"""Highest credible share of the measured ceiling: above 1, because of noise and untried matrix sizes."""


def compared_devices(cell: TimeCell, device: str) -> int:
    """Return the number of devices with whose limits a cell is compared; a CPU's limits include all its cores."""
    return 1 if device == "cpu" else cell.ranks


class RateRecord(Frozen):
    """Combined rates of all ranks, based on the mean step, and their shares of the hardware's limits."""

    step_flops: Flops | None
    """None if the FLOPs of a custom model could not be counted; FLOP rates are then None too."""
    flops_per_s: Amount | None
    tokens_per_s: Amount | None
    """None if the model takes no tokens."""
    peak_flops_per_s: PerSecond | None
    """Dense rate from the data sheet at this precision; None for unknown hardware."""
    peak_source: str | None
    peak_share: Amount | None
    ceiling_flops_per_s: PerSecond | None
    """Highest rate of a large matrix product seen on this device with this torch; None if only a disturbed one was."""
    ceiling_share: Amount | None
    recomputed_flops: Flops | None = stored_unless(None)
    """FLOPs of a step that activation checkpointing computes again; not part of `step_flops`."""

    @property
    def hardware_share(self) -> float | None:
        """`peak_share` with the recomputed FLOPs: the share of the rate at which the device works (HFU)."""
        return hardware_share(self.peak_share, self.step_flops, self.recomputed_flops)

    def with_ceiling(self, flops_per_s: float | None) -> RateRecord:
        """Return the rates with another ceiling; without a share of it if the step was credibly faster."""
        share = self.flops_per_s / flops_per_s if flops_per_s and self.flops_per_s is not None else None
        credible = share is not None and share <= MAX_CEILING_SHARE
        return self.model_copy(
            update={"ceiling_flops_per_s": flops_per_s, "ceiling_share": share if credible else None}
        )


class ReadingsRecord(Frozen):
    """Sensor readings during the measured steps, taken outside the worker; medians unless the name says otherwise."""

    count: Count
    sm_clock_hz: Amount | None
    sm_clock_min_hz: Amount | None
    power_w: Amount | None
    temperature_max_c: Finite | None
    device_utilisation: Amount | None
    energy_j: Finite | None
    host_cpu_share: Amount | None
    throttle_reasons: list[str]
    other_processes: Count | None


class EnergyRecord(Frozen):
    """Energy of the measured steps, from the energy counter of the whole GPU; energy and power are None if withheld."""

    step_j: Amount | None
    token_j: Amount | None
    power_w: Amount | None
    """Mean power between the first and the last reading of the counter within the window."""
    window_s: Seconds
    """Duration from the beginning of the first measured step to the end of the last."""
    counted_s: Seconds
    """Time between the first and the last reading of the counter."""
    uncertainty_share: Amount | None
    """Relative uncertainty: one update interval of the counter over `counted_s`."""
    withheld: str | None
    """Why the energy is withheld."""
    steps_needed: Count | None
    """Approximate number of steps needed to report the energy."""


class RankRecord(ProcessPeaks):
    """Results of one rank of a cell."""

    rank: Count
    phases: dict[str, PhaseRecord]
    """The phases of the cell's record, with the samples of this rank."""
    loss: Unbounded | None

    @property
    def median_step_s(self) -> float | None:
        """Median step time by the host's clock."""
        step = self.phases.get("step")
        return step.wall.median_s if step is not None and step.wall is not None else None


class MeasuredPhases(dict[str, PhaseRecord]):
    """Measured phases by name. The KeyError for another name says where predicted times are."""

    def __missing__(self, phase: str) -> PhaseRecord:
        raise KeyError(f"{phase!r} was not measured in this cell; time_s({phase!r}) also returns predicted times")


class TimeCellRecord(ModelCellRecord):
    """One cell of `sysbench time`.

    For a cell of several ranks, the samples of each step come from the slowest rank, because a step ends when the last
    rank has finished. Peaks are the highest of all ranks; resident memory is the sum over ranks.
    """

    cell: TimeCell = Field(alias="axes")

    build_s: Seconds | None
    compile_s: Seconds | None
    graph_breaks: Count | None
    attention_kernel: str | None
    loss: Unbounded | None
    phases: Annotated[dict[str, PhaseRecord], AfterValidator(MeasuredPhases)]
    """The mode's phases in order, then `step`; empty when nothing was measured."""
    warmup_samples_s: list[Seconds]
    """Wall time of the warm-up steps, in order."""
    memory: PeakRecord
    rates: RateRecord | None
    readings: ReadingsRecord | None
    energy: EnergyRecord | None = None
    """None if no energy counter was read."""
    prediction: PredictionRecord | None = stored_unless(None)
    """None if the cell was measured."""
    training: Training | None = stored_unless(None)
    """The whole training; None without its tokens (`--tokens`), or without a step time."""
    ranks: list[RankRecord] = stored_unless([])
    """Every rank, if there are several."""
    estimated_step_s: PositiveSeconds | None = stored_unless(None)
    """Step time that was expected before the first step; None if it was not estimated."""
    effort: ChosenEffort | None = stored_unless(None)
    """Why fewer steps may have been taken than asked for; None without a time limit, and for a stopped cell."""
    attempts: Count = stored_unless(1)
    """Number of processes that measured the steps: more than one if the cell was interrupted and continued."""

    @property
    def steps_taken(self) -> tuple[int, int]:
        """Number of warm-up steps, and of measured steps."""
        step = self.phases.get("step")
        return len(self.warmup_samples_s), len(step.times.samples_s) if step is not None and step.times else 0

    def time_s(self, phase: str = "step") -> float | None:
        """Return the median time of a phase, or its predicted time (see `source`); None without either, in seconds.

        Raises KeyError for a phase that no step has.
        """
        if phase not in ("step", *get_args(Phase)):
            raise KeyError(f"{phase!r} is not a phase: {', '.join(('step', *get_args(Phase)))}")
        prediction = self.prediction
        if prediction is None:
            samples = self.samples(phase)
            return samples.median_s if samples else None
        parts = (prediction.step,) if phase == "step" else (part for part in prediction.phases if part.name == phase)
        return next((part.point_s for part in parts if part is not None), None)

    def samples(self, phase: str) -> Samples | None:
        """Return the samples of a phase by the host's clock, or by the device's clock if the host did not wait."""
        record = self.phases.get(phase)
        return record.times if record else None

    @property
    def source(self) -> Literal["measured", "predicted"]:
        return "predicted" if self.cell.simulate else "measured"

    @property
    def device_name(self) -> str | None:
        """Name of the device or, for a prediction, of the GPU."""
        return self.prediction.gpu if self.prediction else super().device_name


class CeilingRecord(Ceiling):
    """The ceiling of a device; no rate is compared with a disturbed one."""

    seen_at: Moment | None = stored_unless(None)
    """When an earlier run saw this rate; None if this run saw it."""


class TimeRecord(RunRecord[TimeCellRecord]):
    """Record of a run of `sysbench time`."""

    kind: Literal["time"] = "time"
    ceilings: list[CeilingRecord]


def share_ceilings(records: Sequence[TimeRecord]) -> list[TimeRecord]:
    """Return the records with one ceiling for each device, torch, precision and number of threads: the best of all."""
    best: dict[tuple[object, ...], CeilingRecord] = {}
    for record in records:
        for ceiling in record.ceilings:
            subject = _subject(record, ceiling)
            if ceiling.disturbed or subject is None:
                continue
            seen = ceiling.model_copy(update={"seen_at": ceiling.seen_at or record.started_at, "flops_per_s_now": None})
            best[subject] = max(seen, best.get(subject, seen), key=lambda each: each.matmul_flops_per_s)
    return [_with_ceilings(record, best) for record in records]


def _subject(record: TimeRecord, ceiling: CeilingRecord) -> tuple[object, ...] | None:
    environment = record.environment
    device = next((device.name for device in environment.devices if device.torch_name == ceiling.device), None)
    if device is None or environment.torch is None:
        return None
    probe = environment.threads_probe
    default_threads = probe.default if probe is not None else environment.torch.threads
    return device, environment.torch.torch, ceiling.precision, ceiling.threads or default_threads


def _with_ceilings(record: TimeRecord, best: Mapping[tuple[object, ...], CeilingRecord]) -> TimeRecord:
    ceilings = {}
    for each in record.ceilings:
        other = best.get(_subject(record, each) or (), each)
        is_own = other.matmul_flops_per_s == each.matmul_flops_per_s and not each.disturbed
        ceilings[each.device, each.precision, each.threads] = each if is_own else other

    def compared(cell: TimeCellRecord) -> TimeCellRecord:
        device = cell.device.torch_name if cell.device is not None else ""
        ceiling = ceilings.get((device, cell.cell.compute_precision, cell.cell.threads))
        if ceiling is None or ceiling.disturbed or cell.rates is None:
            return cell
        rates = cell.rates.with_ceiling(compared_devices(cell.cell, device) * ceiling.matmul_flops_per_s)
        cautions = [
            caution for caution in cell.cautions if caution.code != "ceiling-doubtful" or rates.ceiling_share is None
        ]
        return cell.model_copy(update={"rates": rates, "cautions": cautions})

    return record.model_copy(update={"ceilings": list(ceilings.values()), "cells": list(map(compared, record.cells))})
