"""What is happening while a run goes on: one frozen class per event, told apart by `event`.

The worker says what it does and measures; the engine adds its own readings and verdicts. Together, in order, they
are the log, and everything that is shown later is computed from them. `at_s` is always seconds since the epoch.
"""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PlainSerializer, TypeAdapter

from sysbench.commands.accum.spec import Order
from sysbench.commands.memory.spec import SearchAxis
from sysbench.log.outcomes import Outcome, RunStatus
from sysbench.rounding import FormatName
from sysbench.spec.frozen import Frozen
from sysbench.spec.kinds import Kind
from sysbench.spec.model import DeviceType, Precision
from sysbench.trace.summary import ProfileSummary

SCHEMA_VERSION = 1

Number = Annotated[float, PlainSerializer(lambda value: value if isfinite(value) else str(value), when_used="json")]
"""A number that may be infinite or NaN, for which JSON has no numbers: there it is the word `inf`, `-inf` or `nan`."""


class HostInfo(Frozen):
    """The machine the run is on, as far as it can be known without torch."""

    hostname: str
    platform: str
    python: str
    cpu: str
    physical_cores: int | None
    logical_cores: int
    memory_bytes: int
    container: bool
    commit: str | None
    """The git commit of sysbench's own checkout, with `-dirty` when it was changed; None for an installed wheel."""


class DeviceInfo(Frozen):
    """One device that cells can run on."""

    name: str
    """The hardware's own name: `NVIDIA H200`."""
    type: DeviceType
    index: int = 0
    uuid: str | None = None
    memory_bytes: int | None = None
    compute_capability: str | None = None
    multiprocessors: int | None = None
    bf16: bool | None = None
    """Of a CPU: whether it multiplies bf16 in hardware; None where nobody has looked."""

    @property
    def torch_name(self) -> str:
        """What torch calls it: `cuda:0`, `mps`, `cpu`."""
        return f"cuda:{self.index}" if self.type == "cuda" else self.type


class TorchInfo(Frozen):
    """The torch that measures."""

    torch: str
    cuda: str | None
    cudnn: str | None
    triton: str | None
    threads: int
    allocator: str | None
    """PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF, as set."""
    import_s: float


class RunStarted(Frozen):
    """The first event of every log."""

    event: Literal["run_started"] = "run_started"
    at_s: float
    schema_version: int = SCHEMA_VERSION
    kind: Kind
    sysbench_version: str
    source_digest: str
    """Hash of sysbench's own source: a log is only resumed by the code that made it."""
    spec: dict[str, Any]
    host: HostInfo
    driver: str | None
    """Version of the NVIDIA driver, from NVML."""
    cells: int


class RunResumed(Frozen):
    """A log is continued; what was failed or missing is run again."""

    event: Literal["run_resumed"] = "run_resumed"
    at_s: float
    keep: int
    """How many finished cells are kept."""


class WorkerReady(Frozen):
    """A worker has imported torch and says what it found. The first device is what `auto` stands for."""

    event: Literal["worker_ready"] = "worker_ready"
    at_s: float
    pid: int
    torch: TorchInfo
    devices: list[DeviceInfo]


class CeilingMeasured(Frozen):
    """What a large matrix product reaches on this device: the best of several, in FLOP/s."""

    event: Literal["ceiling_measured"] = "ceiling_measured"
    at_s: float
    device: str
    precision: Precision
    matmul_flops_per_s: float
    matmul_size: int
    """The product is (n, n) × (n, n)."""


class CeilingFailed(Frozen):
    """The ceiling could not be measured; the run goes on and shares of it stay unknown."""

    event: Literal["ceiling_failed"] = "ceiling_failed"
    at_s: float
    device: str
    precision: Precision
    detail: str


class MemoryForeseen(Frozen):
    """What a simulation says of a cell that is yet to be measured: whether it will fit into what is free."""

    event: Literal["memory_foreseen"] = "memory_foreseen"
    at_s: float
    cell: str
    free_bytes: int
    fits: bool | None
    """None where it cannot be simulated; `detail` then says why."""
    lacking_bytes: int | None = None
    detail: str | None = None


class CellStarted(Frozen):
    """A cell begins; `index` counts from 0 over the whole run.

    Whatever an earlier attempt at the same cell left in the log (of a run that was resumed) is void from here on.
    """

    event: Literal["cell_started"] = "cell_started"
    at_s: float
    cell: str
    index: int
    axes: dict[str, Any]
    """The cell's spec, complete, as its `model_dump()` has it."""
    device: DeviceInfo


Stage = Literal[
    "building",
    "compiling",
    "warming-up",
    "measuring",
    "simulating",
    "searching",
    "profiling",
    "writing",
    "reading",
]


class StageEntered(Frozen):
    """What the worker turns to next."""

    event: Literal["stage_entered"] = "stage_entered"
    at_s: float
    cell: str
    stage: Stage


class ModelBuilt(Frozen):
    """The model, the optimizer and a batch are on the device."""

    event: Literal["model_built"] = "model_built"
    at_s: float
    cell: str
    parameters: int
    parameters_without_lm_head: int
    build_s: float


class Compiled(Frozen):
    """torch.compile has run: the first step, compilation included, took `compile_s`."""

    event: Literal["compiled"] = "compiled"
    at_s: float
    cell: str
    compile_s: float
    graphs: int
    graph_breaks: int
    fell_back: bool
    """Dynamo gave up on some frame and runs it eagerly."""
    detail: str | None = None


class PhaseSample(Frozen):
    """One phase of one step, in seconds.

    `wall_s` is read on the host between two synchronizations; `enqueue_s` is the part of it until the host had
    launched everything (None where launching and running are one); `device_s` is the time between two device
    events (None where there are none).
    """

    wall_s: float | None
    enqueue_s: float | None = None
    device_s: float | None = None


class StepMeasured(Frozen):
    """One step. With `sync=phase` each phase has a wall time, and `step` is their sum.

    With `sync=step` only `step` has a wall time, and phases have device times where there are device events.
    """

    event: Literal["step_measured"] = "step_measured"
    at_s: float
    cell: str
    index: int
    """From 0, counted apart for warm-up and measured steps."""
    warmup: bool
    phases: dict[str, PhaseSample]
    step: PhaseSample


class MemoryMeasured(Frozen):
    """Peaks of the measured steps; None where the device does not tell."""

    event: Literal["memory_measured"] = "memory_measured"
    at_s: float
    cell: str
    allocated_peak_bytes: int | None
    reserved_peak_bytes: int | None
    host_rss_peak_bytes: int | None
    """`ru_maxrss` of the worker; a high-water mark over the worker's life, not only this cell's."""


class StepChecked(Frozen):
    """Whether the steps did what they say: None where the mode has no such phase."""

    event: Literal["step_checked"] = "step_checked"
    at_s: float
    cell: str
    gradients_present: bool | None
    parameters_changed: bool | None
    loss: float | None
    attention_kernel: str | None
    """The operator that attention really ran as: `aten::_scaled_dot_product_flash_attention`, say."""


class Reading(Frozen):
    """What the parent saw from outside; None where it cannot be known."""

    event: Literal["reading"] = "reading"
    at_s: float
    host_rss_bytes: int | None = None
    """Resident memory of the worker and its children."""
    host_available_bytes: int | None = None
    host_cpu_share: float | None = None
    """Of all cores, by processes other than the worker's tree: 0 to 1."""
    device_used_bytes: int | None = None
    device_utilisation: float | None = None
    sm_clock_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    energy_j: float | None = None
    """A counter that only grows; differences of it mean something."""
    throttle_reasons: list[str] | None = None
    other_processes: int | None = None
    """Processes on the GPU that are not ours; read between cells only."""


Source = Literal["measured", "simulated"]

ArithmeticSource = Literal["device", "rounded"]
"""device   the device's own arithmetic in that format
rounded  arithmetic in a wider format, every result rounded to it, or of products the inputs
"""


class GpuSimulated(Frozen):
    """The cell runs on no device: this is the GPU that its memory is worked out for."""

    event: Literal["gpu_simulated"] = "gpu_simulated"
    at_s: float
    cell: str
    title: str
    memory_bytes: int
    context_bytes: int
    """Taken by the CUDA context, outside the allocator: assumed."""
    other_bytes: int
    """Taken by other processes: assumed."""
    settings: str
    """PYTORCH_CUDA_ALLOC_CONF as it was simulated."""


class PhaseMemoryMeasured(Frozen):
    """The most memory during one phase of the step that counts."""

    event: Literal["phase_memory_measured"] = "phase_memory_measured"
    at_s: float
    cell: str
    source: Source
    phase: str
    allocated_peak_bytes: int
    """Of live tensors, as the allocator counts them, in blocks of 512 bytes."""
    reserved_peak_bytes: int | None
    """Of what the allocator holds; None where it does not tell."""
    by_category: dict[str, int]
    """At the first moment at which that much is allocated; adds up to it. Empty when it is not known."""


class PeakMeasured(Frozen):
    """The most memory over the step that counts, and what there was besides."""

    event: Literal["peak_measured"] = "peak_measured"
    at_s: float
    cell: str
    source: Source
    phase: str | None
    """In which phase it is reached first."""
    allocated_peak_bytes: int
    reserved_peak_bytes: int | None
    host_rss_peak_bytes: int | None
    """`ru_maxrss` of the worker; None of a simulation."""
    outside_bytes: int | None
    """On the device and outside the allocator: CUDA's context and libraries, and other programs; assumed of a
    simulation, None where there is no device of its own."""
    alloc_retries: int | None
    """How often the allocator had to give back everything it had cached before it could serve a request."""
    by_category: dict[str, int]
    """At the peak; adds up to it."""


class CodeLine(Frozen):
    """One line of a stack."""

    filename: str
    line: int
    name: str


class AllocationGroup(Frozen):
    """Allocations that are alike: of one size and category, and from one stack."""

    count: int
    size_bytes: int
    """Of each, as the allocator counts it."""
    category: str
    modules: list[str]
    """The first and the last module that they belong to: `layers.0.attention`, `layers.31.attention`."""
    phase: str | None
    """In which they were made; None where that is not known."""
    stack: list[CodeLine]
    """Where they were made, innermost first; of backward, the lines whose gradient it is."""

    @property
    def total_bytes(self) -> int:
        """Of all of them."""
        return self.count * self.size_bytes


class LargestAllocations(Frozen):
    """What the peak consists of, the most bytes together first."""

    event: Literal["largest_allocations"] = "largest_allocations"
    at_s: float
    cell: str
    source: Source
    groups: list[AllocationGroup]


class ModuleMemory(Frozen):
    """What a module and those below it hold."""

    path: str
    """`layers.3.attention`; empty for the whole."""
    total_bytes: int
    own_bytes: int
    """Without the modules below it."""
    by_category: dict[str, int]
    """Of the total."""


class ModulesMeasured(Frozen):
    """The peak by module, every module before those below it, larger ones first."""

    event: Literal["modules_measured"] = "modules_measured"
    at_s: float
    cell: str
    source: Source
    modules: list[ModuleMemory]


class VerdictReached(Frozen):
    """Whether the cell fits on the device."""

    event: Literal["verdict_reached"] = "verdict_reached"
    at_s: float
    cell: str
    source: Source
    fits: bool
    failed_phase: str | None
    """Where memory runs out: `build`, or a phase."""
    failed_step: int | None
    """In which step, from 0; -1 before the first."""
    margin_bytes: int | None
    """What is left of the device at the fullest moment; if negative, how much more it would need."""
    detail: str | None


class CandidateTried(Frozen):
    """On the way to the largest that fits."""

    event: Literal["candidate_tried"] = "candidate_tried"
    at_s: float
    cell: str
    axis: SearchAxis
    value: int
    fits: bool
    margin_bytes: int


class LargestFound(Frozen):
    """The end of a search: what else is said of the cell is of this value."""

    event: Literal["largest_found"] = "largest_found"
    at_s: float
    cell: str
    axis: SearchAxis
    value: int
    """The largest that fits; 0 if not even 1 does."""
    beyond: int | None
    """The next one, which does not fit; None if the search ended before anything did not."""


class SnapshotWritten(Frozen):
    """Every allocation of the cell is in a file."""

    event: Literal["snapshot_written"] = "snapshot_written"
    at_s: float
    cell: str
    path: str
    size_bytes: int


class AttentionTimed(Frozen):
    """One forward, or one backward, of attention."""

    event: Literal["attention_timed"] = "attention_timed"
    at_s: float
    cell: str
    index: int
    """From 0, counted apart for each phase, and for warm-up and measured calls."""
    warmup: bool
    phase: Literal["forward", "backward"]
    sample: PhaseSample


class AttentionMemory(Frozen):
    """What one forward leaves in memory, and the most that forward and backward need."""

    event: Literal["attention_memory"] = "attention_memory"
    at_s: float
    cell: str
    source: Source
    before_backward_bytes: int | None
    """Everything that lives when backward begins: inputs, output, and what is saved."""
    saved_bytes: int | None
    """What forward keeps for backward beside its inputs and its output."""
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None = None
    """What the allocator takes from the device for that; None where it does not tell, or there is none."""


class AttentionKernels(Frozen):
    """What attention really ran as."""

    event: Literal["attention_kernels"] = "attention_kernels"
    at_s: float
    cell: str
    forward: str | None
    """The operator: `aten::_scaled_dot_product_flash_attention`, say."""
    detail: str | None = None


class AttentionError(Frozen):
    """How far a result lies from the same in fp64."""

    max_abs: float
    relative: float
    """‖x − x64‖ / ‖x64‖."""


class AttentionChecked(Frozen):
    """The results of an implementation against fp64, on a sample of the input."""

    event: Literal["attention_checked"] = "attention_checked"
    at_s: float
    cell: str
    errors: dict[str, AttentionError]
    """Of `output`, and of the gradients of `q`, `k` and `v`."""
    sample: str
    """What was checked: `1 of 8 sequences`."""


class AttentionTensor(Frozen):
    """One tensor that attention needs."""

    name: str
    shape: list[int]
    dtype: str
    size_bytes: int
    phase: Literal["inputs", "forward", "backward"]


class AttentionAccounted(Frozen):
    """What a cell that does not fit would need."""

    event: Literal["attention_accounted"] = "attention_accounted"
    at_s: float
    cell: str
    tensors: list[AttentionTensor]
    """Those that live together at the fullest moment."""
    available_bytes: int | None
    reserved_bytes: int | None = None
    """What the allocator would have to take from the device for them; None where that is not known."""


class SumMeasured(Frozen):
    """One number added up `count` times, as `accumulator += addend`."""

    event: Literal["sum_measured"] = "sum_measured"
    at_s: float
    cell: str
    accumulator: FormatName
    addend: FormatName
    """What the number is rounded to before it is added."""
    upcast: bool
    """The rounded number is converted to the accumulator's format before, rather than by the addition."""
    order: Order
    source: ArithmeticSource
    rounded_addend: Number
    result: Number
    drift: list[tuple[int, Number]]
    """Steps and what the sum is after them; empty where there is no running sum."""


DtypePart = Literal["parameter", "input", "output", "logits", "loss", "gradient"]


class DtypeSeen(Frozen):
    """The type that something in a model has."""

    part: DtypePart
    name: str
    """The path of the parameter or module: `layers.0.attention.q`; empty where there is one only."""
    dtype: str
    """As torch calls it: `float16`."""


class DtypesMeasured(Frozen):
    """The types of everything in a model under autocast."""

    event: Literal["dtypes_measured"] = "dtypes_measured"
    at_s: float
    cell: str
    precision: FormatName
    """What autocast is asked for."""
    source: Source
    """Simulated is what CUDA does, without CUDA."""
    seen: list[DtypeSeen]


class NormPoint(Frozen):
    """Layer norm of inputs of one scale."""

    scale: float
    mean: Number
    variance: Number
    reciprocal_deviation: Number
    """rsqrt(variance + eps)."""
    bare_reciprocal_deviation: Number
    """rsqrt(variance): what eps keeps from becoming infinite."""
    relative_error: Number
    """Of the outputs, against fp64: ‖y − y64‖ / ‖y64‖."""


class NormMeasured(Frozen):
    """Layer norm with inputs and outputs in one format and its statistics in another, over the scale of its inputs."""

    event: Literal["norm_measured"] = "norm_measured"
    at_s: float
    cell: str
    dtype: FormatName
    statistics: FormatName
    source: ArithmeticSource
    points: list[NormPoint]


class GradientsMeasured(Frozen):
    """The parameters' gradients of one backward pass in fp32, by magnitude."""

    event: Literal["gradients_measured"] = "gradients_measured"
    at_s: float
    cell: str
    gradients: int
    zeros: int
    by_exponent: dict[int, int]
    """How many are at least 2**exponent in magnitude and less than twice that."""


class ScaledBackward(Frozen):
    """The parameters' gradients of one backward pass under autocast, beside those in fp32.

    Counted are the gradients that are not zero in fp32.
    """

    event: Literal["scaled_backward"] = "scaled_backward"
    at_s: float
    cell: str
    precision: FormatName
    scale: float
    """What the loss is multiplied by, and the gradients divided by in fp32."""
    gradients: int
    lost: int
    """Zero here."""
    overflowed: int
    """Infinite or NaN here."""
    relative_error: Number
    """Of all gradients together: ‖g − g32‖ / ‖g32‖."""
    step_kept: bool
    """Whether torch's GradScaler lets the optimizer take the step."""


Accumulation = Literal["as it is", "reduced", "not reduced", "narrow"]
"""as it is     as the device forms sums by itself
reduced      parts of sums may be added in the format of the inputs (allow_…_reduced_precision_reduction)
not reduced  they may not
narrow       term by term, every sum rounded to the format of the inputs
"""


class ProductMeasured(Frozen):
    """The error of a matrix product against fp64, (m, k) × (k, m)."""

    event: Literal["product_measured"] = "product_measured"
    at_s: float
    cell: str
    dtype: FormatName
    accumulation: Accumulation
    source: ArithmeticSource
    m: int
    k: int
    relative_error: Number
    """‖C − C64‖ / ‖C64‖, C64 being the product in fp64 of the same rounded inputs: accumulation alone."""
    total_error: Number
    """The same against the inputs before they were rounded."""


class TraceWritten(Frozen):
    """What a profiler recorded of the cell is in a file."""

    event: Literal["trace_written"] = "trace_written"
    at_s: float
    cell: str
    path: str | None
    """None of a file that goes when it has been read."""
    size_bytes: int


class ProfileRead(Frozen):
    """What the trace comes down to: the engine reads it as soon as the worker is done, since it is not always kept."""

    event: Literal["profile_read"] = "profile_read"
    at_s: float
    cell: str
    summary: ProfileSummary


class CellFinished(Frozen):
    """A cell is over, one way or another; the last one of a cell counts.

    A cell that was never started (`skipped`, or `invalid` here) has this event alone.
    """

    event: Literal["cell_finished"] = "cell_finished"
    at_s: float
    cell: str
    outcome: Outcome
    detail: str | None = None
    traceback: str | None = None


class WorkerExited(Frozen):
    """A worker is gone; `signal` is its name when one ended it."""

    event: Literal["worker_exited"] = "worker_exited"
    at_s: float
    pid: int
    exit_code: int | None
    signal: str | None
    stderr_tail: str | None = None


class ReadingsLost(Frozen):
    """A source of readings failed in mid-run; the run goes on without it."""

    event: Literal["readings_lost"] = "readings_lost"
    at_s: float
    source: str
    detail: str


class RunFinished(Frozen):
    """The last event of a run that could say goodbye."""

    event: Literal["run_finished"] = "run_finished"
    at_s: float
    status: RunStatus


Event = Annotated[
    RunStarted
    | RunResumed
    | WorkerReady
    | CeilingMeasured
    | CeilingFailed
    | MemoryForeseen
    | CellStarted
    | StageEntered
    | ModelBuilt
    | Compiled
    | StepMeasured
    | MemoryMeasured
    | StepChecked
    | Reading
    | GpuSimulated
    | PhaseMemoryMeasured
    | PeakMeasured
    | LargestAllocations
    | ModulesMeasured
    | VerdictReached
    | CandidateTried
    | LargestFound
    | SnapshotWritten
    | AttentionTimed
    | AttentionMemory
    | AttentionKernels
    | AttentionChecked
    | AttentionAccounted
    | SumMeasured
    | DtypesMeasured
    | NormMeasured
    | GradientsMeasured
    | ScaledBackward
    | ProductMeasured
    | TraceWritten
    | ProfileRead
    | CellFinished
    | WorkerExited
    | ReadingsLost
    | RunFinished,
    Field(discriminator="event"),
]

_EVENT: TypeAdapter[Event] = TypeAdapter(Event, config=ConfigDict(defer_build=True))


def build() -> None:
    """Build what reads events, which takes a tenth of a second, now and not for the first one."""
    _EVENT.rebuild()


def decode(line: bytes | str) -> Event:
    """The event that one line of JSON holds; raises pydantic.ValidationError when it holds none."""
    return _EVENT.validate_json(line)


def encode(event: Event) -> bytes:
    """One event as one line of JSON, without the newline."""
    return event.model_dump_json().encode()
