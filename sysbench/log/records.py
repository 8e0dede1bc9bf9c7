"""What came out of a run: the JSON summary, computed from the log and never edited."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

from sysbench import __version__
from sysbench.commands.accum.spec import Experiment, Order
from sysbench.commands.memory.spec import SearchAxis
from sysbench.commands.profile.spec import Profiler
from sysbench.log.events import (
    SCHEMA_VERSION,
    Accumulation,
    AllocationGroup,
    ArithmeticSource,
    AttentionError,
    AttentionTensor,
    DeviceInfo,
    DtypePart,
    HostInfo,
    ModuleMemory,
    Number,
    Source,
    TorchInfo,
)
from sysbench.log.outcomes import Caution, Outcome, RunStatus
from sysbench.rounding import FormatName
from sysbench.spec.frozen import Frozen
from sysbench.spec.kinds import Kind
from sysbench.spec.model import Precision
from sysbench.trace.summary import ProfileSummary


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


class EnergyRecord(Frozen):
    """What the measured steps took from the wall, by the counter of the whole GPU; None where it is withheld."""

    step_j: float | None
    token_j: float | None
    power_w: float | None
    """Mean power between the first and the last reading of the counter inside the window."""
    window_s: float
    """From the beginning of the first measured step to the end of the last."""
    counted_s: float
    """Between those two readings."""
    uncertainty_share: float | None
    """What the counter's rare updates leave open: one update over `counted_s`, either way."""
    withheld: str | None
    """Why there are no joules."""
    steps_needed: int | None
    """With about this many steps there would be."""


class CellRecord(Frozen):
    """What every command says of a cell, whatever became of it."""

    key: str
    axes: dict[str, Any]
    device: DeviceInfo | None
    outcome: Outcome
    detail: str | None
    cautions: list[Caution]


class ModelCellRecord(CellRecord):
    """What is said of a cell that is about a Transformer."""

    model: ModelRecord


class TimeCellRecord(ModelCellRecord):
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
    energy: EnergyRecord | None = None
    """None where no counter of energy was read; records of earlier versions have none."""


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


class MemoryCellRecord(ModelCellRecord):
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


class AttentionRates(Frozen):
    """What one phase of attention achieves, over its median time."""

    flops: int
    """Of the two or four matrix products, with the causal half taken off where the mask is causal."""
    flops_per_s: float
    bytes_moved: int
    """The least that has to cross the memory bus: inputs read once, results written once."""
    bytes_per_s: float
    limit_s: float | None
    """The least time that the hardware allows: the larger of FLOPs over peak rate and bytes over bandwidth."""
    limit_share: float | None
    limited_by: Literal["compute", "bandwidth"] | None


class AttentionCellRecord(CellRecord):
    """One cell of `sysbench attention`; None where nothing was measured or simulated."""

    source: Source
    gpu: SimulatedGpuRecord | None
    kernel: str | None
    """The operator that attention really ran as."""
    compile_s: float | None
    fell_back: bool | None
    forward: Samples | None
    backward: Samples | None
    device_events: bool
    """Times are the device's own; else the host's, between two synchronizations."""
    warmup_samples_s: dict[str, list[float]]
    """By phase, in order."""
    before_backward_bytes: int | None
    saved_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None = None
    """What the allocator took from the device."""
    naive_saved_bytes: int
    """What the written-out kind keeps at least: two N × N tensors a row. Computed, not measured."""
    fused_saved_bytes: int
    """What a fused kernel has to keep: one number for every query. Computed, not measured."""
    rates: dict[str, AttentionRates]
    """By phase."""
    errors: dict[str, AttentionError]
    """Against fp64: of `output`, and of the gradients of `q`, `k` and `v`."""
    tensors: list[AttentionTensor]
    """Of a cell that does not fit: what it would need."""
    needed_bytes: int | None = None
    """Of a cell that does not fit: these, and what the allocator would have to take from the device beside them."""
    available_bytes: int | None


class SumRecord(Frozen):
    """One number added up, and where its error comes from: `error = representation_error + accumulation_error`."""

    accumulator: FormatName
    addend: FormatName
    upcast: bool
    order: Order
    source: ArithmeticSource
    rounded_addend: Number
    result: Number
    error: Number
    """result − value × count, both exact."""
    representation_error: Number
    """count × (rounded addend − value): there before anything is added."""
    accumulation_error: Number
    """result − count × rounded addend: what rounding the sums did."""
    stall_step: int | None
    """From this step on adding changes nothing, whether or not the sum went that far; computed exactly. None where
    it overflows first, and for other orders than one after the other."""
    stall_at: float | None
    """What the sum is then."""


class DriftRecord(Frozen):
    """A running sum on its way."""

    accumulator: FormatName
    addend: FormatName
    upcast: bool
    order: Order
    steps: list[int]
    sums: list[Number]


class DtypeRecord(Frozen):
    """The type of something in a model under autocast, on this device and on CUDA."""

    precision: FormatName
    part: DtypePart
    name: str
    """`layers.*` stands for every layer, where all are alike; nothing for what has no name, or stands for all."""
    count: int
    """How many things this is said of."""
    here: str | None
    """Measured, as torch calls it."""
    on_cuda: str | None
    """Simulated by CUDA's rules."""


class NormRecord(Frozen):
    """Where layer norm leaves the range of a format, as scales of its inputs, which are powers of two.

    None where it does not within the scales that were tried. Inputs have mean 1 and deviation 1 times the scale.
    """

    dtype: FormatName
    statistics: FormatName
    mean_overflows_from: float | None
    variance_overflows_from: float | None
    variance_vanishes_to: float | None
    """The largest scale at which the variance is 0."""
    reciprocal_overflows_to: float | None
    """The largest at which rsqrt(variance), without eps, is not finite for want of a variance."""
    wrong_to: float | None
    """The largest small scale at which outputs are wrong (see `sysbench.commands.accum.fold.WRONG`)."""
    wrong_from: float | None
    """The smallest large one."""
    error_at_one: Number
    scales: list[float]
    relative_errors: list[Number]


class GradientsRecord(Frozen):
    """The gradients of one backward pass in fp32, by magnitude."""

    gradients: int
    zeros: int
    by_exponent: dict[int, int]


class ScaledRecord(Frozen):
    """What 16 bits leave of the gradients that are not zero in fp32, with the loss scaled."""

    precision: FormatName
    scale: float
    gradients: int
    lost: int
    lost_share: float
    overflowed: int
    overflowed_share: float
    relative_error: Number
    step_kept: bool


class ProductRecord(Frozen):
    """The error of one matrix product against fp64."""

    dtype: FormatName
    accumulation: Accumulation
    source: ArithmeticSource
    m: int
    k: int
    relative_error: Number
    total_error: Number


class AccumCellRecord(CellRecord):
    """One experiment of `sysbench accum`; everything that another one is about is empty."""

    experiment: Experiment
    sums: list[SumRecord]
    drift: list[DriftRecord]
    dtypes: list[DtypeRecord]
    norms: list[NormRecord]
    gradients: GradientsRecord | None
    scaled: list[ScaledRecord]
    products: list[ProductRecord]


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


class AttentionRecord(RunRecord[AttentionCellRecord]):
    """The final summary of `sysbench attention`."""

    kind: Literal["attention"] = "attention"


class AccumRecord(RunRecord[AccumCellRecord]):
    """The final summary of a run of `sysbench accum`."""

    kind: Literal["accum"] = "accum"


class ProfileRecord(RunRecord[ProfileCellRecord]):
    """The final summary of `sysbench profile`."""

    kind: Literal["profile"] = "profile"


class TraceRecord(Frozen):
    """What traces of anyone's come down to."""

    schema_version: int = SCHEMA_VERSION
    kind: Literal["traces"] = "traces"
    sysbench_version: str = __version__
    summaries: list[ProfileSummary]


def build() -> None:
    """Build the models of all records, which otherwise happens when each is first used."""
    for model in globals().copy().values():
        if isinstance(model, type) and issubclass(model, Frozen):
            model.model_rebuild()
