"""What came out of a run: the JSON summary, computed from the log and never edited."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from sysbench import __version__
from sysbench.events import (
    SCHEMA_VERSION,
    AllocationGroup,
    DeviceInfo,
    HostInfo,
    ModuleMemory,
    Source,
    TorchInfo,
)
from sysbench.frozen import Frozen
from sysbench.outcomes import Caution, Outcome, RunStatus
from sysbench.profile_summary import ProfileSummary
from sysbench.specs.kinds import Kind
from sysbench.specs.memory import SearchAxis
from sysbench.specs.model import Precision
from sysbench.specs.profile import Profiler


class Samples(Frozen):
    """Raw samples in the order in which they were taken, and what they come down to. Everything is in seconds."""

    samples_s: list[float]
    mean_s: float
    std_s: float
    """Sample standard deviation (n − 1); 0 for one sample."""
    median_s: float
    min_s: float
    max_s: float
    p5_s: float
    p25_s: float
    p75_s: float
    p95_s: float
    mad_s: float
    """Median absolute deviation from the median, unscaled."""
    ci95_s: tuple[float, float] | None
    """95 % interval of the median; None with too few samples for one."""
    lag1_autocorrelation: float | None


class PhaseRecord(Frozen):
    """One phase over the measured steps, by the host's clock and, where there is one, the device's."""

    wall: Samples | None
    device: Samples | None
    enqueue_median_s: float | None


class ModelRecord(Frozen):
    """What the model is and what a forward pass of it costs."""

    parameters: int
    parameters_without_lm_head: int
    forward_flops: int
    """Of one forward pass over the batch; causality not exploited."""


class PeakRecord(Frozen):
    """Peaks over the measured steps, in bytes; None where nothing was measured."""

    allocated_peak_bytes: int | None
    reserved_peak_bytes: int | None
    device_used_peak_bytes: int | None
    """Of the whole device, other processes included."""
    host_rss_peak_bytes: int | None
    """Of the worker and its children, sampled from outside during this cell."""


class RateRecord(Frozen):
    """How fast, and how far from what the hardware can do. Over the median step."""

    step_flops: int
    flops_per_s: float
    tokens_per_s: float
    peak_flops_per_s: float | None
    """The data sheet's dense rate at this precision; None for hardware that is not known."""
    peak_source: str | None
    peak_share: float | None
    ceiling_flops_per_s: float | None
    """What a large matrix product reached here, in this run."""
    ceiling_share: float | None


class ReadingsRecord(Frozen):
    """What was seen from outside while the steps were measured: medians, except where the name says otherwise."""

    count: int
    sm_clock_hz: float | None
    sm_clock_min_hz: float | None
    power_w: float | None
    temperature_max_c: float | None
    device_utilisation: float | None
    energy_j: float | None
    host_cpu_share: float | None
    throttle_reasons: list[str]
    other_processes: int | None


class CellRecord(Frozen):
    """What every command says of a cell, whatever became of it."""

    key: str
    axes: dict[str, Any]
    device: DeviceInfo | None
    outcome: Outcome
    detail: str | None
    cautions: list[Caution]
    model: ModelRecord


class TimeCellRecord(CellRecord):
    """One cell of `sysbench time`."""

    build_s: float | None
    compile_s: float | None
    graph_breaks: int | None
    attention_kernel: str | None
    loss: float | None
    phases: dict[str, PhaseRecord]
    """The mode's phases in order, then `step`; empty when nothing was measured."""
    warmup_samples_s: list[float]
    """Wall time of the warm-up steps, in order."""
    memory: PeakRecord
    rates: RateRecord | None
    readings: ReadingsRecord | None


class SimulatedGpuRecord(Frozen):
    """The GPU that a cell was simulated for, and what was assumed to be taken beside the allocator."""

    title: str
    memory_bytes: int
    context_bytes: int
    other_bytes: int
    settings: str


class PhasePeakRecord(Frozen):
    """The most during one phase."""

    allocated_peak_bytes: int
    reserved_peak_bytes: int | None
    by_category: dict[str, int]


class VerdictRecord(Frozen):
    """Whether it fits."""

    fits: bool
    failed_phase: str | None
    failed_step: int | None
    margin_bytes: int | None
    detail: str | None


class LargestRecord(Frozen):
    """The largest value of an axis that fits, which the other numbers of the cell are of."""

    axis: SearchAxis
    value: int
    beyond: int | None
    tried: list[int]


class MemoryCellRecord(CellRecord):
    """One cell of `sysbench memory`; None where nothing was measured or simulated."""

    source: Source
    gpu: SimulatedGpuRecord | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    peak_phase: str | None
    host_rss_peak_bytes: int | None
    """Of the worker: the larger of what was seen from outside and what the kernel says."""
    device_used_peak_bytes: int | None
    """Of the whole device, other processes included, as NVML saw it."""
    context_bytes: int | None
    """On the device and outside the allocator: assumed of a simulation, else what NVML saw."""
    alloc_retries: int | None
    by_category: dict[str, int]
    """At the peak."""
    peaks_by_phase: dict[str, PhasePeakRecord]
    largest: list[AllocationGroup]
    modules: list[ModuleMemory]
    residual_bytes: int
    """Of one residual stream, batch × ctx × d_model numbers in fp32: computed, not measured."""
    snapshot: str | None
    verdict: VerdictRecord | None
    found: LargestRecord | None


class ProfileCellRecord(CellRecord):
    """One cell of `sysbench profile`; None where nothing was profiled."""

    profiler: Profiler
    build_s: float | None
    compile_s: float | None
    attention_kernel: str | None
    unprofiled: Samples | None
    """The same step without a profiler, timed first and in another process."""
    unprofiled_device: Samples | None
    """The same by the device's own clock, where it has one."""
    profiled_s: list[float]
    """The profiled steps, by the host's clock."""
    cost_share: float | None
    """By how much the profiler made the median step longer, as a share of it."""
    coverage: float | None
    """Of the unprofiled median step, the share in which the device was seen at work; None on a CPU."""
    trace: str | None
    """Where the trace is, if it was kept."""
    trace_bytes: int | None
    summary: ProfileSummary | None


class CeilingRecord(Frozen):
    """What a large matrix product reached on this machine during the run."""

    device: str
    precision: Precision
    matmul_flops_per_s: float
    matmul_size: int


class EnvironmentRecord(Frozen):
    """Where the run took place."""

    host: HostInfo
    torch: TorchInfo | None
    devices: list[DeviceInfo]
    driver: str | None


AnyCell = TypeVar("AnyCell", bound=CellRecord)


class RunRecord(Frozen, Generic[AnyCell]):
    """The final summary of a run of whatever kind."""

    schema_version: int = SCHEMA_VERSION
    kind: Kind
    sysbench_version: str
    source_digest: str
    started_at: str
    """ISO 8601, UTC."""
    finished_at: str | None
    status: RunStatus
    spec: dict[str, Any]
    environment: EnvironmentRecord
    cells: list[AnyCell]


class TimeRecord(RunRecord[TimeCellRecord]):
    """The final summary of `sysbench time`."""

    kind: Literal["time"] = "time"
    ceilings: list[CeilingRecord]


class MemoryRecord(RunRecord[MemoryCellRecord]):
    """The final summary of `sysbench memory`."""

    kind: Literal["memory"] = "memory"


class ProfileRecord(RunRecord[ProfileCellRecord]):
    """The final summary of `sysbench profile`."""

    kind: Literal["profile"] = "profile"


class TraceRecord(Frozen):
    """What traces of anyone's come down to."""

    schema_version: int = SCHEMA_VERSION
    kind: Literal["traces"] = "traces"
    sysbench_version: str = __version__
    summaries: list[ProfileSummary]
