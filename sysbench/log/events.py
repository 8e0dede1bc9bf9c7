"""Events of a run: one frozen class per event, distinguished by the field `event`.

The worker reports what it does and measures; the engine adds its own readings and verdicts. All these events, in order,
form the log, from which all later output is computed. `at_s` is always in seconds since the epoch.
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, ValidationError, model_validator
from pydantic_core import PydanticSerializationError, from_json

from sysbench.command import Kind
from sysbench.log.outcomes import REASONS, Outcome, Reason, RunStatus
from sysbench.log.schema import SCHEMA_VERSION
from sysbench.spec.cell import DeviceType, spec_of
from sysbench.spec.frozen import Frozen
from sysbench.spec.quantities import (
    Amount,
    Bytes,
    Count,
    Finite,
    Flops,
    Instant,
    Number,
    PerSecond,
    PositiveSeconds,
    Seconds,
    Signed,
    Size,
    stored_unless,
)
from sysbench.spec.steps import Precision
from sysbench.spec.validation import first_error


def _check_command(fields: dict[str, object]) -> dict[str, object]:
    try:
        spec_of(fields)
    except ValidationError as error:
        raise ValueError(first_error(error)) from None
    return fields


WrittenSpec = Annotated[dict[str, Any], AfterValidator(_check_command)]
"""The spec of a run as its command stored it, in a form that can be read back."""


AnyRecord = TypeVar("AnyRecord", bound=Frozen)


class Event(Frozen):
    """Base class of events; the default of the field `event` is the name of the class in a log."""

    event: str
    at_s: Instant

    def as_record(self, kind: type[AnyRecord], **computed: object) -> AnyRecord:
        """Return the record that keeps this event: its fields that the record has too, and `computed` ones."""
        return kind(**{**self.fields_of(kind), **computed})

    def fields_of(self, kind: type[Frozen]) -> dict[str, object]:
        """Return the fields of this event that `kind` has too."""
        return self.model_dump(include=set(kind.model_fields))

    @classmethod
    def __pydantic_init_subclass__(cls, **arguments: object) -> None:
        """Register the class for `decode`."""
        super().__pydantic_init_subclass__(**arguments)
        EVENTS[cls.model_fields["event"].default] = cls


EVENTS: dict[str, type[Event]] = {}


class HostInfo(Frozen):
    """The machine that runs sysbench, as far as it can be described without torch."""

    hostname: str
    platform: str
    python: str
    cpu: str
    physical_cores: Count | None
    logical_cores: Count
    memory_bytes: Bytes
    container: bool
    commit: str | None
    """Git commit of sysbench's own checkout, with `-dirty` if it has changes; None for an installed wheel."""


class DeviceInfo(Frozen):
    """A device that can run cells."""

    name: str
    type: DeviceType
    index: Count = 0
    uuid: str | None = None
    memory_bytes: Bytes | None = None
    compute_capability: str | None = None
    multiprocessors: Count | None = None
    bf16: bool | None = None
    """Whether a CPU multiplies bf16 in hardware; None if unknown."""

    @property
    def torch_name(self) -> str:
        """torch's name for the device: `cuda:0`, `mps`, `cpu`."""
        return f"cuda:{self.index}" if self.type == "cuda" else self.type


class TorchInfo(Frozen):
    """The version and settings of torch in the worker."""

    torch: str
    cuda: str | None
    cudnn: str | None
    triton: str | None
    threads: Count
    allocator: str | None
    """Value of PYTORCH_CUDA_ALLOC_CONF or PYTORCH_ALLOC_CONF."""
    import_s: Seconds | None
    """None in the user's own process."""


Arm = Literal["A", "B"]
ARMS: tuple[Arm, ...] = get_args(Arm)


class Turn(Frozen):
    """The place of a run in a comparison that measures two arms in alternating rounds."""

    comparison: str
    """Name of the directory in which the comparison was made."""
    arm: Arm
    round: Size


class RunIdentity(Frozen):
    """What a log and its record say first: the code that measures, and what it was asked to measure."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Kind
    turn: Turn | None = stored_unless(None)
    """None for a run that is not part of a comparison."""
    sysbench_version: str
    source_digest: str
    """Hash of sysbench's own source: a log can only be resumed by the code that created it."""
    spec: WrittenSpec

    @model_validator(mode="after")
    def _check_spec_kind(self) -> Self:
        if self.spec["kind"] != self.kind:
            raise ValueError(f"its spec belongs to `sysbench {self.spec['kind']}`, not to `sysbench {self.kind}`")
        return self


class RunStarted(RunIdentity, Event):
    """First event of every log."""

    event: Literal["run_started"] = "run_started"
    host: HostInfo
    driver: str | None
    cells: Count


class RunResumed(Event):
    """An interrupted run continues; missing and failed cells are run."""

    event: Literal["run_resumed"] = "run_resumed"
    keep: Count


class WorkerReady(Event):
    """A worker has imported torch and lists its devices; `auto` means the first device."""

    event: Literal["worker_ready"] = "worker_ready"
    pid: Count
    torch: TorchInfo
    devices: list[DeviceInfo]


class ThreadsProbe(Frozen):
    """The number of CPU threads for the cells of a run that set none, and the times that it is based on."""

    default: Size
    """Number of threads that torch uses by default."""
    threads: Size
    """Chosen number; below the default only if other processes make the threads wait for each other."""
    mean_s: Annotated[list[tuple[Size, Seconds]], Field(min_length=1)]
    """Mean time of the same work by number of threads, in the order of trial."""

    @property
    def is_reduced(self) -> bool:
        """Whether fewer threads were chosen than torch uses by default."""
        return self.threads < self.default


class ThreadsProbed(ThreadsProbe, Event):
    """The threads of the run have been chosen, before its first cell on the CPU."""

    event: Literal["threads_probed"] = "threads_probed"


class Ceiling(Frozen):
    """Highest rate among matrix products of several sizes on a device, in FLOP/s, in this run or in an earlier one."""

    device: str
    precision: Precision
    threads: Size | None = stored_unless(None)
    matmul_flops_per_s: PerSecond
    matmul_size: Count
    """The product is (n, n) × (n, n)."""
    disturbed: bool = stored_unless(False)
    """Whether other processes slowed the products down: the rate is then no ceiling."""
    flops_per_s_now: PerSecond | None = stored_unless(None)
    """Rate in this run, if an earlier run saw a higher one."""


class CeilingMeasured(Ceiling, Event):
    """The ceiling of a device is known."""

    event: Literal["ceiling_measured"] = "ceiling_measured"
    seen_at_s: Instant | None = stored_unless(None)
    """When an earlier run saw this rate; None if this run saw it."""


class CeilingFailed(Event):
    """The matmul ceiling could not be measured; the run continues, and rates are not compared with it."""

    event: Literal["ceiling_failed"] = "ceiling_failed"
    device: str
    precision: Precision
    detail: str


class CellStarted(Event):
    """A cell starts; `index` is its position in the run, from 0.

    In a resumed run, this event invalidates all events of earlier attempts at the cell.
    """

    event: Literal["cell_started"] = "cell_started"
    cell: str
    index: Count
    axes: dict[str, Any]
    device: DeviceInfo
    host: str | None = stored_unless(None)
    keeps_steps: bool = stored_unless(False)
    """Whether the cell is continued: steps that an earlier attempt measured count, but not its warm-up."""


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


class StageEntered(Event):
    """The worker enters the next stage of a cell."""

    event: Literal["stage_entered"] = "stage_entered"
    cell: str
    stage: Stage


class PhaseEntered(Event):
    """A phase of a long step begins; sent between the timed windows of phases."""

    event: Literal["phase_entered"] = "phase_entered"
    cell: str
    phase: str


class ModelBuilt(Event):
    """The model, the optimizer and a batch have been created on the device."""

    event: Literal["model_built"] = "model_built"
    cell: str
    parameters: Count
    parameters_without_lm_head: Count
    build_s: Seconds
    fp32_precision: dict[str, str] = Field(default_factory=dict)
    """Precision in force for each kind of fp32 kernel: `{"matmul": "ieee", "convolution": "tf32", …}`."""
    precision_overridden: list[str] = Field(default_factory=list)
    """Kinds of kernels that the user's code had set to another precision than the cell's, before this was undone."""


class CodeFile(Frozen):
    """A file of the user's code that was imported, with its hash at the time of the import."""

    target: str
    """The reference as the user wrote it: `package.module:Class`."""
    path: str | None
    """None if the code is in a C module."""
    sha256: str | None


class OwnModelFacts(Frozen):
    """Facts about the user's model, as observed when it ran."""

    class_name: str
    config_class: str | None = stored_unless(None)
    """Class of the config that the model was built from: `GPTConfig` for `GPT(config)`; None if there is none."""
    parameters: Count
    """Shared parameters count once."""
    trainable_parameters: Count
    parameter_dtypes: dict[str, Count] = stored_unless({})
    """Parameters by dtype (`bfloat16`), most first; empty for a model without parameters."""
    ignored_dtype: str | None = stored_unless(None)
    """Dtype that a Hugging Face config names for trained weights, if the model was not built in it."""
    ignored_quantization: str | None = stored_unless(None)
    """Method of a Hugging Face config's quantization, if the model is built without it: `fp8`."""
    inputs: str
    """Source of the inputs: `get_inputs in gpt.py`, `token ids below 50257`."""
    loss: str | None
    """Source of the loss: `output.loss`, `cross entropy of the logits`; None in a mode without a loss."""
    tokens: Count | None
    """Tokens in one micro-batch of one rank; None if the inputs are not token ids."""
    flops: dict[str, Flops] | None
    """FLOPs of one micro-batch by phase, counted by operator in a simulated step; None if that was not possible."""
    uncounted: str | None
    assumed: list[str] = stored_unless([])
    """What a simulation assumed about values that it does not have: how many elements masks select."""
    run_eagerly: list[str] = stored_unless([])
    """Where the code asks for torch's compiler, `gpt.py:31`, which a simulation runs eagerly instead."""
    files: list[CodeFile]
    import_s: Seconds = 0.0
    printed: str
    """Beginning of the output that the code has printed so far."""

    @property
    def parameter_dtype(self) -> str | None:
        """Short name of the dtype that most parameters have: `bf16`; None for a model without parameters."""
        dtype = next(iter(self.parameter_dtypes), None)
        return {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}.get(dtype, dtype) if dtype else None


class OwnModelBuilt(OwnModelFacts, Event):
    """Facts about the user's model; sent once the model is built, and again after its first step if more is known."""

    event: Literal["own_model_built"] = "own_model_built"
    cell: str


class AdaptedModelFacts(Frozen):
    """Facts about the built-in model with adapters (LoRA), for whose costs there are no formulas."""

    parameters: Count
    trainable_parameters: Count
    flops: dict[str, Flops] | None


class AdaptedModelBuilt(AdaptedModelFacts, Event):
    """Facts about the built-in model with adapters; sent once it is built, and again if its FLOPs are known later."""

    event: Literal["adapted_model_built"] = "adapted_model_built"
    cell: str


class RecomputationCounted(Event):
    """FLOPs of one micro-batch that activation checkpointing computes again in backward, counted by operator."""

    event: Literal["recomputation_counted"] = "recomputation_counted"
    cell: str
    flops: Flops


class Compiled(Event):
    """torch.compile has run.

    `compile_s` is the time of the first steps, which include compilation; None in a simulation.
    """

    event: Literal["compiled"] = "compiled"
    cell: str
    compile_s: Seconds | None
    graphs: Count
    graph_breaks: Count
    fell_back: bool
    graphs_skipped: Count = stored_unless(0)
    """Number of compiled parts without a CUDA graph, although the cell asks for graphs."""
    detail: str | None = None
    breaks: list[str] = stored_unless([])
    """Where a simulation's compiler divided the step: `gpt.py:31`."""


class PhaseSample(Frozen):
    """Times of one phase of one step, in seconds.

    `wall_s` is read on the host between two synchronizations. `enqueue_s` is the time from the start of the phase until
    the host has launched everything (None on devices that execute synchronously). `device_s` is the time between two
    device events (None for devices without events). `processor_s` is the processor time of all threads of the process,
    where these compute the step (None elsewhere).
    """

    wall_s: PositiveSeconds | None
    enqueue_s: Seconds | None = None
    device_s: Seconds | None = None
    processor_s: Seconds | None = stored_unless(None)


class StepMeasured(Event):
    """One warm-up step or measured step.

    With `sync=phase` each phase has a wall time, and the wall time of `step` is their sum. With `sync=step` only `step`
    has a wall time; phases have device times if the device has events.
    """

    event: Literal["step_measured"] = "step_measured"
    cell: str
    index: Count
    """Index of the step from 0, counted separately for warm-up and measured steps."""
    warmup: bool
    phases: dict[str, PhaseSample]
    step: PhaseSample
    clock_jump_s: Finite = stored_unless(0.0)
    """By how much the wall clock went ahead of the clock that times the step, if by more than a second: the machine was
    suspended during the step, or its clock was set."""


class ProcessPeaks(Frozen):
    """Peak memory of one process over the measured steps; a field is None if the device does not report it."""

    allocated_peak_bytes: Bytes | None = None
    reserved_peak_bytes: Bytes | None = None
    host_rss_peak_bytes: Bytes | None = None
    """`ru_maxrss` of the process: its highest resident set size so far, including earlier cells."""


class MemoryMeasured(ProcessPeaks, Event):
    """The peak memory of the worker was read after the measured steps."""

    event: Literal["memory_measured"] = "memory_measured"
    cell: str


class StepChecked(Event):
    """Results of checks that the steps did real work; a field is None if the mode lacks the phase that it checks."""

    event: Literal["step_checked"] = "step_checked"
    cell: str
    gradients_present: bool | None
    parameters_changed: bool | None
    loss: Number | None
    attention_kernel: str | None
    """Operator that ran attention, for example `aten::_scaled_dot_product_flash_attention`."""


class ThreadsTried(Event):
    """Steps of a CPU cell, repeated on fewer threads: if they are faster, threads have been waiting for each other."""

    event: Literal["threads_tried"] = "threads_tried"
    cell: str
    before: Size
    threads: Size
    wall_s: Annotated[list[Seconds], Field(min_length=1)]


class StepEstimated(Event):
    """How long a step is expected to take here, according to a much smaller step with the same layers."""

    event: Literal["step_estimated"] = "step_estimated"
    cell: str
    step_s: PositiveSeconds
    max_time_s: PositiveSeconds | None = stored_unless(None)
    """Time limit of the cell; None without one."""


Ending = Literal["complete", "steady", "time"]
"""complete  all steps that were asked for were taken
steady    steps were steady, and the time was needed for steps that count
time      no other step fit into the time
"""


class ChosenEffort(Frozen):
    """Why a cell with a time limit took as many warm-up steps and steps as it did."""

    max_time_s: PositiveSeconds
    warmup_end: Ending
    steps_end: Ending

    @property
    def ends(self) -> tuple[Ending, Ending]:
        """Why the warm-up ended, and why the measured steps did."""
        return self.warmup_end, self.steps_end


class EffortChosen(ChosenEffort, Event):
    """A cell with a time limit has been measured."""

    event: Literal["effort_chosen"] = "effort_chosen"
    cell: str


class Reading(Event):
    """A sensor reading that the parent process takes from outside the worker; unknown values are None."""

    event: Literal["reading"] = "reading"
    host_rss_bytes: Bytes | None = None
    host_available_bytes: Bytes | None = None
    host_cpu_share: Amount | None = None
    """Share of all cores used by processes outside the worker's process tree: 0 to 1."""
    device_used_bytes: Bytes | None = None
    device_utilisation: Amount | None = None
    sm_clock_hz: Amount | None = None
    power_w: Amount | None = None
    temperature_c: Finite | None = None
    energy_j: Amount | None = None
    """A counter that only increases; only differences are meaningful."""
    throttle_reasons: list[str] | None = None
    other_processes: Count | None = None
    """Number of other users' processes on the GPU; read between cells only."""


Source = Literal["measured", "simulated"]


class SimulatedGpuRecord(Frozen):
    """The GPU that is simulated for a cell, and the memory assumed to be in use outside the allocator."""

    title: str
    memory_bytes: Bytes
    context_bytes: Bytes
    """Memory of the CUDA context, outside the allocator: the most that is assumed."""
    least_context_bytes: Bytes | None = stored_unless(None)
    """The least that is assumed. If less is missing than lies between the two, the step may fit."""
    other_bytes: Bytes
    nccl_bytes: Bytes = stored_unless(0)
    """Buffers of NCCL, outside the allocator: assumed. 0 for one rank."""
    settings: str
    torch: str | None = stored_unless(None)
    """Version of PyTorch whose allocations the simulation follows; None if there is no simulated step."""


class GpuSimulated(SimulatedGpuRecord, Event):
    """A GPU is simulated for a cell."""

    event: Literal["gpu_simulated"] = "gpu_simulated"
    cell: str


class CellOutcome(Frozen):
    """How a cell has ended, and why."""

    outcome: Outcome
    detail: str | None = None
    reason: Reason | None = Field(
        default_factory=lambda fields: REASONS.get(fields["outcome"]), exclude_if=lambda value: value is None
    )
    """Why the outcome is not `ok`, by default what the outcome implies; None for cells that were not run."""
    expected_s: Seconds | None = stored_unless(None)
    """Time that a cell skipped as `over-budget` would have taken."""


class CellFinished(CellOutcome, Event):
    """A cell has ended. If a cell has several CellFinished events, the last one counts.

    A cell that was not started (`skipped`, or `invalid` on this device) has no other events.
    """

    event: Literal["cell_finished"] = "cell_finished"
    cell: str
    traceback: str | None = None


def _decode_nested(value: object) -> object:
    if not isinstance(value, dict):
        return value
    kind = EVENTS.get(str(value.get("event")))
    if kind is None:
        raise ValueError(f"{value.get('event')} is not an event")
    return kind.model_validate(value)


class OfRank(Event):
    """An event of a rank other than 0, in a cell that several ranks run together; `said` is that event."""

    event: Literal["of_rank"] = "of_rank"
    cell: str
    rank: Size
    said: Annotated[SerializeAsAny[Event], BeforeValidator(_decode_nested)]


class WorkerExited(Event):
    """A worker has ended; `signal` is the name of the signal that ended it, if any.

    With several ranks, this is the worker that ended first; the engine then stopped the others.
    """

    event: Literal["worker_exited"] = "worker_exited"
    pid: Count
    rank: Count | None = stored_unless(None)
    exit_code: Signed | None
    signal: str | None
    stderr_tail: str | None = None
    lost: bool = stored_unless(False)
    """Whether the connection to the worker's node was lost, so that the exit status is unknown."""


class ReadingsLost(Event):
    """A source of sensor readings failed; the run continues without this source."""

    event: Literal["readings_lost"] = "readings_lost"
    source: str
    detail: str


class LineDamaged(Event):
    """Stands for a line of a log that is not an event; readers make it, no log has it."""

    event: Literal["line_damaged"] = "line_damaged"
    line: Size
    detail: str


class RunFinished(Event):
    """Last event of a run that ended normally."""

    event: Literal["run_finished"] = "run_finished"
    status: RunStatus


_BEFORE_NAME = b'{"event":"'


def event_name(line: bytes) -> str | None:
    """Return the name of the event on a line of a log, without parsing the line; None if it begins otherwise."""
    if not line.startswith(_BEFORE_NAME):
        return None
    return line[len(_BEFORE_NAME) : line.find(b'"', len(_BEFORE_NAME))].decode(errors="replace")


def decode(line: bytes) -> Event:
    """Decode one line of JSON; raises ValueError if the line is not an event."""
    name = event_name(line)
    if name is None:
        fields = from_json(line)
        name = str(fields.get("event")) if isinstance(fields, dict) else ""
    if name not in EVENTS:
        raise ValueError(f"{name} is not an event")
    return EVENTS[name].model_validate_json(line)


def encode(event: Event) -> bytes:
    """Encode an event as one line of JSON, without the newline. Half of a UTF-16 pair is written as \\ud800."""
    try:
        return event.model_dump_json().encode()
    except PydanticSerializationError:
        text = json.dumps(event.model_dump(), ensure_ascii=False, default=str)
        return _SURROGATE.sub(lambda found: f"\\\\u{ord(found[0]):04x}", text).encode()


_SURROGATE = re.compile(r"[\ud800-\udfff]")
